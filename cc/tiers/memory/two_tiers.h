// SPDX-License-Identifier: Apache-2.0
// Host memory between a cache and another tier, such as a DiskTier. The tier above is a MemoryTier
// with a bound, and the other tier is below it. A row is in one of the two.
//
//     Put                    above; a cold row that is already below is replaced there
//     Get                    above, then below; rows stay where they are
//     over the bound         shared rows above are forgotten, cold rows move down, oldest first
//     a row that goes up     stays shared where it is; its next Put goes above
//
// Failures leave all rows where they are: if a row can't go down, it stays above, and the Put that
// wants its place fails.
//
// Thread-safe. A row that moves is put in its new place before it leaves the old place. So a reader
// that looks above and then below misses no row that goes down. `ups_` counts promotions; a reader
// that sees it change looks again. Verbs that change rows exclude each other, moves included,
// except NoteUse, which changes statistics concurrently. If rows go down meanwhile (`downs_`),
// NoteUse notes the use of a row above again after them, because the copy below may lack it.
#ifndef TF_EMBED_CC_TIERS_MEMORY_TWO_TIERS_H_
#define TF_EMBED_CC_TIERS_MEMORY_TWO_TIERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/store/lower_tier.h"
#include "cc/tiers/memory/memory_tier.h"

namespace tf_embed {

class TwoTiers final : public LowerTier {
 public:
  // `options` are for the tier above. `below` is empty and has no rule yet.
  static Status Create(const MemoryTierOptions& options, std::unique_ptr<LowerTier> below,
                       std::unique_ptr<TwoTiers>* tier);

  size_t size() const override { return above_->size() + below_->size(); }
  size_t shared() const override { return above_->shared() + below_->shared(); }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override;
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
  Status LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                  LinkedRows* rows) override;
  Status TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) override;
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const override;
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired) override;
  // Above, then below. The cursor of the tier below has 62 bits.
  using LowerTier::Scan;
  Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
              WholeRows* rows) const override;
  using LowerTier::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override;
  Status Clear() override;
  Status Compact(const ExecContext& context) override;
  LowerTierStats Stats() const override;
  const std::string& name() const override { return below_->name(); }

  const MemoryTier& above() const { return *above_; }
  const LowerTier& below() const { return *below_; }

 private:
  // Set in a cursor of Scan that has reached the tier below.
  static constexpr uint64_t kBelow = uint64_t{1} << 62;

  TwoTiers(const MemoryTierOptions& options, std::unique_ptr<MemoryTier> above,
           std::unique_ptr<LowerTier> below);

  // Get. Without writers_ held, it may miss a row that goes up meanwhile; `*missed` says whether
  // this is possible.
  Status GetFromBoth(const ExecContext& context, const int64_t* keys, size_t count, After after,
                     WholeRows* rows, bool* missed) const;
  // Makes room above for `coming`, or restores the bound if it is null.
  Status MakeRoom(const ExecContext& context, const WholeRows* coming) TF_EMBED_REQUIRES(writers_);
  // Moves cold rows down.
  Status MoveDown(const ExecContext& context, const int64_t* keys, size_t count)
      TF_EMBED_REQUIRES(writers_);
  // Puts rows [begin, end).
  Status PutSome(const ExecContext& context, const WholeRows& rows, size_t begin, size_t end,
                 After after) TF_EMBED_REQUIRES(writers_);
  // Bytes of the slots of a row outside of tiers.
  size_t slot_bytes() const { return slot_bytes_; }

  const MemoryTierOptions options_;
  const std::unique_ptr<MemoryTier> above_;
  const std::unique_ptr<LowerTier> below_;
  // As in MemoryTier: held exclusively by verbs that change the rule or remove all rows.
  mutable FairSharedMutex inside_{LockRank::kUnordered};
  mutable OrderedMutex writers_{LockRank::kTwoTiers};
  std::atomic<uint64_t> ups_{0};    // counts batches put above, before they leave the tier below
  std::atomic<uint64_t> downs_{0};  // starts and ends of moves down; odd: rows are moving
  size_t slot_bytes_ = 0;           // guarded by inside_
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_MEMORY_TWO_TIERS_H_
