// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/shard_split.h"

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// The shard of each key's place. Checks the order of places.
std::vector<int> ShardOfPlaces(const ShardSplit& split, size_t num_shards,
                               const std::vector<int64_t>& keys) {
  std::vector<int> shards(keys.size(), -1);
  for (size_t number = 0; number < num_shards; ++number) {
    const KeyBatch shard = split.shard(number);
    for (size_t i = 0; i < shard.size; ++i) {
      const size_t position = shard.Position(i);
      EXPECT_LT(position, keys.size());
      EXPECT_EQ(keys[position], shard.keys[i]);
      EXPECT_EQ(-1, shards[position]) << "a place given twice";
      EXPECT_TRUE(i == 0 || shard.Position(i - 1) < position) << "out of order";
      shards[position] = static_cast<int>(number);
    }
  }
  return shards;
}

TEST(ShardSplit, DefaultIsFloorMod) {
  const std::vector<int64_t> keys = {0, 1, 2, 3, -1, -2, -3, INT64_MIN, INT64_MAX, 3};
  ShardSplit split(HostAllocator());
  ASSERT_TRUE(split.Build(keys.data(), keys.size(), nullptr, 3, false).ok());
  // As in Python: -1 % 3 == 2, (-2**63) % 3 == 1, (2**63 - 1) % 3 == 1.
  EXPECT_EQ((std::vector<int>{0, 1, 2, 0, 2, 1, 0, 1, 1, 0}), ShardOfPlaces(split, 3, keys));
}

TEST(ShardSplit, UnsignedKeysAreReadAsUnsigned) {
  const std::vector<int64_t> keys = {-1, -2, INT64_MIN, 5};
  ShardSplit split(HostAllocator());
  ASSERT_TRUE(split.Build(keys.data(), keys.size(), nullptr, 7, true).ok());
  // (2**64 - 1) % 7 == 1, (2**64 - 2) % 7 == 0, 2**63 % 7 == 1.
  EXPECT_EQ((std::vector<int>{1, 0, 1, 5}), ShardOfPlaces(split, 7, keys));
}

TEST(ShardSplit, OneShardIsTheBatchItself) {
  const std::vector<int64_t> keys = {4, -4};
  ShardSplit split(HostAllocator());
  ASSERT_TRUE(split.Build(keys.data(), keys.size(), nullptr, 1, false).ok());
  EXPECT_EQ(keys.data(), split.shard(0).keys);
  EXPECT_EQ(2u, split.shard(0).size);
  EXPECT_EQ(nullptr, split.shard(0).positions);
}

TEST(ShardSplit, FollowsOwnersAndLeavesShardsEmpty) {
  const std::vector<int64_t> keys = {1, 2, 3, 4, 5};
  const std::vector<int32_t> owners = {3, 0, 3, 3, 0};
  ShardSplit split(HostAllocator());
  ASSERT_TRUE(split.Build(keys.data(), keys.size(), owners.data(), 5, false).ok());
  EXPECT_EQ((std::vector<int>{3, 0, 3, 3, 0}), ShardOfPlaces(split, 5, keys));
  EXPECT_EQ(0u, split.shard(1).size);
  EXPECT_EQ(0u, split.shard(4).size);
}

TEST(ShardSplit, RefusesOwnersOutOfRangeAndNamesThem) {
  const std::vector<int64_t> keys = {10, 77};
  for (size_t num_shards : {1, 4}) {
    for (int32_t wrong : {-1, 4, INT32_MIN, INT32_MAX}) {
      const std::vector<int32_t> owners = {0, wrong};
      ShardSplit split(HostAllocator());
      const Status status = split.Build(keys.data(), 2, owners.data(), num_shards, false);
      EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
      EXPECT_NE(std::string::npos, status.message().find(std::to_string(wrong)));
      EXPECT_NE(std::string::npos, status.message().find("77"));
    }
  }
}

TEST(ShardSplit, SplitsRandomBatchesAndCanBeBuiltAgain) {
  Random random(1);
  ShardSplit split(HostAllocator());
  for (size_t size : {10000, 0, 1, 5000}) {
    for (size_t num_shards : {2, 1, 16, 3}) {
      const std::vector<int64_t> keys = RandomKeys(size, INT64_MIN, INT64_MAX, &random);
      ASSERT_TRUE(split.Build(keys.data(), size, nullptr, num_shards, false).ok());
      const std::vector<int> shards = ShardOfPlaces(split, num_shards, keys);
      for (size_t i = 0; i < size; ++i) {
        const int64_t n = static_cast<int64_t>(num_shards);
        ASSERT_EQ((keys[i] % n + n) % n, shards[i]);
      }
    }
  }
}

TEST(ShardSplit, RefusesBatchesThatPositionsCannotCount) {
  ShardSplit split(HostAllocator());
  EXPECT_EQ(StatusCode::kInvalidArgument,
            split.Build(nullptr, kMaxBatchSize + 1, nullptr, 2, false).code());
}

}  // namespace
}  // namespace tf_embed
