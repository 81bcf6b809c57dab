// SPDX-License-Identifier: Apache-2.0
// The order in which rows leave a cache: roughly by their last use, the oldest first.
//
// The order is not exact, because a row has the same values in every tier. Time goes by in ticks,
// in each of which about a 32nd of the cache is replaced. About the oldest eighth of the rows is
// collected in one pass, and is used up by many calls. A row that was used since is passed over.
//
// Not thread-safe, but for EndTick.
#ifndef TF_EMBED_CC_TIERED_VICTIMS_H_
#define TF_EMBED_CC_TIERED_VICTIMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_cache.h"

namespace tf_embed {

class Victims {
 public:
  explicit Victims(Allocator* allocator)
      : allocator_(allocator), ranks_(allocator), marks_(allocator), exists_(allocator) {}

  // Rows that are used from now on are younger than all others. The cache may grow for kGrowthTicks
  // ticks without a call of Next.
  static constexpr int kGrowthTicks = 32;
  void EndTick(TableCache* cache) { cache->SetTick(++tick_ % RowMark::kTicks); }

  // Puts at most `count` keys of rows that may leave in `keys`, and whether they have changed since
  // they came from below in `changed`; none if there are no rows. Sets `*collected` to whether that
  // took a new pass over the cache. REQUIRES: `context` says what the caller holds of the cache;
  // EndTick comes before each call but a few.
  Status Next(const ExecContext& context, Table* cache, size_t count, int64_t* keys, bool* changed,
              size_t* found, bool* collected);

  bool IsOfThisTick(uint8_t mark) const { return RowMark::TickOf(mark) == tick(); }

  // Rows that were passed over are candidates again.
  void Forget() {
    ranks_.Clear();
    next_ = 0;
  }

 private:
  Status Collect(const ExecContext& context, Table* cache);
  uint8_t tick() const { return tick_ % RowMark::kTicks; }

  Allocator* const allocator_;
  std::atomic<uint64_t> tick_{0};
  uint64_t collected_at_ = 0;
  RankList ranks_;  // their scores are marks
  size_t next_ = 0;
  Buffer<uint8_t> marks_;
  Buffer<bool> exists_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERED_VICTIMS_H_
