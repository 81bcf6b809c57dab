// SPDX-License-Identifier: Apache-2.0
// A tier on disk returns the rows that were put, for all verbs, row sizes, types and block readers.
#include "cc/tiers/disk/disk_tier.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "gtest/gtest.h"
#include "tests/cc/support/disk_tier_oracle.h"

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

DiskTierOptions Small(const TempFolder& folder, size_t dim = 4) {
  DiskTierOptions options;
  options.path = folder.path();
  options.name = "items-0";
  options.dim = dim;
  options.buffer_bytes = 32 << 10;
  return options;
}

struct Way {
  const char* name;
  bool io_uring, direct;
  const char* folder;  // null: the tests' folder
};
const Way kWays[] = {
    {"RingDirect", true, true, nullptr},      {"RingBuffered", true, false, nullptr},
    {"PreadDirect", false, true, nullptr},    {"PreadBuffered", false, false, nullptr},
    {"RingInMemory", true, true, "/dev/shm"}, {"PreadInMemory", false, true, "/dev/shm"},
};

class EachWay : public testing::TestWithParam<Way> {
 protected:
  DiskTierOptions Options(size_t dim = 4) const {
    DiskTierOptions options = Small(folder_, dim);
    options.use_io_uring = GetParam().io_uring;
    options.use_direct_io = GetParam().direct;
    return options;
  }
  TempFolder folder_{GetParam().folder == nullptr ? testing::TempDir() : GetParam().folder};
};
INSTANTIATE_TEST_SUITE_P(Ways, EachWay, testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EachWay, AgreesWithAMapOfRows) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    const size_t dim = seed == 1 ? 1 : seed == 2 ? 33 : 300;
    DiskTierOracle oracle(Options(dim));
    ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, dim)).ok());
    for (int step = 0; step < 300; ++step) {
      const std::vector<int64_t> keys = Some(2000, random() % 300, &random);
      switch (random() % 10) {
        case 0:
        case 1:
        case 2:
        case 3:
          ASSERT_TRUE(oracle.Put(keys).ok());
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
        ASSERT_TRUE(oracle.Check().ok());
      }
      if (HasFailure()) return;
    }
    oracle.VerifySealed();
    if (dim > 1) {
      EXPECT_GT(oracle.num_linked(), 0u);
    }
    ASSERT_TRUE(oracle.Clear().ok());
    ASSERT_TRUE(oracle.Check().ok());
    EXPECT_EQ(0u, oracle.tier()->Stats().disk_bytes);
    ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
    ASSERT_TRUE(oracle.Check().ok());
  }
}

TEST_P(EachWay, RowsOfAnySizeComeBack) {
  for (const size_t dim : {1, 2, 3, 64, 257, 511, 512, 700, 1022, 1023, 1024, 2000, 5000}) {
    for (const RuleKind kind : {RuleKind::kNone, RuleKind::kAdam}) {
      DiskTierOracle oracle(Options(dim));
      ASSERT_TRUE(oracle.SetRule(FusedSlots(kind, dim)).ok());
      const int64_t count = static_cast<int64_t>(40 + 200000 / (dim * 4));
      for (int round = 0; round < 3; ++round) ASSERT_TRUE(oracle.Put(Range(0, count)).ok());
      ASSERT_TRUE(oracle.Check(7).ok());
      ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
      ASSERT_TRUE(oracle.Check(1 << 20).ok());
      oracle.VerifySealed();
      if (HasFailure()) return;
    }
  }
}

TEST(DiskTier, UsesWhatItIsTold) {
  TempFolder folder;
  DiskTierOptions options = Small(folder);
  options.use_io_uring = false;
  options.use_direct_io = false;
  std::unique_ptr<DiskTier> tier;
  ASSERT_TRUE(DiskTier::Open(options, &tier).ok());
  EXPECT_FALSE(tier->uses_io_uring());
  EXPECT_FALSE(tier->uses_direct_io());
  EXPECT_EQ("the folder '" + folder.path() + "/items-0'", tier->name());
  tier.reset();
  EXPECT_TRUE(folder.Names().empty());
}

TEST(DiskTier, RowsOfAnyTypeComeBack) {
  for (const DataType type : {DataType::kHalf, DataType::kBFloat16, DataType::kDouble,
                              DataType::kInt8, DataType::kInt64, DataType::kBool}) {
    for (const size_t dim : {1, 3, 17}) {
      TempFolder folder;
      DiskTierOptions options = Small(folder, dim);
      options.value_type = type;
      DiskTierOracle oracle(options);
      if (IsFloating(type)) {
        ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, dim)).ok());
      }
      for (int round = 0; round < 4; ++round) ASSERT_TRUE(oracle.Put(Range(0, 5000)).ok());
      ASSERT_TRUE(oracle.Check().ok());
      EXPECT_GT(oracle.VerifySealed(), 0u);
    }
  }
}

TEST(DiskTier, RowsOfAnotherRuleHaveInitialSlots) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder, 6));
  ASSERT_TRUE(oracle.Put(Range(0, 3000)).ok());
  RuleSlots adagrad = FusedSlots(RuleKind::kAdagrad, 6, 0.125);
  ASSERT_TRUE(oracle.SetRule(adagrad).ok());
  ASSERT_TRUE(oracle.Check().ok());  // rows without slots
  ASSERT_TRUE(oracle.Put(Range(1000, 4000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  // The rule is the same, so rows keep their slots, including initial slots that they were given.
  adagrad = FusedSlots(RuleKind::kAdagrad, 6, 0.5);
  adagrad.groups[0].type = SlotType::kHalf;
  ASSERT_TRUE(oracle.SetRule(adagrad).ok());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, 6)).ok());
  ASSERT_TRUE(oracle.Put(Range(3500, 4500)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.SetRule(RuleSlots()).ok());
  ASSERT_TRUE(oracle.Check().ok());
  // With the former rule set again, rows have initial slots, not their former slots.
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, 6)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  oracle.VerifySealed();
}

TEST(DiskTier, InitialSlotsAreRoundedAsAStoreWouldRoundThem) {
  TempFolder folder;
  std::unique_ptr<DiskTier> tier;
  ASSERT_TRUE(DiskTier::Open(Small(folder, 1), &tier).ok());
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(rows.Resize(1, 4, 0, 0).ok());
  rows.size = 1;
  rows.keys[0] = 7;
  std::memset(rows.weights.data(), 0, 4);
  ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
  RuleSlots rule = FusedSlots(RuleKind::kAdagrad, 1, 0.1);
  rule.groups[0].type = SlotType::kHalf;
  ASSERT_TRUE(tier->SetRule(rule).ok());
  const int64_t key = 7;
  ASSERT_TRUE(tier->Get(ExecContext::Serial(), &key, 1, After::kCold, &rows).ok());
  float slot;
  std::memcpy(&slot, rows.slots.data(), sizeof(slot));
  EXPECT_EQ(Half::FromFloat(0.1f).ToFloat(), slot);
}

TEST(DiskTier, SealedSegmentsAreRowFiles) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder, 32));
  ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdam, 32)).ok());
  ASSERT_TRUE(oracle.Put(Range(0, 20000)).ok());
  EXPECT_GT(oracle.VerifySealed(), 10u);
}

TEST(DiskTier, ABatchReadsEachBlockOnce) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder, 186));  // five rows a block
  ASSERT_TRUE(oracle.Put(Range(0, 5000)).ok());
  const LowerTierStats before = oracle.tier()->Stats();
  ASSERT_TRUE(oracle.Get(Range(0, 4000)).ok());
  const LowerTierStats after = oracle.tier()->Stats();
  EXPECT_LE(after.read_requests - before.read_requests, 800u);
  EXPECT_GE(after.read_requests - before.read_requests, 700u);
  EXPECT_EQ(4000u, after.rows_read - before.rows_read);
  EXPECT_GT(after.max_queue_depth, 4u);
}

// Overwrites all rows repeatedly, in orders that leave garbage everywhere.
TEST(DiskTier, TheDiskHasAtMostTwiceTheLiveBytes) {
  for (const size_t dim : {2, 190, 1500}) {
    for (const size_t buffer_bytes : {32 << 10, 1 << 20}) {
      TempFolder folder("/dev/shm");
      DiskTierOptions options = Small(folder, dim);
      options.buffer_bytes = buffer_bytes;
      DiskTierOracle oracle(options);
      std::mt19937_64 random(5);
      const int64_t count = static_cast<int64_t>(6000000 / (dim * 4 + 8) / (dim < 10 ? 20 : 1));
      const size_t batch = static_cast<size_t>(count / 13 + 1);
      for (int round = 0; round < 100; ++round) {
        std::vector<int64_t> keys = Range(0, count);
        if (round % 3 != 0) std::shuffle(keys.begin(), keys.end(), random);
        for (size_t begin = 0; begin < keys.size(); begin += batch) {
          const size_t end = std::min(begin + batch, keys.size());
          ASSERT_TRUE(oracle
                          .Put({keys.begin() + static_cast<int64_t>(begin),
                                keys.begin() + static_cast<int64_t>(end)})
                          .ok());
          const LowerTierStats stats = oracle.tier()->Stats();
          ASSERT_LE(stats.disk_bytes, 2 * stats.live_bytes + buffer_bytes + 16 * 4096)
              << "dim " << dim << ", round " << round << ", " << begin;
        }
      }
      ASSERT_TRUE(oracle.Check().ok());
      const LowerTierStats stats = oracle.tier()->Stats();
      uint64_t on_disk = 0;
      for (const std::string& name : folder.Names("items-0")) {
        on_disk += std::filesystem::file_size(folder.path() + "/items-0/" + name);
      }
      EXPECT_NEAR(static_cast<double>(stats.disk_bytes), static_cast<double>(on_disk), 4096);
      ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
      const LowerTierStats compact = oracle.tier()->Stats();
      EXPECT_LE(static_cast<double>(compact.disk_bytes),
                1.3 * static_cast<double>(compact.live_bytes) + 64 * 4096);
      ASSERT_TRUE(oracle.Check().ok());
    }
  }
}

// Like a tier below a cache: changed rows are erased here, and put again later.
TEST(DiskTier, TheBoundHoldsWhenRowsGoUpAndComeDown) {
  TempFolder folder("/dev/shm");
  DiskTierOracle oracle(Small(folder, 190));
  std::mt19937_64 random(6);
  constexpr int64_t kCount = 10000;
  ASSERT_TRUE(oracle.Put(Range(0, kCount)).ok());
  for (int round = 0; round < 200; ++round) {
    const std::vector<int64_t> keys = Some(kCount, kCount / 10, &random);
    ASSERT_TRUE(oracle.Get(keys, After::kShared).ok());
    oracle.Erase(keys);
    ASSERT_TRUE(oracle.Put(keys).ok());
    const LowerTierStats stats = oracle.tier()->Stats();
    ASSERT_LE(stats.disk_bytes, 2 * stats.live_bytes + (128 << 10)) << "round " << round;
  }
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(DiskTier, RowsWithTooFewSlotsAreRefused) {
  TempFolder folder;
  std::unique_ptr<DiskTier> tier;
  ASSERT_TRUE(DiskTier::Open(Small(folder, 4), &tier).ok());
  ASSERT_TRUE(tier->SetRule(FusedSlots(RuleKind::kAdam, 4)).ok());
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(rows.Resize(3, 16, 0, 0).ok());
  rows.size = 3;
  EXPECT_EQ(StatusCode::kFailedPrecondition, tier->Put(ExecContext::Serial(), rows).code());
}

TEST(DiskTier, ErasedRowsGiveTheirSpaceBack) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder, 190));
  ASSERT_TRUE(oracle.Put(Range(0, 20000)).ok());
  oracle.Erase(Range(0, 10000));  // adjacent rows: whole segments
  const LowerTierStats stats = oracle.tier()->Stats();
  EXPECT_LE(stats.disk_bytes, stats.live_bytes * 5 / 4 + (1 << 20));
  std::vector<int64_t> every_other;
  const std::vector<int64_t> rest = Range(10000, 20000);
  for (size_t i = 0; i < rest.size(); i += 2) every_other.push_back(rest[i]);
  oracle.Erase(every_other);
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  const LowerTierStats compact = oracle.tier()->Stats();
  EXPECT_LE(compact.disk_bytes, compact.live_bytes * 5 / 4 + (128 << 10));
  ASSERT_TRUE(oracle.Check().ok());
  oracle.Erase(oracle.Keys());
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  EXPECT_EQ(0u, oracle.tier()->Stats().disk_bytes);
}

TEST(DiskTier, AnIndexTakesAtMost24BytesAKey) {
  TempFolder folder("/dev/shm");
  DiskTierOracle oracle(Small(folder, 1));
  for (int64_t n = 0; n < 400000; n += 50000) {
    ASSERT_TRUE(oracle.Put(Range(n, n + 50000)).ok());
  }
  EXPECT_LE(oracle.tier()->Stats().index_bytes, 24u * 400000);
}

TEST(DiskTier, CompactGivesMemoryOfKeysThatLeftBack) {
  TempFolder folder("/dev/shm");
  DiskTierOracle oracle(Small(folder, 1));
  ASSERT_TRUE(oracle.Put(Range(0, 100000)).ok());
  const uint64_t full = oracle.tier()->Stats().index_bytes;
  oracle.Erase(Range(5000, 100000));
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  EXPECT_LE(oracle.tier()->Stats().index_bytes, full / 5);
  ASSERT_TRUE(oracle.Check().ok());
  ASSERT_TRUE(oracle.Put(Range(0, 50000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  oracle.Erase(oracle.Keys());
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  EXPECT_LE(oracle.tier()->Stats().index_bytes, full / 50);
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(DiskTier, SharedRowsAreLeftOutOfAScan) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder));
  ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  ASSERT_TRUE(oracle.Get(Range(500, 1500), After::kShared).ok());
  EXPECT_EQ(500u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.Check(10).ok());
  oracle.Unshare(Range(0, 600));
  EXPECT_EQ(400u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.Put(Range(600, 700)).ok());
  EXPECT_EQ(300u, oracle.tier()->shared());
  oracle.Erase(Range(700, 800));
  EXPECT_EQ(200u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  EXPECT_EQ(200u, oracle.tier()->shared());
  ASSERT_TRUE(oracle.Check(10).ok());
}

}  // namespace
}  // namespace tf_embed
