// SPDX-License-Identifier: Apache-2.0
// A tier in host memory, alone or over a tier on disk, returns the rows that were put, for any
// bound.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/tiers/memory/memory_tier.h"
#include "cc/tiers/memory/two_tiers.h"
#include "gtest/gtest.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/tier_oracle.h"
#include "tests/cc/support/tiered_stores.h"

namespace tf_embed {
namespace {

using After = LowerTier::After;

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) {
    keys.push_back(static_cast<int64_t>(static_cast<uint64_t>(key) * 0x5851f42d4c957f2d));
  }
  return keys;
}

// Random distinct keys of 0 .. n - 1.
std::vector<int64_t> Some(int64_t n, size_t count, std::mt19937_64* random) {
  std::vector<int64_t> keys = Range(0, n);
  std::shuffle(keys.begin(), keys.end(), *random);
  keys.resize(std::min(count, keys.size()));
  return keys;
}

StoreOptions Options(size_t dim, DataType type = DataType::kFloat) {
  StoreOptions options;
  options.name = "items";
  options.dim = dim;
  options.value_type = type;
  return options;
}

bool Names(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

struct Kind {
  const char* name;
  NewLower create;
  size_t rows;  // the bound, if there is a bound
};
const Kind kKinds[] = {
    {"MemoryTier", NewHostLower, 0},
    {"TwoTiersOfOneRow", NewHostOverDisk, 1},
    {"TwoTiersOfFewRows", NewHostOverDisk, 100},
    {"TwoTiersOfAllRows", NewHostOverDisk, 100000},
};

class Tiers : public testing::TestWithParam<Kind> {
 protected:
  TierOracle New(size_t dim, DataType type = DataType::kFloat) {
    std::unique_ptr<LowerTier> tier;
    const Status status =
        GetParam().create(Options(dim, type), StatisticSet(), GetParam().rows, &tier);
    EXPECT_TRUE(status.ok()) << status.message();
    return TierOracle(std::move(tier), type, dim, GetParam().create != NewHostLower);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Tiers, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Tiers, AgreeWithAMapOfRows) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    const size_t dim = seed == 1 ? 1 : seed == 2 ? 33 : 100;
    TierOracle oracle = New(dim);
    ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, dim)).ok());
    for (int step = 0; step < 300; ++step) {
      const std::vector<int64_t> keys = Some(2000, random() % 300, &random);
      switch (random() % 10) {
        case 0:
        case 1:
        case 2:
          ASSERT_TRUE(oracle.Put(keys).ok());
          break;
        case 3:
          ASSERT_TRUE(oracle.Put(keys, After::kShared).ok());
          break;
        case 4:
          oracle.Erase(keys);
          break;
        case 5:
        case 6:
          ASSERT_TRUE(oracle.Get(keys, After::kShared).ok());
          break;
        case 7:
          oracle.Unshare(keys);
          break;
        default:
          ASSERT_TRUE(oracle.Get(keys).ok());
          break;
      }
      if (step % 100 == 50) {
        ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
      }
      if (step % 60 == 59) {
        ASSERT_TRUE(oracle.Check(300).ok());
      }
      const LowerTierStats stats = oracle.tier()->Stats();
      if (GetParam().rows > 0) {
        ASSERT_LE(stats.host_rows, 2 * GetParam().rows);  // rows here have fewer slots
      }
      if (HasFailure()) return;
    }
    ASSERT_TRUE(oracle.Clear().ok());
    ASSERT_TRUE(oracle.Check().ok());
    ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
    ASSERT_TRUE(oracle.Check().ok());
  }
}

TEST_P(Tiers, RowsOfAnyTypeComeBack) {
  for (const DataType type : {DataType::kHalf, DataType::kBFloat16, DataType::kDouble,
                              DataType::kInt8, DataType::kInt64, DataType::kBool}) {
    for (const size_t dim : {1, 3, 17}) {
      TierOracle oracle = New(dim, type);
      if (IsFloating(type)) {
        ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, dim)).ok());
      }
      for (int round = 0; round < 3; ++round) ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
      ASSERT_TRUE(oracle.Check().ok());
    }
  }
}

TEST_P(Tiers, RowsOfAnotherRuleHaveInitialSlots) {
  TierOracle oracle = New(6);
  ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdagrad, 6, 0.125)).ok());
  ASSERT_TRUE(oracle.Check().ok());  // rows without slots
  ASSERT_TRUE(oracle.Put(Range(500, 1500)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  // The rule is the same, so rows keep their slots, including initial slots that they were given.
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdagrad, 6, 0.5)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, 6)).ok());
  ASSERT_TRUE(oracle.Put(Range(1200, 2000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.SetRule(RuleSlots()).ok());
  ASSERT_TRUE(oracle.Check().ok());
  // With the former rule set again, rows have initial slots, not their former slots.
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, 6)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST_P(Tiers, ARuleThatTheCacheRefusesChangesNothing) {
  TierOracle oracle = New(6);
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdagrad, 6, 0.125)).ok());
  ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  const auto refuse = [] { return Status::Unavailable("as a test wants it"); };
  EXPECT_EQ(StatusCode::kUnavailable,
            oracle.tier()->SetRule(FusedSlots(RuleKind::kAdam, 6), refuse).code());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.Put(Range(500, 1500)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST_P(Tiers, EachAllocationMayFail) {
  FailingAllocator allocator;
  bool failed = true;
  for (int64_t n = 0; failed; n += 1 + n / 16) {  // the index has an array for each of 256 stripes
    ASSERT_LT(n, 20000);
    StoreOptions options = Options(20);
    options.allocator = &allocator;
    std::unique_ptr<LowerTier> tier;
    ASSERT_TRUE(GetParam().create(options, StatisticSet(), GetParam().rows, &tier).ok());
    TierOracle oracle(std::move(tier), DataType::kFloat, 20, true);
    ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdagrad, 20)).ok());
    allocator.FailAfter(n);
    failed = false;
    const auto expect = [&](const Status& status) {
      if (status.ok()) return;
      failed = true;
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code()) << status.message();
    };
    expect(oracle.Put(Range(0, 500)));
    expect(oracle.Get(Range(0, 500)));
    const size_t shared = oracle.tier()->shared();
    const Status get = oracle.Get(Range(100, 200), After::kShared);
    if (!get.ok()) {
      EXPECT_EQ(shared, oracle.tier()->shared());
    }
    expect(get);
    expect(oracle.SetRule(FusedSlots(RuleKind::kAdam, 20)));
    expect(oracle.Put(Range(400, 600)));
    expect(oracle.tier()->Compact(ExecContext::Serial()));
    allocator.NeverFail();
    ASSERT_TRUE(oracle.Check().ok());
    ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
    ASSERT_TRUE(oracle.Check().ok());
    if (HasFailure()) return;
  }
}

TEST_P(Tiers, SharedRowsAreLeftOutOfAScan) {
  TierOracle oracle = New(4);
  ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  ASSERT_TRUE(oracle.Get(Range(500, 1500), After::kShared).ok());
  EXPECT_EQ(500u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.Check(10).ok());
  oracle.Unshare(Range(0, 600));
  EXPECT_EQ(400u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.Check(10).ok());
}

TEST_P(Tiers, StatisticsMoveWithRows) {
  const StatisticSet set = StatisticSet().With(Statistic::kLastStep).With(Statistic::kChange);
  std::unique_ptr<LowerTier> tier;
  ASSERT_TRUE(GetParam().create(Options(4), set, GetParam().rows, &tier).ok());
  const std::vector<int64_t> keys = Range(0, 400);
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(rows.Resize(keys.size(), 16, 0, 2).ok());
  rows.size = keys.size();
  std::memset(rows.weights.data(), 0, 16 * keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    rows.keys[i] = keys[i];
    rows.statistics[2 * i] = i;
    rows.statistics[2 * i + 1] = RowChange::Of(0, 1 + i % 2);
  }
  ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
  // A snapshot of the second period takes each of its rows once.
  WantedRows wanted;
  wanted.snapshot = 1;
  wanted.since = 1;
  wanted.until = 2;
  for (size_t i = 0; i < keys.size(); ++i) {
    uint64_t words[2];
    ASSERT_TRUE(tier->FindStatistics(keys[i], words));
    EXPECT_EQ(i, words[0]);
    EXPECT_EQ(i % 2 == 1, tier->TakeForSnapshot(keys[i], wanted));
    EXPECT_FALSE(tier->TakeForSnapshot(keys[i], wanted));
    const uint64_t step = 1000 + i;
    EXPECT_TRUE(tier->AssignStatistics(keys[i], StatisticSet().With(Statistic::kLastStep), &step));
  }
  size_t scanned = 0;
  wanted.snapshot = 2;
  for (ExportCursor cursor; !cursor.done;) {
    ASSERT_TRUE(tier->Scan(50, wanted, &cursor, &rows).ok());
    for (size_t i = 0; i < rows.size; ++i) {
      scanned += RowChange::PeriodOf(rows.statistics[2 * i + 1]) == 2;
      EXPECT_GE(rows.statistics[2 * i], 1000u);
    }
  }
  EXPECT_EQ(200u, scanned);
  // CollectRanks returns the ranks of all cold rows.
  ASSERT_TRUE(tier->Get(ExecContext::Serial(), keys.data(), 100, After::kShared, &rows).ok());
  uint64_t words[2];
  EXPECT_FALSE(tier->FindStatistics(keys[0], words));
  const uint64_t step = 7;
  EXPECT_FALSE(tier->AssignStatistics(keys[0], StatisticSet().With(Statistic::kLastStep), &step));
  RankList ranks(HostAllocator());
  size_t below = 0;
  const Rank low(1200, 0);
  ASSERT_TRUE(tier->CollectRanks(EvictionOrder::kLru, 1, low, kHighestRank, &ranks, &below).ok());
  EXPECT_EQ(100u, below);
  EXPECT_EQ(200u, ranks.size());
  // Rows that the cache returns have the cache's statistics.
  std::vector<uint64_t> new_words(200, 5);
  tier->Unshare(keys.data(), 100, new_words.data());
  ASSERT_TRUE(tier->FindStatistics(keys[99], words));
  EXPECT_EQ(5u, words[0]);
}

TEST(MemoryTier, SlotsLieInRowsAsTheRuleSays) {
  MemoryTierOptions options;
  options.dim = 8;
  std::unique_ptr<MemoryTier> tier;
  ASSERT_TRUE(MemoryTier::Create(options, &tier).ok());
  RuleSlots rule = FusedSlots(RuleKind::kAdagrad, 8, 0.1);
  ASSERT_TRUE(tier->SetRule(rule).ok());
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(rows.Resize(1, 32, 32, 0).ok());
  rows.size = 1;
  rows.keys[0] = 7;
  std::memset(rows.weights.data(), 0, 32);
  const auto slot = [&](size_t i) -> float& {
    return reinterpret_cast<float*>(rows.slots.data())[i];
  };
  for (size_t i = 0; i < 8; ++i) slot(i) = 0.1f * static_cast<float>(i);
  ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
  const uint64_t wide = tier->Stats().live_bytes;
  rule.groups[0].type = SlotType::kHalf;
  ASSERT_TRUE(tier->SetRule(rule).ok());
  EXPECT_EQ(wide - 16, tier->Stats().live_bytes);
  const int64_t key = 7;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(tier->Get(ExecContext::Serial(), &key, 1, After::kCold, &rows).ok());
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(Half::FromFloat(0.1f * static_cast<float>(i)).ToFloat(), slot(i));
    }
    ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
  }
}

TEST(MemoryTier, ABoundHoldsAndSharedRowsMakeRoom) {
  MemoryTierOptions options = MemoryTierOptionsOf(Options(4), StatisticSet());
  options.most_bytes = 100 * (16 + 1);
  std::unique_ptr<MemoryTier> made;
  ASSERT_TRUE(MemoryTier::Create(options, &made).ok());
  EXPECT_EQ(100u, made->capacity());
  TierOracle oracle(std::move(made), DataType::kFloat, 4, /*forgets=*/true);
  ASSERT_TRUE(oracle.Put(Range(0, 100)).ok());
  const Status full = oracle.Put(Range(100, 150));
  EXPECT_EQ(StatusCode::kResourceExhausted, full.code());
  EXPECT_TRUE(Names(full, "'items'")) << full.message();
  EXPECT_TRUE(Names(full, "host_bytes=1700")) << full.message();
  ASSERT_TRUE(oracle.Check().ok());
  EXPECT_EQ(100u, oracle.size());
  ASSERT_TRUE(oracle.Put(Range(0, 100)).ok());  // in place
  ASSERT_TRUE(oracle.Get(Range(0, 50), After::kShared).ok());
  ASSERT_TRUE(oracle.Put(Range(100, 150)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  EXPECT_EQ(StatusCode::kResourceExhausted, oracle.Put(Range(200, 250)).code());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(MemoryTier, ABoundWithoutRoomForARowIsRefused) {
  MemoryTierOptions options = MemoryTierOptionsOf(Options(4), StatisticSet());
  options.most_bytes = 16;
  std::unique_ptr<MemoryTier> tier;
  const Status status = MemoryTier::Create(options, &tier);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_TRUE(Names(status, "`host_bytes` must have room for a row of table 'items'"))
      << status.message();
  options.most_bytes = 17;
  ASSERT_TRUE(MemoryTier::Create(options, &tier).ok());
  EXPECT_EQ(StatusCode::kInvalidArgument, tier->SetRule(FusedSlots(RuleKind::kAdam, 4)).code());
}

TEST(MemoryTier, RowsWithoutTheSlotsOfItsRuleAreRefused) {
  std::unique_ptr<MemoryTier> tier;
  ASSERT_TRUE(MemoryTier::Create(MemoryTierOptionsOf(Options(4), StatisticSet()), &tier).ok());
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(rows.Resize(1, 4 * sizeof(float), 0, 0).ok());
  rows.size = 1;
  ASSERT_TRUE(tier->SetRule(FusedSlots(RuleKind::kAdam, 4)).ok());
  const Status status = tier->Put(ExecContext::Serial(), rows, After::kCold);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_EQ(
      "Rows for the host memory of table 'items' have other slots than its rule, which was "
      "changed.",
      status.message());
  EXPECT_EQ(0u, tier->size());
}

TEST(MemoryTier, CompactGivesMemoryOfRowsThatLeftBack) {
  std::unique_ptr<MemoryTier> made;
  ASSERT_TRUE(MemoryTier::Create(MemoryTierOptionsOf(Options(16), StatisticSet()), &made).ok());
  TierOracle oracle(std::move(made), DataType::kFloat, 16);
  ASSERT_TRUE(oracle.Put(Range(0, 100000)).ok());
  const LowerTierStats full = oracle.tier()->Stats();
  oracle.Erase(Range(1000, 100000));
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  const LowerTierStats compact = oracle.tier()->Stats();
  EXPECT_LE(compact.index_bytes, full.index_bytes / 10);
  EXPECT_LE(compact.buffer_bytes + compact.live_bytes, full.live_bytes / 10);
  ASSERT_TRUE(oracle.Check().ok());
}

// A tier over a FaultyTier.

struct FaultyTwoTiers {
  explicit FaultyTwoTiers(size_t rows) {
    std::unique_ptr<LowerTier> disk;
    EXPECT_TRUE(NewDiskLower(Options(4), StatisticSet(), 0, &disk).ok());
    auto faulty = std::make_unique<FaultyTier>(std::move(disk));
    below = faulty.get();
    MemoryTierOptions options = MemoryTierOptionsOf(Options(4), StatisticSet());
    options.most_bytes = rows * 17;
    std::unique_ptr<TwoTiers> tier;
    EXPECT_TRUE(TwoTiers::Create(options, std::move(faulty), &tier).ok());
    above = &tier->above();
    oracle = std::make_unique<TierOracle>(std::move(tier), DataType::kFloat, 4, /*forgets=*/true);
  }
  FaultyTier* below;
  const MemoryTier* above;
  std::unique_ptr<TierOracle> oracle;
};

TEST(TwoTiers, RowsOverTheBoundGoDownAndTheLatestStay) {
  FaultyTwoTiers tier(100);
  for (int64_t n = 0; n < 1000; n += 10) {
    ASSERT_TRUE(tier.oracle->Put(Range(n, n + 10)).ok());
    EXPECT_LE(tier.above->size(), 100u);
  }
  EXPECT_EQ(1000u, tier.above->size() + tier.below->size());
  EXPECT_GE(tier.above->size(), 80u);
  ASSERT_TRUE(tier.oracle->Check(50).ok());
  // Most of the latest rows are above, and older rows have moved down.
  const std::vector<int64_t> last = Range(950, 1000);
  const auto exists = std::make_unique<bool[]>(50);
  tier.above->Contains(last.data(), 50, exists.get());
  EXPECT_GE(std::count(exists.get(), exists.get() + 50, true), 25);
}

TEST(TwoTiers, RowsThatWentUpMakeRoomFirstAndWithoutAWrite) {
  FaultyTwoTiers tier(100);
  ASSERT_TRUE(tier.oracle->Put(Range(0, 90)).ok());
  ASSERT_TRUE(tier.oracle->Get(Range(0, 60), After::kShared).ok());
  tier.below->FailAfter(0);
  ASSERT_TRUE(tier.oracle->Put(Range(100, 110)).ok());
  ASSERT_TRUE(tier.oracle->Put(Range(110, 116)).ok());
  tier.below->FailAfter(-1);
  ASSERT_TRUE(tier.oracle->Check().ok());
  EXPECT_EQ(0u, tier.below->size());
}

TEST(TwoTiers, RowsThatCantGoDownStay) {
  for (int verbs = 0; verbs < 12; ++verbs) {
    FaultyTwoTiers tier(50);
    ASSERT_TRUE(tier.oracle->Put(Range(0, 120)).ok());
    tier.below->FailAfter(verbs);
    bool failed = false;
    for (int64_t n = 120; n < 400; n += 20) {
      const Status status = tier.oracle->Put(Range(n, n + 20));
      if (!status.ok()) {
        failed = true;
        EXPECT_EQ(StatusCode::kUnavailable, status.code());
      }
    }
    EXPECT_TRUE(failed);
    EXPECT_LE(tier.above->size(), 50u);
    tier.below->FailAfter(-1);
    ASSERT_TRUE(tier.oracle->Check().ok());
    ASSERT_TRUE(tier.oracle->Put(Range(0, 400)).ok());
    ASSERT_TRUE(tier.oracle->Check().ok());
    if (HasFailure()) return;
  }
}

TEST(TwoTiers, RowsBelowThatCantBeReadAreAnErrorAndNoneIsShared) {
  FaultyTwoTiers tier(50);
  ASSERT_TRUE(tier.oracle->Put(Range(0, 120)).ok());
  tier.below->FailAfter(0);
  EXPECT_EQ(StatusCode::kUnavailable, tier.oracle->Get(Range(0, 120), After::kShared).code());
  EXPECT_EQ(0u, tier.oracle->tier()->shared());
  tier.below->FailAfter(-1);
  ASSERT_TRUE(tier.oracle->Check().ok());
}

TEST(TwoTiers, AColdRowBelowIsReplacedThere) {
  FaultyTwoTiers tier(50);
  ASSERT_TRUE(tier.oracle->Put(Range(0, 200)).ok());
  const size_t below = tier.below->size();
  ASSERT_TRUE(tier.oracle->Put(Range(0, 100)).ok());
  EXPECT_EQ(below, tier.below->size());
  ASSERT_TRUE(tier.oracle->Check().ok());
  // A shared row that is put again, changed, goes to the upper tier.
  ASSERT_TRUE(tier.oracle->Get(Range(0, 10), After::kShared).ok());
  ASSERT_TRUE(tier.oracle->Put(Range(0, 10)).ok());
  const std::vector<int64_t> keys = Range(0, 10);
  bool exists[10];
  tier.above->Contains(keys.data(), 10, exists);
  EXPECT_EQ(10, std::count(exists, exists + 10, true));
  ASSERT_TRUE(tier.oracle->Check().ok());
}

TEST(TwoTiers, LargerRowsAreFewerAbove) {
  FaultyTwoTiers tier(100);
  ASSERT_TRUE(tier.oracle->Put(Range(0, 90)).ok());
  EXPECT_EQ(90u, tier.above->size());
  ASSERT_TRUE(tier.oracle->SetRule(FusedSlots(RuleKind::kAdam, 4)).ok());
  EXPECT_LE(tier.above->size(), 100u * 17 / 49);
  ASSERT_TRUE(tier.oracle->Check().ok());
}

}  // namespace
}  // namespace tf_embed
