// SPDX-License-Identifier: Apache-2.0
// A table larger than its first tier: a cache, which is a table itself, over a BackingStore.
//
// Verbs run on the cache. Before one that writes, the rows of its batch that the store has are
// copied up in one request, and room is made for those that are new. If a find of the same step has
// done so (SeenBatches), or there is room for all, the verb goes over its batch at once, leaves out
// the keys that the cache does not have after all, and goes over these again when their rows are
// up. A row that is copied up is *shared*: both tiers have it, and the cache knows whether its copy
// has changed. When the cache is full, its oldest rows go down; of shared ones only those that have
// changed are written.
//
// A find that is a part of training brings rows up as well, and makes room for those that the write
// after it will insert. Any other find reads rows of the store where they are and moves none.
//
// A batch with more absent keys than half of the cache is written in parts. Rows are independent
// of each other, so that makes no difference to them.
//
// A table whose policy bounds or admits or expires rows plans a write first, as HostTable does
// (write_planner.h). All rows of the batch that the store has are brought up before that, so the
// plan meets cold rows only among those that may leave, by their statistics, which are in memory.
//
// Where a row is
//   in the cache alone    it came as a new one
//   in both               shared
//   in the store alone    cold
//
// Locks. Rows go up while others read and write; a mutex sees that a row comes up once. They go
// down only while nobody else is inside: the content lock is held alone. So a key that a verb,
// under that lock, found in the cache stays there, and one that it does not find in the store and
// then not in the cache is absent. While a caller keeps writers out, as an export does, no row
// moves. The locks of the cache are never taken by a verb: those of this table stand for them.
//
// The bound of the cache is kept but for three cases, until the next verb: a caller that holds
// several tables (HeldTables) can't make room; a batch that finds its room taken by other threads
// again and again is not refused; and threads that bring up rows at once may count on the same
// room.
#ifndef TF_EMBED_CC_TIERED_TIERED_TABLE_H_
#define TF_EMBED_CC_TIERED_TIERED_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/batch/key_groups.h"
#include "cc/core/policy/write_planner.h"
#include "cc/core/table/backing_store.h"
#include "cc/core/table/change_log.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_cache.h"
#include "cc/core/table/table_locks.h"
#include "cc/tiered/seen_batches.h"
#include "cc/tiered/victims.h"

namespace tf_embed {

struct TierOptions {
  // Bytes of rows that the cache may hold: weights, slots, statistics and a byte a row.
  uint64_t cache_bytes = 0;
  // What the bound is called where the user sets it, for messages.
  const char* cache_bytes_argument = "host_bytes";
  // Makes an empty cache with TableCache, TableEviction and TableMaintenance.
  std::function<Status(const TableOptions& options, std::unique_ptr<Table>* cache)> new_cache;
  // Copies a row to where the rows of a batch are, with ExecContext::rows_on_device.
  std::function<Status(const ExecContext& context, const void* row, size_t bytes, void* to)>
      copy_row;
  // Makes an empty store of rows with such statistics. Called again for a second table of the same
  // kind (NewEmpty).
  std::function<Status(StatisticSet statistics, std::unique_ptr<BackingStore>* store)> new_store;
};

class TieredTable final : public Table,
                          public TableMaintenance,
                          public TableEviction,
                          public TableTiers {
 public:
  // kInvalidArgument if the cache has no room for a row.
  static Status Create(const TableOptions& options, const TierOptions& tiers,
                       std::unique_ptr<TieredTable>* table);

  const TableOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  size_t size() const override;
  RuleSlots rule() const override;
  TableMaintenance* maintenance() override { return this; }
  TableEviction* eviction() override { return this; }
  const TableTiers* tiers() const override { return this; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override;
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override;
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override;
  using Table::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override;
  Status FinishStep(const ExecContext& context, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Table::Clear;
  Status Clear(const ExecContext& context) override;
  TableStats Stats() const override;
  const TableLocks& locks() const override { return locks_; }
  void DropOutgrown() const override;

  void SetInitializer(const RowInitializer& initializer) override;
  using TableMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  double LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot) const override;
  Status Shrink(const ExecContext& context) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  ChangeLog* changes() const override { return changes_.get(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override;
  Status ExportLinks(const ExecContext& context, FileLinker* linker, ExportCursor* cursor,
                     LinkedRows* rows) override;
  std::unique_ptr<Table> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using TableMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Table* other) override;

  Status FindStatistics(const ExecContext& context, const KeyBatch& batch, uint64_t* statistics,
                        bool* exists) const override;
  Status AssignStatistics(const ExecContext& context, const KeyBatch& batch, StatisticSet set,
                          const uint64_t* statistics) override;
  Status EvictExpired(const ExecContext& context, size_t* removed) override;
  Status EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                    size_t num_left, size_t* removed) override;
  Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                      const Rank& low, const Rank& high, RankList* ranks,
                      size_t* below) const override;

  Status Prefetch(const ExecContext& context, const KeyBatch& batch) const override;

 private:
  // A verb that writes.
  struct Write {
    // Runs it on the cache for a part of the batch; holds a reference (std::cref).
    std::function<Status(const ExecContext& inner, const KeyBatch& part)> verb;
    // The table has this rule by the time it runs; null: any.
    const RuleSlots* rule = nullptr;
    // It replaces whole rows, whatever they are.
    bool overwrites = false;
    // It counts hits and misses.
    bool finds = false;
    // How new keys come, and whether the verb would insert a key; null: it would insert all.
    Admits admits = Admits::kAll;
    std::function<bool(const KeyGroup& group)> wants;
  };

  // What the planner of writes sees of the table, whose policy's lock it holds.
  class Planned final : public PlannedRows {
   public:
    explicit Planned(TieredTable* table) : table_(table) {}
    size_t size() const override {
      const std::lock_guard<OrderedMutex> lock(table_->promotion_);  // no row is on its way
      return table_->SizeInside();
    }
    void Prefetch(uint64_t hash) const override { cache().Prefetch(hash); }
    RowStatistics::Word* Find(int64_t key, uint64_t hash) const override;
    Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                        const Rank& low, const Rank& high, RankList* ranks,
                        size_t* below) const override;
    Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override;
    Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
      return table_->Remove(keys, count, counter);
    }

   private:
    PlannedRows& cache() const { return *table_->cache_->cache()->planned_rows(); }

    TieredTable* const table_;
    mutable RowStatistics::Word cold_[StatisticSet::kMax];  // of the cold row found last
  };

  // Some keys of a batch.
  struct Keys {
    explicit Keys(Allocator* allocator) : keys(allocator), positions(allocator) {}
    Status Resize(size_t size);
    // Sorts the keys and leaves each once. Positions are lost.
    void MakeDistinct();
    // The same keys as a batch, beside the arrays of `of`.
    KeyBatch Batch(const KeyBatch& of) const;

    size_t size = 0;
    Buffer<int64_t> keys;
    Buffer<uint32_t> positions;
  };

  // Counted since the table was made.
  struct Counters {
    std::atomic<uint64_t> promoted{0};     // rows that came up
    std::atomic<uint64_t> demoted{0};      // rows that went down
    std::atomic<uint64_t> written{0};      // rows that were written to the store
    std::atomic<uint64_t> first_tier{0};   // keys that verbs found in the cache
    std::atomic<uint64_t> below{0};        // keys that verbs found in the store
    std::atomic<uint64_t> read_below{0};   // of these, keys that stayed there
    std::atomic<uint64_t> found_again{0};  // keys that the cache was asked for twice
    std::atomic<uint64_t> copied_down{0};  // keys that the table found in it to move rows
  };

  TieredTable(const TableOptions& options, const TierOptions& tiers);  // may throw std::bad_alloc
  Status Init();

  // Bytes that a row with the slots of a rule takes in the cache.
  size_t RowBytes(const RuleSlots& rule) const;
  Status CheckCapacity(const RuleSlots& rule, size_t* capacity) const;

  // The rows of both tiers, and those of the cache. REQUIRES: the lock of a reader. A row that
  // moves or leaves at this moment, if promotion_ is not held, may be counted twice or in neither
  // tier.
  size_t SizeInside() const;
  size_t NumCached() const { return cache_->cache()->num_rows(); }
  // Ends a tick of the cache if that has grown by a share.
  void NoteGrowth() const;

  // The keys of a batch whose `exists`, by position, is false.
  Status Absent(const KeyBatch& batch, const bool* exists, Keys* absent) const;
  // The keys of a batch that the cache does not hold, each once. Its rows count as used.
  Status AbsentInCache(const ExecContext& inner, const KeyBatch& batch, Keys* absent) const;
  // Leaves the keys that the store has. REQUIRES: they are distinct.
  Status KeepStored(Keys* keys) const;

  // Copies those rows that the store has to the cache. REQUIRES: the locks of a writer.
  Status BringUp(const ExecContext& inner, const Keys& keys) const;
  // Copies a row of the store to a batch's.
  Status CopyRow(const ExecContext& context, const void* row, size_t bytes, void* to) const;
  // Gives the rows of the store to who asked for them. REQUIRES: the lock of a reader.
  Status ReadThrough(const ExecContext& inner, const KeyBatch& batch, const Keys& absent,
                     void* weights, bool* exists, const SlotsOut& slots) const;

  // Takes rows out of the cache until `wanted` more have room; those of the batch stay. Changed
  // rows are written while others are inside, and leave when nobody is.
  Status MakeRoom(const ExecContext& context, const KeyBatch& batch, size_t wanted) const;
  // The same. REQUIRES: nobody else is inside.
  Status MakeRoomAlone(const ExecContext& inner, const KeyBatch& batch, size_t wanted) const;
  // The rows that leave for `wanted` more, or 0.
  size_t NumLeaving(size_t wanted) const;
  // The keys of a batch in order.
  Status SortedKeys(const KeyBatch& batch, Keys* sorted) const;
  // Calls `take(keys, changed, count)` for rows that may leave and are not in `stay`, which is
  // sorted, until it has taken `most`.
  Status ForEachVictim(const ExecContext& inner, const Keys& stay, size_t most, size_t at_once,
                       const std::function<Status(const int64_t* keys, const bool* changed,
                                                  size_t count)>& take) const;
  // Writes rows that will leave, which are shared and unchanged from then on until they change.
  // REQUIRES: the locks of a writer.
  Status WriteVictims(const ExecContext& inner, const Keys& stay, size_t most, Keys* victims) const;
  // Takes those out of the cache that have not been used or changed since. REQUIRES: nobody else is
  // inside.
  Status DropVictims(const ExecContext& inner, const Keys& victims) const;
  // Fills in rows of which the keys are given, as the cache has them, and puts them in the store.
  // REQUIRES: promotion_, or nobody else is inside. On failure the store may have some.
  Status PutRows(const ExecContext& inner, WholeRows* rows, BackingStore::After after) const;
  // Erases the shared rows of the store. REQUIRES: the same.
  Status EraseShared() const;
  // Moves rows from the cache to the store. REQUIRES: the same; they are in the cache. `changed`:
  // whether they have changed there.
  Status Demote(const ExecContext& inner, const int64_t* keys, const bool* changed,
                size_t count) const;

  // Runs a verb on a batch. RunPart: if too many keys are absent, on these part by part.
  Status Run(const ExecContext& context, const KeyBatch& batch, const Write& write);
  Status RunPart(const ExecContext& context, const KeyBatch& part, const Write& write);
  // RunPart within the locks of a writer. If the cache has no room, `*wanted` is the number of rows
  // that want it, else 0, and `*todo` is what is left to do: its arrays may be those of `rest`.
  Status RunUnplanned(const ExecContext& context, bool bounded, const Write& write, KeyBatch* todo,
                      Keys* rest, size_t* wanted);
  // The same, of a write that is planned. All or nothing is left to do.
  Status RunPlanned(const ExecContext& context, bool bounded, const Write& write,
                    const KeyBatch& batch, size_t* wanted);
  // Run, of a write that is planned and has more keys than a part may: the plan is for all of them.
  // Nobody else is inside meanwhile.
  Status RunPlannedInParts(const ExecContext& context, const KeyBatch& batch, const Write& write,
                           size_t limit);
  // Plans a write and calls `run(inner context, batch)` for the keys that may come and those that
  // are there. REQUIRES: the policy's lock.
  Status Plan(const ExecContext& inner, const Write& write, const KeyBatch& batch,
              const std::function<Status(const ExecContext& inner, const KeyBatch& taken)>& run);
  // TableCache::NoteUses, of a cold row. REQUIRES: the same.
  TableCache::Found NoteColdUse(const ExecContext& inner, int64_t key);
  // Calls `run(part)` for parts of a batch with so many distinct keys at most, all places of a key
  // in one part and in order, until one fails.
  Status ForEachPart(const KeyBatch& batch, size_t limit,
                     const std::function<Status(const KeyBatch& part)>& run) const;
  // Whether rows that the store has need not come up. If others could write, one that comes up for
  // them might replace one that is written.
  bool Replaces(const ExecContext& context, const Write& write) const {
    return write.overwrites && context.held == Held::kPaused &&
           options_.policy.statistics.size() == 0;
  }
  // Runs the verb for new rows of keys, whatever the store has of them.
  Status Replace(const ExecContext& inner, const Write& write, const KeyBatch& batch,
                 const Keys& keys);
  bool HasRule(const RuleSlots* rule) const {
    return rule == nullptr || SameRuleAndInitialValues(rule_, *rule);
  }
  // SetRule, if the table has another one.
  Status TakeRule(const ExecContext& context, const RuleSlots& rule);
  // Takes rows out of both tiers, tells the sink, and counts them. REQUIRES: nobody else writes, or
  // the policy's lock; each key has a row and comes once.
  Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter);
  // Copies whole rows of any tier, in any order. REQUIRES: the same, and promotion_.
  Status CopyRows(const ExecContext& inner, const KeyBatch& batch, WholeRows* rows) const;
  // Takes out all rows in a list. REQUIRES: nobody else writes.
  Status RemoveAll(const RankList& list, std::atomic<uint64_t>* counter, size_t* removed);

  // What snapshots go by, in tiered_table_snapshot.cc. They do nothing in a table without a
  // ChangeLog. REQUIRES: promotion_, or nobody else is inside.

  // Says that the snapshot under way has those of some cold rows that it wants, whose places are
  // then `wanted`; GiveWanted gives it these.
  Status TakeWanted(WholeRows* rows, Keys* wanted) const;
  void GiveWanted(const WholeRows& rows, const Keys& wanted) const;
  void GiveRow(const WholeRows& rows, size_t place) const;
  // Comes before the cold rows among some keys leave.
  Status NoteColdLeave(const ExecContext& inner, const KeyBatch& batch) const;
  // Comes before some cold rows change. Sets their words.
  void NoteColdChange(WholeRows* rows) const;

  // Finds keys that the cache did not have at `moves`, and brings up those that the store has.
  Status FindBelow(const ExecContext& context, const KeyBatch& batch, const Keys& absent,
                   uint64_t moves, const DefaultRows& defaults, void* weights, bool* exists,
                   const SlotsOut& slots) const;

  // A cursor of an export is in the store when this bit is set, and in the cache before that.
  static constexpr uint64_t kInStore = uint64_t{1} << 63;

  TableOptions options_;  // with all statistics that the policy needs
  const TierOptions tiers_;
  const TableLocks locks_{TableLocks::Writes::kTogether};  // before the cache has its own
  std::unique_ptr<Table> cache_;
  std::unique_ptr<BackingStore> store_;
  std::shared_ptr<ChangeLog> changes_;  // the cache's, too
  RuleSlots rule_;
  std::atomic<size_t> capacity_{0};  // rows of the cache

  // Held while rows come up, or are written to go down, by who does not wait for a pool of threads.
  mutable OrderedMutex promotion_{LockRank::kTier};
  mutable std::atomic<uint64_t> moves_{0};    // times that rows came up, or over
  mutable Victims victims_;                   // of promotion_, or of who is alone
  mutable std::atomic<size_t> next_tick_{0};  // rows of the cache at which a tick ends
  mutable SeenBatches seen_;
  mutable Counters counters_;

  Planned planned_{this};
  WritePlanner planner_;  // under the policy's lock, or while nobody else writes
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERED_TIERED_TABLE_H_
