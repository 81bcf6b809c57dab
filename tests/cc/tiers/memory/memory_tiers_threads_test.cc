// SPDX-License-Identifier: Apache-2.0
// Many threads at once in a tier in host memory, alone and over a tier on disk.
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/support/tier_threads.h"
#include "tests/cc/support/tiered_stores.h"

namespace tf_embed {
namespace {

struct Kind {
  const char* name;
  NewLower create;
  size_t rows;  // the bound, if there is a bound
};
const Kind kKinds[] = {
    {"MemoryTier", NewHostLower, 0},
    {"TwoTiersOfFewRows", NewHostOverDisk, 100},
    {"TwoTiersOfManyRows", NewHostOverDisk, 1000},
};

class Threads : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.name = "items";
    options.dim = TierThreads::kDim;
    ASSERT_TRUE(GetParam().create(options, StatisticSet(), GetParam().rows, &tier_).ok());
  }
  std::unique_ptr<LowerTier> tier_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, Threads, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Threads, GetWholeRowsAndNoneIsLost) {
  TierThreads::ReadAndWrite(tier_.get(), GetParam().rows > 0);
}

TEST_P(Threads, MayChangeTheRuleAndClear) { TierThreads::ChangeTheRule(tier_.get()); }

TEST(TwoTiers, AUseOfARowThatIsGoingDownIsKept) {
  const StatisticSet set = StatisticSet().With(Statistic::kLastStep).With(Statistic::kCount);
  StoreOptions options;
  options.name = "items";
  options.dim = 1;
  MemoryTierOptions above = MemoryTierOptionsOf(options, set);
  above.most_bytes = 100 * BytesOfRow(options, set);
  std::unique_ptr<LowerTier> lower;
  ASSERT_TRUE(NewHostLower(options, set, 0, &lower).ok());
  auto faulty = std::make_unique<FaultyTier>(std::move(lower));
  FaultyTier* const below = faulty.get();
  std::unique_ptr<TwoTiers> tier;
  ASSERT_TRUE(TwoTiers::Create(above, std::move(faulty), &tier).ok());
  WholeRows row(HostAllocator());
  ASSERT_TRUE(row.Resize(1, sizeof(float), 0, 2).ok());
  row.size = 1;
  std::memset(row.weights.data(), 0, sizeof(float));
  row.statistics[0] = row.statistics[1] = 1;

  // Another thread uses all rows of the upper tier while the first of them move down.
  Moment now;
  now.step = 7;
  std::vector<int64_t> used;
  std::future<void> uses;
  below->at_put = [&] {
    if (uses.valid()) return;
    uint64_t words[2];
    for (int64_t key = 0; key < row.keys[0]; ++key) {
      if (tier->above().FindStatistics(key, words)) used.push_back(key);
    }
    uses = std::async(std::launch::async, [&] {
      for (const int64_t key : used) EXPECT_TRUE(tier->NoteUse(key, now));
    });
    uses.wait_for(std::chrono::milliseconds(200));  // otherwise it waits for the rows
  };
  for (int64_t key = 0; !uses.valid(); ++key) {
    row.keys[0] = key;
    ASSERT_TRUE(tier->Put(ExecContext::Serial(), row, LowerTier::After::kCold).ok());
  }
  uses.get();
  EXPECT_GT(below->size(), 0u);
  EXPECT_GE(used.size(), 50u);
  for (const int64_t key : used) {
    uint64_t words[2];
    ASSERT_TRUE(tier->FindStatistics(key, words));
    EXPECT_EQ(7u, words[set.IndexOf(Statistic::kLastStep)]) << key;
    EXPECT_EQ(2u, words[set.IndexOf(Statistic::kCount)]) << key;
  }
}

}  // namespace
}  // namespace tf_embed
