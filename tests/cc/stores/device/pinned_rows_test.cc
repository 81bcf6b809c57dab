// SPDX-License-Identifier: Apache-2.0
// Device stores with rows in pinned memory of the host: all rows, or the rows beyond a bound.
#include "cc/stores/device/device_store.h"
#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/failing_allocator.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 16;
constexpr size_t kRowBytes = kDim * sizeof(float);

class PinnedRows : public testing::Test {
 protected:
  // All rows on the host.
  static DeviceOptions Pinned(uint64_t max_host_bytes = UINT64_MAX) {
    DeviceOptions options;
    options.max_row_bytes = 0;
    options.max_host_bytes = max_host_bytes;
    return options;
  }
  // The first rows on the device.
  static DeviceOptions Both(uint64_t max_row_bytes) {
    DeviceOptions options = Pinned();
    options.max_row_bytes = max_row_bytes;
    return options;
  }
  StoreKind Kind(const DeviceOptions& options) {
    const auto create = [this, options](StoreOptions of_store) {
      of_store.allocator = &device;
      std::unique_ptr<Store> store;
      (void)NewEmulatedDeviceStore(of_store, options, &store, &pinned);
      return store;
    };
    return {"PinnedRows", create, true, true, true};
  }
  std::unique_ptr<Store> NewStore(const DeviceOptions& options) {
    StoreOptions of_store;
    of_store.dim = kDim;
    return Kind(options).create(of_store);
  }
  static Status Upsert(Store* store, int64_t first, size_t count) {
    const std::vector<float> rows(count * kDim, 1.0f);
    return store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(first, count)), rows.data(),
                                 {});
  }

  FailingAllocator device;
  FailingAllocator pinned;
};

TEST_F(PinnedRows, RowsGoToTheHostAndAllElseToTheDevice) {
  constexpr size_t kRows = 20000;
  const auto store = NewStore(Pinned());
  ASSERT_TRUE(Upsert(store.get(), 0, kRows).ok());
  EXPECT_GE(pinned.live_bytes(), kRows * kRowBytes);
  EXPECT_LE(pinned.live_bytes(), kRows * kRowBytes * 5 / 4);
  EXPECT_GE(device.live_bytes(), store->Stats().index_bytes);
  EXPECT_LE(device.live_bytes(), kRows * 60);
  ASSERT_TRUE(store->Erase(ExecContext::Serial(), Batch(KeysFrom(0, kRows - 100))).ok());
  ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
  EXPECT_LE(pinned.live_bytes(), 256 * kRowBytes);
  ASSERT_TRUE(store->Clear().ok());
  EXPECT_EQ(0u, pinned.live_blocks());
}

TEST_F(PinnedRows, RowsBeyondABoundGoToTheHost) {
  constexpr size_t kOnDevice = 3000 * kRowBytes;
  const auto store = NewStore(Both(kOnDevice));
  ASSERT_TRUE(Upsert(store.get(), 0, 1000).ok());
  EXPECT_EQ(0u, pinned.live_bytes());
  EXPECT_EQ(0u, store->Stats().pinned_bytes);
  ASSERT_TRUE(Upsert(store.get(), 1000, 19000).ok());
  const StoreStats stats = store->Stats();
  EXPECT_EQ(20000u, stats.rows);
  EXPECT_EQ(pinned.live_bytes(), stats.pinned_bytes);
  EXPECT_GE(stats.pinned_bytes, 17000 * kRowBytes);
  EXPECT_LE(stats.pinned_bytes, stats.payload_bytes + stats.slack_bytes - 2000 * kRowBytes);
  EXPECT_LE(device.live_bytes(), kOnDevice + 20000 * 60);
  // Rows with slots are laid out again. The first of them are on the device too.
  const std::vector<float> gradients(20000 * kDim, 1.0f);
  ASSERT_TRUE(store
                  ->Apply(ExecContext::Serial(), Batch(KeysFrom(0, 20000)), gradients.data(),
                          DataType::kFloat, MakeRule(RuleKind::kAdam, kDim))
                  .ok());
  EXPECT_EQ(20000u, store->size());
  EXPECT_GE(store->Stats().pinned_bytes, 18000 * 3 * kRowBytes);
  EXPECT_LE(device.live_bytes(), kOnDevice + 20000 * 60);
  EXPECT_GE(device.live_bytes(), kOnDevice / 2 + store->Stats().index_bytes);
  ASSERT_TRUE(store->Erase(ExecContext::Serial(), Batch(KeysFrom(0, 19900))).ok());
  ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
  EXPECT_EQ(0u, pinned.live_blocks()) << "there is room for them on the device again";
}

TEST_F(PinnedRows, RowsThatADeviceHasNoMemoryForGoToTheHost) {
  DeviceOptions options = Both(UINT64_MAX);
  const auto store = NewStore(options);
  ASSERT_TRUE(Upsert(store.get(), 0, 1000).ok());
  const size_t before = pinned.live_bytes();
  EXPECT_EQ(0u, before);
  // A write of 5000 keys, in which each allocation in turn fails.
  bool went = false;
  for (int64_t failure = 0; failure < 40 && !went; ++failure) {
    device.FailAfter(failure, false);
    const Status status = Upsert(store.get(), 1000, 5000);
    device.NeverFail();
    went = status.ok() && pinned.live_bytes() > 0;
  }
  EXPECT_TRUE(went);
  EXPECT_EQ(6000u, store->size());
}

TEST_F(PinnedRows, EachMemoryHasItsBound) {
  DeviceOptions by_index = Pinned();
  by_index.max_bytes = 50000;
  DeviceOptions by_both = Pinned(100000);
  by_both.max_row_bytes = 20000;
  DeviceOptions by_device;
  by_device.max_row_bytes = 100000;
  for (const DeviceOptions& options : {Pinned(100000), by_index, by_both, by_device}) {
    const auto store = NewStore(options);
    for (int64_t first = 0; first < 10000; first += 500) {
      ASSERT_TRUE(Upsert(store.get(), first, 500).ok());
    }
    const StoreStats stats = store->Stats();
    EXPECT_EQ(10000u, stats.rows + stats.refused);
    EXPECT_GT(stats.rows, 500u);
    EXPECT_GT(stats.refused, 0u);
    EXPECT_LE(pinned.live_bytes(), options.max_host_bytes);
    EXPECT_LE(device.live_bytes() - 5000, options.max_bytes);
    const uint64_t rows_on_device = device.live_bytes() - stats.index_bytes;
    EXPECT_LE(rows_on_device - std::min<uint64_t>(rows_on_device, 20000), options.max_row_bytes);
  }
}

TEST_F(PinnedRows, VerbsGiveWhatTheyGiveElsewhere) {
  for (const uint64_t seed : Seeds(3)) {
    SCOPED_TRACE("TF_EMBED_TEST_SEED=" + std::to_string(seed));
    const DeviceOptions options = seed % 2 == 0 ? Pinned() : Both(700 * kRowBytes);
    CheckedStore<float> both(Kind(options), kDim, Threads(2), seed);
    const auto some = [&] {
      return Scattered(RandomKeys(500, 0, 2000, &both.random), &both.random);
    };
    for (const RuleKind kind : {RuleKind::kAdam, RuleKind::kRowwiseAdagrad, RuleKind::kFtrl}) {
      const Rule rule = MakeRule(kind, kDim);
      both.FindOrInsert(some());
      both.Apply(some(), rule);
      both.Erase(some());
      both.InsertOrAssign(some(), true);
      both.Apply(some(), rule);
      both.Accum(some());
      both.FindSlots(some());
      both.Shrink();
      both.ExpectSame(70);
    }
    both.Clear();
    both.ExpectSame();
  }
}

TEST_F(PinnedRows, WithoutMemoryOfEitherKindAVerbFailsAndTheStoreIsWhole) {
  for (FailingAllocator* const failing : {&device, &pinned}) {
    bool done = false;
    for (int64_t failure = 0; !done; ++failure) {
      SCOPED_TRACE("allocation " + std::to_string(failure));
      const auto store = NewStore(Pinned());
      ASSERT_TRUE(Upsert(store.get(), 0, 500).ok());
      const std::vector<float> gradients(2000 * kDim, 1.0f);
      failing->FailAfter(failure, true);
      const Status status =
          store->Apply(ExecContext::Serial(), Batch(KeysFrom(0, 2000)), gradients.data(),
                       DataType::kFloat, MakeRule(RuleKind::kAdam, kDim));
      failing->NeverFail();
      done = status.ok();
      EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
      EXPECT_EQ(done ? 2000u : 500u, store->size());
      EXPECT_TRUE(Upsert(store.get(), 0, 3000).ok());
      EXPECT_EQ(3000u, store->size());
    }
    EXPECT_TRUE(done);
  }
}

}  // namespace
}  // namespace tf_embed
