// SPDX-License-Identifier: Apache-2.0
// The order in which rows leave a cache: approximately least recently used first.
//
// An approximate order suffices, because a row has the same values in every tier. Time advances in
// ticks, each of which replaces about a 32nd of the cache. A pass collects about the oldest eighth
// of the rows, which serves many calls. Rows used since are skipped.
//
// Not thread-safe, except EndTick.
#ifndef TF_EMBED_CC_STORES_TIERED_VICTIMS_H_
#define TF_EMBED_CC_STORES_TIERED_VICTIMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/store/store.h"
#include "cc/core/store/store_cache.h"

namespace tf_embed {

class Victims {
 public:
  explicit Victims(Allocator* allocator)
      : allocator_(allocator), ranks_(allocator), marks_(allocator), exists_(allocator) {}

  // Rows used from now on are younger than all others. The cache may grow for kGrowthTicks ticks
  // between calls of Next.
  static constexpr int kGrowthTicks = 32;
  void EndTick(StoreCache* cache) { cache->SetTick(++tick_ % RowMark::kTicks); }

  // Writes at most `count` keys of rows that may leave to `keys`; writes none if there are no rows.
  // `changed` says whether each changed since it was promoted. `*collected` says whether this call
  // made a new pass. REQUIRES: `context` states the caller's locks on the cache; EndTick precedes
  // almost every call.
  Status Next(const ExecContext& context, Store* cache, size_t count, int64_t* keys, bool* changed,
              size_t* found, bool* collected);

  bool IsOfThisTick(uint8_t mark) const { return RowMark::TickOf(mark) == tick(); }

  // Makes skipped rows candidates again.
  void Forget() {
    ranks_.Clear();
    next_ = 0;
  }

 private:
  Status Collect(const ExecContext& context, Store* cache);
  uint8_t tick() const { return tick_ % RowMark::kTicks; }

  Allocator* const allocator_;
  std::atomic<uint64_t> tick_{0};
  uint64_t collected_at_ = 0;
  RankList ranks_;  // scored by mark
  size_t next_ = 0;
  Buffer<uint8_t> marks_;
  Buffer<bool> exists_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_TIERED_VICTIMS_H_
