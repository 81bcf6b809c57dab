// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_partition.h"

#include <algorithm>
#include <functional>

namespace tf_embed {
namespace {

// A smaller batch is one part: waking threads costs more than it gains.
constexpr size_t kSmallBatch = 4096;
// Parts of this size are numerous enough to share out evenly, and stay in the first caches.
constexpr size_t kPartSize = 1024;
constexpr size_t kChunkSize = 1024;
constexpr size_t kKeyCost = 5;  // ns

int PartBits(size_t size) {
  if (size <= kSmallBatch) return 0;
  int bits = 0;
  while (bits < KeyPartition::kMaxPartBits && (size >> bits) > kPartSize) ++bits;
  return bits;
}

}  // namespace

Status KeyPartition::Build(const ExecContext& context, const KeyBatch& batch, const bool* skip) {
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(batch.size));
  batch_ = batch;
  skip_ = skip;
  bits_ = PartBits(batch.size);
  chunk_size_ = bits_ == 0 ? std::max<size_t>(batch.size, 1) : kChunkSize;
  chunks_ = std::max<size_t>((batch.size + chunk_size_ - 1) / chunk_size_, 1);
  const size_t cells = parts() * chunks_;
  TF_EMBED_RETURN_IF_ERROR(records_.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(offsets_.Resize(cells + 1));

  // A chunk counts in its own array: in `offsets_`, concurrent chunks would share cache lines.
  const auto for_each_chunk = [&](const auto& visit) {
    const auto run = [&](size_t begin, size_t end) {
      for (size_t chunk = begin; chunk < end; ++chunk) visit(chunk);
    };
    context.parallel_for(chunks_, kKeyCost * chunk_size_, std::cref(run));
  };
  const auto for_each_key = [&](size_t chunk, const auto& visit) {
    const size_t end = std::min((chunk + 1) * chunk_size_, batch.size);
    for (size_t i = chunk * chunk_size_; i < end; ++i) {
      const size_t position = batch.Position(i);
      if (skip != nullptr && skip[position]) continue;
      visit(batch.keys[i], position);
    }
  };

  for_each_chunk([&](size_t chunk) {
    uint32_t counts[kMaxParts] = {};
    for_each_key(chunk, [&](int64_t key, size_t) { ++counts[PartOf(key)]; });
    for (size_t part = 0; part < parts(); ++part) offsets_[part * chunks_ + chunk] = counts[part];
  });
  uint32_t begin = 0;
  for (size_t cell = 0; cell < cells; ++cell) {
    const uint32_t count = offsets_[cell];
    offsets_[cell] = begin;
    begin += count;
  }
  offsets_[cells] = begin;
  for_each_chunk([&](size_t chunk) {
    uint32_t next[kMaxParts];
    for (size_t part = 0; part < parts(); ++part) next[part] = offsets_[part * chunks_ + chunk];
    for_each_key(chunk, [&](int64_t key, size_t position) {
      records_[next[PartOf(key)]++] = KeyRecord{key, static_cast<uint32_t>(position)};
    });
  });
  return Status();
}

}  // namespace tf_embed
