// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_groups.h"

namespace tf_embed {
namespace {

constexpr size_t kDistinctCost = 15;  // ns a key

}  // namespace

Status KeyGroups::Build(const ExecContext& context, const KeyBatch& batch, const bool* skip) {
  batch_ = batch;
  skip_ = skip;
  if (batch.distinct) return CheckBatchSize(batch.size);
  TF_EMBED_RETURN_IF_ERROR(partition_.Build(context, batch, skip));
  TF_EMBED_RETURN_IF_ERROR(positions_.Resize(partition_.size()));
  TF_EMBED_RETURN_IF_ERROR(runs_.Resize(partition_.size()));
  FirstFailure failure;
  const auto find_equal = [&](size_t begin, size_t end) {
    DistinctKeys distinct(allocator_);
    for (size_t part = begin; part < end && !failure.failed(); ++part) {
      const size_t first = partition_.first_record(part);
      Status status = distinct.Find(partition_.part(part), static_cast<uint32_t>(first),
                                    positions_.data() + first, runs_.data() + first);
      if (!status.ok()) return failure.Note(std::move(status));
    }
  };
  context.parallel_for(partition_.parts(), kDistinctCost * batch.size / partition_.parts(),
                       std::cref(find_equal));
  return failure.Take();
}

}  // namespace tf_embed
