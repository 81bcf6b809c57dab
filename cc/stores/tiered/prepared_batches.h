// SPDX-License-Identifier: Apache-2.0
// Batches that a find has prepared for a write: their rows are in the cache, and new rows have
// room.
//
// A batch is identified by the sum of its key hashes. On a collision, a write takes an unprepared
// batch for prepared. It detects this, possibly after it has changed some rows.
//
// Thread-safe.
#ifndef TF_EMBED_CC_STORES_TIERED_PREPARED_BATCHES_H_
#define TF_EMBED_CC_STORES_TIERED_PREPARED_BATCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/batch/key_batch.h"

namespace tf_embed {

class PreparedBatches {
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
  // Called when rows have left the cache.
  void Forget() {
    for (std::atomic<uint64_t>& seen : sums_) seen.store(0, std::memory_order_relaxed);
  }

 private:
  // Bound on training finds before the first write of a step.
  static constexpr size_t kMost = 16;

  // Never 0.
  static uint64_t SumOf(const KeyBatch& batch) {
    uint64_t sum = batch.size;
    for (size_t i = 0; i < batch.size; ++i) sum += HashKey(batch.keys[i]);
    return sum | 1;
  }

  std::atomic<uint64_t> sums_[kMost] = {};
  std::atomic<uint32_t> next_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_TIERED_PREPARED_BATCHES_H_
