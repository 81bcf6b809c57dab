// SPDX-License-Identifier: Apache-2.0
// The memory that stores take as they grow, and free again.
#include <chrono>
#include <functional>
#include <future>
#include <shared_mutex>
#include <thread>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 16;
constexpr size_t kRowBytes = kDim * sizeof(float);
constexpr size_t kBatch = 1000;

// Calls `visit` before the next allocation once it is armed.
class VisitingAllocator final : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    if (armed.exchange(false)) visit();
    return memory_.Allocate(bytes);
  }
  void Deallocate(void* memory, size_t bytes) override { memory_.Deallocate(memory, bytes); }

  std::atomic<bool> armed{false};
  std::function<void()> visit;

 private:
  FailingAllocator memory_;
};

class StoreMemory : public testing::TestWithParam<StoreKind> {
 protected:
  std::unique_ptr<Store> NewStore(Allocator* allocator) const {
    StoreOptions options;
    options.dim = kDim;
    options.allocator = allocator;
    return GetParam().create(options);
  }

  // Inserts the keys first, first + 1, ..., each with a different row.
  void Insert(Store* store, size_t first, size_t count) const {
    for (size_t done = 0; done < count; done += kBatch) {
      const Batch batch(KeysFrom(static_cast<int64_t>(first + done), kBatch));
      std::vector<float> rows;
      for (int64_t key : batch.keys) rows.insert(rows.end(), kDim, static_cast<float>(key));
      ASSERT_TRUE(store->InsertOrAssign(serial, batch, rows.data(), {}).ok());
    }
  }
  void Erase(Store* store, size_t first, size_t count) const {
    for (size_t done = 0; done < count; done += kBatch) {
      const Batch batch(KeysFrom(static_cast<int64_t>(first + done), kBatch));
      ASSERT_TRUE(store->Erase(serial, batch).ok());
    }
  }
  bool Holds(const Store& store, size_t first, size_t count) const {
    const Batch batch(KeysFrom(static_cast<int64_t>(first), count));
    std::vector<float> rows(count * kDim);
    const auto exists = std::make_unique<bool[]>(count);
    if (!store.Find(serial, batch, DefaultRows(), rows.data(), exists.get(), {}).ok()) return false;
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < kDim; ++j) {
        if (!exists[i] || rows[i * kDim + j] != static_cast<float>(batch.keys[i])) return false;
      }
    }
    return true;
  }

  const ExecContext serial = ExecContext::Serial();
};

TEST_P(StoreMemory, TakesLittleBesideItsRowsWhileItGrows) {
  FailingAllocator allocator;
  const auto store = NewStore(&allocator);
  for (size_t keys = kBatch; keys <= 400 * kBatch; keys += kBatch) {
    Insert(store.get(), keys - kBatch, kBatch);
    // The next slab of rows is as large as all earlier slabs together. The index takes up to 25
    // bytes a key, in regions.
    ASSERT_LT(allocator.live_bytes(), 2 * keys * kRowBytes + keys * 25 + (3u << 20))
        << "at " << keys << " keys";
  }
}

TEST_P(StoreMemory, ShrinkAfterALargeEraseGivesMemoryBack) {
  FailingAllocator allocator;
  const auto store = NewStore(&allocator);
  Insert(store.get(), 0, 200 * kBatch);
  const size_t full = allocator.live_bytes();
  Erase(store.get(), 0, 190 * kBatch);
  ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
  EXPECT_LT(allocator.live_bytes(), full / 10);
  EXPECT_EQ(10 * kBatch, store->size());
  EXPECT_TRUE(Holds(*store, 190 * kBatch, 10 * kBatch));
  Insert(store.get(), 0, 190 * kBatch);
  EXPECT_TRUE(Holds(*store, 0, 200 * kBatch));
  EXPECT_LE(allocator.live_bytes(), full * 11 / 10);
}

TEST_P(StoreMemory, ComingAndGoingKeysDoNotMakeAStoreGrow) {
  FailingAllocator allocator;
  const auto store = NewStore(&allocator);
  Insert(store.get(), 0, 50 * kBatch);
  const size_t full = allocator.live_bytes();
  for (size_t i = 50; i < 500; ++i) {
    Erase(store.get(), (i - 50) * kBatch, kBatch);
    Insert(store.get(), i * kBatch, kBatch);
  }
  EXPECT_LE(allocator.live_bytes(), full * 3 / 2);
  EXPECT_TRUE(Holds(*store, 450 * kBatch, 50 * kBatch));
}

TEST_P(StoreMemory, ComingAndGoingKeysDoNotMakeAStoreGrowBesideReaders) {
  FailingAllocator allocator;
  const auto store = NewStore(&allocator);
  Insert(store.get(), 0, 50 * kBatch);
  const size_t full = allocator.live_bytes();
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;  // at nearly all times, a reader is inside
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const std::shared_lock<FairSharedMutex> inside(store->locks().content);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (size_t i = 50; i < 1000; ++i) {
    Erase(store.get(), (i - 50) * kBatch, kBatch);
    Insert(store.get(), i * kBatch, kBatch);
  }
  EXPECT_LE(allocator.live_bytes(), full * 2);
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

TEST_P(StoreMemory, ClearGivesMemoryBackAlsoWhereThereIsNoMore) {
  for (bool memory : {true, false}) {
    FailingAllocator allocator;
    const auto store = NewStore(&allocator);
    Insert(store.get(), 0, 100 * kBatch);
    const size_t full = allocator.live_bytes();
    if (!memory) allocator.FailAfter(0, true);
    ASSERT_TRUE(store->Clear().ok());
    allocator.NeverFail();
    EXPECT_LT(allocator.live_bytes(), full / 100);
    Insert(store.get(), 0, 100 * kBatch);
    EXPECT_LE(allocator.live_bytes(), full);
  }
}

TEST_P(StoreMemory, ReadersGoOnWhileShrinkCopies) {
  VisitingAllocator allocator;
  const auto store = NewStore(&allocator);
  Insert(store.get(), 0, 20 * kBatch);
  allocator.visit = [&] {
    // A reader that waited for the copy would never return.
    std::future<bool> read =
        std::async(std::launch::async, [&] { return Holds(*store, 0, kBatch); });
    const bool back = read.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    EXPECT_TRUE(back) << "readers wait";
    if (!back) std::abort();
    EXPECT_TRUE(read.get());
  };
  allocator.armed = true;
  ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
  EXPECT_FALSE(allocator.armed) << "nothing was copied";
  EXPECT_TRUE(Holds(*store, 0, 20 * kBatch));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreMemory, testing::ValuesIn(WithoutTiers(AllStores())),
                         NameOfStore);

}  // namespace
}  // namespace tf_embed
