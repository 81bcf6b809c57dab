// SPDX-License-Identifier: Apache-2.0
// The mark of a row in a cache: one byte beside the rows, by row id.
//
//     mark = | tick of the last use : 7 | changed since it was promoted : 1 |
//
// The cache says when a tick ends. Ticks wrap around, so the caller that sets them must ensure that
// no row is kOldest ticks old (StoreCache::CollectAges).
//
// A byte takes an eighth of the cache lines of a statistic, which is a 64-bit word, and it is
// written once in a tick. So the marks of rows in use stay in the caches of the processor.
#ifndef TF_EMBED_CC_CORE_ROWS_ROW_MARK_H_
#define TF_EMBED_CC_CORE_ROWS_ROW_MARK_H_

#include <atomic>
#include <cstdint>

#include "cc/core/base/platform.h"

namespace tf_embed {

struct RowMark {
  using Byte = std::atomic<uint8_t>;

  static constexpr uint8_t kTicks = 128;
  // Older rows count as this old.
  static constexpr uint8_t kOldest = 64;
  static constexpr uint8_t kChanged = 1;

  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint8_t Of(uint8_t tick, bool changed) {
    return static_cast<uint8_t>(tick << 1 | (changed ? kChanged : 0));
  }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint8_t TickOf(uint8_t mark) { return mark >> 1; }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE bool IsChanged(uint8_t mark) {
    return (mark & kChanged) != 0;
  }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint8_t Age(uint8_t mark, uint8_t tick) {
    return static_cast<uint8_t>(tick - TickOf(mark)) % kTicks;
  }

  // Notes a use. Any thread may call it at any time, even while another thread changes the row.
  static TF_EMBED_INLINE void Use(Byte* byte, uint8_t tick) {
    uint8_t mark = byte->load(std::memory_order_relaxed);
    if (TickOf(mark) == tick) return;
    // Fails if another thread has noted a use or a change, which is just as good.
    byte->compare_exchange_strong(mark, Of(tick, IsChanged(mark)), std::memory_order_relaxed);
  }
  // Only sets the bit. If a row is marked as unchanged and then copied, a writer marks the changes
  // that the copy lacks: the writer locks the row before it looks at the mark, and the copy waits
  // for the lock.
  static TF_EMBED_INLINE void SetChanged(Byte* byte, bool changed) {
    if (changed) {
      byte->fetch_or(kChanged, std::memory_order_seq_cst);
    } else {
      byte->fetch_and(static_cast<uint8_t>(~kChanged), std::memory_order_seq_cst);
    }
  }
  // Notes a change. REQUIRES: the lock of the row, or no other thread sees it yet.
  static TF_EMBED_INLINE void Change(Byte* byte, uint8_t tick) {
    if (byte->load(std::memory_order_relaxed) == Of(tick, true)) return;
    byte->store(Of(tick, true), std::memory_order_relaxed);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_ROW_MARK_H_
