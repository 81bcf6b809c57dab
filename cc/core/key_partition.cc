#include "cc/core/key_partition.h"

#include <algorithm>
#include <functional>
#include <string>

#include "cc/core/hash.h"

namespace tf_embed {
namespace {

// Below this a batch is one part: waking threads costs more than they bring.
constexpr size_t kSmallBatch = 4096;
// Parts of this size are many enough to share out evenly, and stay in the first caches.
constexpr size_t kPartSize = 1024;
constexpr int kMostPartBits = 6;  // at most as many as a table's stripes
constexpr size_t kChunkSize = 16384;
constexpr size_t kKeyCost = 5;  // ns

int PartBits(size_t size) {
  if (size <= kSmallBatch) return 0;
  int bits = 0;
  while (bits < kMostPartBits && (size >> bits) > kPartSize) ++bits;
  return bits;
}

size_t PartOf(int64_t key, int bits) { return bits == 0 ? 0 : HashKey(key) >> (64 - bits); }

}  // namespace

Status KeyPartition::Build(const ExecContext& context, const KeyBatch& batch, const bool* skip) {
  if (batch.size > kMaxBatchSize) {
    return Status::InvalidArgument("A batch may have at most " + std::to_string(kMaxBatchSize) +
                                   " keys. Received: " + std::to_string(batch.size) + ".");
  }
  const int bits = PartBits(batch.size);
  parts_ = size_t{1} << bits;
  const size_t chunk_size = bits == 0 ? std::max<size_t>(batch.size, 1) : kChunkSize;
  chunks_ = std::max<size_t>((batch.size + chunk_size - 1) / chunk_size, 1);
  TF_EMBED_RETURN_IF_ERROR(records_.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(offsets_.Resize(parts_ * chunks_ + 1));
  std::fill(offsets_.data(), offsets_.data() + parts_ * chunks_ + 1, 0);

  const auto for_each_key = [&](size_t chunk, const auto& visit) {
    const size_t end = std::min((chunk + 1) * chunk_size, batch.size);
    for (size_t i = chunk * chunk_size; i < end; ++i) {
      const size_t position = batch.Position(i);
      if (skip != nullptr && skip[position]) continue;
      visit(batch.keys[i], position, PartOf(batch.keys[i], bits) * chunks_ + chunk);
    }
  };
  const auto over_chunks = [&](const auto& visit) {
    const auto run = [&](size_t begin, size_t end) {
      for (size_t chunk = begin; chunk < end; ++chunk) for_each_key(chunk, visit);
    };
    context.parallel_for(chunks_, kKeyCost * chunk_size, std::cref(run));
  };

  over_chunks([&](int64_t, size_t, size_t cell) { ++offsets_[cell]; });
  uint32_t begin = 0;
  for (size_t cell = 0; cell <= parts_ * chunks_; ++cell) {
    const uint32_t count = offsets_[cell];
    offsets_[cell] = begin;
    begin += count;
  }
  // Each cell's offset moves on to the next cell's as its records are written ...
  over_chunks([&](int64_t key, size_t position, size_t cell) {
    records_[offsets_[cell]++] = KeyRecord{key, static_cast<uint32_t>(position)};
  });
  // ... and moves back.
  for (size_t cell = parts_ * chunks_; cell > 0; --cell) offsets_[cell] = offsets_[cell - 1];
  offsets_[0] = 0;
  return Status();
}

}  // namespace tf_embed
