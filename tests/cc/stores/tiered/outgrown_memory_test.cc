// SPDX-License-Identifier: Apache-2.0
// The index of a cache frees outgrown memory, whichever verbs run.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/stores/tiered/tiered_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

constexpr int64_t kBatch = 500;
constexpr int64_t kBatches = 300;
constexpr size_t kCacheRows = 1000;  // with slots; rows here have none, so more of them fit

class OutgrownMemoryTest : public TieredStoreTest {
 protected:
  void SetUp() override { Create(RowPolicy()); }
  void TearDown() override { StopReaders(); }

  void Create(const RowPolicy& policy) {
    StoreOptions options = Options();
    options.policy = policy;
    lower = nullptr;
    store = NewTieredStore(options, kCacheRows, &lower, GetParam().new_cache, GetParam().new_lower);
    ASSERT_NE(nullptr, store);
  }
  // Consecutive batches of keys. They repeat after `keys` keys.
  static Batch Next(int64_t number, int64_t keys) {
    return {KeysFrom(number * kBatch % keys, static_cast<size_t>(kBatch))};
  }
  void PutNext(int64_t number, int64_t keys) {
    ++context.now.step;
    Put(Next(number, keys), 1.0f);
  }
  // Puts batches of distinct keys. Returns the memory of the cache's index afterwards.
  size_t Fill(int64_t keys) {
    for (int64_t i = 0; i < keys / kBatch; ++i) PutNext(i, keys);
    return CacheIndexBytes();
  }
  size_t CacheIndexBytes() const { return store->Stats().index_bytes - lower->Stats().index_bytes; }

  // At nearly all times, at least one of these threads is inside.
  void StartReaders() {
    for (int i = 0; i < 4; ++i) {
      readers_.emplace_back([&] {
        while (!stop_) {
          const std::shared_lock<FairSharedMutex> inside(store->locks().content);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    }
  }
  void StopReaders() {
    stop_ = true;
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> readers_;
};

TEST_P(OutgrownMemoryTest, TrainingLookupsAloneDoNotMakeACacheGrow) {
  constexpr int64_t kKeys = 40 * kBatch;
  const size_t full = Fill(kKeys);
  const uint64_t promoted = store->Stats().promoted;
  context.training = true;
  for (int64_t i = 0; i < kBatches; ++i) Get(Next(i, kKeys));
  EXPECT_GT(store->Stats().promoted, promoted + kBatches * kBatch / 2);
  EXPECT_LE(CacheIndexBytes(), full * 2);
}

TEST_P(OutgrownMemoryTest, ComingAndGoingKeysDoNotMakeAStoreGrowBesideReaders) {
  constexpr int64_t kKeys = 40 * kBatch;
  const size_t full = Fill(kKeys);
  StartReaders();
  for (int64_t i = 0; i < kBatches; ++i) PutNext(i, kKeys);
  EXPECT_LE(CacheIndexBytes(), full * 2);
}

TEST_P(OutgrownMemoryTest, EvictedKeysDoNotMakeAStoreGrowBesideReaders) {
  constexpr int64_t kRows = 2 * kBatch;  // the cache has room for all
  Create(Bounded(kRows, EvictionOrder::kLru));
  const size_t full = Fill(2 * kRows);
  StartReaders();
  for (int64_t i = 0; i < kBatches; ++i) PutNext(i, 40 * kBatch);
  EXPECT_GT(store->Stats().evicted, static_cast<uint64_t>(kBatches * kBatch / 2));
  EXPECT_EQ(0u, lower->size());
  EXPECT_LE(CacheIndexBytes(), full * 2);
}

TEST_P(OutgrownMemoryTest, ErasedKeysDoNotMakeAStoreGrowBesideReaders) {
  constexpr int64_t kKeys = 2 * kBatch;  // the cache has room for all
  const size_t full = Fill(kKeys);
  StartReaders();
  for (int64_t i = 0; i < kBatches; ++i) {
    ASSERT_TRUE(store->Erase(context, Next(i, kKeys)).ok());
    PutNext(i, kKeys);
  }
  EXPECT_EQ(0u, lower->size());
  EXPECT_LE(CacheIndexBytes(), full * 2);
}

INSTANTIATE_TEST_SUITE_P(Caches, OutgrownMemoryTest, testing::ValuesIn(kCaches), NameOfCache);

}  // namespace
}  // namespace tf_embed
