// SPDX-License-Identifier: Apache-2.0
// Rows in host memory, below a cache in other memory: a StripedIndex from keys to row ids, and a
// RowMemory of rows. Rows contain slots as in a HostStore, in the types that the rule names.
//
// A tier may have a bound on the bytes of its rows. If a row needs a place, a shared row is
// forgotten, because the cache has it. If there is no shared row, a Put beyond the bound fails.
// TwoTiers avoids this: it first moves cold rows to a tier below.
//
// Rows leave in second-chance (CLOCK) order. A hand goes round the index, and spares a row once if
// it was used since the last pass.
//
// Thread-safe. A verb on rows holds the mutex of a stripe while it looks a key up and copies its
// row. Verbs that rearrange all rows run alone; SetRule then also changes the cache. So a thread
// that holds a lock of the cache, or of a stripe, must not call any verb.
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
  std::string table;  // its name, for messages
  DataType value_type = DataType::kFloat;
  size_t dim = 1;
  StatisticSet statistics;
  size_t init_size = 0;              // rows to reserve in the index
  uint64_t most_bytes = UINT64_MAX;  // limit on rows: weights, slots, statistics and a byte a row
  Allocator* allocator = HostAllocator();
};

class MemoryTier final : public LowerTier {
 public:
  // kInvalidArgument if the bound leaves no room for a row.
  static Status Create(const MemoryTierOptions& options, std::unique_ptr<MemoryTier>* tier);

  size_t size() const override { return size_.load(std::memory_order_relaxed); }
  size_t shared() const override { return shared_.load(std::memory_order_relaxed); }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override;
  // Makes room in `rows` for all keys, absent keys included.
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
  // Returns whole stripes of the index.
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
  // Moves the hand, at most twice round, until it finds `count` rows that may leave. Forgets the
  // shared rows among them, and puts the keys of the cold rows in `cold` [count].
  Status Sweep(size_t count, Buffer<int64_t>* cold, size_t* num_cold, size_t* num_forgotten);

 private:
  // Bits of a row's mark, which changes under the mutex of its stripe.
  static constexpr uint8_t kShared = 1;
  static constexpr uint8_t kUsed = 2;  // since the hand last passed

  struct Content {
    Content(Allocator* allocator, size_t size_hint, const RowLayout& layout, const RuleSlots& rule)
        : index(allocator, size_hint), rows(allocator, layout), rule(rule) {}

    StripedIndex index;
    RowMemory rows;
    RowMemory::RowIdPool pools[StripedIndex::kStripes];  // each under its stripe's mutex
    RuleSlots rule;
    StripedIndex::Cursor hand;           // guarded by sweep_
    StripedIndex::Cursor expiry_cursor;  // owned by the write planner
  };

  explicit MemoryTier(const MemoryTierOptions& options);  // may throw std::bad_alloc

  RowLayout LayoutOf(const RuleSlots& rule) const;
  RowStatistics StatisticsOf(uint32_t row_id) const {
    return RowStatistics(options_.statistics, content_->rows.Statistics(row_id));
  }
  bool IsShared(uint32_t row_id) const {
    return (content_->rows.Mark(row_id)->load(std::memory_order_relaxed) & kShared) != 0;
  }
  // Calls visit(row id) for a present key, under its stripe's mutex. Returns false for an absent
  // key.
  template <typename Visit>
  bool WithRow(int64_t key, const Visit& visit) const;
  // The same for a cold row only. Returns the result of visit(row id).
  template <typename Visit>
  bool WithColdRow(int64_t key, const Visit& visit) const;
  // Sets the mark of a row and updates the counts. REQUIRES: its stripe's mutex held.
  void SetMark(uint32_t row_id, uint8_t mark) const;
  void SetStatistics(uint32_t row_id, const uint64_t* statistics);
  // Copies a row to the end of `rows`, which has room. REQUIRES: its stripe's mutex held.
  void Append(int64_t key, uint32_t row_id, WholeRows* rows) const;
  // Writes row `i` of `rows`. REQUIRES: the same.
  void Write(const WholeRows& rows, size_t i, uint32_t row_id, uint8_t mark);
  Status PutRow(const WholeRows& rows, size_t i, uint8_t mark);
  // Removes a key; with `if_shared` only a shared row. Returns whether it was removed.
  bool EraseRow(int64_t key, bool if_shared);
  // Takes a place within the bound. Forgets shared rows if there is no free place.
  Status TakePlace();
  // Sweep; forgets shared rows only if `cold` is null.
  Status SweepFor(size_t count, Buffer<int64_t>* cold, size_t* num_cold, size_t* num_forgotten);

  const MemoryTierOptions options_;
  const std::string name_;
  // Shared by all verbs; held exclusively by verbs that rearrange all rows. It is outside the lock
  // order: SetRule holds it while the cache takes its locks, and no thread that calls here holds
  // those locks.
  mutable FairSharedMutex inside_{LockRank::kUnordered};
  std::unique_ptr<Content> content_;
  std::atomic<size_t> capacity_{0};
  mutable OrderedMutex sweep_{LockRank::kSweep};
  std::atomic<size_t> size_{0};
  mutable std::atomic<size_t> shared_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_MEMORY_MEMORY_TIER_H_
