// SPDX-License-Identifier: Apache-2.0
// Rows below a cache. A TieredTable keeps the rows that it works on in a table, its cache, and all
// others in a BackingStore, which computes nothing: it takes whole rows and gives them back.
//
// A row of the store is *cold* if the cache has no copy of it, and *shared* if the cache has one.
// The cache's copy is the current one, and the cache knows whether it has changed. An unchanged
// copy need not be written again when it leaves the cache.
//
// Rows have weights, slots of the compute type, and statistics. The last are kept in memory,
// whatever the medium, because the rules by which rows leave a table need those of all rows.
//
// Thread safety: any thread may call any verb at any time. The keys of a call are distinct.
#ifndef TF_EMBED_CC_CORE_TABLE_BACKING_STORE_H_
#define TF_EMBED_CC_CORE_TABLE_BACKING_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/rows/linked_rows.h"
#include "cc/core/rows/row_change.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/rules/rule_slots.h"
#include "cc/core/table/table.h"

namespace tf_embed {

struct BackingStoreStats {
  uint64_t rows = 0;             // cold and shared ones
  uint64_t shared_rows = 0;      // those in the cache as well
  uint64_t index_bytes = 0;      // of memory
  uint64_t buffer_bytes = 0;     // of memory, for rows that wait to be written
  uint64_t live_bytes = 0;       // of rows that are here, on the disk or waiting
  uint64_t host_rows = 0;        // of the rows, those in host memory
  uint64_t host_bytes = 0;       // of the live bytes, those of these rows
  uint64_t disk_bytes = 0;       // of files, garbage included
  uint64_t rows_read = 0;        // rows that Get read from the disk
  uint64_t bytes_read = 0;       // from the disk, for Get
  uint64_t rows_written = 0;     // rows that Put took for the disk
  uint64_t bytes_written = 0;    // to the disk, for Put
  uint64_t compacted_bytes = 0;  // read and written by compaction
  uint64_t read_requests = 0;    // blocks that Get asked the disk for
  uint64_t max_queue_depth = 0;  // the most requests that were under way at once
};

class BackingStore {
 public:
  virtual ~BackingStore() = default;

  virtual size_t size() const = 0;
  virtual size_t shared() const = 0;

  // Tells which keys are here, in `exists` [count].
  virtual void Contains(const int64_t* keys, size_t count, bool* exists) const = 0;

  // The state of rows after a verb.
  enum class After : uint8_t {
    kCold,    // Get: as they were before
    kShared,  // the cache has them too, or the caller puts them there now
  };
  // Copies the rows of those keys that are here to `rows`, in any order, and leaves out the others.
  // On failure no row has become shared.
  virtual Status Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
                     WholeRows* rows) = 0;

  // Takes rows; a row of a key that is here is replaced. On failure some of them may be here, each
  // of them whole; the caller keeps its copies and may put them again. kResourceExhausted if there
  // is no space. A store that is short of memory may forget shared rows of other keys meanwhile.
  virtual Status Put(const ExecContext& context, const WholeRows& rows, After after) = 0;
  Status Put(const ExecContext& context, const WholeRows& rows) {
    return Put(context, rows, After::kCold);
  }

  // The cache has dropped its unchanged copies of shared rows: they are cold now, with these
  // statistics; null: with those that they had. Keys that are not here are passed over.
  virtual void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) = 0;

  // Removes keys. Absent ones are no error, and a key may come twice. Can't fail.
  virtual void Erase(const int64_t* keys, size_t count) = 0;

  // Of a cold row, copies the statistics, or sets those of use that both the rows and `set` have.
  // False if there is none.
  virtual bool FindStatistics(int64_t key, uint64_t* statistics) const = 0;
  virtual bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) = 0;

  // RowChange::Take, of a cold row. False if there is none.
  virtual bool TakeForSnapshot(int64_t key, const WantedRows& wanted) = 0;

  // For a snapshot that links files of the store. Links the next file from the cursor on that is
  // whole and of whose rows the snapshot wants at least half, puts its number in `rows->file`, and
  // moves the cursor there. If there is none, the cursor is done.
  virtual Status LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                          LinkedRows* rows) {
    (void)wanted, (void)linker, (void)rows;
    cursor->done = true;
    return Status();
  }
  // RowChange::Take, of some cold rows of that file: those that the snapshot wants, or all if there
  // is none. Moves the cursor. REQUIRES: no row comes up or leaves.
  virtual Status TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) {
    (void)wanted, (void)cursor;
    rows->size = 0;
    rows->ended = true;
    return Status();
  }

  // As TableEviction's and PlannedRows', of cold rows.
  virtual Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                              RankList* ranks, size_t* below) const = 0;
  virtual Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                             RankList* expired) = 0;

  // Puts some cold rows in `rows`, in an unspecified order, and moves the cursor. About `max_rows`.
  // Each key comes once while no row comes, leaves or changes between cold and shared, and no
  // Compact runs. Whatever else happens, a key comes that is cold from the first call to the last.
  // A cursor has 63 bits.
  // Rows that a snapshot does not want may be left out, so that nothing is read for them; without a
  // snapshot all are wanted.
  virtual Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
                      WholeRows* rows) const = 0;
  Status Scan(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const {
    return Scan(max_rows, WantedRows(), cursor, rows);
  }

  // Rows have the slots of another rule from now on, which are initial ones, as
  // TableMaintenance::SetRule has it. Calls `change_cache` when nothing can fail here any more, and
  // changes nothing if that fails. One call at a time.
  virtual Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) = 0;
  Status SetRule(const RuleSlots& rule) {
    return SetRule(rule, [] { return Status(); });
  }

  // Removes all keys and gives the space back.
  virtual Status Clear() = 0;

  // Gives back the space of rows that were erased or replaced, as much as there is.
  virtual Status Compact(const ExecContext& context) = 0;

  virtual BackingStoreStats Stats() const = 0;

  // The store, for messages: "the folder '/mnt/rows/items-0'".
  virtual const std::string& name() const = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_BACKING_STORE_H_
