// SPDX-License-Identifier: Apache-2.0
// A cache in the memory of a device equals a cache in host memory, mark by mark.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/rows/row_mark.h"
#include "cc/core/store/store_cache.h"
#include "gtest/gtest.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/isolated_store.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 3;
constexpr int64_t kKeys = 300;

StoreOptions CacheOptions() {
  StoreOptions options;
  options.name = "items";
  options.dim = kDim;
  options.initializer = UniformInitializer();
  options.is_cache = true;
  options.policy.statistics =
      StatisticSet().With(Statistic::kLastStep).With(Statistic::kCount).With(Statistic::kLastTime);
  return options;
}

// A verb's flags as an array of bool, unlike std::vector<bool>.
struct Flags {
  explicit Flags(size_t size) : data(new bool[size + 1]()), size(size) {}
  std::vector<bool> Values() const { return std::vector<bool>(data.get(), data.get() + size); }

  std::unique_ptr<bool[]> data;
  size_t size;
};

class DeviceCache : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    IsolatedMemory::Get()->set_one_in(32);
    host = HostStore::Create(CacheOptions());
    device = NewDevice(CacheOptions());
    ASSERT_NE(nullptr, device);
    ASSERT_NE(nullptr, device->cache());
    context.training = true;
    context.now.step = 1;
  }
  std::unique_ptr<Store> NewDevice(const StoreOptions& options) {
    std::unique_ptr<Store> made;
    EXPECT_TRUE(GetParam().new_store(options, DeviceOptions(), &made).ok());
    return NewHostAccessStore(std::move(made), GetParam().memory);
  }

  std::vector<Store*> Both() { return {host.get(), device.get()}; }
  void ExpectSameMarks() {
    const Batch all(KeysFrom(0, kKeys));
    std::vector<uint8_t> marks[2];
    std::vector<bool> exists[2];
    int i = 0;
    for (Store* store : Both()) {
      Flags flags(kKeys);
      marks[i].resize(kKeys);
      ASSERT_TRUE(store->cache()->FindMarks(context, all, marks[i].data(), flags.data.get()).ok());
      exists[i++] = flags.Values();
    }
    ASSERT_EQ(exists[0], exists[1]);
    ASSERT_EQ(marks[0], marks[1]);
    ASSERT_EQ(host->cache()->num_rows(), device->cache()->num_rows());
    ASSERT_EQ(device->size(), device->cache()->num_rows());
  }
  void ExpectSameRows() {
    const Batch all(KeysFrom(0, kKeys));
    const RuleSlots rule = host->rule();
    const size_t slots = rule.slots_per_row();
    ExecContext reading = context;
    reading.training = false;
    std::vector<float> weights[2], slot_values[2];
    std::vector<uint64_t> statistics[2];
    int i = 0;
    for (Store* store : Both()) {
      Flags flags(kKeys);
      weights[i].resize(kKeys * kDim);
      slot_values[i].resize(kKeys * slots + 1);
      statistics[i].resize(kKeys * host->options().policy.statistics.size());
      ASSERT_TRUE(store
                      ->Find(reading, all, DefaultRows(), weights[i].data(), flags.data.get(),
                             {&rule, slot_values[i].data()})
                      .ok());
      ASSERT_TRUE(store->eviction()
                      ->FindStatistics(reading, all, statistics[i].data(), flags.data.get())
                      .ok());
      ++i;
    }
    ExpectSameBits(weights[0], weights[1], "weights");
    ExpectSameBits(slot_values[0], slot_values[1], "slots");
    ASSERT_EQ(statistics[0], statistics[1]);
  }
  std::vector<std::pair<uint64_t, uint64_t>> Ages(Store* store, size_t one_in, uint8_t least_age) {
    RankList ranks(HostAllocator());
    EXPECT_TRUE(store->cache()->CollectAges(context, one_in, least_age, &ranks).ok());
    std::vector<std::pair<uint64_t, uint64_t>> found;
    for (const Rank& rank : ranks) found.emplace_back(rank.hash(), rank.score());
    std::sort(found.begin(), found.end());
    return found;
  }
  void Put(Store* store, const Batch& batch, float weight) {
    const std::vector<float> weights(batch.size() * kDim, weight);
    ASSERT_TRUE(store->InsertOrAssign(context, batch, weights.data(), {}).ok());
  }

  ExecContext context = ExecContext::Serial();
  std::unique_ptr<Store> host;
  std::unique_ptr<Store> device;
};

TEST_P(DeviceCache, OtherStoresAreNone) {
  StoreOptions options = CacheOptions();
  options.is_cache = false;
  EXPECT_EQ(nullptr, NewDevice(options)->cache());
}

// Random verbs in random order, compared with a cache on the host.
TEST_P(DeviceCache, VerbsDoWhatTheyDoOnTheHost) {
  for (const uint64_t seed : Seeds(3)) {
    SetUp();
    Random random(seed);
    SCOPED_TRACE(seed);
    Rule rule = MakeRule(RuleKind::kAdagrad, kDim, 0.25);
    for (Store* store : Both()) ASSERT_TRUE(store->maintenance()->SetRule(rule.slots).ok());
    uint8_t tick = 0;
    for (int round = 0; round < 100; ++round) {
      SCOPED_TRACE(round);
      context.now.step = 1 + static_cast<uint64_t>(round) / 3;
      context.now.milliseconds = 10 * static_cast<uint64_t>(round);
      const uint64_t what = random() % 11;
      const size_t size = 1 + random() % 60;
      Batch batch = Scattered(Batch(RandomKeys(size, 0, kKeys - 1, &random)), &random);
      const std::vector<float> values = RandomValues<float>(batch.places * kDim, &random);
      const std::vector<float> others = RandomValues<float>(batch.places * kDim, &random);
      const bool changed = random() % 2 == 0;
      const bool leaves_absent = random() % 2 == 0;
      Flags present(batch.places);
      ASSERT_TRUE(host->Contains(context, batch, present.data.get()).ok());
      std::vector<int64_t> absent;
      for (size_t i = 0; i < size; ++i) {
        if (!present.data[batch.Position(i)]) absent.push_back(batch.keys[i]);
      }
      std::sort(absent.begin(), absent.end());
      absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
      std::vector<bool> flags[2], left[2];
      std::vector<float> found[2];
      std::vector<uint8_t> uses[2];
      tick = (what == 0 ? tick + 1 : tick) % RowMark::kTicks;
      int i = 0;
      for (Store* store : Both()) {
        StoreCache* const cache = store->cache();
        KeyBatch keys = batch;
        Flags exists(batch.places), is_left(batch.places);
        if (leaves_absent) keys.absent = is_left.data.get();
        found[i].assign(batch.places * kDim, 0.0f);
        uses[i].assign(batch.places, 77);
        Status status;
        switch (what) {
          case 0:
            cache->SetTick(tick);
            break;
          case 1:
            status = cache->Touch(context, batch, exists.data.get());
            break;
          case 2:
            status = cache->SetChanged(context, batch, changed);
            break;
          case 3:
            status = store->InsertOrAssign(context, keys, values.data(), {});
            break;
          case 4:
            status = store->Apply(context, keys, values.data(), DataType::kFloat, rule);
            break;
          case 5:
            status = store->FindOrInsert(context, keys, DefaultRows(), found[i].data(),
                                         exists.data.get());
            break;
          case 6:
            status = store->Accum(context, keys, values.data(), others.data(), present.data.get());
            break;
          case 7:
            status =
                store->Find(context, batch, DefaultRows(), found[i].data(), exists.data.get(), {});
            break;
          case 8: {
            WholeRows rows(HostAllocator());
            const size_t words = store->options().policy.statistics.size();
            ASSERT_TRUE(
                rows.Resize(absent.size(), kDim * sizeof(float), kDim * sizeof(float), words).ok());
            rows.size = absent.size();
            std::copy(absent.begin(), absent.end(), rows.keys.data());
            std::memcpy(rows.weights.data(), values.data(), rows.size * kDim * sizeof(float));
            std::memcpy(rows.slots.data(), others.data(), rows.size * kDim * sizeof(float));
            for (size_t k = 0; k < rows.size * words; ++k) rows.statistics[k] = k + 1;
            status = cache->AddUnchanged(context, rows);
            break;
          }
          case 9: {
            std::vector<int64_t> distinct = batch.keys;
            std::sort(distinct.begin(), distinct.end());
            distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
            cache->Drop(context, distinct.data(), distinct.size());
            break;
          }
          case 10:
            status = cache->NoteUses(context, batch,
                                     reinterpret_cast<StoreCache::Found*>(uses[i].data()));
            break;
        }
        ASSERT_TRUE(status.ok()) << status.message();
        flags[i] = exists.Values();
        left[i++] = is_left.Values();
      }
      SCOPED_TRACE("verb " + std::to_string(what));
      ASSERT_EQ(flags[0], flags[1]);
      ASSERT_EQ(left[0], left[1]);
      ASSERT_EQ(uses[0], uses[1]);
      ExpectSameBits(found[0], found[1], "found");
      ExpectSameMarks();
      ExpectSameRows();
      if (HasFatalFailure()) return;
      const uint8_t least_age = static_cast<uint8_t>(random() % 8);
      ASSERT_EQ(Ages(host.get(), 1, least_age), Ages(device.get(), 1, least_age));
      const auto all = Ages(device.get(), 1, least_age);
      for (const auto& rank : Ages(device.get(), 4, least_age)) {
        ASSERT_TRUE(std::binary_search(all.begin(), all.end(), rank));
      }
    }
  }
}

// If a write leaves absent keys to its caller, it changes neither the number of rows nor the room.
TEST_P(DeviceCache, AbsentKeysAreLeftToTheCaller) {
  Put(device.get(), {1, 2, 3}, 1.0f);
  const Batch batch{2, 9, 2, 8, 9, 3};
  for (const bool distinct : {false, true}) {
    Flags absent(6);
    KeyBatch keys = batch;
    keys.absent = absent.data.get();
    keys.distinct = distinct;
    const std::vector<float> weights(6 * kDim, 2.0f);
    ASSERT_TRUE(device->InsertOrAssign(context, keys, weights.data(), {}).ok());
    EXPECT_EQ((std::vector<bool>{false, true, false, true, true, false}), absent.Values());
    EXPECT_EQ(3u, device->cache()->num_rows());
    EXPECT_EQ(3u, device->size());
    EXPECT_EQ(0u, device->Stats().refused);
  }
}

TEST_P(DeviceCache, OldMarksDoNotComeAround) {
  Put(device.get(), {1}, 1.0f);
  for (int tick = 1; tick < 300; ++tick) {
    device->cache()->SetTick(static_cast<uint8_t>(tick % RowMark::kTicks));
    const auto ages = Ages(device.get(), 1, 0);
    ASSERT_EQ(1u, ages.size());
    const uint8_t age = RowMark::Age(static_cast<uint8_t>(ages[0].second),
                                     static_cast<uint8_t>(tick % RowMark::kTicks));
    ASSERT_EQ(std::min(tick, int{RowMark::kOldest}), age) << tick;
    ASSERT_TRUE(RowMark::IsChanged(static_cast<uint8_t>(ages[0].second)));
  }
}

TEST_P(DeviceCache, MarksOutliveShrinkAndAnotherRule) {
  const std::vector<int64_t> keys = KeysFrom(0, 200);
  for (Store* store : Both()) {
    Put(store, Batch(keys), 1.0f);
    store->cache()->SetTick(3);
    Flags exists(50);
    ASSERT_TRUE(store->cache()->Touch(context, Batch(KeysFrom(10, 50)), exists.data.get()).ok());
    ASSERT_TRUE(store->cache()->SetChanged(context, Batch(KeysFrom(30, 50)), false).ok());
    store->cache()->Drop(context, keys.data() + 150, 50);
    ASSERT_TRUE(store->maintenance()->SetRule(MakeRule(RuleKind::kAdam, kDim).slots).ok());
    ASSERT_TRUE(store->maintenance()->Shrink(context).ok());
  }
  ExpectSameMarks();
  ExpectSameRows();
}

// More keys than a single launch drops.
TEST_P(DeviceCache, DropTakesAnyNumberOfKeys) {
  const std::vector<int64_t> keys = KeysFrom(0, 10000);
  Put(device.get(), Batch(keys), 1.0f);
  device->cache()->Drop(context, keys.data(), 9999);
  EXPECT_EQ(1u, device->cache()->num_rows());
  Put(device.get(), Batch(keys), 2.0f);
  EXPECT_EQ(10000u, device->cache()->num_rows());
}

// Threads that take turns to make room may name a row twice.
TEST_P(DeviceCache, DropTakesARowOutOnce) {
  for (int round = 0; round < 20; ++round) {
    Put(device.get(), Batch(KeysFrom(0, 100)), 1.0f);
    std::vector<int64_t> keys = KeysFrom(10, 50);
    keys.insert(keys.end(), {10, 10, 11, 500, 59});
    device->cache()->Drop(context, keys.data(), keys.size());
    ASSERT_EQ(50u, device->cache()->num_rows());
    ASSERT_EQ(50u, device->size());
  }
  Put(device.get(), Batch(KeysFrom(0, 2000)), 1.0f);
  EXPECT_EQ(2000u, device->size());
}

// The statistics that a planner on the host reads.
TEST_P(DeviceCache, PlannersSeeTheStatisticsOfRows) {
  StoreOptions options = CacheOptions();
  options.policy.ttl_milliseconds = 100;
  device = NewDevice(options);
  context.restoring = true;
  PlannedRows* const rows = device->cache()->planned_rows();
  const StatisticSet set = device->options().policy.statistics;
  for (int64_t key = 0; key < 100; ++key) {
    context.now.step = static_cast<uint64_t>(key + 1);
    context.now.milliseconds = static_cast<uint64_t>(key);
    Put(device.get(), {key}, 1.0f);
  }
  const auto step_of = [&](int64_t key) -> uint64_t {
    RowStatistics::Word* words = nullptr;
    EXPECT_TRUE(rows->Find(key, HashKey(key), &words).ok());
    return words == nullptr ? 0 : RowStatistics(set, words).Get(Statistic::kLastStep);
  };
  for (int64_t key = 0; key < 110; ++key) {
    rows->Prefetch(HashKey(key + 12));
    ASSERT_EQ(key < 100 ? static_cast<uint64_t>(key + 1) : 0, step_of(key)) << key;
  }
  // Prefetched rows are read again after a use, a write or an eviction.
  rows->Prefetch(HashKey(1));
  EXPECT_EQ(6u, step_of(5));
  context.now.step = 500;
  StoreCache::Found found[2];
  ASSERT_TRUE(device->cache()->NoteUses(context, Batch{1, 5}, found).ok());
  EXPECT_EQ(StoreCache::Found::kPresent, found[0]);
  EXPECT_EQ(500u, step_of(1));
  EXPECT_EQ(500u, step_of(5));
  const int64_t gone = 5;
  device->cache()->Drop(context, &gone, 1);
  EXPECT_EQ(0u, step_of(5));

  // Key 1 was used at 99 ms. At 150 ms, rows that were last used at up to 50 ms are expired.
  Moment later = context.now;
  later.milliseconds = 150;
  RankList expired(HostAllocator());
  ASSERT_TRUE(rows->FindExpired(later, size_t{1} << 40, &expired).ok());
  EXPECT_EQ(49u, expired.size());
  for (const Rank& rank : expired) {
    const int64_t key = KeyOfHash(rank.hash());
    EXPECT_TRUE(key <= 50 && key != 1 && key != 5) << key;
  }
  context.now = later;
  StoreCache::Found is_expired;
  ASSERT_TRUE(device->cache()->NoteUses(context, Batch{50}, &is_expired).ok());
  EXPECT_EQ(StoreCache::Found::kExpired, is_expired);
}

// Each call searches only a part, but successive calls search all rows.
TEST_P(DeviceCache, SearchesForExpiredRowsGoOnWhereTheyEnded) {
  StoreOptions options = CacheOptions();
  options.policy.ttl_milliseconds = 100;
  device = NewDevice(options);
  context.restoring = true;
  Put(device.get(), Batch(KeysFrom(0, 2000)), 1.0f);
  Moment later = context.now;
  later.milliseconds = 1000;
  RankList expired(HostAllocator());
  for (int call = 0; call < 600 && expired.size() < 2000; ++call) {
    ASSERT_TRUE(device->cache()->planned_rows()->FindExpired(later, 0, &expired).ok());
  }
  std::vector<uint64_t> hashes;
  for (const Rank& rank : expired) hashes.push_back(rank.hash());
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  EXPECT_EQ(2000u, hashes.size());
}

// If a caller's keys and flags are on the device, they are not copied.
TEST_P(DeviceCache, TouchTakesArraysInDeviceMemory) {
  std::unique_ptr<Store> store;
  ASSERT_TRUE(GetParam().new_store(CacheOptions(), DeviceOptions(), &store).ok());
  DeviceMemory* const memory = GetParam().memory;
  const OnDevice<int64_t> keys(memory, {4, 5, 6});
  const OnDevice<float> weights(memory, std::vector<float>(2 * kDim, 1.0f));
  const OnDevice<uint8_t> exists(memory, {7, 7, 7});
  const OnDevice<uint8_t> marks(memory, {7, 7, 7});
  ASSERT_TRUE(store->InsertOrAssign(context, KeyBatch{keys.data(), 2}, weights.data(), {}).ok());
  store->cache()->SetTick(9);
  bool* const flags = reinterpret_cast<bool*>(exists.data());
  const KeyBatch batch{keys.data(), 3};
  ASSERT_TRUE(store->cache()->Touch(context, batch, flags).ok());
  EXPECT_EQ((std::vector<uint8_t>{1, 1, 0}), exists.Values());
  ASSERT_TRUE(store->cache()->FindMarks(context, batch, marks.data(), flags).ok());
  const uint8_t changed = RowMark::Of(9, true);
  EXPECT_EQ((std::vector<uint8_t>{changed, changed, 0}), marks.Values());
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceCache, testing::ValuesIn(ContractDevices()), NameOfDevice);

}  // namespace
}  // namespace tf_embed
