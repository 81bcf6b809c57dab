// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/key_route.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

struct Routed {
  std::vector<int64_t> keys;
  std::vector<int32_t> places;
  std::vector<int32_t> counts;
};

Status Route(const std::vector<int64_t>& keys, const int32_t* owners, OwnerRule rule,
             size_t num_workers, Routed* routed) {
  KeyRoute route(HostAllocator());
  const ExecContext context = ExecContext::Serial();
  TF_EMBED_RETURN_IF_ERROR(
      route.Build(context, keys.data(), keys.size(), owners, rule, false, num_workers));
  routed->keys.resize(route.size());
  routed->places.resize(keys.size());
  route.WriteKeys(routed->keys.data());
  route.WritePlaces(context, routed->places.data());
  routed->counts.assign(route.counts(), route.counts() + num_workers);
  return Status();
}

std::vector<int64_t> RandomKeys(size_t size, int64_t range) {
  std::mt19937_64 random(7);
  std::vector<int64_t> keys(size);
  for (int64_t& key : keys) key = static_cast<int64_t>(random() % static_cast<uint64_t>(range)) - 9;
  return keys;
}

TEST(KeyRoute, HasEachKeyOnceWithItsOwner) {
  for (const size_t num_workers : {1, 2, 3, 8}) {
    for (const OwnerRule rule : {OwnerRule::kHash, OwnerRule::kRemainder}) {
      const std::vector<int64_t> keys = RandomKeys(10000, 700);
      Routed routed;
      ASSERT_TRUE(Route(keys, nullptr, rule, num_workers, &routed).ok());
      ASSERT_EQ(num_workers, routed.counts.size());
      EXPECT_EQ(std::set<int64_t>(keys.begin(), keys.end()),
                std::set<int64_t>(routed.keys.begin(), routed.keys.end()));
      size_t at = 0;
      for (size_t worker = 0; worker < num_workers; ++worker) {
        for (int32_t i = 0; i < routed.counts[worker]; ++i, ++at) {
          EXPECT_EQ(worker, OwnerOf(routed.keys[at], num_workers, rule, false));
        }
      }
      EXPECT_EQ(at, routed.keys.size()) << "a key twice";
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(keys[i], routed.keys[static_cast<size_t>(routed.places[i])]);
      }
    }
  }
}

TEST(KeyRoute, KeepsTheOrderOfTheKeysOfAWorker) {
  Routed routed;
  ASSERT_TRUE(Route({5, 2, 7, 5, 4, -1}, nullptr, OwnerRule::kRemainder, 2, &routed).ok());
  EXPECT_EQ((std::vector<int64_t>{2, 4, 5, 7, -1}), routed.keys);
  EXPECT_EQ((std::vector<int32_t>{2, 3}), routed.counts);
  EXPECT_EQ((std::vector<int32_t>{2, 0, 3, 2, 1, 4}), routed.places);
}

TEST(KeyRoute, TakesOwnersOfTheCaller) {
  const std::vector<int32_t> owners = {1, 0, 1, 0};
  Routed routed;
  ASSERT_TRUE(Route({8, 9, 8, 7}, owners.data(), OwnerRule::kHash, 2, &routed).ok());
  EXPECT_EQ((std::vector<int64_t>{9, 7, 8}), routed.keys);
  EXPECT_EQ((std::vector<int32_t>{2, 1}), routed.counts);
}

TEST(KeyRoute, RefusesOwnersThatAreNoFunctionOfTheKey) {
  const std::vector<int32_t> owners = {1, 0};
  Routed routed;
  const Status status = Route({8, 8}, owners.data(), OwnerRule::kHash, 2, &routed);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("1 and 0 for key 8")) << status.message();
}

TEST(KeyRoute, RefusesAWorkerThatThereIsNot) {
  const std::vector<int32_t> owners = {0, 2};
  Routed routed;
  const Status status = Route({8, 9}, owners.data(), OwnerRule::kHash, 2, &routed);
  EXPECT_NE(std::string::npos, status.message().find("2 for key 9")) << status.message();
}

TEST(KeyRoute, AnEmptyBatchHasNoKeys) {
  Routed routed;
  ASSERT_TRUE(Route({}, nullptr, OwnerRule::kHash, 3, &routed).ok());
  EXPECT_TRUE(routed.keys.empty());
  EXPECT_EQ((std::vector<int32_t>{0, 0, 0}), routed.counts);
}

// Consecutive ids, or ids of equal remainder, must not all go to one worker. The keys of a worker
// must use all stripes of its table, which are the high bits of their hashes.
TEST(KeyRoute, HashSpreadsKeysOverWorkersAndStripes) {
  constexpr size_t kWorkers = 4;
  for (const int64_t stride : {1, 4, 1024}) {
    size_t counts[kWorkers] = {};
    std::map<size_t, std::set<uint64_t>> stripes;
    for (int64_t i = 0; i < 40000; ++i) {
      const size_t owner = OwnerOf(i * stride, kWorkers, OwnerRule::kHash, false);
      ASSERT_LT(owner, kWorkers);
      ++counts[owner];
      stripes[owner].insert(HashKey(i * stride) >> 56);
    }
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      // Binomial: 10,000 with a deviation of 87.
      EXPECT_NEAR(10000, static_cast<double>(counts[worker]), 5 * 87);
      EXPECT_EQ(256u, stripes[worker].size());
    }
  }
}

}  // namespace
}  // namespace tf_embed
