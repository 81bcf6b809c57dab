// SPDX-License-Identifier: Apache-2.0
// Locks of several stores, held by a single caller.
#include "cc/core/store/store_locks.h"

#include <memory>

#include "cc/core/pooling/bags.h"
#include "cc/core/pooling/pooled_find.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

class StoreGatesTest : public testing::TestWithParam<StoreKind> {
 protected:
  static constexpr size_t kStores = 3;
  void SetUp() override {
    for (auto& store : stores_) store = GetParam().create(StoreOptions());
  }
  // The stores in another order than they were made, the first twice.
  std::vector<const Store*> Mixed() const {
    return {stores_[2].get(), stores_[0].get(), stores_[1].get(), stores_[0].get()};
  }

  const ExecContext serial_ = ExecContext::Serial();
  std::unique_ptr<Store> stores_[kStores];
};

TEST_P(StoreGatesTest, EachStoreIsHeldOnceInTheOrderOfAll) {
  const std::vector<const Store*> mixed = Mixed();
  for (const Held held : {Held::kContent, Held::kWriting, Held::kPaused}) {
    HeldStores stores(HostAllocator());
    ASSERT_TRUE(stores.Take(mixed.data(), mixed.size(), held).ok());
    ASSERT_EQ(kStores, stores.size());
    for (size_t i = 0; i < kStores; ++i) EXPECT_EQ(stores_[i].get(), stores[i]);
  }
  for (auto& store : stores_) EXPECT_TRUE(store->Clear().ok()) << "all locks are given back";
}

TEST_P(StoreGatesTest, CallersInAnyOrderDoNotWaitForEachOther) {
  const std::vector<const Store*> mixed = Mixed();
  const std::vector<const Store*> turned(mixed.rbegin(), mixed.rend());
  InThreads(5, [&](size_t thread) {
    for (int round = 0; round < 300; ++round) {
      const Held kinds[] = {Held::kContent, Held::kWriting, Held::kPaused, Held::kWriting};
      if (thread == 4) {
        ASSERT_TRUE(stores_[round % kStores]->Clear().ok());
        continue;
      }
      const std::vector<const Store*>& some = thread % 2 == 0 ? mixed : turned;
      HeldStores stores(HostAllocator());
      ASSERT_TRUE(stores.Take(some.data(), some.size(), kinds[thread]).ok());
    }
  });
}

TEST_P(StoreGatesTest, WritesOfACallerThatHoldsTheStoresGoThrough) {
  const std::vector<const Store*> mixed = Mixed();
  const Batch keys = KeysFrom(0, 100);
  const std::vector<float> ones(keys.size(), 1.0f);
  Rule rule = MakeRule(RuleKind::kSgd, 1);
  for (auto& store : stores_) ASSERT_TRUE(store->maintenance()->SetRule(rule.slots).ok());
  {
    HeldStores stores(HostAllocator());
    ASSERT_TRUE(stores.Take(mixed.data(), mixed.size(), Held::kWriting).ok());
    const ExecContext holding = serial_.Holding(Held::kWriting);
    for (auto& store : stores_) {
      ASSERT_TRUE(store->Apply(holding, keys, ones.data(), DataType::kFloat, rule).ok());
      ASSERT_TRUE(store->UpdateAllRows(holding, rule).ok());
    }
  }
  for (auto& store : stores_) EXPECT_EQ(keys.size(), store->size());
}

TEST_P(StoreGatesTest, AHeldStoreKeepsItsRule) {
  const Store* const stores[] = {stores_[0].get()};
  ASSERT_TRUE(stores_[0]->maintenance()->SetRule(FusedSlots(RuleKind::kAdam, 1)).ok());
  if (stores_[0]->locks().writes == StoreLocks::Writes::kAlone) return;  // no others inside
  HeldStores held(HostAllocator());
  ASSERT_TRUE(held.Take(stores, 1, Held::kWriting).ok());
  const float gradient = 1.0f;
  EXPECT_EQ(StatusCode::kFailedPrecondition,
            stores_[0]
                ->Apply(serial_.Holding(Held::kWriting), Batch{1}, &gradient, DataType::kFloat,
                        MakeRule(RuleKind::kMomentum, 1))
                .code());
}

// Regression test for a deadlock. Pieces of a pooled find waited for a lock in all threads of the
// pool. A writer waited for exclusive access, and the verb inside waited for the pool.
TEST_P(StoreGatesTest, PooledFindsGoOnBesideWritesAndClears) {
  PoolOfThreads pool(2);
  Store* const store = stores_[0].get();
  const Batch keys = KeysFrom(0, 6000);
  const std::vector<float> ones(keys.size(), 1.0f);
  InThreads(4, [&](size_t thread) {
    const ExecContext context = pool.Context();
    Bags bags(HostAllocator());
    bags.OfLines(keys.size() / 10, 10);
    std::vector<float> pooled(bags.size());
    const Store* const shards[] = {store};
    PooledFind find;
    find.keys = {keys.keys.data(), nullptr, false, shards, 1};
    find.bags = &bags;
    find.pooled = pooled.data();
    find.stride = 1;
    for (int round = 0; round < 200; ++round) {
      if (thread == 0) {
        ASSERT_TRUE(store->Clear().ok());
      } else if (thread == 1) {
        ASSERT_TRUE(store->InsertOrAssign(context, keys, ones.data(), {}).ok());
      } else {
        ASSERT_TRUE(FindPooled(context, &find, 1).ok());
        for (float sum : pooled) ASSERT_TRUE(sum >= 0.0f && sum <= 10.0f);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreGatesTest, testing::ValuesIn(AllStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
