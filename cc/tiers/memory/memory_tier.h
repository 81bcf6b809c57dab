// SPDX-License-Identifier: Apache-2.0
// Rows in host memory, below a cache that is elsewhere: a StripedIndex from keys to row ids, and a
// RowMemory of rows. Slots lie in rows as in a HostStore, of the types that the rule names.
//
// A tier may have a bound on the bytes of its rows. A shared row is forgotten if another row wants
// its place, because the cache has it. Otherwise a Put beyond the bound fails. TwoTiers moves cold
// rows to a tier below before that.
//
// The order in which rows leave is that of a second chance. A hand goes round the index. It spares
// a row that was used since it last came by, once.
//
// Thread safety: any verb, any time, from any thread. A verb on rows holds the mutex of a stripe
// while it looks a key up and copies its row. Verbs that rearrange all rows wait until no other
// verb is inside, and keep others out. SetRule changes the cache meanwhile. So no verb may be
// called by a thread that holds a lock of the cache, or of a stripe.
#ifndef TF_EMBED_CC_TIERS_MEMORY_MEMORY_TIER_H_
#define TF_EMBED_CC_TIERS_MEMORY_MEMORY_TIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/index/row_memory.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/store/lower_tier.h"

namespace tf_embed {

struct MemoryTierOptions {
  std::string store;  // for messages
  DataType value_type = DataType::kFloat;
  size_t dim = 1;
  StatisticSet statistics;
  size_t init_size = 0;              // rows to make room for in the index
  uint64_t most_bytes = UINT64_MAX;  // of rows: weights, slots, statistics and a byte each
  Allocator* allocator = HostAllocator();
};

class MemoryTier final : public LowerTier {
 public:
  // kInvalidArgument if the bound leaves no room for a row.
  static Status Create(const MemoryTierOptions& options, std::unique_ptr<MemoryTier>* tier);

  size_t size() const override { return size_.load(std::memory_order_relaxed); }
  size_t shared() const override { return shared_.load(std::memory_order_relaxed); }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override;
  // Makes room in `rows` for all keys, also for those that are not here.
  Status Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
             WholeRows* rows) override;
  using LowerTier::Put;
  Status Put(const ExecContext& context, const WholeRows& rows, After after) override;
  void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) override;
  void Erase(const int64_t* keys, size_t count) override;
  bool FindStatistics(int64_t key, uint64_t* statistics) const override;
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) override;
  bool NoteUse(int64_t key, const Moment& now) override;
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted) override;
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const override;
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired) override;
  // Takes the stripes of the index whole.
  using LowerTier::Scan;
  Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
              WholeRows* rows) const override;
  using LowerTier::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override;
  Status Clear() override;
  Status Compact(const ExecContext& context) override;
  LowerTierStats Stats() const override;
  const std::string& name() const override { return name_; }

  // For TwoTiers.

  // The rows that fit within the bound.
  size_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  // kInvalidArgument if the bound has no room for a row with the slots of a rule.
  Status CheckCapacity(const RuleSlots& rule, size_t* capacity) const;
  // Makes rows shared. Can't fail.
  void Share(const int64_t* keys, size_t count);
  // Goes on round the rows, twice at most, until `count` rows are found that may leave. Forgets the
  // shared ones among them, and puts the keys of the cold ones in `cold` [count].
  Status Sweep(size_t count, Buffer<int64_t>* cold, size_t* num_cold, size_t* num_forgotten);

 private:
  // Of the mark of a row. All changes are made under the mutex of its stripe.
  static constexpr uint8_t kShared = 1;
  static constexpr uint8_t kUsed = 2;  // since the hand last came by

  struct Content {
    Content(Allocator* allocator, size_t size_hint, const RowLayout& layout, const RuleSlots& rule)
        : index(allocator, size_hint), rows(allocator, layout), rule(rule) {}

    StripedIndex index;
    RowMemory rows;
    RowMemory::RowIdPool pools[StripedIndex::kStripes];  // each under its stripe's mutex
    RuleSlots rule;
    StripedIndex::Cursor hand;           // of sweep_
    StripedIndex::Cursor expiry_cursor;  // of the thread that plans writes
  };

  explicit MemoryTier(const MemoryTierOptions& options);  // may throw std::bad_alloc

  RowLayout LayoutOf(const RuleSlots& rule) const;
  RowStatistics StatisticsOf(uint32_t row_id) const {
    return RowStatistics(options_.statistics, content_->rows.Statistics(row_id));
  }
  bool IsShared(uint32_t row_id) const {
    return (content_->rows.Mark(row_id)->load(std::memory_order_relaxed) & kShared) != 0;
  }
  // Calls visit(row id) for a key that is here, under its stripe's mutex. False if it is not.
  template <typename Visit>
  bool WithRow(int64_t key, const Visit& visit) const;
  // The same, for a cold row, if visit(row id) is true.
  template <typename Visit>
  bool WithColdRow(int64_t key, const Visit& visit) const;
  // Sets the mark of a row and counts it. REQUIRES: its stripe's mutex.
  void SetMark(uint32_t row_id, uint8_t mark) const;
  void SetStatistics(uint32_t row_id, const uint64_t* statistics);
  // Copies a row to the end of `rows`, which has room. REQUIRES: its stripe's mutex.
  void Append(int64_t key, uint32_t row_id, WholeRows* rows) const;
  // Writes the i-th of `rows`. REQUIRES: the same.
  void Write(const WholeRows& rows, size_t i, uint32_t row_id, uint8_t mark);
  Status PutRow(const WholeRows& rows, size_t i, uint8_t mark);
  // Removes a key; with `if_shared` only a shared row. True if it was here.
  bool EraseRow(int64_t key, bool if_shared);
  // Takes a place within the bound. Forgets shared rows if there is none.
  Status TakePlace();
  // Sweep, of shared rows alone if `cold` is null.
  Status SweepFor(size_t count, Buffer<int64_t>* cold, size_t* num_cold, size_t* num_forgotten);

  const MemoryTierOptions options_;
  const std::string name_;
  // Shared by all verbs; held alone by those that rearrange all rows. It has no place in the order
  // of locks: SetRule holds it while the cache takes its own, which no thread holds that calls
  // here.
  mutable FairSharedMutex inside_{LockRank::kUnordered};
  std::unique_ptr<Content> content_;
  std::atomic<size_t> capacity_{0};
  mutable OrderedMutex sweep_{LockRank::kSweep};
  std::atomic<size_t> size_{0};
  mutable std::atomic<size_t> shared_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_MEMORY_MEMORY_TIER_H_
