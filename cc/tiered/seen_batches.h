// SPDX-License-Identifier: Apache-2.0
// The batches that a find has made ready for a write: their rows are in the cache, and there is
// room for those that are new.
//
// A batch is known by the sum of the hashes of its keys. Two batches may have one sum; then a write
// that takes its batch for ready finds out that it is not, when it may have changed some rows.
//
// Thread-safe.
#ifndef TF_EMBED_CC_TIERED_SEEN_BATCHES_H_
#define TF_EMBED_CC_TIERED_SEEN_BATCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/batch/key_batch.h"

namespace tf_embed {

class SeenBatches {
 public:
  void Note(const KeyBatch& batch) {
    const uint32_t place = next_.fetch_add(1, std::memory_order_relaxed) % kMost;
    sums_[place].store(SumOf(batch), std::memory_order_relaxed);
  }
  bool Has(const KeyBatch& batch) const {
    const uint64_t sum = SumOf(batch);
    bool found = false;
    for (const std::atomic<uint64_t>& seen : sums_) {
      found = found || seen.load(std::memory_order_relaxed) == sum;
    }
    return found;
  }
  // Rows have left the cache.
  void Forget() {
    for (std::atomic<uint64_t>& seen : sums_) seen.store(0, std::memory_order_relaxed);
  }

 private:
  // As many as finds of training may come before the first write of a step.
  static constexpr size_t kMost = 16;

  // Not 0.
  static uint64_t SumOf(const KeyBatch& batch) {
    uint64_t sum = batch.size;
    for (size_t i = 0; i < batch.size; ++i) sum += HashKey(batch.keys[i]);
    return sum | 1;
  }

  std::atomic<uint64_t> sums_[kMost] = {};
  std::atomic<uint32_t> next_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERED_SEEN_BATCHES_H_
