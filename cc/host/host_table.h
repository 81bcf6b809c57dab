// SPDX-License-Identifier: Apache-2.0
// The table in the memory of the host: a StripedIndex from keys to row ids, and a RowStore of rows.
//
// A find:  hash -> bucket (one cache line) -> row id -> row. The keys of a batch go through these
// steps one behind the other, each step asking for the memory of the next, so that the misses of a
// dozen keys overlap (table_loops.h). A row is copied without a lock and the bucket's word checked
// afterwards.
//
// A write: equal keys of the batch are brought together (KeyGroups), and each group is dealt with
// once, many at the same time, by the same pipeline. A present row is changed under the lock of its
// bucket's word. A new row is made complete where nobody sees it, then put in the index
// under the stripe's mutex.
//
// A table whose policy bounds or admits or expires rows plans a write first (write_planner.h): a
// pass over the batch tells which keys are absent, room is made for those that may come, and then
// the write goes as any other. Such writes go one at a time, each on all threads.
//
// Locks: those of TableLocks, then a stripe's mutex, then those of the row store and of the index's
// arena, or a bucket's word (lock_order.h).
#ifndef TF_EMBED_CC_HOST_HOST_TABLE_H_
#define TF_EMBED_CC_HOST_HOST_TABLE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/batch/key_groups.h"
#include "cc/core/index/row_store.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/policy/write_planner.h"
#include "cc/core/table/change_log.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_cache.h"
#include "cc/core/table/table_locks.h"

namespace tf_embed {

class HostTable final : public Table,
                        public TableMaintenance,
                        public TableEviction,
                        public TableCache {
 public:
  // Returns nullptr without memory for an empty table.
  static std::unique_ptr<HostTable> Create(const TableOptions& options) {
    return Create(options, RuleSlots());
  }
  // One whose rows have the slots of a rule.
  static std::unique_ptr<HostTable> Create(const TableOptions& options, const RuleSlots& rule);

  const TableOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  void SetInitializer(const RowInitializer& initializer) override;
  size_t size() const override;
  RuleSlots rule() const override;
  TableMaintenance* maintenance() override { return this; }
  TableEviction* eviction() override { return this; }
  TableCache* cache() override { return options_.is_cache ? this : nullptr; }

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
  double LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot) const override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Table::Clear;
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
  TableStats Stats() const override;
  using TableMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  ChangeLog* changes() const override { return changes_.get(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override;
  const TableLocks& locks() const override { return locks_; }
  void DropOutgrown() const override;
  std::unique_ptr<Table> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using TableMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Table* other) override;

 private:
  using Shared = std::shared_lock<FairSharedMutex>;
  using Alone = std::unique_lock<FairSharedMutex>;

  // All that Clear, Shrink and TakeContent replace at once.
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

    // Where keys come and go, more of them lie away from their home buckets than their number
    // tells. Beside the rows of a cache the index is small.
    static constexpr double kCacheLoad = 0.5;

    StripedIndex index;
    RowStore rows;
    RowStore::RowIdPool pools[StripedIndex::kStripes];  // each under its stripe's mutex
    RowInitializer initializer;
    RuleSlots rule;
  };

  // A key on its way through the pipeline: where it was found a moment ago, perhaps nowhere.
  struct Probe {
    uint64_t hash;
    StripedIndex::Entry entry;
    RowMark::Byte* mark;  // of the row that was found; null if rows have no marks

    // Looks for the key once more.
    void FindAgain(const Content& content, int64_t key) {
      entry = content.index.Find(key, hash);
      mark = entry.found() ? content.MarkOf(entry.row_id) : nullptr;
    }
  };

  // One write of a batch, under way.
  struct Write {
    Content* content;
    const Moment& now;
    const Decision* decisions;  // null if writes are not planned: all may come
    const int64_t* scores;      // KeyBatch::scores
    bool* absent;               // KeyBatch::absent
    uint8_t tick;

    // What becomes of an absent key that is the caller's. False: it is not.
    bool LeaveAbsent(const KeyGroup& group) const {
      if (absent == nullptr) return false;
      for (size_t k = 0; k < group.count; ++k) absent[group.positions[k]] = true;
      return true;
    }
    void NoteChange(RowMark::Byte* mark) const {
      if (mark != nullptr) RowMark::Change(mark, tick);
    }
    bool MayInsert(const KeyGroup& group) const {
      return decisions == nullptr || decisions[group.positions[0]] == Decision::kInsert;
    }
  };

  using Wants = std::function<bool(const KeyGroup& group)>;

  // Keys that finds found, and did not.
  struct Counters {
    std::atomic<uint64_t> hits{0}, misses{0};
  };

  // What the planner of writes sees of the table, whose policy's lock it holds.
  class Planned final : public PlannedRows {
   public:
    explicit Planned(HostTable* table) : table_(table) {}
    size_t size() const override { return table_->content_->index.size(); }
    void Prefetch(uint64_t hash) const override {
      __builtin_prefetch(table_->content_->index.HomeOf(hash));
    }
    RowStatistics::Word* Find(int64_t key, uint64_t hash) const override;
    Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                        const Rank& low, const Rank& high, RankList* ranks,
                        size_t* below) const override;
    Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override;
    Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
      return table_->Evict(keys, count, counter);
    }

   private:
    HostTable* const table_;
    StripedIndex::Cursor expiry_cursor_;  // up to where expired rows were looked for
  };

  // Copies whole rows out while others use them.
  class RowCopier {
   public:
    RowCopier(const Content& content, Allocator* allocator);
    // Comes before the first row. What `rows` held is lost.
    Status MakeRoom(size_t count, WholeRows* rows);
    // REQUIRES: the key can't leave meanwhile.
    void Append(const Bucket& bucket, int64_t key, uint32_t row_id, WholeRows* rows);

   private:
    const Content& content_;
    const RowLayout& layout_;
    Buffer<char> stored_slots_;  // of one row, if they are narrow
  };

  // Goes over some stripes for an export, and calls append(copier, bucket, key, row id) for their
  // keys. The cursor is a stripe. Stripes are taken whole, so a key that moves within its stripe
  // between two calls is neither missed nor taken twice.
  template <typename Append>
  Status ExportStripes(size_t max_rows, ExportCursor* cursor, WholeRows* rows,
                       const Append& append) const;

  // What one thread needs to put new rows together.
  struct RowScratch {
    explicit RowScratch(Allocator* allocator) : row(allocator), initial_slots(allocator) {}
    Buffer<char> row;            // one row
    Buffer<char> initial_slots;  // the slots of a new row, as they lie in it
  };

  HostTable(const TableOptions& options, const RuleSlots& rule);  // may throw std::bad_alloc

  // What snapshots go by, in host_table_snapshot.cc. They do nothing in a table without a
  // ChangeLog.

  // Comes before each change of a present row. REQUIRES: the lock of its bucket's word.
  void NoteChange(const Content& content, int64_t key, uint32_t row_id) const {
    if (changes_ != nullptr) NoteTrackedChange(content, key, row_id);
  }
  void NoteTrackedChange(const Content& content, int64_t key, uint32_t row_id) const;
  // Gives the snapshot under way a row. REQUIRES: the same.
  void Give(const Content& content, int64_t key, uint32_t row_id) const;
  // Of a new row that nobody sees yet.
  void NoteCame(const Content& content, uint32_t row_id) const;
  // Comes before a row leaves. REQUIRES: the mutex of its stripe.
  void NoteLeaves(const Content& content, int64_t key, uint64_t hash) const;
  RowChange::Word* ChangeOf(const Content& content, uint32_t row_id) const {
    return content.rows.Statistics(row_id) + options_.policy.statistics.IndexOf(Statistic::kChange);
  }

  // Empty content like the present one.
  Status NewContent(size_t size_hint, std::unique_ptr<Content>* content) const;
  // Puts all rows that `stays(statistics, hash)` is true of into a new content. Nobody writes
  // meanwhile.
  template <typename Stays>
  Status CopyContent(const ExecContext& context, const Stays& stays, Content* copy) const;
  RowLayout LayoutOf(const RuleSlots& rule) const;
  // Makes `slots` the slots of a new row, as they lie in it.
  Status InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const;
  Status NewScratch(const Content& content, RowScratch* scratch) const;
  Status NoMemory(size_t keys_held) const;
  Status OtherRule() const;
  void DefaultRow(const Content& content, const DefaultRows& defaults, int64_t key, size_t position,
                  void* weights) const;

  // Brings the equal keys of a batch together.
  Status Group(const ExecContext& context, const KeyBatch& batch, const bool* skip,
               KeyGroups* groups) const;

  // Runs `work(write, range)` over the groups of a batch, many ranges at once, and returns the
  // first failure. Keys whose `skip` is true are left out. Refuses where `expected` is given and
  // the table has another rule. `wants(group)` says whether the verb would insert the key if it
  // were absent.
  template <typename Work>
  Status ForEachRange(const ExecContext& context, const KeyBatch& batch, const bool* skip,
                      const RuleSlots* expected, Admits admits, const Wants& wants,
                      const Work& work);
  // The same, once the groups are made and the locks are held.
  template <typename Work>
  Status RunPlanned(const ExecContext& context, const KeyBatch& batch, const KeyGroups& groups,
                    Admits admits, const Wants& wants, size_t key_cost, const Work& work);

  // Calls `visit(group, probe)` for all groups of a range, having asked for the memory of their
  // buckets and rows; stops at a failure. `approach(group)` is called some keys before the visit,
  // to ask for what else it will need.
  template <typename Approach, typename Visit>
  Status ForEachGroup(const Content& content, KeyGroups::Range* range, const Approach& approach,
                      const Visit& visit);

  // Calls `present(row)` under the row's lock, or `absent(row)` for a new row that nobody sees yet,
  // which then joins the table; for an absent key that may not be inserted, nothing.
  template <typename Present, typename Absent>
  Status VisitRow(const Write& write, const KeyGroup& group, Probe probe, const Present& present,
                  const Absent& absent);
  // The same, passing over an absent key. A key comes once in a batch's groups; so one whose probe
  // found nothing can only have been inserted since by another verb, which may as well come later.
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

  // The policy's part, in host_table_policy.cc.
  RowStatistics StatisticsOf(const Content& content, uint32_t row_id) const {
    return RowStatistics(options_.policy.statistics, content.rows.Statistics(row_id));
  }
  // Notes a use of a row where there are statistics.
  void Use(const Content& content, uint32_t row_id, const Moment& now) const {
    if (notes_uses_) StatisticsOf(content, row_id).Use(now);
  }
  // Sets the score that a write brings for a row.
  void SetScore(const Write& write, const KeyGroup& group, uint32_t row_id) const {
    if (write.scores == nullptr) return;
    const int64_t score = write.scores[group.positions[group.count - 1]];
    StatisticsOf(*write.content, row_id).Set(Statistic::kScore, RowStatistics::ScoreBits(score));
  }
  // Looks each group up and notes its use, or decides what it is for the planner.
  Status Survey(const ExecContext& context, const KeyBatch& batch, const KeyGroups& groups,
                const Wants& wants, WritePlan* plan);
  // Calls visit(bucket, key, row id, row) for the keys of a stripe, whose mutex is held, having
  // asked for the memory of their rows.
  template <typename Visit>
  void ForEachRow(const Content& content, size_t stripe, const Visit& visit) const;
  // Calls visit(key, statistics) for the keys of a stripe, whose mutex is held.
  template <typename Visit>
  void ForEachStatistics(const Content& content, size_t stripe, const Visit& visit) const;
  // CollectRanks. REQUIRES: the content is held.
  Status RanksOf(const Content& content, const ExecContext& context, EvictionOrder order,
                 size_t one_in, const Rank& low, const Rank& high, RankList* ranks,
                 size_t* below) const;
  // Takes rows out and tells the sink. REQUIRES: each key has a row and comes once; nobody else
  // writes; no stripe's mutex is held.
  Status Evict(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter);
  // Copies the rows that `stays(statistics, hash)` is true of, while nobody writes, and changes
  // over to the copy.
  template <typename Stays>
  Status KeepOnly(const ExecContext& context, size_t num_left, const Stays& stays, size_t* removed);
  // Takes out all rows of which `leaves(statistics, rank)` is true, while nobody writes.
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

  // Calls visit(position, entry) for some keys of a batch.
  template <typename Visit>
  void ForEachProbe(const KeyBatch& batch, size_t begin, size_t end, const Visit& visit) const;

  // Gives all rows the slots of a new row, or their own in other types. Nobody else is in.
  Status ReplaceSlots(const RuleSlots& rule);
  Status ConvertSlots(const RuleSlots& rule);

  uint8_t tick() const { return tick_.load(std::memory_order_relaxed); }

  TableOptions options_;
  const TableLoops& loops_;
  const TableLocks locks_{TableLocks::Writes::kTogether};
  std::unique_ptr<Content> content_;
  std::shared_ptr<ChangeLog> changes_;
  bool notes_uses_ = false;  // rows have statistics of use

  Planned planned_{this};
  WritePlanner planner_;  // under the policy's lock, or while nobody else writes
  mutable Counters counters_;
  std::atomic<uint8_t> tick_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_HOST_HOST_TABLE_H_
