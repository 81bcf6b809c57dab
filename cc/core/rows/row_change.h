// SPDX-License-Identifier: Apache-2.0
// The word of a row about snapshots: the statistic kChange.
//
//     word = | number of the last snapshot that has the row : 32 | period of its last change : 32 |
//
// Snapshots divide time into periods: each snapshot ends a period. A snapshot of the periods after
// `since` up to `until` has the rows whose last change lies in these periods. Until it is finished,
// writers are in the next period. So a row that is still as it was in `until` has an older period
// in its word. The first thread that is about to change or use it, or to write it down, copies it
// and then puts the number of the snapshot there by an atomic exchange. So the snapshot gets each
// row once, with its statistics: a thread that finds the number there knows that the copy is
// complete. A device puts the number there first, and launches no use or change before the copy has
// arrived.
#ifndef TF_EMBED_CC_CORE_ROWS_ROW_CHANGE_H_
#define TF_EMBED_CC_CORE_ROWS_ROW_CHANGE_H_

#include <atomic>
#include <cstdint>

#include "cc/core/base/platform.h"

namespace tf_embed {

// The rows that a snapshot in progress wants; without a snapshot, none.
struct WantedRows {
  uint32_t snapshot = 0;  // its number; 0: no snapshot
  uint32_t since = 0;
  uint32_t until = 0;
};

struct RowChange {
  using Word = std::atomic<uint64_t>;

  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t Of(uint32_t snapshot, uint32_t period) {
    return uint64_t{snapshot} << 32 | period;
  }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint32_t PeriodOf(uint64_t word) {
    return static_cast<uint32_t>(word);
  }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint32_t SnapshotOf(uint64_t word) {
    return static_cast<uint32_t>(word >> 32);
  }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE bool IsWanted(uint64_t word,
                                                            const WantedRows& wanted) {
    return wanted.snapshot != 0 && SnapshotOf(word) != wanted.snapshot &&
           PeriodOf(word) > wanted.since && PeriodOf(word) <= wanted.until;
  }

  // Records that the snapshot has the row from now on. False: the snapshot does not want it, or
  // another thread gave it. REQUIRES: the caller has copied the row.
  static bool Take(Word* word, const WantedRows& wanted) {
    uint64_t present = word->load(std::memory_order_acquire);
    return IsWanted(present, wanted) &&
           word->compare_exchange_strong(present, Of(wanted.snapshot, PeriodOf(present)),
                                         std::memory_order_acq_rel);
  }
  // Notes a change in a period. REQUIRES: the lock of the row; the snapshot has the row if it wants
  // it.
  static void Note(Word* word, uint32_t period) {
    uint64_t present = word->load(std::memory_order_relaxed);
    while (!word->compare_exchange_weak(present, Of(SnapshotOf(present), period),
                                        std::memory_order_acq_rel)) {
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_ROW_CHANGE_H_
