// SPDX-License-Identifier: Apache-2.0
// A store in host memory: a StripedIndex from keys to row ids, and a RowMemory.
//
// A find goes from hash to bucket (one cache line) to row id to row. A pipeline prefetches each
// step, so that the cache misses of a dozen keys overlap (table_loops.h). Rows are copied without a
// lock and validated afterwards by the bucket's word.
//
// A write groups equal keys of the batch (KeyGroups) and handles each group once, in parallel, by
// the same pipeline. It changes a present row under the lock of the bucket's word. It fills a new
// row while no reader can see it, then inserts it in the index under the stripe's mutex.
//
// A store with a bound, admission or expiry plans its new rows (write_planner.h). A write handles
// the present rows of the batch and leaves the absent keys to the plan. Once there is room for the
// admitted keys, it runs again for these alone. Such writes run one at a time, each on all threads.
//
// Locks: StoreLocks, then a stripe's mutex, then the locks of RowMemory and of the index's arena,
// or a bucket's word (lock_order.h).
#ifndef TF_EMBED_CC_STORES_HOST_HOST_STORE_H_
#define TF_EMBED_CC_STORES_HOST_HOST_STORE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cc/core/batch/key_groups.h"
#include "cc/core/index/row_memory.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/policy/write_planner.h"
#include "cc/core/store/change_log.h"
#include "cc/core/store/store.h"
#include "cc/core/store/store_cache.h"
#include "cc/core/store/store_locks.h"

namespace tf_embed {

class HostStore final : public Store,
                        public StoreMaintenance,
                        public StoreEviction,
                        public StoreCache {
 public:
  // Returns nullptr if memory for an empty store is short.
  static std::unique_ptr<HostStore> Create(const StoreOptions& options) {
    return Create(options, RuleSlots());
  }
  // A store whose rows have the slots of a rule.
  static std::unique_ptr<HostStore> Create(const StoreOptions& options, const RuleSlots& rule);

  const StoreOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  void SetInitializer(const RowInitializer& initializer) override;
  size_t size() const override;
  RuleSlots rule() const override;
  StoreMaintenance* maintenance() override { return this; }
  StoreEviction* eviction() override { return this; }
  StoreCache* cache() override { return options_.is_cache ? this : nullptr; }

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
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Store::Clear;
  Status Clear(const ExecContext& context) override;
  Status Shrink(const ExecContext& context) override;
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
  size_t num_rows() const override { return content_->index.size(); }
  void SetTick(uint8_t tick) override { tick_.store(tick, std::memory_order_relaxed); }
  Status Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status SetChanged(const ExecContext& context, const KeyBatch& batch, bool changed) const override;
  Status FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                   bool* exists) const override;
  Status CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                     RankList* ranks) const override;
  Status AddUnchanged(const ExecContext& context, const WholeRows& rows) override;
  void Drop(const ExecContext& context, const int64_t* keys, size_t count) override;
  Status NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) override;
  PlannedRows* planned_rows() override { return &planned_; }
  StoreStats Stats() const override;
  using StoreMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  ChangeLog* changes() const override { return changes_.get(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override;
  const StoreLocks& locks() const override { return locks_; }
  void DropOutgrown() const override;
  std::unique_ptr<Store> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using StoreMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Store* other) override;

 private:
  using Shared = std::shared_lock<FairSharedMutex>;
  using Alone = std::unique_lock<FairSharedMutex>;

  // The state that Clear, Shrink and TakeContent replace as a whole.
  struct Content {
    Content(Allocator* allocator, size_t size_hint, const RowLayout& layout,
            RowInitializer initializer, const RuleSlots& rule)
        : index(allocator, size_hint, layout.has_marks ? kCacheLoad : StripedIndex::kMaxLoad),
          rows(allocator, layout),
          initializer(std::move(initializer)),
          rule(rule) {}

    // Null if rows have no marks.
    RowMark::Byte* MarkOf(uint32_t row_id) const {
      return rows.layout().has_marks ? rows.Mark(row_id) : nullptr;
    }

    // Insertions and erasures displace more keys from their home buckets than the load alone
    // suggests. The index of a cache is small beside its rows, so a low load is affordable.
    static constexpr double kCacheLoad = 0.5;

    StripedIndex index;
    size_t index_bytes_once_dropped = 0;  // after the last DropOutgrown; under the content lock
    RowMemory rows;
    RowMemory::RowIdPool pools[StripedIndex::kStripes];  // each under its stripe's mutex
    RowInitializer initializer;
    RuleSlots rule;
  };

  // A key in the pipeline, with the result of its last lookup.
  struct Probe {
    uint64_t hash;
    StripedIndex::Entry entry;
    RowMark::Byte* mark;  // of the row that was found; null if rows have no marks

    // Looks the key up again.
    void FindAgain(const Content& content, int64_t key) {
      entry = content.index.Find(key, hash);
      mark = entry.found() ? content.MarkOf(entry.row_id) : nullptr;
    }
  };

  // A write of a batch in progress.
  struct Write {
    Content* content;
    const Moment& now;
    WritePlan* plan;        // which gets absent and expired keys; null: they are written
    const int64_t* scores;  // KeyBatch::scores
    bool* absent;           // KeyBatch::absent
    uint8_t tick;

    // Whether the caller handles this absent key. If so, marks it in `absent`.
    bool LeaveAbsent(const KeyGroup& group) const {
      if (absent == nullptr) return false;
      for (size_t k = 0; k < group.count; ++k) absent[group.positions[k]] = true;
      return true;
    }
    void NoteChange(RowMark::Byte* mark) const {
      if (mark != nullptr) RowMark::Change(mark, tick);
    }
    // Leaves a key to the plan, if there is one.
    bool LeaveToPlan(const KeyGroup& group, Decision decision) const {
      if (plan == nullptr) return false;
      plan->decisions[group.positions[0]] = decision;
      if (plan->scores.size() > 0) {
        plan->scores[group.positions[0]] = RowStatistics::ScoreBits(ScoreOf(group));
      }
      return true;
    }
    int64_t ScoreOf(const KeyGroup& group) const {
      return scores[group.positions[group.count - 1]];
    }
  };

  // Hits and misses of finds.
  struct Counters {
    std::atomic<uint64_t> hits{0}, misses{0};
  };

  // The planner's view of the store. REQUIRES: the policy's lock held.
  class Planned final : public PlannedRows {
   public:
    explicit Planned(HostStore* store) : store_(store) {}
    size_t size() const override { return store_->content_->index.size(); }
    void Prefetch(uint64_t hash) const override {
      __builtin_prefetch(store_->content_->index.HomeOf(hash));
    }
    void PrefetchStatistics(uint64_t hash) const override;
    Status Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const override;
    Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                        const Rank& low, const Rank& high, RankList* ranks,
                        size_t* below) const override;
    Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override;
    Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
      return store_->Evict(keys, count, counter);
    }

   private:
    HostStore* const store_;
    StripedIndex::Cursor expiry_cursor_;  // end of the last search for expired rows
  };

  // Copies whole rows out during concurrent use.
  class RowCopier {
   public:
    RowCopier(const Content& content, Allocator* allocator);
    // REQUIRES: called before the first Append. Discards the content of `rows`.
    Status MakeRoom(size_t count, WholeRows* rows);
    // REQUIRES: the key can't leave concurrently.
    void Append(const Bucket& bucket, int64_t key, uint32_t row_id, WholeRows* rows);

   private:
    const Content& content_;
    const RowLayout& layout_;
    Buffer<char> stored_slots_;  // of a row, if they are narrow
  };

  // Exports some stripes: calls append(copier, bucket, key, row id) for their keys. The cursor
  // counts stripes. A call takes whole stripes, so a key that moves within its stripe between calls
  // is exported exactly once.
  template <typename Append>
  Status ExportStripes(size_t max_rows, ExportCursor* cursor, WholeRows* rows,
                       const Append& append) const;

  // A thread's buffers for building new rows.
  struct RowScratch {
    explicit RowScratch(Allocator* allocator) : row(allocator), initial_slots(allocator) {}
    Buffer<char> row;            // one row
    Buffer<char> initial_slots;  // slots of a new row, in row format
  };

  HostStore(const StoreOptions& options, const RuleSlots& rule);  // may throw std::bad_alloc

  // Snapshot hooks (host_store_snapshot.cc). No-ops in a store without a ChangeLog.

  // Called before each change of a present row. REQUIRES: the lock of its bucket's word.
  void NoteChange(const Content& content, int64_t key, uint32_t row_id) const {
    if (changes_ != nullptr) NoteTrackedChange(content, key, row_id);
  }
  void NoteTrackedChange(const Content& content, int64_t key, uint32_t row_id) const;
  // Whether the snapshot in progress wants a row and has not received it.
  bool IsWanted(const Content& content, uint32_t row_id) const {
    return changes_ != nullptr &&
           RowChange::IsWanted(ChangeOf(content, row_id)->load(std::memory_order_acquire),
                               changes_->wanted());
  }
  // Hands over a wanted row. REQUIRES: the lock of its bucket's word.
  void Give(const Content& content, int64_t key, uint32_t row_id) const;
  // The same for a caller without that lock, before it notes a use. Skips absent keys.
  void GiveBeforeUse(const Content& content, int64_t key) const;
  // Called for a new row before it is visible.
  void NoteCame(const Content& content, uint32_t row_id) const;
  // Called before a row leaves. REQUIRES: the mutex of its stripe.
  void NoteLeaves(const Content& content, int64_t key, uint64_t hash) const;
  RowChange::Word* ChangeOf(const Content& content, uint32_t row_id) const {
    return content.rows.Statistics(row_id) + options_.policy.statistics.IndexOf(Statistic::kChange);
  }

  // Makes empty content like the present content.
  Status NewContent(size_t size_hint, std::unique_ptr<Content>* content) const;
  // Copies all rows for which `stays(statistics, hash)` is true to new content. REQUIRES: no
  // concurrent writes.
  template <typename Stays>
  Status CopyContent(const ExecContext& context, const Stays& stays, Content* copy) const;
  RowLayout LayoutOf(const RuleSlots& rule) const;
  // Fills `slots` with the slots of a new row, in row format.
  Status InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const;
  Status NewScratch(const Content& content, RowScratch* scratch) const;
  Status NoMemory(size_t keys_held) const;
  Status OtherRule() const;
  void DefaultRow(const Content& content, const DefaultRows& defaults, int64_t key, size_t position,
                  void* weights) const;

  // Groups the equal keys of a batch.
  Status Group(const ExecContext& context, const KeyBatch& batch, const bool* skip,
               KeyGroups* groups) const;

  // Runs `work(write, range)` over the groups of a batch in parallel, and returns the first
  // failure. Skips keys whose `skip` is true. Fails if `expected` is given and the store has
  // another rule.
  template <typename Work>
  Status ForEachRange(const ExecContext& context, const KeyBatch& batch, const bool* skip,
                      const RuleSlots* expected, Admits admits, const Work& work);
  // The same. REQUIRES: groups made and locks held.
  template <typename Work>
  Status RunPlanned(const ExecContext& context, const KeyBatch& batch, const KeyGroups& groups,
                    Admits admits, size_t key_cost, const Work& work);

  // Calls `visit(group, probe)` for all groups of a range, with their buckets and rows prefetched.
  // Stops at a failure. `approach(group)` runs some keys ahead of the visit, to prefetch other
  // data.
  template <typename Approach, typename Visit>
  Status ForEachGroup(const Content& content, KeyGroups::Range* range, const Approach& approach,
                      const Visit& visit);

  // Calls `present(row)` for the row that a probe found, under the lock of its bucket. False: the
  // bucket has changed or is locked, so the key must be looked up again.
  template <typename Present>
  bool ChangeRow(const Write& write, const KeyGroup& group, const Probe& probe,
                 const Present& present);
  // The same for a key that may be absent: then calls `absent(row)` for a new row before it becomes
  // visible, or leaves the key to the plan.
  template <typename Present, typename Absent>
  Status VisitRow(const Write& write, const KeyGroup& group, Probe probe, const Present& present,
                  const Absent& absent);
  // As VisitRow, but skips absent keys. A key occurs once in the groups, so if its probe missed,
  // only a concurrent verb can have inserted it since. This is as if that verb had run later.
  template <typename Present>
  Status VisitPresentRow(const Write& write, const KeyGroup& group, Probe probe,
                         const Present& present);

  template <typename T>
  Status AccumRange(const Write& write, KeyGroups::Range* range, const T* old_rows,
                    const T* new_rows, const bool* exists);
  // Stepper: a RowStepper; G: the gradients.
  template <typename Stepper, typename G>
  Status ApplyRange(const Write& write, KeyGroups::Range* range, const Gradients& gradients,
                    const Rule& rule);

  // The policy: host_store_policy.cc.
  RowStatistics StatisticsOf(const Content& content, uint32_t row_id) const {
    return RowStatistics(options_.policy.statistics, content.rows.Statistics(row_id));
  }
  // Notes the use of a changed row, if the store keeps statistics.
  void Use(const Content& content, uint32_t row_id, const Moment& now) const {
    if (notes_uses_) StatisticsOf(content, row_id).Use(now);
  }
  // Notes the use of a row whose bucket is not locked, unless the row has expired: then false.
  bool UseUnlessExpired(const Content& content, int64_t key, uint32_t row_id,
                        const Moment& now) const {
    RowStatistics row = StatisticsOf(content, row_id);
    if (options_.policy.Expired(row, now)) return false;
    if (IsWanted(content, row_id)) GiveBeforeUse(content, key);
    row.Use(now);
    return true;
  }
  // Leaves a key to the plan if its row is expired. Without a plan, such a row counts as present.
  bool LeavesExpired(const Write& write, const KeyGroup& group, uint32_t row_id,
                     Decision decision) const {
    return write.plan != nullptr &&
           options_.policy.Expired(StatisticsOf(*write.content, row_id), write.now) &&
           write.LeaveToPlan(group, decision);
  }
  // Sets a row's score, if the write has scores.
  void SetScore(const Write& write, const KeyGroup& group, uint32_t row_id) const {
    if (write.scores == nullptr) return;
    const uint64_t score = RowStatistics::ScoreBits(write.ScoreOf(group));
    StatisticsOf(*write.content, row_id).Set(Statistic::kScore, score);
  }
  // Calls visit(bucket, key, row id, row) for the keys of a stripe, with rows prefetched. REQUIRES:
  // the stripe's mutex held.
  template <typename Visit>
  void ForEachRow(const Content& content, size_t stripe, const Visit& visit) const;
  // Calls visit(key, statistics) for the keys of a stripe. REQUIRES: its mutex held.
  template <typename Visit>
  void ForEachStatistics(const Content& content, size_t stripe, const Visit& visit) const;
  // CollectRanks. REQUIRES: the content is held.
  Status RanksOf(const Content& content, const ExecContext& context, EvictionOrder order,
                 size_t one_in, const Rank& low, const Rank& high, RankList* ranks,
                 size_t* below) const;
  // Evicts rows and tells the sink. REQUIRES: keys are distinct and present; no concurrent writes;
  // no stripe's mutex held.
  Status Evict(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter);
  // Copies the rows for which `stays(statistics, hash)` is true, and switches to the copy. Pauses
  // writers.
  template <typename Stays>
  Status KeepOnly(const ExecContext& context, size_t num_left, const Stays& stays, size_t* removed);
  // Evicts all rows for which `leaves(statistics, rank)` is true. Pauses writers.
  template <typename Leaves>
  Status EvictAll(const ExecContext& context, const Leaves& leaves, std::atomic<uint64_t>* counter,
                  size_t* removed);

  // To `words` [statistics of a row].
  static void CopyStatistics(const Content& content, uint32_t row_id, uint64_t* words) {
    const RowStatistics::Word* const kept = content.rows.Statistics(row_id);
    for (size_t i = 0; i < content.rows.layout().statistics_per_row; ++i) {
      words[i] = kept[i].load(std::memory_order_relaxed);
    }
  }

  // Calls visit(i, entry) for some keys of a batch.
  template <typename Visit>
  void ForEachProbe(const KeyBatch& batch, size_t begin, size_t end, const Visit& visit) const;

  // Gives all rows initial slots, or converts their own to new types. REQUIRES: exclusive access.
  Status ReplaceSlots(const RuleSlots& rule);
  Status ConvertSlots(const RuleSlots& rule);

  uint8_t tick() const { return tick_.load(std::memory_order_relaxed); }

  StoreOptions options_;
  const TableLoops& loops_;
  const StoreLocks locks_{StoreLocks::Writes::kTogether};
  std::unique_ptr<Content> content_;
  std::shared_ptr<ChangeLog> changes_;
  bool notes_uses_ = false;  // rows have statistics of use

  Planned planned_{this};
  WritePlanner planner_;  // under the policy's lock, or with writers excluded
  mutable Counters counters_;
  std::atomic<uint8_t> tick_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_HOST_HOST_STORE_H_
