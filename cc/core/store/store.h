// SPDX-License-Identifier: Apache-2.0
// THE SEAM. A Store maps 64-bit keys to rows. Every store implements it: in memory, on a device, on
// disk, tiered or sharded. Above it, ops unpack tensors, call one verb and return its Status. Below
// it, each store is one class. tests/cc/core/store/store_contract_test.cc tests the contract of
// each.
//
// The seam has three interfaces. Every store implements Store, the verbs on a batch.
// StoreMaintenance is for stores that can be saved, shrunk or given another rule. StoreEviction is
// for stores whose rows leave by a policy. A caller asks the store for the latter two.
//
// Invariants
//   - Every key is legal, the whole range of int64.
//   - The initial row of a key is a function of (seed, table id, key) alone.
//   - A verb that fails leaves a store on which every verb still works. Keys of the batch that had
//     been dealt with before the failure stay dealt with; no other row is changed.
//   - Verbs may run at once from many threads. A row is read and written as a whole.
//   - The result is the same for any number of threads, to the last bit.
//   - The store's RowPolicy decides which rows are admitted and evicted, and all are counted.
#ifndef TF_EMBED_CC_CORE_STORE_STORE_H_
#define TF_EMBED_CC_CORE_STORE_STORE_H_

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
#include "cc/core/store/store_locks.h"
#include "cc/core/store/store_stats.h"

namespace tf_embed {

class ChangeLog;

struct StoreOptions {
  std::string name = "table";  // for messages
  DataType value_type = DataType::kFloat;
  size_t dim = 1;
  size_t init_size = 0;  // rows to reserve
  RowInitializer initializer;
  RowPolicy policy;
  bool is_cache = false;  // rows have marks, and writes mind KeyBatch::absent (store_cache.h)
  // For a cache whose rows have Statistic::kChange: the change log of the store over it.
  std::shared_ptr<ChangeLog> changes;
  Allocator* allocator = HostAllocator();
  // The instruction set of the inner loops; results do not depend on it.
  InstructionSet instruction_set = BestInstructionSet();
};

// The slots that accompany a batch's weights, [batch, slots of a row], and the rule that they
// belong to; none without a rule. They have the rule's compute type, float, or double with double
// weights, whatever type rows store. A verb that takes them fails with kFailedPrecondition, and
// changes nothing, if the store has another rule by then, because its rows have other slots.
struct SlotsOut {
  const RuleSlots* rule = nullptr;
  void* slots = nullptr;
};
struct SlotsIn {
  const RuleSlots* rule = nullptr;
  const void* slots = nullptr;
};

// The position of an export: the start, then a value defined by the store, then the end.
struct ExportCursor {
  uint64_t next = 0;
  bool done = false;
  // The output of ExportLinks: the export skips rows of these files. Used by ExportBatch. REQUIRES:
  // no concurrent writes.
  const LinkedRows* linked = nullptr;
  // Other state that the store keeps for the export.
  std::shared_ptr<void> kept = nullptr;
};

class RankList;
class Store;
class StoreCache;

// The maintenance interface of a store: export, takeover of content, compaction, change of rule.
class StoreMaintenance {
 public:
  virtual ~StoreMaintenance() = default;

  // Replaces the initializer, for later initial rows.
  virtual void SetInitializer(const RowInitializer& initializer) = 0;

  // Replaces the slots of all rows by initial slots of another rule; weights stay. For the same
  // rule, other initial values only affect new rows, and other types convert the slots of all rows.
  // A store in device memory only supports the compute type.
  virtual Status SetRule(const ExecContext& context, const RuleSlots& rule) = 0;
  Status SetRule(const RuleSlots& rule) { return SetRule(ExecContext::Serial(), rule); }

  // Sets `largest` to the largest value of slot number `slot` over all rows, at least 0; to 0 if
  // the store has another rule.
  virtual Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                             double* largest) const = 0;

  // Compacts the store and frees memory. Needs memory for a second copy of the rows meanwhile.
  virtual Status Shrink(const ExecContext& context) = 0;

  // Copies some rows to `rows`, in the store's unspecified order, and advances the cursor. Copies
  // about `max_rows`, or more if the store can't stop earlier. Each key is copied once if no other
  // thread changes the store, as under Held::kPaused.
  virtual Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const = 0;

  // The change log for snapshots; null if rows do not have Statistic::kChange.
  virtual ChangeLog* changes() const { return nullptr; }

  // As ExportBatch, for rows that the snapshot in progress wants and has not received, during
  // concurrent changes. REQUIRES: changes() is not null.
  virtual Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                                WholeRows* rows);

  // The same for rows in files that the linker takes. If changes() is null, covers all such rows,
  // and REQUIRES no concurrent writes. Call it before the export of all other rows, with the same
  // `rows`, until the cursor is done.
  virtual Status ExportLinks(const ExecContext& context, FileLinker* linker, ExportCursor* cursor,
                             LinkedRows* rows) {
    (void)context, (void)linker;
    rows->size = 0;
    cursor->done = true;
    return Status();
  }

  // An empty store of the same kind, with the same options and statistics, except for the room and
  // the initializer. It has no admission and no eviction. Returns nullptr if memory is short.
  virtual std::unique_ptr<Store> NewEmpty(size_t init_size,
                                          const RowInitializer& initializer) const = 0;

  // Atomically takes over the content of `other`, which NewEmpty made. Fails only in a store whose
  // rows are on a server, which may then have some of them.
  virtual Status TakeContent(const ExecContext& context, Store* other) = 0;
  Status TakeContent(Store* other) { return TakeContent(ExecContext::Serial(), other); }
};

// The eviction interface of a store: statistics, ranks, expiry.
class StoreEviction {
 public:
  virtual ~StoreEviction() = default;

  // Copies the statistics [batch, statistics of a row] of keys, 0 for absent keys; `exists` may be
  // null. Does not count as a use.
  virtual Status FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                uint64_t* statistics, bool* exists) const = 0;

  // Sets the statistics that both the store and `set` have, for present keys. The words [batch,
  // set's size] are in the order of `set`. The last of equal keys wins.
  virtual Status AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                  StatisticSet set, const uint64_t* statistics) = 0;

  // Evicts expired rows, and adds their number to `*removed`.
  virtual Status EvictExpired(const ExecContext& context, size_t* removed) = 0;

  // Evicts rows whose rank is below `limit`, and adds their number. If far fewer rows remain, about
  // `num_left`, also frees memory. That needs memory for a copy of the remaining rows, and is
  // skipped without it.
  virtual Status EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                            size_t num_left, size_t* removed) = 0;

  // Samples about one row in `one_in`, always the same rows. Adds their ranks from `low` on that
  // are below `high`, and counts the rows below `low`.
  virtual Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                              const Rank& low, const Rank& high, RankList* ranks,
                              size_t* below) const = 0;
};

// The interface of a store whose rows are in several tiers.
class StoreTiers {
 public:
  virtual ~StoreTiers() = default;

  // Promotes rows of a batch to the first tier, where they count as used in the present step.
  // Promotes at most half of the first tier's capacity, and none while a caller pauses writers. The
  // content of rows does not change.
  virtual Status Prefetch(const ExecContext& context, const KeyBatch& batch) const = 0;
};

// The verbs of every store on a batch.
class Store {
 public:
  virtual ~Store() = default;

  // As given; the initializer may have been replaced since.
  virtual const StoreOptions& options() const = 0;
  virtual RowInitializer initializer() const = 0;

  // Number of keys. During concurrent writes, the parts of a store are counted in turn, so a row
  // that left a bounded store may be counted together with its replacement.
  virtual size_t size() const = 0;

  // The same number, with an error if the rows are unreachable; size() then returns an earlier
  // number.
  virtual Status Count(size_t* count) const {
    *count = size();
    return Status();
  }

  // Fails if the rows are unreachable. Costs less than a Count that visits all rows.
  virtual Status CheckReachable() const {
    size_t count;
    return Count(&count);
  }

  // Whether other processes also change rows. No lock of the caller keeps them out, so a row count
  // may be outdated at once.
  virtual bool is_shared() const { return false; }

  // The rule of the rows' slots.
  virtual RuleSlots rule() const = 0;

  // The other interfaces; null if the store lacks them.
  virtual StoreMaintenance* maintenance() { return nullptr; }
  virtual StoreEviction* eviction() { return nullptr; }
  virtual const StoreTiers* tiers() const { return nullptr; }
  virtual StoreCache* cache() { return nullptr; }
  const StoreMaintenance* maintenance() const { return const_cast<Store*>(this)->maintenance(); }
  const StoreEviction* eviction() const { return const_cast<Store*>(this)->eviction(); }
  // The same, but fails with an error that names the store instead of null.
  Status GetMaintenance(StoreMaintenance** maintenance);
  Status GetEviction(StoreEviction** eviction);

  // Copies the keys' weights to `weights` [batch, dim], or defaults for absent keys. Changes
  // nothing, although a training find counts as a use of the rows. `exists` [batch] may be null.
  // Requested slots are consistent with the weights of their row; absent keys have initial slots.
  virtual Status Find(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists,
                      const SlotsOut& slots) const = 0;

  // Sets `exists` [batch] to whether each key is present.
  virtual Status Contains(const ExecContext& context, const KeyBatch& batch,
                          bool* exists) const = 0;

  // As Find, but inserts absent keys with their defaults; the first of equal keys decides. As a
  // part of training, inserts only the keys that an Apply now would insert.
  virtual Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                              const DefaultRows& defaults, void* weights, bool* exists) = 0;

  // Sets weights [batch, dim]; the last of equal keys wins. Sets slots too if they are given.
  // Otherwise present rows keep their slots, and new rows get initial slots. As a part of training,
  // keys need admission.
  virtual Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                const void* weights, const SlotsIn& slots) = 0;

  // If `exists` and the key is present, adds `new_rows` - `old_rows` (both [batch, dim]; the
  // difference is rounded to the value type). If neither, inserts the new row. Otherwise does
  // nothing, because the store changed after the caller's lookup. Fails for bool.
  virtual Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                       const void* new_rows, const bool* exists) = 0;

  // One step of `rule`. Gradients are summed over equal keys in batch order, and the rule runs once
  // for each row. Gradients have the value type, or float with float16 and bfloat16 weights. Absent
  // keys get their defaults once they are admitted. If the rule is not the present rule, first
  // replaces all slots. An external rule can't be applied.
  virtual Status Apply(const ExecContext& context, const KeyBatch& batch,
                       const Gradients& gradients, const Rule& rule) = 0;
  // The same for gradients [batch, dim].
  Status Apply(const ExecContext& context, const KeyBatch& batch, const void* gradients,
               DataType gradient_type, const Rule& rule) {
    return Apply(context, batch, Gradients{gradients, gradient_type, nullptr, nullptr}, rule);
  }

  // Applies the rule's change to all rows between this step and the next (AllRowsUpdate); most
  // rules have none. Called after the step's Apply.
  virtual Status UpdateAllRows(const ExecContext& context, const Rule& rule) = 0;

  // Removes keys. Absent keys are not an error.
  virtual Status Erase(const ExecContext& context, const KeyBatch& batch) = 0;

  // Removes all keys and frees the memory.
  virtual Status Clear(const ExecContext& context) = 0;
  Status Clear() { return Clear(ExecContext::Serial()); }

  virtual StoreStats Stats() const = 0;

  // The locks that verbs hold, and that a caller of several verbs takes first (HeldStores).
  virtual const StoreLocks& locks() const = 0;

  // Frees memory that the store has outgrown, if no other verb is inside. Verbs that take their own
  // locks do this themselves.
  virtual void DropOutgrown() const {}
};

// Errors shared by all stores, with their messages.
Status NoMemoryForRow(const std::string& store, size_t keys_held);
Status RuleWasChanged(const std::string& store);
Status CheckAccum(const StoreOptions& options);
Status CheckApply(const StoreOptions& options, DataType gradient_type, const Rule& rule);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_STORE_H_
