// SPDX-License-Identifier: Apache-2.0
// THE SEAM. A Table maps 64-bit keys to rows; every store, in memory, on a device, on disk, tiered
// or sharded, is one. Above it stand ops that unpack tensors, call one verb and hand on the Status;
// below it, one class a store. tests/cc/core/table/table_contract_test.cc tests the contract of
// each.
//
// The seam has three interfaces. Every store implements Table, the verbs on a batch.
// TableMaintenance is for stores that are saved, shrunk or change their rule; TableEviction for
// those whose rows leave by a policy. A caller that needs one of the two asks the table for it.
//
// Invariants
//   - Every key is legal, the whole range of int64.
//   - The initial row of a key is a function of (seed, table id, key) alone.
//   - A verb that fails leaves a table on which every verb still works. Keys of the batch that had
//     been dealt with before the failure stay dealt with; no other row is changed.
//   - Verbs may run at once from many threads. A row is read and written as a whole.
//   - The result is the same for any number of threads, to the last bit.
//   - Rows come and leave by the table's RowPolicy, each of them counted.
#ifndef TF_EMBED_CC_CORE_TABLE_TABLE_H_
#define TF_EMBED_CC_CORE_TABLE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/instruction_set.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/rows/initializer.h"
#include "cc/core/rows/linked_rows.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/rules/optimizer_rule.h"
#include "cc/core/table/table_locks.h"
#include "cc/core/table/table_stats.h"

namespace tf_embed {

class ChangeLog;

struct TableOptions {
  std::string name = "table";  // for messages
  DataType value_type = DataType::kFloat;
  size_t dim = 1;
  size_t init_size = 0;  // rows to make room for
  RowInitializer initializer;
  RowPolicy policy;
  bool is_cache = false;  // rows have marks, and writes mind KeyBatch::absent (table_cache.h)
  // Of a cache whose rows have Statistic::kChange: that of the table over it.
  std::shared_ptr<ChangeLog> changes;
  Allocator* allocator = HostAllocator();
  // The instruction set of the inner loops; results do not depend on it.
  InstructionSet instruction_set = BestInstructionSet();
};

// The slots that go beside the weights of a batch, [batch, slots of a row], and the rule that they
// belong to; without one, none. They are of the type that rules compute in, float or double beside
// double weights, whatever type they have in rows. A verb that takes them refuses with
// kFailedPrecondition, and changes nothing, if the table has another rule by then, because its rows
// have other slots.
struct SlotsOut {
  const RuleSlots* rule = nullptr;
  void* slots = nullptr;
};
struct SlotsIn {
  const RuleSlots* rule = nullptr;
  const void* slots = nullptr;
};

// A place in an export: the start, then whatever the table put there, then the end.
struct ExportCursor {
  uint64_t next = 0;
  bool done = false;
  // The output of ExportLinks: rows of these files are left out. For ExportBatch, while no thread
  // writes.
  const LinkedRows* linked = nullptr;
  // Whatever else the table keeps of the export.
  std::shared_ptr<void> kept = nullptr;
};

class RankList;
class Table;
class TableCache;

// The maintenance interface of a store: export, takeover of content, compaction, change of rule.
class TableMaintenance {
 public:
  virtual ~TableMaintenance() = default;

  // Replaces the initializer; initial rows are other ones from then on.
  virtual void SetInitializer(const RowInitializer& initializer) = 0;

  // Replaces the slots of all rows by initial ones of another rule; weights stay. Of the same rule
  // with other initial values, only new rows get these; with other types, rows keep their slots in
  // these. A table in the memory of a device has no types but the compute type.
  virtual Status SetRule(const ExecContext& context, const RuleSlots& rule) = 0;
  Status SetRule(const RuleSlots& rule) { return SetRule(ExecContext::Serial(), rule); }

  // The largest of all rows' slots of that number, at least 0; 0 if the table has another rule.
  virtual double LargestSlot(const ExecContext& context, const RuleSlots& rule,
                             size_t slot) const = 0;

  // Compacts the table and gives memory back. Needs room for a second copy of the rows meanwhile.
  virtual Status Shrink(const ExecContext& context) = 0;

  // Puts some rows in `rows` (in the order of the table, which is unspecified) and moves the
  // cursor. About `max_rows`; more if the table can't stop earlier. Each key comes once while no
  // other thread changes the table, as under Held::kPaused.
  virtual Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const = 0;

  // The change log for snapshots; null if rows do not have Statistic::kChange.
  virtual ChangeLog* changes() const { return nullptr; }

  // As ExportBatch, of the rows that the snapshot under way wants and has not been given, while
  // others change the table. REQUIRES: changes() is not null.
  virtual Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                                WholeRows* rows);

  // The same, of rows that lie in files which the linker takes. If changes() is null, of all such
  // rows, and REQUIRES that no thread writes. Comes before the export of all others, with the same
  // `rows` until the cursor is done.
  virtual Status ExportLinks(const ExecContext& context, FileLinker* linker, ExportCursor* cursor,
                             LinkedRows* rows) {
    (void)context, (void)linker;
    rows->size = 0;
    cursor->done = true;
    return Status();
  }

  // An empty table of the same kind and options, except for the room and the initializer, and with
  // the same statistics, but without rules by which rows come and leave; nullptr without memory for
  // it.
  virtual std::unique_ptr<Table> NewEmpty(size_t init_size,
                                          const RowInitializer& initializer) const = 0;

  // Takes the whole content of `other`, made by NewEmpty, at one moment. Fails only in a table
  // whose rows are on a server, which may have some of them then.
  virtual Status TakeContent(const ExecContext& context, Table* other) = 0;
  Status TakeContent(Table* other) { return TakeContent(ExecContext::Serial(), other); }
};

// The eviction interface of a store: statistics, ranks, expiry.
class TableEviction {
 public:
  virtual ~TableEviction() = default;

  // Copies the statistics [batch, statistics of a row] of keys, 0 for absent ones; `exists` may be
  // null. Is no use of a row.
  virtual Status FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                uint64_t* statistics, bool* exists) const = 0;

  // Sets those statistics of present keys that both the table and `set` have; the words [batch,
  // set's size] have the order of `set`. Of equal keys the last one's.
  virtual Status AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                  StatisticSet set, const uint64_t* statistics) = 0;

  // Takes expired rows out, and adds their number.
  virtual Status EvictExpired(const ExecContext& context, size_t* removed) = 0;

  // Takes out the rows whose rank is below `limit`, and adds their number. If about `num_left` are
  // left and that is much less than there are, gives memory back; that needs room for a copy of
  // those that are left, and without it is not done.
  virtual Status EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                            size_t num_left, size_t* removed) = 0;

  // Adds the ranks from `low` on that are below `high`, of about one row in `one_in`, which are
  // always the same ones, and counts the rows below `low`.
  virtual Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                              const Rank& low, const Rank& high, RankList* ranks,
                              size_t* below) const = 0;
};

// The interface of a table whose rows are in several tiers.
class TableTiers {
 public:
  virtual ~TableTiers() = default;

  // Copies rows of a batch that are in a lower tier to the first one. There they count as used in
  // the present step. Copies as many as half of the first tier holds, and none while a caller keeps
  // writers out. Rows are the same before and after.
  virtual Status Prefetch(const ExecContext& context, const KeyBatch& batch) const = 0;
};

// The verbs of every store on a batch.
class Table {
 public:
  virtual ~Table() = default;

  // As given; the initializer may have been replaced since.
  virtual const TableOptions& options() const = 0;
  virtual RowInitializer initializer() const = 0;

  // Number of keys. While others write, the parts of a table are counted one by one: a row that
  // left a bounded table may be counted beside the one that came for it.
  virtual size_t size() const = 0;

  // The same number, and an error if the rows are out of reach; size() is then an earlier number.
  virtual Status Count(size_t* count) const {
    *count = size();
    return Status();
  }

  // Whether other processes change rows too. Nothing that the caller holds keeps them out, so a
  // number of rows may be another one a moment later.
  virtual bool is_shared() const { return false; }

  // The rule whose slots rows have.
  virtual RuleSlots rule() const = 0;

  // The other interfaces; null if the store has no such verbs.
  virtual TableMaintenance* maintenance() { return nullptr; }
  virtual TableEviction* eviction() { return nullptr; }
  virtual const TableTiers* tiers() const { return nullptr; }
  virtual TableCache* cache() { return nullptr; }
  const TableMaintenance* maintenance() const { return const_cast<Table*>(this)->maintenance(); }
  const TableEviction* eviction() const { return const_cast<Table*>(this)->eviction(); }
  // The same, with an error that names the table in place of null.
  Status GetMaintenance(TableMaintenance** maintenance);
  Status GetEviction(TableEviction** eviction);

  // Copies the keys' weights to `weights` [batch, dim], defaults for absent ones, and changes
  // nothing; as a part of training, it is a use of the rows. `exists` [batch] may be null. Slots,
  // if they are wanted, are of the same moment as the weights of their row; absent keys have
  // initial ones.
  virtual Status Find(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists,
                      const SlotsOut& slots) const = 0;

  // Tells which keys are there, in `exists` [batch].
  virtual Status Contains(const ExecContext& context, const KeyBatch& batch,
                          bool* exists) const = 0;

  // As Find, and inserts absent keys with their defaults; of equal keys the first one's. As a part
  // of training, only those that an Apply right now would insert.
  virtual Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                              const DefaultRows& defaults, void* weights, bool* exists) = 0;

  // Sets weights [batch, dim]; of equal keys the last one's. Slots are set too if they are given;
  // else present rows keep theirs and new rows get initial ones. As a part of training, keys need
  // admission.
  virtual Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                const void* weights, const SlotsIn& slots) = 0;

  // If `exists` and the key is present, adds `new_rows` - `old_rows` (both [batch, dim]; the
  // difference is rounded to the value type); if neither, inserts the new row; else does nothing,
  // for the table has changed since the caller looked. Refused for bool.
  virtual Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                       const void* new_rows, const bool* exists) = 0;

  // One step of `rule`: gradients, of the value type or of float beside float16 and bfloat16
  // weights, are summed over equal keys in the order of the batch, absent keys get their defaults
  // once they are admitted, and the rule runs once a row. A rule other than the present one
  // replaces all slots first. An external rule can't be applied.
  virtual Status Apply(const ExecContext& context, const KeyBatch& batch,
                       const Gradients& gradients, const Rule& rule) = 0;
  // The same, of gradients [batch, dim].
  Status Apply(const ExecContext& context, const KeyBatch& batch, const void* gradients,
               DataType gradient_type, const Rule& rule) {
    return Apply(context, batch, Gradients{gradients, gradient_type, nullptr, nullptr}, rule);
  }

  // Applies the change of `rule` to all rows between this step and the next (TablePass); most rules
  // have none. Comes after the Apply of the step.
  virtual Status FinishStep(const ExecContext& context, const Rule& rule) = 0;

  // Removes keys. Absent ones are no error.
  virtual Status Erase(const ExecContext& context, const KeyBatch& batch) = 0;

  // Removes all keys and gives the memory back.
  virtual Status Clear(const ExecContext& context) = 0;
  Status Clear() { return Clear(ExecContext::Serial()); }

  virtual TableStats Stats() const = 0;

  // The locks that verbs hold, and that a caller of many verbs takes first (HeldTables).
  virtual const TableLocks& locks() const = 0;

  // Frees memory that the table has outgrown, if no other verb is inside. Verbs that take their
  // locks themselves need no such call after them.
  virtual void DropOutgrown() const {}
};

// Errors that all tables return, with their messages.
Status NoMemoryForRow(const std::string& table, size_t keys_held);
Status RuleWasChanged(const std::string& table);
Status CheckAccum(const TableOptions& options);
Status CheckApply(const TableOptions& options, DataType gradient_type, const Rule& rule);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_TABLE_H_
