#include "cc/core/key_groups.h"

#include <new>

namespace tf_embed {
namespace {

constexpr size_t kDistinctCost = 15;  // ns a key

}  // namespace

Status KeyGroups::Build(const ExecContext& context, const KeyBatch& batch, const bool* skip) {
  batch_ = batch;
  TF_EMBED_RETURN_IF_ERROR(partition_.Build(context, batch, skip));
  try {
    parts_.clear();
    parts_.reserve(partition_.parts());
    for (size_t part = 0; part < partition_.parts(); ++part) parts_.emplace_back(allocator_);
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory for the distinct keys of a batch."; });
  }
  if (!is_linked()) return parts_.front().Build(partition_.part(0));

  FirstFailure failure;
  const auto find_distinct = [&](size_t begin, size_t end) {
    for (size_t part = begin; part < end && !failure.failed(); ++part) {
      Status status = parts_[part].Build(partition_.part(part));
      if (!status.ok()) return failure.Note(std::move(status));
    }
  };
  context.parallel_for(parts_.size(), kDistinctCost * batch.size / parts_.size(),
                       std::cref(find_distinct));
  return failure.Take();
}

}  // namespace tf_embed
