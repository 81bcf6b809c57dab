// SPDX-License-Identifier: Apache-2.0
// Training treats expired rows as absent, and uses all other rows, in each tier.
#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/stores/tiered/tiered_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class ExpiredRowsTest : public TieredStoreTest {
 protected:
  void SetUp() override {
    StoreOptions options = Options();
    options.policy.ttl_milliseconds = 50;
    store = NewTieredStore(options, 8, &lower, GetParam().new_cache, GetParam().new_lower);
    ASSERT_NE(nullptr, store);
    for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
    cold = ColdKey(*lower, KeysUpTo(200));
    context.training = true;
  }
  // The number of keys that training finds, with the store held or not.
  size_t NumFound(const std::vector<int64_t>& keys, Held held) {
    HeldStores stores_held(HostAllocator());
    const Store* const stores[] = {store.get()};
    if (held != Held::kNothing) EXPECT_TRUE(stores_held.Take(stores, 1, held).ok());
    std::vector<float> weights(keys.size() * kDim);
    const auto exists = std::make_unique<bool[]>(keys.size());
    EXPECT_TRUE(store
                    ->Find(context.Holding(held), Batch(keys), DefaultRows(), weights.data(),
                           exists.get(), {})
                    .ok());
    EXPECT_EQ(std::count(exists.get(), exists.get() + keys.size(), true) * kDim,
              static_cast<size_t>(std::count(weights.begin(), weights.end(), 1.0f)));
    return static_cast<size_t>(std::count(exists.get(), exists.get() + keys.size(), true));
  }

  int64_t cold = 0;
};

TEST_P(ExpiredRowsTest, TrainingMissesThemInAnyTier) {
  Get({cold});  // promoted, and still in the lower tier
  context.now.milliseconds = 50;
  for (const Held held : {Held::kContent, Held::kNothing}) {
    EXPECT_EQ(0u, NumFound({cold}, held));
    EXPECT_EQ(0u, NumFound(KeysUpTo(300), held));
  }
  context.training = false;
  EXPECT_EQ(200u, NumFound(KeysUpTo(300), Held::kNothing));
}

TEST_P(ExpiredRowsTest, AUseOfARowThatStaysInTheLowerTierIsNoted) {
  for (const Held held : {Held::kContent, Held::kNothing}) {
    context.now.milliseconds += 30;  // the second time, 60 after they were put
    EXPECT_EQ(200u, NumFound(KeysUpTo(300), held));
    const std::vector<int64_t> keys = KeysUpTo(200);
    std::vector<uint64_t> last_time(keys.size());
    const auto exists = std::make_unique<bool[]>(keys.size());
    ASSERT_TRUE(store->FindStatistics(context, Batch(keys), last_time.data(), exists.get()).ok());
    EXPECT_EQ(std::vector<uint64_t>(keys.size(), context.now.milliseconds), last_time);
  }
}

TEST_P(ExpiredRowsTest, AllOfThemLeaveTogether) {
  for (int64_t key = 200; key < 2000; ++key) {
    Put({key}, 1.0f);  // each Put searches some rows, from the end of the last search
    if (key % 100 != 99) continue;
    context.now.milliseconds += 50;
    size_t removed = 0;
    const uint64_t present = store->size();
    ASSERT_TRUE(store->EvictExpired(context, &removed).ok());
    EXPECT_EQ(present, removed);
    EXPECT_EQ(0u, store->size());
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, ExpiredRowsTest, testing::ValuesIn(kCaches), NameOfCache);

}  // namespace
}  // namespace tf_embed
