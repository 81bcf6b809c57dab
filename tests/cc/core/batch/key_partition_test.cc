// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_partition.h"

#include <map>

#include "cc/core/base/hash.h"
#include "cc/core/index/striped_index.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

std::vector<std::vector<std::pair<int64_t, uint32_t>>> Parts(const KeyPartition& partition) {
  std::vector<std::vector<std::pair<int64_t, uint32_t>>> parts(partition.parts());
  for (size_t part = 0; part < partition.parts(); ++part) {
    const KeyRange range = partition.part(part);
    for (const KeyRecord* record = range.begin; record != range.end; ++record) {
      parts[part].emplace_back(record->key, record->position);
    }
  }
  return parts;
}

TEST(KeyPartition, HoldsEachPlaceOnceInTheOrderOfTheBatch) {
  Random random(1);
  for (size_t size : {0, 1, 4096, 4097, 8191, 8192, 8193, 100000, 700000}) {
    for (bool scattered : {false, true}) {
      SCOPED_TRACE("size " + std::to_string(size));
      Batch batch = RandomKeys(size, -1000, 1000, &random);
      if (scattered) batch = Scattered(batch, &random);
      KeyPartition partition(HostAllocator());
      ASSERT_TRUE(partition.Build(Threads(3), batch, nullptr).ok());
      EXPECT_EQ(size, partition.size());
      std::map<int64_t, std::vector<uint32_t>> expected, found;
      std::map<int64_t, size_t> part_of;
      for (size_t i = 0; i < size; ++i) {
        expected[batch.keys[i]].push_back(static_cast<uint32_t>(batch.Position(i)));
      }
      const auto parts = Parts(partition);
      for (size_t part = 0; part < parts.size(); ++part) {
        for (const auto& [key, position] : parts[part]) {
          ASSERT_EQ(part, part_of.try_emplace(key, part).first->second) << "equal keys, two parts";
          found[key].push_back(position);
        }
      }
      EXPECT_EQ(expected, found);
    }
  }
}

TEST(KeyPartition, KeysOfOneStripeMeetInOnePart) {
  Random random(2);
  const Batch batch = RandomKeys(500000, INT64_MIN, INT64_MAX, &random);
  KeyPartition partition(HostAllocator());
  ASSERT_TRUE(partition.Build(Threads(2), batch, nullptr).ok());
  EXPECT_EQ(64u, partition.parts());
  const auto parts = Parts(partition);
  std::map<size_t, size_t> part_of_stripe;
  for (size_t part = 0; part < parts.size(); ++part) {
    EXPECT_NEAR(500000.0 / 64, static_cast<double>(parts[part].size()), 500.0);
    for (const auto& record : parts[part]) {
      const size_t stripe = StripedIndex::StripeOf(HashKey(record.first));
      ASSERT_EQ(part, part_of_stripe.try_emplace(stripe, part).first->second);
    }
  }
}

TEST(KeyPartition, LeavesOutWhatIsSkippedByPosition) {
  Random random(3);
  for (size_t size : {100, 50000}) {
    const Batch batch = Scattered(RandomKeys(size, 0, 1000, &random), &random);
    const auto skip = std::make_unique<bool[]>(batch.places);
    size_t kept = 0;
    for (size_t i = 0; i < size; ++i) kept += !(skip[batch.Position(i)] = random() % 3 == 0);
    KeyPartition partition(HostAllocator());
    ASSERT_TRUE(partition.Build(Threads(2), batch, skip.get()).ok());
    EXPECT_EQ(kept, partition.size());
    for (const auto& part : Parts(partition)) {
      for (const auto& record : part) ASSERT_FALSE(skip[record.second]);
    }
  }
}

TEST(KeyPartition, IsTheSameForAnyNumberOfThreadsAndCanBeBuiltAgain) {
  Random random(4);
  const Batch batch = RandomKeys(60000, 0, 1 << 20, &random);
  KeyPartition serial(HostAllocator()), threaded(HostAllocator());
  ASSERT_TRUE(serial.Build(ExecContext::Serial(), batch, nullptr).ok());
  ASSERT_TRUE(threaded.Build(Threads(4), Batch(KeysFrom(0, 200000)), nullptr).ok());
  ASSERT_TRUE(threaded.Build(Threads(4), batch, nullptr).ok());
  EXPECT_EQ(Parts(serial), Parts(threaded));
}

TEST(KeyPartition, RefusesBatchesThatPositionsCannotCount) {
  KeyPartition partition(HostAllocator());
  const KeyBatch batch{nullptr, kMaxBatchSize + 1, nullptr};
  EXPECT_EQ(StatusCode::kInvalidArgument,
            partition.Build(ExecContext::Serial(), batch, nullptr).code());
}

}  // namespace
}  // namespace tf_embed
