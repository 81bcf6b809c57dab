// SPDX-License-Identifier: Apache-2.0
// Properties of a DeviceStore beyond the contract of every Store: the bound on its bytes,
// insertions and removals in a small index, its errors. Many lanes give the same results as a
// single lane.
#include "cc/stores/device/device_store.h"

#include <set>

#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/lockstep_store.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 4;

class DeviceStoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> NewStore(uint64_t max_bytes = UINT64_MAX,
                                  Allocator* allocator = HostAllocator()) const {
    StoreOptions options;
    options.name = "items";
    options.dim = kDim;
    options.initializer = UniformInitializer();
    options.allocator = allocator;
    options.policy.statistics = StatisticSet().With(Statistic::kLastStep);
    DeviceOptions device;
    device.max_bytes = max_bytes;
    std::unique_ptr<Store> store;
    EXPECT_TRUE(NewEmulatedDeviceStore(options, device, &store).ok());
    return store;
  }
  Status Apply(Store* store, const Batch& batch) const {
    const std::vector<float> gradients(batch.places * kDim, 1.0f);
    return store->Apply(context, batch, gradients.data(), DataType::kFloat,
                        MakeRule(RuleKind::kAdam, kDim));
  }
  std::set<int64_t> Keys(const Store& store) const {
    std::set<int64_t> keys;
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      EXPECT_TRUE(store.maintenance()->ExportBatch(100, &cursor, &rows).ok());
      keys.insert(rows.keys.data(), rows.keys.data() + rows.size);
    }
    return keys;
  }

  const ExecContext context = Threads(2);
};

TEST_F(DeviceStoreTest, ABoundOnBytesHoldsAndTheLastNewKeysOfABatchStayAway) {
  constexpr uint64_t kMaxBytes = 200000;
  FailingAllocator allocator;
  const auto store = NewStore(kMaxBytes, &allocator);
  size_t wanted = 0, rows = 0;
  for (int64_t first = 0; first < 10000; first += 500) {
    Batch batch(KeysFrom(first, 500));
    batch.keys.push_back(first);  // a repeated key, which counts as refused only once
    batch.places = batch.keys.size();
    ASSERT_TRUE(Apply(store.get(), batch).ok());
    wanted += 500;
    const StoreStats stats = store->Stats();
    EXPECT_LE(allocator.live_bytes(), kMaxBytes + 10000);
    EXPECT_EQ(wanted, stats.rows + stats.refused);
    EXPECT_EQ(stats.rows, stats.admitted);
    EXPECT_GE(stats.rows, rows);
    rows = stats.rows;
  }
  EXPECT_GT(rows, 1000u);
  EXPECT_LT(rows, 5000u);
  // Batches were in order, so the store has the first keys.
  const std::set<int64_t> keys = Keys(*store);
  EXPECT_EQ(rows, keys.size());
  EXPECT_EQ(static_cast<int64_t>(rows) - 1, *keys.rbegin());
  // Erased rows make room for others. Refused keys have their initial rows.
  ASSERT_TRUE(store->Erase(context, Batch(KeysFrom(0, 100))).ok());
  ASSERT_TRUE(Apply(store.get(), Batch(KeysFrom(20000, 150))).ok());
  EXPECT_EQ(rows, store->size());
  float row[kDim], initial[kDim];
  bool exists;
  ASSERT_TRUE(store->Find(context, Batch{20149}, DefaultRows(), row, &exists, {}).ok());
  InitializeWeights(UniformInitializer(), 20149, kDim, initial);
  EXPECT_FALSE(exists);
  EXPECT_EQ(0, std::memcmp(initial, row, sizeof(row)));
}

TEST_F(DeviceStoreTest, AFullStoreRefusesTheSameKeysForAnyNumberOfThreads) {
  std::set<int64_t> before;
  for (size_t threads : {1, 2, 5}) {
    const auto store = NewStore(100000);
    Random random(3);
    const Batch batch = RandomKeys(20000, 0, 1 << 20, &random);
    const std::vector<float> rows(batch.places * kDim, 1.0f);
    ASSERT_TRUE(store->InsertOrAssign(Threads(threads), batch, rows.data(), {}).ok());
    const std::set<int64_t> keys = Keys(*store);
    EXPECT_GT(keys.size(), 100u);
    EXPECT_LT(keys.size(), 19000u);
    if (threads > 1) {
      EXPECT_EQ(before, keys);
    }
    before = keys;
  }
}

TEST_F(DeviceStoreTest, RefusedKeysOfAFindOrInsertGetTheirDefaults) {
  const auto store = NewStore(1);  // room for nothing
  const float each[] = {1, 2, 3, 4, 5, 6, 7, 8};
  float rows[2 * kDim];
  bool exists[] = {true, true};
  ASSERT_TRUE(
      store->FindOrInsert(context, Batch{5, 6}, {DefaultRows::Kind::kOneEach, each}, rows, exists)
          .ok());
  EXPECT_EQ(0, std::memcmp(each, rows, sizeof(rows)));
  EXPECT_TRUE(!exists[0] && !exists[1]);
  EXPECT_EQ(2u, store->Stats().refused);
  EXPECT_EQ(0u, store->size());
}

TEST_F(DeviceStoreTest, KeysThatComeAndGoDoNotMakeSearchesLonger) {
  const auto store = NewStore();
  ASSERT_TRUE(Apply(store.get(), Batch(KeysFrom(0, 5000))).ok());
  const uint64_t places = store->Stats().index_places;
  for (int64_t first = 0; first < 400000; first += 1000) {
    ASSERT_TRUE(store->Erase(context, Batch(KeysFrom(first, 1000))).ok());
    ASSERT_TRUE(Apply(store.get(), Batch(KeysFrom(first + 5000, 1000))).ok());
  }
  const StoreStats stats = store->Stats();
  EXPECT_EQ(5000u, stats.rows);
  EXPECT_EQ(places, stats.index_places);
  EXPECT_LT(stats.probed_buckets, stats.probed_keys * 5 / 4);
}

TEST_F(DeviceStoreTest, PointersAreToTheRows) {
  const auto store = NewStore();
  const std::vector<int64_t> keys = KeysFrom(0, 1000);
  std::vector<float> rows(keys.size() * kDim);
  std::iota(rows.begin(), rows.end(), 0.0f);
  ASSERT_TRUE(store->InsertOrAssign(context, Batch(keys), rows.data(), {}).ok());
  Batch batch{-7, 999, 5, 1000, 5};
  batch.positions = {4, 3, 2, 1, 0};
  const void* found[5];
  ASSERT_TRUE(static_cast<DeviceStore*>(store.get())->FindPointers(context, batch, found).ok());
  EXPECT_EQ(nullptr, found[4]);
  EXPECT_EQ(nullptr, found[1]);
  EXPECT_EQ(found[2], found[0]);
  for (const auto& [place, key] : {std::pair<size_t, size_t>(3, 999), {2, 5}}) {
    EXPECT_EQ(0, std::memcmp(found[place], rows.data() + key * kDim, kDim * sizeof(float)));
  }
}

TEST_F(DeviceStoreTest, HitsAndMissesAreCounted) {
  const auto store = NewStore();
  ASSERT_TRUE(Apply(store.get(), Batch{1, 2, 3}).ok());
  float rows[4 * kDim];
  ASSERT_TRUE(store->Find(context, Batch{1, 9, 2, 9}, DefaultRows(), rows, nullptr, {}).ok());
  const StoreStats stats = store->Stats();
  EXPECT_EQ(2u, stats.hits);
  EXPECT_EQ(2u, stats.misses);
}

TEST_F(DeviceStoreTest, AGpuIsRefusedByNameWhereThisBuildHasNoSupportForIt) {
  StoreOptions options;
  options.name = "items";
  std::unique_ptr<Store> store;
  const Status status = NewDeviceStore(options, DeviceOptions(), &store);
  EXPECT_EQ(StatusCode::kUnavailable, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'items'")) << status.message();
  EXPECT_NE(std::string::npos, status.message().find("no GPU support in this build"));
}

// ---- Many lanes ----

// Random verbs on a few hundred keys, with all rules.
template <typename T>
void RunInLockstep(size_t dim, uint64_t seed) {
  SCOPED_TRACE("dim " + std::to_string(dim) + ", seed " + std::to_string(seed));
  const StoreKind kind{"LockstepStore", [](const StoreOptions& options) {
                         std::unique_ptr<Store> store;
                         (void)NewLockstepStore(options, DeviceOptions(), &store);
                         return store;
                       }};
  CheckedStore<T> both(kind, dim, ExecContext::Serial(), seed);
  const auto some = [&] { return Scattered(RandomKeys(40, 0, 60, &both.random), &both.random); };
  both.FindOrInsert(some());
  both.Find(some());
  both.InsertOrAssign(some());
  if (IsFloating(TypeOf<T>())) {
    for (Rule rule : AllRules(dim)) {
      for (rule.step = 1; rule.step <= 3; ++rule.step) both.Apply(some(), rule);
      both.FindSlots(some());
      both.Erase(RandomKeys(10, 0, 60, &both.random));
    }
  }
  both.ExpectSame(7);
  both.InsertOrAssign(some(), true);
  both.Accum(some());
  both.Erase(some());
  both.Find(some(), DefaultRows::Kind::kOneEach);
  both.FindOrInsert(some(), DefaultRows::Kind::kOneForAll);
  both.InsertOrAssign(KeysFrom(0, 700));
  both.Erase(RandomKeys(300, 0, 700, &both.random));
  both.Shrink();
  both.FindOrInsert(some(), DefaultRows::Kind::kOneEach);
  both.ExpectSame();
}

TEST(LockstepTest, ManyLanesDoWhatOneDoes) {
  if (!HasLockstep()) GTEST_SKIP() << "sanitizers do not know the stacks of lanes";
  for (size_t dim : Sizes({2, 17, 1, 7, 15, 16, 40, 64})) {
    RunInLockstep<float>(dim, dim);
    RunInLockstep<double>(dim, dim + 100);
    RunInLockstep<Half>(dim, dim + 200);
    RunInLockstep<BFloat16>(dim, dim + 300);
    RunInLockstep<int8_t>(dim, dim + 400);
    RunInLockstep<int64_t>(dim, dim + 500);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tf_embed
