// SPDX-License-Identifier: Apache-2.0
// A LowerTier with verbs that fail on demand, or let another thread go first.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_FAULTY_TIER_H_
#define TF_EMBED_TESTS_CC_SUPPORT_FAULTY_TIER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cc/core/store/lower_tier.h"

namespace tf_embed {

class FaultyTier final : public LowerTier {
 public:
  explicit FaultyTier(std::unique_ptr<LowerTier> tier) : tier_(std::move(tier)) {}

  // Fails Get and Put after `verbs` more calls; -1: never.
  void FailAfter(int verbs) { verbs_left_ = verbs; }
  // Fails Scan until it is called with false.
  void FailScans(bool fail) { scans_fail_ = fail; }

  // Actions that run once, before the next Get or Erase reads the rows. Set them while no verb
  // runs.
  std::function<void()> before_get, before_erase;

  // Called each time, by the calling thread: before a search for victims in this tier, before Put,
  // before a search for a row's statistics, and after Get has made rows shared.
  std::function<void()> at_collect, at_put, after_shared;
  std::function<void(int64_t key)> at_statistics;

  size_t size() const override { return tier_->size(); }
  size_t shared() const override { return tier_->shared(); }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override {
    tier_->Contains(keys, count, exists);
  }
  Status Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
             WholeRows* rows) override {
    rows->size = 0;
    TF_EMBED_RETURN_IF_ERROR(Fault("read"));
    Run(&before_get);
    const Status status = tier_->Get(context, keys, count, after, rows);
    if (after == After::kShared && after_shared != nullptr) after_shared();
    return status;
  }
  using LowerTier::Put;
  Status Put(const ExecContext& context, const WholeRows& rows, After after) override {
    TF_EMBED_RETURN_IF_ERROR(Fault("written"));
    if (at_put != nullptr) at_put();
    return tier_->Put(context, rows, after);
  }
  void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) override {
    tier_->Unshare(keys, count, statistics);
  }
  void Erase(const int64_t* keys, size_t count) override {
    Run(&before_erase);
    tier_->Erase(keys, count);
  }
  bool FindStatistics(int64_t key, uint64_t* statistics) const override {
    if (at_statistics != nullptr) at_statistics(key);
    return tier_->FindStatistics(key, statistics);
  }
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) override {
    return tier_->AssignStatistics(key, set, statistics);
  }
  bool NoteUse(int64_t key, const Moment& now) override { return tier_->NoteUse(key, now); }
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted) override {
    return tier_->TakeForSnapshot(key, wanted);
  }
  Status LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                  LinkedRows* rows) override {
    return tier_->LinkNext(wanted, linker, cursor, rows);
  }
  Status TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) override {
    return tier_->TakeLinked(wanted, cursor, rows);
  }
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const override {
    if (at_collect != nullptr) at_collect();
    return tier_->CollectRanks(order, one_in, low, high, ranks, below);
  }
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired) override {
    return tier_->FindExpired(policy, now, num_absent, expired);
  }
  using LowerTier::Scan;
  Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
              WholeRows* rows) const override {
    if (scans_fail_) return Status::Unavailable(name() + " can't be scanned, as a test wants it.");
    return tier_->Scan(max_rows, wanted, cursor, rows);
  }
  using LowerTier::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override {
    return tier_->SetRule(rule, change_cache);
  }
  Status Clear() override { return tier_->Clear(); }
  Status Compact(const ExecContext& context) override { return tier_->Compact(context); }
  LowerTierStats Stats() const override { return tier_->Stats(); }
  const std::string& name() const override { return tier_->name(); }

 private:
  static void Run(std::function<void()>* first) {
    if (*first == nullptr) return;
    std::thread(std::exchange(*first, nullptr)).join();
  }
  Status Fault(const char* what) {
    if (verbs_left_ < 0) return Status();
    if (verbs_left_ > 0) {
      --verbs_left_;
      return Status();
    }
    return Status::Unavailable(name() + " can't be " + what + ", as a test wants it.");
  }

  const std::unique_ptr<LowerTier> tier_;
  std::atomic<int> verbs_left_{-1};
  bool scans_fail_ = false;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_FAULTY_TIER_H_
