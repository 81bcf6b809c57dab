// SPDX-License-Identifier: Apache-2.0
// The changes of a table since earlier snapshots, and the rows that a snapshot under way still has
// to write. row_change.h has the word of a row; a table whose rows have it has a ChangeLog.
//
// A snapshot begins while no thread writes: that is its moment. Then writers go on, and give it
// each row that it wants before they change that (Give), while the snapshot scans all other rows
// (TableMaintenance::ExportSnapshot). It ends when it has seen all of them, and the rows given
// meanwhile.
//
// Keys that left are kept in the order in which they left, 8 bytes each, from the oldest period
// that a snapshot can begin after. If there are too many, or there is no memory, or a verb replaces
// the whole content, all periods are forgotten: the next snapshot must be a whole one.
//
// Thread safety: any thread may call anything. Begin, End and the verbs that replace everything
// keep writers out.
#ifndef TF_EMBED_CC_CORE_TABLE_CHANGE_LOG_H_
#define TF_EMBED_CC_CORE_TABLE_CHANGE_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/rows/row_change.h"
#include "cc/core/rows/whole_rows.h"

namespace tf_embed {

class ChangeLog {
 public:
  // More keys that left than these are not remembered, nor more snapshots to begin after.
  static constexpr size_t kMaxLeft = size_t{1} << 24;
  static constexpr size_t kMaxMarks = 64;

  explicit ChangeLog(std::string table, size_t max_left = kMaxLeft)
      : table_(std::move(table)), max_left_(max_left) {}
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  // For verbs that write. Neither changes while one is inside.
  uint32_t period() const { return period_.load(std::memory_order_relaxed); }
  WantedRows wanted() const {
    return {snapshot_.load(std::memory_order_relaxed), since_.load(std::memory_order_relaxed),
            until_.load(std::memory_order_relaxed)};
  }

  // Takes a row for the snapshot. `copy(row number, rows)` puts it in its place; its key is set. If
  // there is no memory for it, the snapshot has failed.
  template <typename Copy>
  void Give(int64_t key, size_t weight_bytes, size_t slot_bytes, size_t num_statistics,
            Allocator* allocator, const Copy& copy) {
    const std::lock_guard<OrderedMutex> lock(mutex_);
    if (given_.empty() || given_.back().size == kTogether) {
      if (!AddRoom(weight_bytes, slot_bytes, num_statistics, allocator)) return;
    }
    WholeRows& rows = given_.back();
    rows.keys[rows.size] = key;
    copy(rows.size, &rows);
    ++rows.size;
  }
  // A key has left the table.
  void NoteLeft(int64_t key);
  // The whole content is another one now. A snapshot under way has failed.
  void Forget(const char* why);

  // For snapshots. Begin and End: REQUIRE that no thread writes.

  // Begins a snapshot of the changes after the snapshot `since`; 0: of everything.
  // kFailedPrecondition if the table does not know the changes since then, or another one is under
  // way.
  Status Begin(uint64_t since);
  // Whether the one under way can still succeed.
  Status Check() const;
  // Moves rows that were given, some of them, to `rows`. False: there are none.
  bool TakeGiven(WholeRows* rows);
  // The keys that left in the snapshot's periods, each perhaps several times.
  Status KeysThatLeft(Buffer<int64_t>* keys, size_t* count) const;
  // The snapshot is over. If it is `whole`, later ones can begin after `save`; 0: it came to
  // nothing.
  void End(uint64_t save);
  // The table holds exactly the rows of the snapshot `save`. REQUIRES: no thread writes.
  void NoteLoaded(uint64_t save);
  // No snapshot will begin after `save`.
  void Drop(uint64_t save);

 private:
  static constexpr size_t kTogether = 256;  // rows

  bool AddRoom(size_t weight_bytes, size_t slot_bytes, size_t num_statistics, Allocator* allocator);
  void ForgetPeriods();
  void AddMark(uint64_t save, uint32_t period);
  // Keys that left before the oldest mark are in no snapshot to come.
  void DropLeft();

  const std::string table_;  // for messages
  const size_t max_left_;
  std::atomic<uint32_t> period_{1};
  std::atomic<uint32_t> snapshot_{0};  // the number of the one under way
  std::atomic<uint32_t> since_{0};
  std::atomic<uint32_t> until_{0};

  mutable OrderedMutex mutex_{LockRank::kChanges};
  uint32_t last_snapshot_ = 0;
  Status failure_;
  bool forgot_ = false;  // keys that left in the present periods, so none can begin after this one
  std::vector<WholeRows> given_;
  std::map<uint64_t, uint32_t> marks_;  // the last period of each snapshot
  // Keys by the period in which they left.
  std::map<uint32_t, std::vector<int64_t>> left_;
  size_t num_left_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_CHANGE_LOG_H_
