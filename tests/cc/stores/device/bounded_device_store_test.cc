// SPDX-License-Identifier: Apache-2.0
// Properties of a bounded DeviceStore that the tests of policies do not require of every store.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cc/stores/device/device_store.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

TEST(BoundedDeviceStore, AtTheBoundOnBytesABoundedStoreEvicts) {
  DeviceOptions device;
  device.max_bytes = 200000;
  Subject subject(DeviceStores(device), Bounded(SIZE_MAX, EvictionOrder::kLru));
  uint64_t rows = 0;
  for (int64_t first = 0; first < 20000; first += 500) {
    subject.Apply(KeysFrom(first, 500));
    const StoreStats stats = subject.store->Stats();
    EXPECT_LE(stats.payload_bytes + stats.index_bytes + stats.slack_bytes, device.max_bytes);
    EXPECT_GE(stats.rows, rows);
    EXPECT_EQ(stats.admitted, stats.rows + stats.evicted);
    EXPECT_EQ(0u, stats.refused);
    rows = stats.rows;
    subject.NextStep();
  }
  EXPECT_GT(rows, 1000u);
  EXPECT_LT(rows, 5000u);
  const std::set<int64_t> keys = subject.Keys();
  for (int64_t key = 19500; key < 20000; ++key) EXPECT_EQ(1u, keys.count(key)) << key;
}

TEST(BoundedDeviceStore, WithoutRoomForAnyRowAllAreRefused) {
  DeviceOptions device;
  device.max_bytes = 1;
  Subject subject(DeviceStores(device), Bounded(10, EvictionOrder::kLfu));
  subject.Apply({1, 2, 3});
  EXPECT_EQ(0u, subject.store->size());
  EXPECT_EQ(3u, subject.store->Stats().refused);
}

TEST(BoundedDeviceStore, WhoLeavesDependsOnNoThread) {
  std::set<int64_t> before;
  for (const size_t threads : {1, 2, 5}) {
    Subject subject(DeviceStores(DeviceOptions()), Bounded(3000, EvictionOrder::kEpochLfu),
                    Threads(threads));
    Random random(3);
    for (int step = 0; step < 30; ++step) {
      subject.Apply(RandomKeys(1000, 0, 10000, &random));
      subject.NextStep();
    }
    const std::set<int64_t> keys = subject.Keys();
    EXPECT_EQ(3000u, keys.size());
    if (threads > 1) {
      EXPECT_TRUE(before == keys);
    }
    before = keys;
  }
}

TEST(BoundedDeviceStore, WhatIsRestoredComesWhateverTheBound) {
  Subject subject(DeviceStores(DeviceOptions()), Bounded(100, EvictionOrder::kLru));
  subject.context.restoring = true;
  subject.Upsert(KeysFrom(0, 300));
  EXPECT_EQ(300u, subject.store->size());
  subject.context.restoring = false;
  subject.NextStep();
  subject.Apply(KeysFrom(1000, 40));
  EXPECT_LE(subject.store->size(), 300u);
  EXPECT_EQ(40u, subject.store->Stats().evicted);
  const auto fresh = subject.store->maintenance()->NewEmpty(0, UniformInitializer());
  EXPECT_EQ(0u, fresh->options().policy.max_rows) << "where rows are collected none may leave";
  EXPECT_EQ(subject.store->options().policy.statistics.bits(),
            fresh->options().policy.statistics.bits());
}

// Applies a step of Adam to the keys from 0 to keys - 1.
Status StepOfAdam(Store* store, size_t keys) {
  const size_t dim = store->options().dim;
  Rule rule = MakeRule(RuleKind::kAdam, dim);
  const std::vector<float> gradients(keys * dim, 1.0f);
  return store->Apply(ExecContext::Serial(), Batch(KeysFrom(0, static_cast<int64_t>(keys))),
                      Gradients{gradients.data(), DataType::kFloat}, rule);
}

// 10,000 rows with the slots of Adam fit in the bound. Together with rows without slots, they do
// not.
class DeviceStoreRules : public testing::Test {
 protected:
  static constexpr size_t kRows = 10000;

  std::unique_ptr<Store> NewStore(uint64_t init_size) {
    StoreOptions options;
    options.name = "items";
    options.dim = 16;
    options.init_size = init_size;
    DeviceOptions device;
    device.max_bytes = 3000000;
    std::unique_ptr<Store> store;
    EXPECT_TRUE(NewEmulatedDeviceStore(options, device, &store).ok());
    return store;
  }
};

TEST_F(DeviceStoreRules, RoomMadeBeforeTheFirstStepIsOfNoLayout) {
  for (const uint64_t init_size : {0, 1, 10000}) {
    const auto store = NewStore(init_size);
    ASSERT_NE(nullptr, store);
    for (const size_t keys : {size_t{1}, kRows}) {
      const Status status = StepOfAdam(store.get(), keys);
      ASSERT_TRUE(status.ok()) << init_size << ": " << status.message();
      EXPECT_EQ(keys, store->size()) << init_size;
    }
    EXPECT_EQ(0u, store->Stats().refused) << init_size;
  }
}

TEST_F(DeviceStoreRules, RoomOfErasedRowsIsOfNoLayout) {
  const auto store = NewStore(kRows);
  const Batch keys(KeysFrom(0, kRows));
  const std::vector<float> weights(kRows * 16, 1.0f);
  const ExecContext context = ExecContext::Serial();
  ASSERT_TRUE(store->InsertOrAssign(context, keys, weights.data(), {}).ok());
  ASSERT_TRUE(store->Erase(context, keys).ok());
  const Status status = StepOfAdam(store.get(), kRows);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kRows, store->size());
}

TEST_F(DeviceStoreRules, AChangeOfRowsSaysWhatBoundsIt) {
  const auto store = NewStore(0);
  const std::vector<float> weights(kRows * 16, 1.0f);
  ASSERT_TRUE(
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, kRows)), weights.data(), {})
          .ok());
  const Status status = StepOfAdam(store.get(), 1);
  EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
  for (const char* part : {"'items' can't change its optimizer within its bounds of bytes",
                           "max_bytes=3000000", "10000 rows"}) {
    EXPECT_NE(std::string::npos, status.message().find(part)) << status.message();
  }
  EXPECT_EQ(kRows, store->size());
}

}  // namespace
}  // namespace tf_embed
