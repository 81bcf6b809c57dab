// SPDX-License-Identifier: Apache-2.0
// A sink receives whole rows, equal to an export of the same rows before they left.
#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class EvictedRows : public testing::TestWithParam<StoreKind> {
 protected:
  static constexpr size_t kRows = 3000;

  // Trains the rows of a store, and exports all of them.
  void Train(const RowPolicy& policy) {
    log_.num_statistics = policy.statistics.size();
    RowPolicy logged = policy;
    logged.sink = &log_;
    subject_ = std::make_unique<Subject>(GetParam(), logged);
    Batch keys(std::vector<int64_t>(kRows, 0));
    std::iota(keys.keys.begin(), keys.keys.end(), -1000);
    for (int step = 0; step < 3; ++step) {
      subject_->Apply(keys);
      subject_->NextStep();
      keys.keys.resize(keys.keys.size() / 2);
    }
    log_.num_statistics = subject_->store->options().policy.statistics.size();
    weights_ = subject_->Rows();
    slots_ = subject_->Slots();
    for (const auto& row : weights_) statistics_[row.first] = subject_->StatisticsOf(row.first);
  }

  void ExpectLogged(size_t count) {
    EXPECT_EQ(count, log_.evicted.size());
    for (const auto& [key, weights] : log_.evicted) {
      ASSERT_EQ(1u, weights_.count(key)) << key;
      EXPECT_EQ(weights_[key], weights) << key;
      EXPECT_EQ(slots_[key], log_.slots[key]) << key;
      EXPECT_EQ(statistics_[key], log_.statistics[key]) << key;
      EXPECT_FALSE(subject_->Has(key)) << key;
    }
  }

  Log log_;
  std::unique_ptr<Subject> subject_;
  std::map<int64_t, std::vector<float>> weights_, slots_;
  std::map<int64_t, std::vector<uint64_t>> statistics_;
};

TEST_P(EvictedRows, ABoundedStoreGivesThemWhole) {
  RowPolicy policy = AllStatistics();
  policy.max_rows = kRows;
  Train(policy);
  Batch candidates(std::vector<int64_t>(700, 0));
  std::iota(candidates.keys.begin(), candidates.keys.end(), 1 << 20);
  subject_->Apply(candidates);
  ExpectLogged(kRows + candidates.size() - subject_->store->size());
  EXPECT_LT(500u, log_.evicted.size());
}

TEST_P(EvictedRows, ExpiredOnesAreWholeToo) {
  RowPolicy policy = AllStatistics();
  policy.ttl_milliseconds = 100;
  Train(policy);
  subject_->NextStep(75);  // only rows of the first step are old enough
  size_t removed = 0;
  Subject::ExpectOk(subject_->store->eviction()->EvictExpired(subject_->context, &removed));
  EXPECT_EQ(kRows / 2, removed);
  ExpectLogged(removed);
}

INSTANTIATE_TEST_SUITE_P(All, EvictedRows, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
