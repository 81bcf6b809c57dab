// SPDX-License-Identifier: Apache-2.0
// The changes of a store since earlier snapshots, and the rows that the snapshot in progress has
// yet to write. row_change.h defines the change word of a row; a store whose rows have it has a
// ChangeLog.
//
// A snapshot begins while no thread writes or notes uses, and represents that moment. Afterwards,
// each verb hands it a row that it wants before it changes the row or its statistics (Give), while
// it scans all other rows (StoreMaintenance::ExportSnapshot). It ends when it has all of both.
//
// Keys of removed rows are kept in order of removal, 8 bytes each, from the oldest period after
// which a snapshot can begin. All periods are forgotten if there are too many keys, if memory is
// short, or if a verb replaces the whole content. The next snapshot must then be full.
//
// Thread-safe. Begin, End and the verbs that replace everything keep writers out.
#ifndef TF_EMBED_CC_CORE_STORE_CHANGE_LOG_H_
#define TF_EMBED_CC_CORE_STORE_CHANGE_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/rows/row_change.h"
#include "cc/core/rows/whole_rows.h"

namespace tf_embed {

class ChangeLog {
 public:
  // Limit on removed keys, and on snapshots to begin after.
  static constexpr size_t kMaxLeft = size_t{1} << 24;
  static constexpr size_t kMaxMarks = 64;

  explicit ChangeLog(std::string store, size_t max_left = kMaxLeft)
      : store_(std::move(store)), max_left_(max_left) {}
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  // For verbs that write or note uses. Neither value changes during such a verb.
  uint32_t period() const { return period_.load(std::memory_order_relaxed); }
  WantedRows wanted() const {
    return {snapshot_.load(std::memory_order_relaxed), since_.load(std::memory_order_relaxed),
            until_.load(std::memory_order_relaxed)};
  }

  // Captures a row for the snapshot. `copy(row number, rows)` copies it into place, where its key
  // is already set, and says whether the snapshot gets it from the caller (RowChange::Take). If
  // memory is short, the snapshot fails.
  template <typename Copy>
  void Give(int64_t key, size_t weight_bytes, size_t slot_bytes, size_t num_statistics,
            Allocator* allocator, const Copy& copy) {
    const std::lock_guard<OrderedMutex> lock(mutex_);
    if (given_.empty() || given_.back().size >= given_.back().keys.size()) {
      if (!AddRoom(weight_bytes, slot_bytes, num_statistics, allocator)) return;
    }
    WholeRows& rows = given_.back();
    rows.keys[rows.size] = key;
    if (copy(rows.size, &rows)) ++rows.size;
  }
  // The same for rows that the caller has claimed for the snapshot (row_change.h).
  void Give(WholeRows rows);
  // Fails the snapshot in progress, because it lacks rows.
  void Fail(Status failure);
  // Records a removed key.
  void NoteLeft(int64_t key);
  // Records that the whole content was replaced. A snapshot in progress fails.
  void Forget(const char* why);

  // For snapshots. Begin and End REQUIRE no concurrent writes.

  // Begins a snapshot of the changes after the snapshot `since`; 0: of everything. Returns
  // kFailedPrecondition if those changes are unknown, or another snapshot is in progress.
  Status Begin(uint64_t since);
  // Whether the snapshot in progress can still succeed.
  Status Check() const;
  // Moves some of the captured rows to `rows`. Returns false if there are none.
  bool TakeGiven(WholeRows* rows);
  // The keys removed in the snapshot's periods, possibly repeated.
  Status KeysThatLeft(Buffer<int64_t>* keys, size_t* count) const;
  // Ends the snapshot. If it succeeded, later snapshots can begin after `save`; 0: it failed.
  void End(uint64_t save);
  // Records that the store holds exactly the rows of snapshot `save`. REQUIRES: no concurrent
  // writes.
  void NoteLoaded(uint64_t save);
  // Declares that no snapshot will begin after `save`.
  void Drop(uint64_t save);

 private:
  static constexpr size_t kTogether = 256;  // rows

  bool AddRoom(size_t weight_bytes, size_t slot_bytes, size_t num_statistics, Allocator* allocator)
      TF_EMBED_REQUIRES(mutex_);
  // The snapshot in progress has failed.
  void WantNothing() TF_EMBED_REQUIRES(mutex_);
  void ForgetPeriods() TF_EMBED_REQUIRES(mutex_);
  void AddMark(uint64_t save, uint32_t period) TF_EMBED_REQUIRES(mutex_);
  // Keys removed before the oldest mark are in no future snapshot.
  void DropLeft() TF_EMBED_REQUIRES(mutex_);

  const std::string store_;  // for messages
  const size_t max_left_;
  std::atomic<uint32_t> period_{1};
  std::atomic<uint32_t> snapshot_{0};  // number of the snapshot in progress
  std::atomic<uint32_t> since_{0};
  std::atomic<uint32_t> until_{0};

  mutable OrderedMutex mutex_{LockRank::kChanges};
  uint32_t last_snapshot_ TF_EMBED_GUARDED_BY(mutex_) = 0;
  Status failure_ TF_EMBED_GUARDED_BY(mutex_);
  // Keys of the present periods, so no snapshot can begin after this.
  bool forgot_ TF_EMBED_GUARDED_BY(mutex_) = false;
  std::vector<WholeRows> given_ TF_EMBED_GUARDED_BY(mutex_);
  // The last period of each snapshot.
  std::map<uint64_t, uint32_t> marks_ TF_EMBED_GUARDED_BY(mutex_);
  // Removed keys by period.
  std::map<uint32_t, std::vector<int64_t>> left_ TF_EMBED_GUARDED_BY(mutex_);
  size_t num_left_ TF_EMBED_GUARDED_BY(mutex_) = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_CHANGE_LOG_H_
