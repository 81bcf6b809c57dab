// SPDX-License-Identifier: Apache-2.0
// Rows below a cache. A TieredStore keeps its working set in a cache, itself a store, and all other
// rows in a LowerTier. The tier computes nothing: it takes and returns whole rows.
//
// A row of the tier is *cold* if the cache has no copy of it, and *shared* if it has a copy. The
// cache's copy is then the current row, and the cache tracks whether it has changed. An unchanged
// copy need not be written again when it leaves the cache.
//
// Rows have weights, slots of the compute type, and statistics. Statistics are in memory for every
// medium, because eviction needs the statistics of all rows.
//
// Thread-safe. REQUIRES: the keys of a call are distinct.
#ifndef TF_EMBED_CC_CORE_STORE_LOWER_TIER_H_
#define TF_EMBED_CC_CORE_STORE_LOWER_TIER_H_

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
#include "cc/core/store/store.h"

namespace tf_embed {

struct LowerTierStats {
  uint64_t rows = 0;             // cold and shared rows
  uint64_t shared_rows = 0;      // also in the cache
  uint64_t index_bytes = 0;      // of memory
  uint64_t buffer_bytes = 0;     // of memory, for rows not yet written
  uint64_t live_bytes = 0;       // of present rows, on disk or buffered
  uint64_t host_rows = 0;        // rows in host memory
  uint64_t host_bytes = 0;       // live bytes of these rows
  uint64_t disk_bytes = 0;       // of files, garbage included
  uint64_t rows_read = 0;        // rows that Get read from the disk
  uint64_t bytes_read = 0;       // from the disk, for Get
  uint64_t rows_written = 0;     // rows that Put took for the disk
  uint64_t bytes_written = 0;    // to the disk, for Put
  uint64_t compacted_bytes = 0;  // read and written by compaction
  uint64_t read_requests = 0;    // blocks that Get asked the disk for
  uint64_t max_queue_depth = 0;  // highest number of concurrent requests
};

class LowerTier {
 public:
  virtual ~LowerTier() = default;

  virtual size_t size() const = 0;
  virtual size_t shared() const = 0;

  // Sets `exists` [count] to whether each key is present.
  virtual void Contains(const int64_t* keys, size_t count, bool* exists) const = 0;

  // The state of rows after a verb.
  enum class After : uint8_t {
    kCold,    // Get: as they were before
    kShared,  // the cache has them too, or the caller puts them there now
  };
  // Copies the rows of present keys to `rows`, in any order. On failure no row has become shared.
  virtual Status Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
                     WholeRows* rows) = 0;

  // Stores rows, and replaces present rows. After a failure some of them may be stored, each
  // completely; the caller keeps its copies and may retry. Returns kResourceExhausted if there is
  // no space. A tier short of memory may drop shared rows of other keys meanwhile.
  virtual Status Put(const ExecContext& context, const WholeRows& rows, After after) = 0;
  Status Put(const ExecContext& context, const WholeRows& rows) {
    return Put(context, rows, After::kCold);
  }

  // Makes shared rows cold, because the cache has dropped its unchanged copies. Sets their
  // statistics, unless null. Skips absent keys.
  virtual void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) = 0;

  // Removes keys, which may be absent or repeated. Can't fail.
  virtual void Erase(const int64_t* keys, size_t count) = 0;

  // Copies the statistics of a cold row, or sets the usage statistics that both the rows and `set`
  // have. Returns false if there is no such row.
  virtual bool FindStatistics(int64_t key, uint64_t* statistics) const = 0;
  virtual bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) = 0;

  // RowStatistics::Use for a cold row. Returns false if there is none.
  virtual bool NoteUse(int64_t key, const Moment& now) = 0;

  // RowChange::Take for a cold row. Returns false if there is none.
  virtual bool TakeForSnapshot(int64_t key, const WantedRows& wanted) = 0;

  // For a snapshot that links files of the tier. From the cursor on, links the next complete file
  // of which the snapshot wants at least half of the rows. Sets `rows->file` to its number, and
  // moves the cursor to it. If there is none, the cursor is done.
  virtual Status LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                          LinkedRows* rows) {
    (void)wanted, (void)linker, (void)rows;
    cursor->done = true;
    return Status();
  }
  // RowChange::Take for some cold rows of that file: the rows that the snapshot wants, or all
  // without a snapshot. Moves the cursor. REQUIRES: no row is promoted or removed.
  virtual Status TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) {
    (void)wanted, (void)cursor;
    rows->size = 0;
    rows->ended = true;
    return Status();
  }

  // As in StoreEviction and PlannedRows, for cold rows.
  virtual Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                              RankList* ranks, size_t* below) const = 0;
  virtual Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                             RankList* expired) = 0;

  // Copies about `max_rows` cold rows to `rows`, in an unspecified order, and moves the cursor,
  // which has 63 bits. Copies each key once if no row is added, removed, or changed between cold
  // and shared, and no Compact runs. In any case, copies each key that is cold throughout. May
  // skip, without a read, rows that a snapshot does not want; without a snapshot all are wanted.
  virtual Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
                      WholeRows* rows) const = 0;
  Status Scan(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const {
    return Scan(max_rows, WantedRows(), cursor, rows);
  }

  // Gives rows the initial slots of another rule, as StoreMaintenance::SetRule does. Calls
  // `change_cache` once nothing can fail here, and changes nothing if that fails. REQUIRES: no
  // concurrent SetRule.
  virtual Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) = 0;
  Status SetRule(const RuleSlots& rule) {
    return SetRule(rule, [] { return Status(); });
  }

  // Removes all keys and frees the space.
  virtual Status Clear() = 0;

  // Frees the space of all erased and replaced rows.
  virtual Status Compact(const ExecContext& context) = 0;

  virtual LowerTierStats Stats() const = 0;

  // The tier, for messages: "the folder '/mnt/rows/items-0'".
  virtual const std::string& name() const = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_LOWER_TIER_H_
