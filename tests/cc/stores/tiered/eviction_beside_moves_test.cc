// SPDX-License-Identifier: Apache-2.0
// Rows that are promoted while others are evicted are evicted in their turn.
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/cc/stores/tiered/tiered_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

// A store with a bound of 100 rows, whose keys 0 to 99 were used in this order.
class BoundedTieredStoreTest : public TieredStoreTest {
 protected:
  void SetUp() override {
    StoreOptions options = Options();
    options.policy = Bounded(100, EvictionOrder::kLru);
    store = NewTieredStore(options, 8, &lower, GetParam().new_cache, GetParam().new_lower);
    ASSERT_NE(nullptr, store);
    for (int64_t key = 0; key < 100; ++key) Use(key);
    // Makes room in the cache, so rows can be promoted without demotions.
    for (int64_t key = 99; key > 89; --key) {
      ASSERT_TRUE(store->Erase(context, Batch{key}).ok());
    }
    for (int64_t key = 90; key < 94; ++key) Use(key);
    ASSERT_EQ(94u, store->size());
  }
  void TearDown() override {
    if (other_.joinable()) other_.join();
  }

  void Use(int64_t key) {
    ++context.now.step;
    Put({key}, 1.0f);
  }
  bool Has(int64_t key) {
    bool exists = false;
    EXPECT_TRUE(store->Contains(context, Batch{key}, &exists).ok());
    return exists;
  }
  // Promotes a row in another thread. Returns once it is promoted, or soon if the other thread has
  // to wait.
  void BringUpBeside(int64_t key) {
    std::promise<void> done;
    const std::future<void> is_done = done.get_future();
    other_ = std::thread([this, key, done = std::move(done)]() mutable {
      EXPECT_TRUE(store->Prefetch(ExecContext::Serial(), Batch{key}).ok());
      done.set_value();
    });
    is_done.wait_for(kSoon);
  }

  static constexpr std::chrono::milliseconds kSoon{200};
  std::thread other_;
};

TEST_P(BoundedTieredStoreTest, ARowThatComesUpWhileVictimsAreLookedForLeavesInItsTurn) {
  ASSERT_EQ(0, ColdKey(*lower, KeysUpTo(94)));
  lower->at_collect = [this] {
    lower->at_collect = nullptr;
    BringUpBeside(0);
  };
  for (int64_t key = 200; key < 207; ++key) Use(key);
  if (other_.joinable()) other_.join();
  EXPECT_FALSE(Has(0));
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(100u, store->size());
}

TEST_P(BoundedTieredStoreTest, ARowOnItsWayUpLeavesInItsTurn) {
  ASSERT_EQ(0, ColdKey(*lower, KeysUpTo(94)));
  std::promise<void> shared;
  lower->at_statistics = [&](int64_t key) {
    if (key != 0 || other_.joinable()) return;
    lower->after_shared = [&] {
      lower->after_shared = nullptr;
      shared.set_value();
      std::this_thread::sleep_for(kSoon);  // the row is in neither tier now
    };
    other_ =
        std::thread([this] { EXPECT_TRUE(store->Prefetch(ExecContext::Serial(), Batch{0}).ok()); });
    shared.get_future().wait();
  };
  for (int64_t key = 200; key < 207; ++key) Use(key);
  EXPECT_TRUE(other_.joinable());
  other_.join();
  EXPECT_FALSE(Has(0));
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(100u, store->size());
}

INSTANTIATE_TEST_SUITE_P(Caches, BoundedTieredStoreTest, testing::ValuesIn(kCaches), NameOfCache);

}  // namespace
}  // namespace tf_embed
