// SPDX-License-Identifier: Apache-2.0
// A store larger than its first tier: a cache, itself a store, over a LowerTier.
//
// Verbs run on the cache. Before a write, rows of the batch that are in the lower tier are promoted
// in one request, and room is made for new rows. If a find of the same step has prepared the batch
// (PreparedBatches), or all rows have room, the verb runs on the whole batch at once. It skips keys
// that miss the cache, and runs on them again after their promotion. A promoted row is *shared*:
// both tiers have it, and the cache tracks whether its copy has changed. A full cache demotes its
// oldest rows; shared rows are written only if changed.
//
// A training find also promotes rows, and makes room for the rows that the write after it will
// insert. Any other find reads rows from the lower tier and moves none. So does a training find
// that can't promote, because it needs more rows than half of the cache, a save is running, or the
// caller holds the store.
//
// A batch with more absent keys than half of the cache is written in parts. The result is the same,
// because rows are independent.
//
// A store with a bound, admission or expiry plans each write first, as HostStore does
// (write_planner.h). All of the batch's rows in the lower tier are promoted before that. So the
// plan meets cold rows only as candidates for eviction, by their statistics, which are in memory.
//
// Locations of a row
//   in the cache alone         new
//   in both                    shared
//   in the lower tier alone    cold
//
// Locks. Promotion runs concurrently with reads and writes; a mutex ensures that a row is promoted
// once. Demotion needs the content lock exclusively. So a key that a verb finds in the cache, under
// that lock, stays there. A key missing first from the lower tier and then from the cache is
// absent. While a caller pauses writers, as an export does, no row moves. Verbs never take the
// cache's locks, because they hold the locks of this store.
//
// The cache may exceed its bound until the next verb, in three cases:
//   - a caller that holds several stores (HeldStores) can't make room
//   - a batch that repeatedly loses its room to other threads is not refused
//   - threads that promote rows concurrently may count on the same room
#ifndef TF_EMBED_CC_STORES_TIERED_TIERED_STORE_H_
#define TF_EMBED_CC_STORES_TIERED_TIERED_STORE_H_

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
#include "cc/core/store/change_log.h"
#include "cc/core/store/lower_tier.h"
#include "cc/core/store/store.h"
#include "cc/core/store/store_cache.h"
#include "cc/core/store/store_locks.h"
#include "cc/stores/tiered/prepared_batches.h"
#include "cc/stores/tiered/victims.h"

namespace tf_embed {

struct TierOptions {
  // Byte limit on rows in the cache: weights, slots, statistics and one byte a row.
  uint64_t cache_bytes = 0;
  // The name of the limit in the user's API, for messages.
  const char* cache_bytes_argument = "host_bytes";
  // Makes an empty cache with StoreCache, StoreEviction and StoreMaintenance.
  std::function<Status(const StoreOptions& options, std::unique_ptr<Store>* cache)> new_cache;
  // Copies a row to the batch's memory, with ExecContext::rows_on_device.
  std::function<Status(const ExecContext& context, const void* row, size_t bytes, void* to)>
      copy_row;
  // Makes an empty lower tier for rows with these statistics. Called again for a second store of
  // the same kind (NewEmpty).
  std::function<Status(StatisticSet statistics, std::unique_ptr<LowerTier>* lower)> new_lower;
};

class TieredStore final : public Store,
                          public StoreMaintenance,
                          public StoreEviction,
                          public StoreTiers {
 public:
  // kInvalidArgument if the cache has no room for a row.
  static Status Create(const StoreOptions& options, const TierOptions& tiers,
                       std::unique_ptr<TieredStore>* store);

  const StoreOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  size_t size() const override;
  RuleSlots rule() const override;
  StoreMaintenance* maintenance() override { return this; }
  StoreEviction* eviction() override { return this; }
  const StoreTiers* tiers() const override { return this; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override;
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override;
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override;
  using Store::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override;
  Status UpdateAllRows(const ExecContext& context, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Store::Clear;
  Status Clear(const ExecContext& context) override;
  StoreStats Stats() const override;
  const StoreLocks& locks() const override { return locks_; }
  void DropOutgrown() const override;

  void SetInitializer(const RowInitializer& initializer) override;
  using StoreMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const override;
  Status Shrink(const ExecContext& context) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  ChangeLog* changes() const override { return changes_.get(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override;
  Status ExportLinks(const ExecContext& context, FileLinker* linker, ExportCursor* cursor,
                     LinkedRows* rows) override;
  std::unique_ptr<Store> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using StoreMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Store* other) override;

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
    // Runs the verb on the cache for a part of the batch; a reference (std::cref).
    std::function<Status(const ExecContext& inner, const KeyBatch& part)> verb;
    // Whether the verb has run on any part of the batch.
    const bool* has_run = nullptr;
    // The rule that the store must have when the verb runs; null: any rule.
    const RuleSlots* rule = nullptr;
    // Replaces whole rows, regardless of their content.
    bool overwrites = false;
    // Counts hits and misses.
    bool finds = false;
    // Admission of new keys, and whether the verb would insert a key; null: it inserts all keys.
    Admits admits = Admits::kAll;
    std::function<bool(const KeyGroup& group)> wants;
  };

  // The planner's view of the store. REQUIRES: the policy's lock held.
  class Planned final : public PlannedRows {
   public:
    explicit Planned(TieredStore* store) : store_(store) {}
    size_t size() const override {
      const std::lock_guard<OrderedMutex> lock(store_->promotion_);  // no row is in transit
      return store_->SizeInside();
    }
    void Prefetch(uint64_t hash) const override { cache().Prefetch(hash); }
    void PrefetchStatistics(uint64_t hash) const override { cache().PrefetchStatistics(hash); }
    Status Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const override;
    Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                        const Rank& low, const Rank& high, RankList* ranks,
                        size_t* below) const override;
    Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override;
    Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
      return store_->Remove(keys, count, counter);
    }

   private:
    PlannedRows& cache() const { return *store_->cache_->cache()->planned_rows(); }

    TieredStore* const store_;
    mutable RowStatistics::Word cold_[StatisticSet::kMax];  // statistics of the cold row found last
  };

  // Some keys of a batch.
  struct Keys {
    explicit Keys(Allocator* allocator) : keys(allocator), positions(allocator) {}
    Status Resize(size_t size);
    // Sorts and deduplicates the keys. Drops positions.
    void MakeDistinct();
    // The same keys as a batch, with the arrays of `of`.
    KeyBatch Batch(const KeyBatch& of) const;

    size_t size = 0;
    Buffer<int64_t> keys;
    Buffer<uint32_t> positions;
  };

  // Counts since the store was made.
  struct Counters {
    std::atomic<uint64_t> promoted{0};     // rows promoted
    std::atomic<uint64_t> demoted{0};      // rows demoted
    std::atomic<uint64_t> written{0};      // rows written to the lower tier
    std::atomic<uint64_t> first_tier{0};   // keys that verbs found in the cache
    std::atomic<uint64_t> below{0};        // keys that verbs found in the lower tier
    std::atomic<uint64_t> read_below{0};   // of these, keys whose rows stayed there
    std::atomic<uint64_t> found_again{0};  // keys looked up twice in the cache
    std::atomic<uint64_t> copied_down{0};  // keys looked up in the cache to move rows
  };

  TieredStore(const StoreOptions& options, const TierOptions& tiers);  // may throw std::bad_alloc
  Status Init();

  // Size in the cache of a row with the slots of a rule, in bytes.
  size_t RowBytes(const RuleSlots& rule) const;
  Status CheckCapacity(const RuleSlots& rule, size_t* capacity) const;

  // Number of rows in both tiers, and in the cache. REQUIRES: a reader's lock. Unless promotion_ is
  // held, a row that moves or leaves concurrently may be counted twice or not at all.
  size_t SizeInside() const;
  size_t NumCached() const { return cache_->cache()->num_rows(); }
  // Ends a tick of the cache if it has grown enough.
  void NoteGrowth() const;
  // DropOutgrown. REQUIRES: exclusive access.
  void DropOutgrownAlone() const;

  // The keys of a batch whose `exists`, by position, is false.
  Status Absent(const KeyBatch& batch, const bool* exists, Keys* absent) const;
  // The distinct keys of a batch that miss the cache. Counts as a use of the batch's rows.
  Status AbsentInCache(const ExecContext& inner, const KeyBatch& batch, Keys* absent) const;
  // Keeps only keys that are in the lower tier. REQUIRES: keys are distinct.
  Status KeepStored(Keys* keys) const;

  // Promotes the keys that are in the lower tier. REQUIRES: a writer's locks.
  Status BringUp(const ExecContext& inner, const Keys& keys) const;
  // Copies a row of the lower tier to the batch's memory.
  Status CopyRow(const ExecContext& context, const void* row, size_t bytes, void* to) const;
  // Reads rows of the lower tier for a find. In training, skips expired rows and notes a use of the
  // other rows. REQUIRES: a reader's lock.
  Status ReadThrough(const ExecContext& inner, const Keys& absent, void* weights, bool* exists,
                     const SlotsOut& slots) const;

  // Demotes rows until the cache has room for `wanted` more; rows of the batch stay. Changed rows
  // are written under shared locks, and dropped under exclusive locks.
  Status MakeRoom(const ExecContext& context, const KeyBatch& batch, size_t wanted) const;
  // The same. REQUIRES: exclusive access.
  Status MakeRoomAlone(const ExecContext& inner, const KeyBatch& batch, size_t wanted) const;
  // Number of rows to demote to make room for `wanted` more, or 0.
  size_t NumLeaving(size_t wanted) const;
  // The keys of a batch, sorted.
  Status SortedKeys(const KeyBatch& batch, Keys* sorted) const;
  // Calls `take(keys, changed, count)` for rows that may leave and are not in `stay`, until it has
  // taken `most`. REQUIRES: `stay` is sorted.
  Status ForEachVictim(const ExecContext& inner, const Keys& stay, size_t most, size_t at_once,
                       const std::function<Status(const int64_t* keys, const bool* changed,
                                                  size_t count)>& take) const;
  // Writes rows that are about to leave. From then on they are shared and unchanged, until the next
  // change. REQUIRES: a writer's locks.
  Status WriteVictims(const ExecContext& inner, const Keys& stay, size_t most, Keys* victims) const;
  // Drops from the cache the victims that have not been used or changed since. REQUIRES: exclusive
  // access.
  Status DropVictims(const ExecContext& inner, const Keys& victims) const;
  // Fills in rows by their keys from the cache, and puts them in the lower tier. After a failure,
  // the lower tier may have some of the rows. REQUIRES: promotion_ held, or exclusive access.
  Status PutRows(const ExecContext& inner, WholeRows* rows, LowerTier::After after) const;
  // Erases the shared rows of the lower tier. REQUIRES: the same.
  Status EraseShared() const;
  // Moves rows from the cache to the lower tier. `changed` says whether each changed in the cache.
  // REQUIRES: the same; the rows are in the cache.
  Status Demote(const ExecContext& inner, const int64_t* keys, const bool* changed,
                size_t count) const;

  // Runs a verb on a batch. If too many keys are absent, runs it part by part (RunPart).
  Status Run(const ExecContext& context, const KeyBatch& batch, const Write& write);
  Status RunPart(const ExecContext& context, const KeyBatch& part, const Write& write);
  // The error of a write that found no room. It says so if no row of the batch has changed.
  static Status NoRoom(const Write& write, const Status& status);
  // RunPart under a writer's locks. If the cache lacks room, `*wanted` is the number of rows that
  // need it, otherwise 0. `*todo` becomes the remaining batch; its arrays may belong to `rest`.
  Status RunUnplanned(const ExecContext& context, bool bounded, const Write& write, KeyBatch* todo,
                      Keys* rest, size_t* wanted);
  // The same for a planned write, which is done completely or not at all.
  Status RunPlanned(const ExecContext& context, bool bounded, const Write& write,
                    const KeyBatch& batch, size_t* wanted);
  // Run, for a planned write with more keys than a part may have. One plan covers all keys, under
  // exclusive access.
  Status RunPlannedInParts(const ExecContext& context, const KeyBatch& batch, const Write& write,
                           size_t limit);
  // Plans a write and calls `run(inner context, batch)` for the admitted and the present keys.
  // REQUIRES: the policy's lock.
  Status Plan(const ExecContext& inner, const Write& write, const KeyBatch& batch,
              const std::function<Status(const ExecContext& inner, const KeyBatch& taken)>& run);
  // StoreCache::NoteUses for a cold row. REQUIRES: the same.
  Status NoteColdUse(const ExecContext& inner, int64_t key, StoreCache::Found* found);
  // Calls `run(part)` for parts of a batch, until one fails. A part has at most `limit` distinct
  // keys. All positions of a key are in one part, in order.
  Status ForEachPart(const KeyBatch& batch, size_t limit,
                     const std::function<Status(const KeyBatch& part)>& run) const;
  // Whether rows of the lower tier need no promotion. Otherwise, with concurrent writers, a row
  // promoted for them could replace a row just written.
  bool Replaces(const ExecContext& context, const Write& write) const {
    return write.overwrites && context.held == Held::kPaused &&
           options_.policy.statistics.size() == 0;
  }
  // Runs the verb on new rows for keys, ignoring the lower tier's rows.
  Status Replace(const ExecContext& inner, const Write& write, const KeyBatch& batch,
                 const Keys& keys);
  bool HasRule(const RuleSlots* rule) const {
    return rule == nullptr || SameRuleAndInitialValues(rule_, *rule);
  }
  // SetRule, if the store has another rule.
  Status TakeRule(const ExecContext& context, const RuleSlots& rule);
  // Evicts rows from both tiers, tells the sink, and counts them. REQUIRES: no concurrent writes,
  // or the policy's lock held; keys are distinct and present.
  Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter);
  // Copies whole rows of any tier, in any order. REQUIRES: the same, and promotion_ held.
  Status CopyRows(const ExecContext& inner, const KeyBatch& batch, WholeRows* rows) const;
  // Evicts all rows in a list. REQUIRES: no concurrent writes.
  Status RemoveAll(const RankList& list, std::atomic<uint64_t>* counter, size_t* removed);

  // Snapshot hooks (tiered_store_snapshot.cc). No-ops in a store without a ChangeLog. REQUIRES:
  // promotion_ held, or exclusive access.

  // Claims the rows that the snapshot wants among `rows`, which are about to be in the cache, and
  // lists their positions in `wanted`. GiveWanted hands them over.
  Status TakeWanted(WholeRows* rows, Keys* wanted) const;
  void GiveWanted(const WholeRows& rows, const Keys& wanted) const;
  // Hands over the cold rows that the snapshot wants among `rows`, which are copies of them.
  void GiveCold(const WholeRows& rows) const;
  void GiveRow(const WholeRows& rows, size_t place) const;
  // Called before cold rows among some keys leave, or get statistics.
  Status NoteColdLeave(const ExecContext& inner, const KeyBatch& batch) const;
  Status NoteColdAssign(const ExecContext& inner, const KeyBatch& batch, StatisticSet set) const;
  // The distinct keys of cold rows in a batch.
  Status ColdKeys(const ExecContext& inner, const KeyBatch& batch, Keys* cold) const;
  // Called before cold rows change. Sets their change words.
  void NoteColdChange(WholeRows* rows) const;

  // A find. `promotes`: brings rows of the lower tier up; otherwise reads them there.
  Status Look(const ExecContext& context, bool promotes, const KeyBatch& batch,
              const DefaultRows& defaults, void* weights, bool* exists,
              const SlotsOut& slots) const;
  // The keys of a batch that miss the cache, with their positions. Not a use of the others.
  Status NotCached(const ExecContext& inner, const KeyBatch& batch, Keys* cold) const;
  // Looks up keys that missed the cache at `moves`, and promotes the keys found in the lower tier.
  Status FindBelow(const ExecContext& context, const KeyBatch& batch, const Keys& absent,
                   uint64_t moves, const DefaultRows& defaults, void* weights, bool* exists,
                   const SlotsOut& slots) const;

  // A batch may bring rows up to this share of the cache, so the rest can make room for it.
  static constexpr size_t kBatchDivisor = 2;
  // Attempts to make room before a batch runs alone, if other threads keep taking the room.
  static constexpr int kMaxAttempts = 3;
  // Export cursor bit: set once the export has reached the lower tier.
  static constexpr uint64_t kInLowerTier = uint64_t{1} << 63;

  StoreOptions options_;  // with all statistics that the policy needs
  const TierOptions tiers_;
  const StoreLocks locks_{StoreLocks::Writes::kTogether};  // before the cache has its own
  std::unique_ptr<Store> cache_;
  std::unique_ptr<LowerTier> lower_;
  std::shared_ptr<ChangeLog> changes_;  // shared with the cache
  RuleSlots rule_;
  std::atomic<size_t> capacity_{0};  // rows of the cache

  // Held during promotion, and while rows are written for demotion. Its holder never waits for a
  // thread pool.
  mutable OrderedMutex promotion_{LockRank::kTier};
  mutable std::atomic<uint64_t> moves_{0};    // bumped when rows are promoted or replaced
  mutable Victims victims_;                   // guarded by promotion_ or exclusive access
  mutable std::atomic<size_t> next_tick_{0};  // cache size at which a tick ends
  mutable PreparedBatches seen_;
  mutable Counters counters_;
  mutable size_t cached_once_dropped_ = 0;     // rows at the last DropOutgrown; of content
  mutable std::atomic<size_t> left_since_{0};  // rows that verbs inside have taken out since then

  Planned planned_{this};
  WritePlanner planner_;  // under the policy's lock, or with writers excluded
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_TIERED_TIERED_STORE_H_
