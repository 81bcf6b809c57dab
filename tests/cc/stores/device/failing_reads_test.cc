// SPDX-License-Identifier: Apache-2.0
// A device on which a copy to the host fails, as after an error of another launch. An unread row
// count is an error, not a store without rows.
#include <memory>
#include <string>
#include <vector>

#include "cc/core/policy/rank_list.h"
#include "cc/core/store/store_cache.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "cc/stores/device/host_access_store.h"
#include "gtest/gtest.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 4;
constexpr size_t kRows = 1000;

// The number of copies before a copy fails; negative: all succeed.
int copies_until_failure = -1;
bool has_failed = false;

class FailingDevice : public EmulatedDevice {
 public:
  using EmulatedDevice::EmulatedDevice;

  struct Order : EmulatedDevice::Order {
    explicit Order(const FailingDevice& device) : EmulatedDevice::Order(device) {}
  };
  struct AsyncReadback : EmulatedDevice::AsyncReadback {
    explicit AsyncReadback(const FailingDevice& device) : EmulatedDevice::AsyncReadback(device) {}
  };

  // Like CudaDevice, a failure writes nothing, and Check reports it once.
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    if (copies_until_failure-- == 0) {
      has_failed = true;
    } else {
      EmulatedDevice::CopyOut(context, device, bytes, host);
    }
  }
  Status Check(const ExecContext&) const {
    if (!has_failed) return Status();
    has_failed = false;
    return Status::Unavailable("GPU 0 failed: an illegal memory access was encountered.");
  }
};

class FailingReads : public testing::Test {
 protected:
  ~FailingReads() override { Repair(); }

  std::unique_ptr<Store> NewStore(bool is_cache) {
    StoreOptions options;
    options.name = "items";
    options.dim = kDim;
    options.is_cache = is_cache;
    options.policy.statistics = StatisticSet().With(Statistic::kLastStep);
    std::unique_ptr<Store> store;
    EXPECT_TRUE(DeviceStoreImpl<FailingDevice>::Create(
                    options, DeviceOptions(), FailingDevice(&memory, nullptr, true), &store)
                    .ok());
    const std::vector<float> weights(kRows * kDim, 1.0f);
    EXPECT_TRUE(store->InsertOrAssign(context, Batch(KeysFrom(0, kRows)), weights.data(), {}).ok());
    EXPECT_EQ(kRows, store->size());
    return store;
  }
  static void FailCopy(int number) { copies_until_failure = number; }
  static void Repair() {
    copies_until_failure = -1;
    has_failed = false;
  }
  static void ExpectFailure(const Status& status) {
    EXPECT_EQ(StatusCode::kUnavailable, status.code()) << status.message();
    EXPECT_NE(std::string::npos, status.message().find("illegal memory access"));
  }

  FailingAllocator memory;
  const ExecContext context = ExecContext::Serial();
};

TEST_F(FailingReads, AnExportFailsAndDoesNotEnd) {
  const auto store = NewStore(false);
  for (int copy = 0; copy < 8; ++copy) {
    FailCopy(copy);
    ExportCursor cursor;
    WholeRows rows(HostAllocator());
    Status status;
    size_t exported = 0;
    while (!cursor.done && status.ok()) {
      status = store->maintenance()->ExportBatch(kRows, &cursor, &rows);
      if (status.ok()) exported += rows.size;
    }
    if (copies_until_failure >= 0) {
      EXPECT_EQ(kRows, exported);
    } else {
      ExpectFailure(status);
      EXPECT_FALSE(cursor.done);
    }
    Repair();
  }
}

TEST_F(FailingReads, RanksAreNotNone) {
  const auto store = NewStore(false);
  for (int copy = 0; copy < 3; ++copy) {
    FailCopy(copy);
    RankList ranks(HostAllocator());
    size_t below = 0;
    ExpectFailure(store->eviction()->CollectRanks(context, EvictionOrder::kLru, 1, Rank(),
                                                  kHighestRank, &ranks, &below));
    Repair();
  }
}

TEST_F(FailingReads, ACountFailsAndASizeIsTheEarlierOne) {
  const auto store = NewStore(false);
  size_t count = 7;
  FailCopy(0);
  ExpectFailure(store->Count(&count));
  EXPECT_EQ(7u, count);
  FailCopy(0);
  EXPECT_EQ(kRows, store->size());
  FailCopy(0);
  EXPECT_EQ(kRows, store->Stats().rows);
  Repair();
  EXPECT_TRUE(store->Count(&count).ok());
  EXPECT_EQ(kRows, count);
}

TEST_F(FailingReads, ACopyingStoreCountsAsItsStoreDoes) {
  const auto store = NewHostAccessStore(NewStore(false), EmulatedDeviceMemory());
  size_t count = 7;
  FailCopy(0);
  ExpectFailure(store->Count(&count));
}

TEST_F(FailingReads, ACacheRemembersNoCountThatItDidNotRead) {
  const auto store = NewStore(true);
  store->Erase(context, Batch{3}).ok();
  FailCopy(0);
  EXPECT_EQ(kRows, store->cache()->num_rows()) << "the earlier one";
  Repair();
  EXPECT_EQ(kRows - 1, store->cache()->num_rows());
}

TEST_F(FailingReads, ALackOfMemoryHidesNoOtherFailure) {
  const auto store = NewStore(false);
  memory.FailAfter(0, /*for_good=*/true);
  const Status status = store->maintenance()->Shrink(context);
  EXPECT_EQ(StatusCode::kResourceExhausted, status.code()) << status.message();
  EXPECT_NE(std::string::npos, status.message().find("1000 keys")) << status.message();
  has_failed = true;
  memory.FailAfter(0, /*for_good=*/true);
  size_t removed = 0;
  ExpectFailure(
      store->eviction()->EvictBelow(context, EvictionOrder::kLru, Rank(), kRows, &removed));
  has_failed = true;
  StoreOptions options = store->options();
  std::unique_ptr<Store> none;
  ExpectFailure(DeviceStoreImpl<FailingDevice>::Create(
      options, DeviceOptions(), FailingDevice(&memory, nullptr, true), &none));
  memory.NeverFail();
}

}  // namespace
}  // namespace tf_embed
