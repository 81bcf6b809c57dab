// SPDX-License-Identifier: Apache-2.0
// The lock order check reports each kind of violation, and nothing else.
#include "cc/core/base/lock_order.h"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/store/store_locks.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

using Lock = std::lock_guard<OrderedMutex>;

// A rank as messages print it.
std::string Named(LockRank rank) { return "rank " + std::to_string(static_cast<int>(rank)); }

class LockOrder : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(TF_EMBED_CHECK_LOCKS)
    GTEST_SKIP() << "This build does not check locks; `bazel test --config=locks` does.";
#endif
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }

  OrderedMutex policy_{LockRank::kPolicy, 5};
  OrderedMutex later_policy_{LockRank::kPolicy, 6};
  OrderedMutex stripe_{LockRank::kStripe};
  FairSharedMutex content_{LockRank::kContent, 5};
};

using LockOrderDeathTest = LockOrder;

TEST_F(LockOrder, TakesRisingRanksAndNumbers) {
  for (int i = 0; i < 2; ++i) {
    std::shared_lock<FairSharedMutex> content(content_);
    const Lock policy(policy_);
    const Lock later(later_policy_);
    const Lock stripe(stripe_);
  }
}

TEST_F(LockOrder, LetsATryPassInAnyOrder) {
  const Lock stripe(stripe_);
  std::unique_lock<OrderedMutex> policy(policy_, std::try_to_lock);
  std::unique_lock<FairSharedMutex> content(content_, std::try_to_lock);
  EXPECT_TRUE(policy.owns_lock() && content.owns_lock());
}

TEST_F(LockOrder, LetsWorkOfAPoolTakeStripes) {
  std::shared_lock<FairSharedMutex> content(content_);
  PoolOfThreads(2).Context().parallel_for(4, 1, [&](size_t, size_t) { const Lock l(stripe_); });
}

TEST_F(LockOrder, LetsAStripeBeHeldForWorkThatIsToWaitForNoPool) {
  const Lock stripe(stripe_);
  size_t done = 0;
  const ExecContext serial = ExecContext::Serial().InSerial();
  serial.parallel_for(4, 1, [&](size_t begin, size_t end) { done += end - begin; });
  EXPECT_EQ(4u, done);
}

TEST_F(LockOrderDeathTest, FindsAFallingRank) {
  const Lock stripe(stripe_);
  EXPECT_DEATH(Lock{policy_}, "waits for " + Named(LockRank::kPolicy) +
                                  " number 5 while it holds " + Named(LockRank::kStripe));
}

TEST_F(LockOrderDeathTest, FindsAFallingNumber) {
  const Lock later(later_policy_);
  const std::string rank = Named(LockRank::kPolicy);
  EXPECT_DEATH(Lock{policy_},
               "waits for " + rank + " number 5 while it holds " + rank + " number 6");
}

TEST_F(LockOrderDeathTest, FindsAGateThatIsSharedTwice) {
  std::shared_lock<FairSharedMutex> content(content_);
  EXPECT_DEATH(std::shared_lock<FairSharedMutex>{content_},
               "waits for " + Named(LockRank::kContent) + " number 5");
}

TEST_F(LockOrderDeathTest, FindsAGateInWorkOfAPool) {
  const auto find_in_work = [&] {
    PoolOfThreads(2).Context().parallel_for(
        4, 1, [&](size_t, size_t) { std::shared_lock<FairSharedMutex> lock(content_); });
  };
  EXPECT_DEATH(find_in_work(), "in work of a parallel_for waits for " + Named(LockRank::kContent));
}

TEST_F(LockOrderDeathTest, FindsAStripeHeldForAPool) {
  const Lock stripe(stripe_);
  EXPECT_DEATH(ExecContext::Serial().parallel_for(1, 1, [](size_t, size_t) {}),
               "waits for the threads of a pool " + Named(LockRank::kStripe));
}

TEST_F(LockOrderDeathTest, FindsAVerbThatTakesWhatItsCallerHolds) {
  const std::unique_ptr<Store> store = HostStore::Create(StoreOptions());
  const Store* const stores[] = {store.get()};
  HeldStores held(HostAllocator());
  ASSERT_TRUE(held.Take(stores, 1, Held::kContent).ok());
  EXPECT_DEATH((void)store->size(), "waits for " + Named(LockRank::kContent));
}

}  // namespace
}  // namespace tf_embed
