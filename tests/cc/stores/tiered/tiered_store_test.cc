// SPDX-License-Identifier: Apache-2.0
// The contract of a store over tiers, beyond the contract of all stores: the tier of each row,
// training equal to a store in host memory, and the state of rows after the lower tier fails.
#include "cc/stores/tiered/tiered_store.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>

#include "gtest/gtest.h"
#include "tests/cc/stores/tiered/tiered_stores.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/policy_simulation.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

TEST_P(TieredStoreTest, RowsBeyondTheCacheGoDown) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, static_cast<float>(key));
  const StoreStats stats = store->Stats();
  EXPECT_EQ(200u, store->size());
  EXPECT_EQ(200u, stats.rows);
  EXPECT_LE(stats.cache_rows, 40u);
  EXPECT_EQ(200u, stats.cache_rows + lower->size());
  EXPECT_EQ(stats.demoted, lower->size());
  for (int64_t key = 0; key < 200; ++key) {
    EXPECT_EQ(std::vector<float>(kDim, static_cast<float>(key)), Get({key})) << key;
  }
}

TEST_P(TieredStoreTest, ALookupFindsARowThatIsReplacedMeanwhile) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  const int64_t key = ColdKey(*lower, KeysUpTo(200));
  // Makes room in the cache now, because a write that makes room waits for lookups.
  for (const int64_t other : KeysUpTo(200)) {
    bool stored;
    lower->Contains(&other, 1, &stored);
    if (!stored) {
      ASSERT_TRUE(store->Erase(context, Batch{other}).ok());
    }
  }
  // By then, the lookup has read the cache.
  lower->before_get = [&] {
    const std::vector<float> row(kDim, 2.0f);
    const RuleSlots rule = store->rule();  // the rule has no slots, so the whole row is new
    HeldStores paused(HostAllocator());
    const Store* const stores[] = {store.get()};
    ASSERT_TRUE(paused.Take(stores, 1, Held::kPaused).ok());
    ASSERT_TRUE(store
                    ->InsertOrAssign(ExecContext::Serial().Holding(Held::kPaused), Batch{key},
                                     row.data(), {&rule, row.data()})
                    .ok());
  };
  EXPECT_EQ(std::vector<float>(kDim, 2.0f), Get({key}));
  EXPECT_TRUE(lower->before_get == nullptr);
}

TEST_P(TieredStoreTest, ALookupBesideARemovalSeesNoOlderRow) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  const int64_t key = ColdKey(*lower, KeysUpTo(200));
  context.training = true;
  Get({key});  // promoted, and still in the lower tier
  context.training = false;
  Put({key}, 2.0f);
  std::vector<float> found;
  lower->before_erase = [&] { found = Get({key}); };
  ASSERT_TRUE(store->Erase(context, Batch{key}).ok());
  EXPECT_EQ(std::vector<float>(kDim, 2.0f), found) << "1 is what the store has";
  EXPECT_EQ(199u, store->size());
}

TEST_P(TieredStoreTest, EvaluationMovesNoRow) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  const StoreStats before = store->Stats();
  Get(KeysUpTo(300));
  const StoreStats after = store->Stats();
  EXPECT_EQ(before.promoted, after.promoted);
  EXPECT_EQ(before.demoted, after.demoted);
  EXPECT_EQ(before.cache_rows, after.cache_rows);
  EXPECT_EQ(200u, after.hits - before.hits);
  EXPECT_EQ(100u, after.misses - before.misses);
  EXPECT_EQ(before.cache_rows, after.cache_hits - before.cache_hits);
  EXPECT_EQ(200u - before.cache_rows, after.cache_misses - before.cache_misses);
}

TEST_P(TieredStoreTest, AKeyOfATrainingFindIsAHitOrAMissOnce) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  const StoreStats before = store->Stats();
  context.training = true;
  Get(KeysUpTo(300));  // more cold rows than may be promoted together
  const StoreStats after = store->Stats();
  EXPECT_EQ(200u, after.hits - before.hits);
  EXPECT_EQ(100u, after.misses - before.misses);
}

TEST_P(TieredStoreTest, NoRowIsLostIfMemoryRunsOutWhileItComesUpBesideASnapshot) {
  FailingAllocator allocator;
  StoreOptions options = Options();
  options.allocator = &allocator;
  options.policy.statistics = StatisticSet().With(Statistic::kChange);
  lower = nullptr;
  store = NewTieredStore(options, 8, &lower, GetParam().new_cache, GetParam().new_lower);
  ASSERT_NE(nullptr, store);
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  {
    HeldStores paused(HostAllocator());
    const Store* const stores[] = {store.get()};
    ASSERT_TRUE(paused.Take(stores, 1, Held::kPaused).ok());
    ASSERT_TRUE(store->maintenance()->changes()->Begin(0).ok());
  }
  const int64_t key = ColdKey(*lower, KeysUpTo(200));
  // With room in the cache, each call makes the same allocations.
  for (int64_t other = 190; other < 200; ++other) {
    ASSERT_TRUE(store->Erase(context, Batch{other}).ok());
  }
  const uint64_t before = store->Stats().promoted;
  for (int64_t count = 0; store->Stats().promoted == before; ++count) {
    allocator.FailAfter(count);
    (void)store->Prefetch(context, Batch{key});
    allocator.NeverFail();
    EXPECT_EQ(190u, store->size()) << "allocation " << count;
  }
  store.reset();  // destroyed before its allocator
}

TEST_P(TieredStoreTest, KeysThatAreHeldBackAreMisses) {
  StoreOptions options = Options();
  options.policy.admission = Admission::NewCounter(HostAllocator(), 3, 0);
  store = NewTieredStore(options, 8, &lower, GetParam().new_cache, GetParam().new_lower);
  ASSERT_NE(nullptr, store);
  std::vector<float> weights(50 * kDim);
  const auto find_or_insert = [&](bool training) {
    context.training = training;
    const Status status =
        store->FindOrInsert(context, Batch(KeysUpTo(50)), DefaultRows(), weights.data(), nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  };
  find_or_insert(true);
  EXPECT_EQ(0u, store->size());
  EXPECT_EQ(50u, store->Stats().misses);
  find_or_insert(false);
  EXPECT_EQ(50u, store->size());
  EXPECT_EQ(100u, store->Stats().misses);
  find_or_insert(false);
  EXPECT_EQ(50u, store->Stats().hits);
  EXPECT_EQ(100u, store->Stats().misses);
}

TEST_P(TieredStoreTest, ARowThatGoesDownCountsOnce) {
  const size_t rows = 1000;
  store = NewTieredStore(Options(), 100, nullptr, GetParam().new_cache, GetParam().new_lower);
  ASSERT_NE(nullptr, store);
  for (int64_t key = 0; key < static_cast<int64_t>(rows); key += 20) {
    Put(Batch(KeysFrom(key, 20)), 1.0f);
  }
  const StoreStats stats = store->Stats();
  EXPECT_EQ(rows, stats.demoted + stats.cache_rows);
  EXPECT_EQ(0u, stats.demoted_unwritten);
}

TEST_P(TieredStoreTest, EvictionsAreNeitherHitsNorMisses) {
  struct Log : EvictionSink {
    Status Evict(const WholeRows& rows, const RuleSlots&) override {
      count += rows.size;
      return Status();
    }
    size_t count = 0;
  } log;
  StoreOptions options = Options();
  options.policy = Bounded(100, EvictionOrder::kLru);
  options.policy.sink = &log;
  store = NewTieredStore(options, 8, &lower, GetParam().new_cache, GetParam().new_lower);
  ASSERT_NE(nullptr, store);
  for (int64_t key = 0; key < 200; ++key) {
    ++context.now.step;
    Put({key}, 1.0f);
  }
  EXPECT_EQ(100u, log.count);
  EXPECT_EQ(0u, store->Stats().hits);
  EXPECT_EQ(0u, store->Stats().misses);
  Get(KeysUpTo(200));
  EXPECT_EQ(100u, store->Stats().hits);
  EXPECT_EQ(100u, store->Stats().misses);
}

TEST_P(TieredStoreTest, RowsThatDidNotChangeAreNotWrittenAgain) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  const auto count_written = [&] {
    const StoreStats stats = store->Stats();
    return stats.demoted - stats.demoted_unwritten;
  };
  const uint64_t written = count_written();
  context.training = true;  // promotes rows
  for (int round = 0; round < 3; ++round) {
    for (int64_t key = 0; key < 200; ++key) Get({key});
  }
  const StoreStats stats = store->Stats();
  EXPECT_GT(stats.promoted, 400u);
  EXPECT_EQ(200u, store->size());
  // Full host memory forgets promoted rows.
  if (GetParam().new_lower == NewHostOverDisk) return;
  EXPECT_GT(stats.demoted_unwritten, 400u);
  // Only the rows that were in the cache at the beginning had to be written.
  EXPECT_LE(count_written() - written, 40u);
  EXPECT_EQ(200u, store->size());
}

TEST_P(TieredStoreTest, RowsThatChangedAreWrittenAgain) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  for (int64_t key = 0; key < 200; ++key) Put({key}, 2.0f);
  for (int64_t key = 0; key < 200; ++key) {
    EXPECT_EQ(std::vector<float>(kDim, 2.0f), Get({key})) << key;
  }
  EXPECT_EQ(200u, store->size());
}

TEST_P(TieredStoreTest, TheOldestRowsGoDown) {
  context.training = true;
  Put(KeysUpTo(8), 1.0f);
  for (int64_t key = 1000; key < 1400; ++key) {
    ++context.now.step;
    Put({key}, 1.0f);
    const uint64_t below = store->Stats().cache_misses;
    Get({0, 1, 2});
    ASSERT_EQ(below, store->Stats().cache_misses) << "rows in use at each step are in the cache";
  }
}

TEST_P(TieredStoreTest, PrefetchBringsRowsUp) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, static_cast<float>(key));
  ++context.now.step;
  const Batch batch{1, 2, 3, 999};
  ASSERT_TRUE(store->tiers()->Prefetch(context, batch).ok());
  EXPECT_EQ(200u, store->size()) << "an absent key stays absent";
  const StoreStats before = store->Stats();
  context.training = true;
  Get({1, 2, 3});
  const StoreStats after = store->Stats();
  EXPECT_EQ(3u, after.cache_hits - before.cache_hits);
  EXPECT_EQ(before.cache_misses, after.cache_misses);
}

TEST_P(TieredStoreTest, BatchThatFillsTheCacheMakesRoomForItself) {
  // Three keys take turns in a cache of one row.
  TierOptions tiers;
  tiers.cache_bytes = 33;
  tiers.new_cache = GetParam().new_cache;
  tiers.new_lower = [](StatisticSet statistics, std::unique_ptr<LowerTier>* made) {
    return GetParam().new_lower(Options(), statistics, 8, made);
  };
  std::unique_ptr<TieredStore> small;
  ASSERT_TRUE(TieredStore::Create(Options(), tiers, &small).ok());
  for (int round = 0; round < 5; ++round) {
    const std::vector<float> weights(3 * kDim, static_cast<float>(round));
    ASSERT_TRUE(small->InsertOrAssign(context, Batch{1, 2, 3}, weights.data(), {}).ok());
    EXPECT_EQ(3u, small->size());
    EXPECT_EQ(1u, small->Stats().cache_rows);
  }
}

TEST_P(TieredStoreTest, EraseReachesBothTiers) {
  for (int64_t key = 0; key < 200; ++key) Put({key}, 1.0f);
  ASSERT_TRUE(store->Erase(context, Batch(KeysUpTo(150))).ok());
  EXPECT_EQ(50u, store->size());
  bool exists[2];
  ASSERT_TRUE(store->Contains(context, Batch{149, 150}, exists).ok());
  EXPECT_FALSE(exists[0]);
  EXPECT_TRUE(exists[1]);
}

TEST_P(TieredStoreTest, CacheWithoutRoomForARowIsRefused) {
  TierOptions tiers;
  tiers.cache_bytes = 10;
  std::unique_ptr<TieredStore> none;
  const Status status = TieredStore::Create(Options(), tiers, &none);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("`host_bytes` must have room for a row"))
      << status.message();
}

TEST_P(TieredStoreTest, RuleWhoseRowsFindNoRoomIsRefused) {
  TierOptions tiers;
  tiers.cache_bytes = 45;  // two rows of three weights, but no row with slots of Adam
  tiers.new_cache = GetParam().new_cache;
  tiers.new_lower = [](StatisticSet statistics, std::unique_ptr<LowerTier>* made) {
    return GetParam().new_lower(Options(), statistics, 8, made);
  };
  std::unique_ptr<TieredStore> small;
  ASSERT_TRUE(TieredStore::Create(Options(), tiers, &small).ok());
  for (int64_t key = 0; key < 20; ++key) {
    const std::vector<float> weights(kDim, static_cast<float>(key));
    ASSERT_TRUE(small->InsertOrAssign(context, Batch{key}, weights.data(), {}).ok());
  }
  const std::vector<float> gradients(kDim, 1.0f);
  const Rule adam = MakeRule(RuleKind::kAdam, kDim);
  const Status status = small->Apply(context, Batch{1}, gradients.data(), DataType::kFloat, adam);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_EQ(20u, small->size());
  EXPECT_TRUE(SameRule(RuleSlots(), small->rule()));
}

TEST(ThreeTiers, RowsPassThroughAll) {
  StoreOptions options;
  options.name = "items";
  options.dim = kDim;
  const auto store = NewTieredStore(options, 32, nullptr, NewDeviceCache, NewHostOverDisk);
  ASSERT_NE(nullptr, store);
  ExecContext context = ExecContext::Serial();
  for (int64_t key = 0; key < 1000; ++key) {
    const std::vector<float> weights(kDim, static_cast<float>(key));
    ASSERT_TRUE(store->InsertOrAssign(context, Batch{key}, weights.data(), {}).ok());
    const StoreStats stats = store->Stats();
    ASSERT_LE(stats.cache_rows, 32u * 4);
    ASSERT_LE(stats.host_rows, 32u * 4);
    ASSERT_EQ(static_cast<uint64_t>(key) + 1, stats.cache_rows + stats.host_rows + stats.disk_rows);
  }
  EXPECT_GT(store->Stats().host_rows, 50u);
  EXPECT_GT(store->Stats().disk_rows, 500u);
  EXPECT_EQ(store->Stats().host_rows * kDim * sizeof(float), store->Stats().host_bytes);
  // Rows from the disk are promoted, changed, and demoted to host memory.
  context.training = true;
  for (int64_t key = 0; key < 300; ++key) {
    const std::vector<float> gradients(kDim, -1.0f);
    Rule sgd = MakeRule(RuleKind::kSgd, kDim);
    sgd.learning_rate = 1.0;
    ASSERT_TRUE(store->Apply(context, Batch{key}, gradients.data(), DataType::kFloat, sgd).ok());
  }
  context.training = false;
  for (int64_t key = 0; key < 1000; ++key) {
    float weights[kDim];
    ASSERT_TRUE(store->Find(context, Batch{key}, DefaultRows(), weights, nullptr, {}).ok());
    EXPECT_EQ(static_cast<float>(key < 300 ? key + 1 : key), weights[0]) << key;
  }
  ASSERT_TRUE(store->Shrink(context).ok());
  EXPECT_EQ(1000u, store->size());
}

// ---- A failing lower tier ----

TEST_P(TieredStoreTest, NothingIsLostWhenTheLowerTierCantBeWritten) {
  for (int64_t key = 0; key < 100; ++key) Put({key}, static_cast<float>(key));
  lower->FailAfter(0);
  const std::vector<float> weights(kDim, 5.0f);
  size_t taken = 0;
  Status status;
  for (int64_t key = 1000; key < 1100; ++key) {
    status = store->InsertOrAssign(context, Batch{key}, weights.data(), {});
    if (!status.ok()) break;
    ++taken;
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(StatusCode::kUnavailable, status.code());
  EXPECT_EQ(100u + taken, store->size());
  lower->FailAfter(-1);
  for (int64_t key = 0; key < 100; ++key) {
    EXPECT_EQ(std::vector<float>(kDim, static_cast<float>(key)), Get({key})) << key;
  }
  for (int64_t key = 1000; key < 1100; ++key) Put({key}, 6.0f);
  EXPECT_EQ(200u, store->size());
}

TEST_P(TieredStoreTest, RowsThatCantBeReadAreAnErrorAndStay) {
  for (int64_t key = 0; key < 100; ++key) Put({key}, static_cast<float>(key));
  lower->FailAfter(0);
  std::vector<float> weights(100 * kDim);
  for (const bool training : {false, true}) {
    context.training = training;
    const Status status =
        store->Find(context, Batch(KeysUpTo(100)), DefaultRows(), weights.data(), nullptr, {});
    EXPECT_EQ(StatusCode::kUnavailable, status.code());
  }
  const Rule sgd = MakeRule(RuleKind::kSgd, kDim);
  const std::vector<float> gradients(100 * kDim, 1.0f);
  EXPECT_FALSE(
      store->Apply(context, Batch(KeysUpTo(100)), gradients.data(), DataType::kFloat, sgd).ok());
  lower->FailAfter(-1);
  EXPECT_EQ(100u, store->size());
  context.training = false;
  // SGD may have run on a part of the batch. No key got an initial row.
  for (int64_t key = 1; key < 100; ++key) {
    const float weight = Get({key})[0];
    EXPECT_TRUE(weight == static_cast<float>(key) || weight < static_cast<float>(key));
    EXPECT_GT(weight, static_cast<float>(key) - 2.0f) << key;
  }
}

TEST_P(TieredStoreTest, TheLargestSlotOfRowsThatCantBeReadIsAnError) {
  const Rule rule = MakeRule(RuleKind::kRowwiseAdagrad, kDim);
  const std::vector<float> gradients(100 * kDim, 2.0f);
  ASSERT_TRUE(
      store->Apply(context, Batch(KeysUpTo(100)), gradients.data(), DataType::kFloat, rule).ok());
  double before, after;
  ASSERT_TRUE(store->LargestSlot(context, rule.slots, 0, &before).ok());
  EXPECT_GT(before, 0.0);
  lower->FailScans(true);
  EXPECT_EQ(StatusCode::kUnavailable, store->LargestSlot(context, rule.slots, 0, &after).code());
  lower->FailScans(false);
  ASSERT_TRUE(store->LargestSlot(context, rule.slots, 0, &after).ok());
  EXPECT_EQ(before, after);
}

TEST_P(TieredStoreTest, APassThatCantReadTheLowerTierChangesNoRow) {
  // The second half of a row follows the first.
  Rule rule = Rule::Of<EmaRowwiseAdagradRule>(kDim, {1e-7, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5}, 0.05);
  const std::vector<int64_t> keys = KeysUpTo(100);
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  rule.step = 1;
  ASSERT_TRUE(store->Apply(context, Batch(keys), gradients.data(), DataType::kFloat, rule).ok());
  context.training = true;
  Get({ColdKey(*lower, keys)});  // in both tiers, unchanged
  context.training = false;
  const std::vector<float> before = Get(keys);
  lower->FailScans(true);
  EXPECT_EQ(StatusCode::kUnavailable, store->UpdateAllRows(context, rule).code());
  lower->FailScans(false);
  EXPECT_EQ(before, Get(keys));
  for (int64_t key = 1000; key < 1200; ++key) Put({key}, 1.0f);  // all other rows are demoted
  EXPECT_EQ(before, Get(keys));
  ASSERT_TRUE(store->UpdateAllRows(context, rule).ok());
  const std::vector<float> after = Get(keys);
  for (size_t i = kDim - 1; i < after.size(); i += kDim) EXPECT_NE(before[i], after[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Caches, TieredStoreTest, testing::ValuesIn(kCaches), NameOfCache);

// ---- Threads ----

class TieredThreads : public testing::TestWithParam<CacheKind> {};

TEST_P(TieredThreads, NoChangeIsLostWhileRowsGoUpAndDown) {
  // Each thread adds 1 to common rows, and other threads promote rows and read them.
  constexpr size_t kThreads = 3, kRounds = 400, kBatch = 40;
  constexpr int64_t kKeys = 2000;
  StoreOptions options;
  options.dim = 1;
  options.initializer.kind = InitializerKind::kConstant;
  const auto store =
      NewTieredStore(options, 300, nullptr, GetParam().new_cache, GetParam().new_lower);
  ASSERT_NE(nullptr, store);
  const Rule sgd = [] {
    Rule rule = MakeRule(RuleKind::kSgd, 1);
    rule.learning_rate = 1.0;
    return rule;
  }();
  std::vector<std::atomic<int>> added(kKeys);
  std::atomic<size_t> writing{kThreads};
  InThreads(kThreads + 2, [&](size_t thread) {
    Random random(thread);
    ExecContext context = ExecContext::Serial();
    const std::vector<float> gradients(kBatch, -1.0f);
    std::vector<float> weights(kBatch);
    const auto draw = [&] {
      std::vector<int64_t> keys(kBatch);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % kKeys);
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      return keys;
    };
    if (thread < kThreads) {
      for (size_t round = 0; round < kRounds; ++round) {
        const std::vector<int64_t> keys = draw();
        context.training = round % 2 == 0;
        if (context.training) {
          EXPECT_TRUE(
              store->Find(context, Batch(keys), DefaultRows(), weights.data(), nullptr, {}).ok());
        }
        EXPECT_TRUE(
            store->Apply(context, Batch(keys), gradients.data(), DataType::kFloat, sgd).ok());
        for (const int64_t key : keys) ++added[static_cast<size_t>(key)];
      }
      --writing;
      return;
    }
    while (writing.load() > 0) {
      const std::vector<int64_t> keys = draw();
      if (thread == kThreads) {
        EXPECT_TRUE(store->Prefetch(context, Batch(keys)).ok());
      } else {
        EXPECT_TRUE(
            store->Find(context, Batch(keys), DefaultRows(), weights.data(), nullptr, {}).ok());
      }
    }
  });
  EXPECT_GT(store->Stats().demoted, 1000u);
  for (int64_t key = 0; key < kKeys; ++key) {
    float weight = 0.0f;
    ASSERT_TRUE(
        store->Find(ExecContext::Serial(), KeyBatch{&key, 1}, DefaultRows(), &weight, nullptr, {})
            .ok());
    EXPECT_EQ(static_cast<float>(added[static_cast<size_t>(key)].load()), weight) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, TieredThreads, testing::ValuesIn(kCaches), NameOfCache);

// ---- The same steps as in host memory ----

using NewStore = std::function<std::unique_ptr<TieredStore>(const StoreOptions& options)>;

void TrainBeside(const NewStore& new_store, DataType type, const Rule& first, uint64_t seed) {
  SCOPED_TRACE(static_cast<int>(first.slots.kind));
  StoreOptions options;
  options.dim = 4;
  options.value_type = type;
  options.initializer = UniformInitializer();
  const auto in_memory = HostStore::Create(options);
  const auto tiered = new_store(options);
  ASSERT_NE(nullptr, tiered);
  Random random(seed);
  ExecContext context = Threads(3);
  context.training = true;
  Rule rule = first;
  for (int step = 0; step < 60; ++step) {
    context.now.step = static_cast<uint64_t>(step + 1);
    rule.step = step + 1;
    // Some batches have more keys than the cache has rows.
    const size_t size = step % 7 == 3 ? 600 : 1 + random() % 60;
    std::vector<int64_t> keys(size);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 500 * (random() % 2));
    const Batch batch(keys);
    std::vector<float> gradients(size * options.dim);
    for (float& gradient : gradients) gradient = static_cast<float>(random() % 17) / 8 - 1;
    std::vector<float> rows[2];
    std::unique_ptr<bool[]> exists[2];
    int i = 0;
    for (Store* const store :
         {static_cast<Store*>(in_memory.get()), static_cast<Store*>(tiered.get())}) {
      rows[i].resize(size * options.dim);
      exists[i] = std::make_unique<bool[]>(size);
      ASSERT_TRUE(
          store->Find(context, batch, DefaultRows(), rows[i].data(), exists[i].get(), {}).ok());
      const Status status = store->Apply(context, batch, gradients.data(), DataType::kFloat, rule);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(store->UpdateAllRows(context, rule).ok());
      if (step % 11 == 5) {
        ASSERT_TRUE(store->Erase(context, Batch{keys[0], 77}).ok());
      }
      ++i;
    }
    ASSERT_EQ(0, std::memcmp(rows[0].data(), rows[1].data(), rows[0].size() * SizeOf(type)))
        << "step " << step;
    ASSERT_TRUE(std::equal(exists[0].get(), exists[0].get() + size, exists[1].get()));
    ASSERT_EQ(in_memory->size(), tiered->size());
  }
  // The weights and slots of all rows.
  std::map<int64_t, std::string> content[2];
  int i = 0;
  for (Store* const store :
       {static_cast<Store*>(in_memory.get()), static_cast<Store*>(tiered.get())}) {
    WholeRows rows(HostAllocator());
    const size_t weight_bytes = options.dim * SizeOf(type);
    const size_t slot_bytes = store->rule().slots_per_row() * SlotSize(type);
    for (ExportCursor cursor; !cursor.done;) {
      ASSERT_TRUE(store->maintenance()->ExportBatch(50, &cursor, &rows).ok());
      for (size_t row = 0; row < rows.size; ++row) {
        const std::string bytes =
            std::string(rows.weights.data() + row * weight_bytes, weight_bytes) +
            std::string(rows.slots.data() + row * slot_bytes, slot_bytes);
        ASSERT_TRUE(content[i].emplace(rows.keys[row], bytes).second) << "a key came twice";
      }
    }
    ++i;
  }
  EXPECT_EQ(content[0], content[1]);
  EXPECT_GT(tiered->Stats().promoted, 500u);
  EXPECT_LE(tiered->Stats().cache_rows, 32u * 4);
}

class TieredTraining : public testing::TestWithParam<CacheKind> {};

TEST_P(TieredTraining, StepsAreThoseOfAStoreInMemory) {
  const auto tiered = [](const StoreOptions& options) {
    return NewTieredStore(options, 32, nullptr, GetParam().new_cache, GetParam().new_lower);
  };
  for (const Rule& rule : AllRules(4)) TrainBeside(tiered, DataType::kFloat, rule, 1);
  for (const uint64_t seed : Seeds(3)) {
    TrainBeside(tiered, DataType::kHalf, MakeRule(RuleKind::kAdam, 4), seed);
    TrainBeside(tiered, DataType::kFloat, MakeRule(RuleKind::kAdam, 4), seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, TieredTraining, testing::ValuesIn(kCaches), NameOfCache);

}  // namespace
}  // namespace tf_embed
