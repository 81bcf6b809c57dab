// SPDX-License-Identifier: Apache-2.0
// Lookups of as many keys as a tile takes together, and of slightly more and fewer keys, equal the
// host's.
#include <algorithm>
#include <map>
#include <string>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

// Almost the capacity of an index of 32 buckets, so some keys have overflowed a full bucket.
constexpr size_t kRows = 164;
constexpr size_t kSizes[] = {0, 1, 3, 4, 5, 17};

class Lookups : public testing::TestWithParam<DeviceKind> {
 protected:
  void MakeStores(size_t dim, const RowInitializer& initializer, const RowPolicy& policy = {}) {
    StoreOptions options;
    options.dim = dim;
    options.init_size = kRows;
    options.initializer = initializer;
    options.policy = policy;
    rule_ = MakeRule(RuleKind::kAdam, dim, 0.5);
    on_host_ = HostStore::Create(options);
    ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &on_device_).ok());
    const std::vector<int64_t> keys = KeysFrom(0, kRows);
    const std::vector<float> values = RandomValues<float>(kRows * dim, &random_);
    const OnDevice<int64_t> device_keys(memory(), keys);
    const OnDevice<float> device_values(memory(), values);
    KeyBatch batch{keys.data(), kRows, nullptr};
    ASSERT_TRUE(on_host_->Apply(context_, batch, values.data(), DataType::kFloat, rule_).ok());
    batch.keys = device_keys.data();
    ASSERT_TRUE(
        on_device_->Apply(context_, batch, device_values.data(), DataType::kFloat, rule_).ok());
  }

  // Keys, of which about `present` in 4 are present. They are distinct, or repeat a few keys.
  std::vector<int64_t> Keys(size_t count, int present, bool distinct) {
    std::vector<int64_t> keys(count);
    const size_t first = random_() % (kRows - 64);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = static_cast<int64_t>(first + (distinct ? i : random_() % 3));
      if (static_cast<int>(random_() % 4) >= present) keys[i] = -1 - keys[i];
    }
    std::shuffle(keys.begin(), keys.end(), random_);
    return keys;
  }

  // Compares all lookup verbs. With positions, outputs have places that belong to no key.
  void ExpectSame(const std::vector<int64_t>& keys, DefaultRows::Kind kind, bool has_positions,
                  bool wants_exists, bool wants_slots) {
    const size_t dim = on_host_->options().dim;
    const size_t places = has_positions ? 2 * keys.size() : keys.size();
    std::vector<uint32_t> positions(places);
    for (size_t i = 0; i < places; ++i) positions[i] = static_cast<uint32_t>(i);
    std::shuffle(positions.begin(), positions.end(), random_);
    const OnDevice<uint32_t> device_positions(memory(), positions);
    const OnDevice<int64_t> device_keys(memory(), keys);
    KeyBatch host_batch{keys.data(), keys.size(), nullptr};
    KeyBatch device_batch{device_keys.data(), keys.size(), nullptr};
    if (has_positions) host_batch.positions = positions.data();
    if (has_positions) device_batch.positions = device_positions.data();
    const std::vector<float> rows =
        RandomValues<float>((kind == DefaultRows::Kind::kOneEach ? places : 1) * dim, &random_);
    const OnDevice<float> device_rows(memory(), rows);
    DefaultRows host_defaults{kind, rows.data()}, device_defaults{kind, device_rows.data()};

    std::vector<float> weights(places * dim, -9.0f);
    std::vector<char> exists(places, 7);
    std::vector<float> slots(places * rule_.slots.slots_per_row(), -9.0f);
    const OnDevice<float> device_weights(memory(), weights);
    const OnDevice<char> device_exists(memory(), exists);
    const OnDevice<float> device_slots(memory(), slots);
    const auto bools = [&](void* flags) {
      return wants_exists ? static_cast<bool*>(flags) : nullptr;
    };
    const auto out = [&](void* values) {
      return wants_slots ? SlotsOut{&rule_.slots, values} : SlotsOut();
    };
    ASSERT_TRUE(on_host_
                    ->Find(context_, host_batch, host_defaults, weights.data(),
                           bools(exists.data()), out(slots.data()))
                    .ok());
    ASSERT_TRUE(on_device_
                    ->Find(context_, device_batch, device_defaults, device_weights.data(),
                           bools(device_exists.data()), out(device_slots.data()))
                    .ok());
    ExpectSameBits(weights, device_weights.Values(), "weights");
    ExpectSameBits(slots, device_slots.Values(), "slots");
    EXPECT_EQ(exists, device_exists.Values());
    EXPECT_EQ(on_host_->Stats().misses, on_device_->Stats().misses);

    ASSERT_TRUE(
        on_host_->Contains(context_, host_batch, reinterpret_cast<bool*>(exists.data())).ok());
    ASSERT_TRUE(
        on_device_->Contains(context_, device_batch, reinterpret_cast<bool*>(device_exists.data()))
            .ok());
    EXPECT_EQ(exists, device_exists.Values());

    std::vector<const void*> pointers(places, this);
    const OnDevice<const void*> device_pointers(memory(), pointers);
    ASSERT_TRUE(static_cast<DeviceStore*>(on_device_.get())
                    ->FindPointers(context_, device_batch, device_pointers.data())
                    .ok());
    pointers = device_pointers.Values();
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t place = host_batch.Position(i);
      ASSERT_EQ(exists[place] != 0, pointers[place] != nullptr);
      if (exists[place] == 0) continue;
      std::vector<float> row(dim);
      const std::vector<float> found(weights.begin() + place * dim,
                                     weights.begin() + (place + 1) * dim);
      ASSERT_TRUE(
          memory()->CopyOut(context_, pointers[place], dim * sizeof(float), row.data()).ok());
      ExpectSameBits(found, row, "row at an address");
    }
    EXPECT_EQ(keys.size(), places - std::count(pointers.begin(), pointers.end(), this));
  }

  // Compares a lookup that inserts absent keys, and erases them again.
  void ExpectSameInsertion(const std::vector<int64_t>& keys) {
    const size_t dim = on_host_->options().dim;
    std::vector<float> weights(keys.size() * dim);
    std::vector<char> exists(keys.size());
    const OnDevice<int64_t> device_keys(memory(), keys);
    const OnDevice<float> device_weights(memory(), weights);
    const OnDevice<char> device_exists(memory(), exists);
    const KeyBatch host_batch{keys.data(), keys.size(), nullptr};
    const KeyBatch device_batch{device_keys.data(), keys.size(), nullptr};
    ASSERT_TRUE(on_host_
                    ->FindOrInsert(context_, host_batch, {}, weights.data(),
                                   reinterpret_cast<bool*>(exists.data()))
                    .ok());
    ASSERT_TRUE(on_device_
                    ->FindOrInsert(context_, device_batch, {}, device_weights.data(),
                                   reinterpret_cast<bool*>(device_exists.data()))
                    .ok());
    ExpectSameBits(weights, device_weights.Values(), "weights of a lookup that inserts");
    EXPECT_EQ(exists, device_exists.Values());
    EXPECT_EQ(on_host_->size(), on_device_->size());
    std::vector<int64_t> absent = keys;
    absent.erase(std::remove_if(absent.begin(), absent.end(), [](int64_t key) { return key >= 0; }),
                 absent.end());
    const OnDevice<int64_t> device_absent(memory(), absent);
    ASSERT_TRUE(on_host_->Erase(context_, {absent.data(), absent.size(), nullptr}).ok());
    ASSERT_TRUE(on_device_->Erase(context_, {device_absent.data(), absent.size(), nullptr}).ok());
  }

  static DeviceMemory* memory() { return GetParam().memory; }

  ExecContext context_ = ExecContext::Serial();
  Random random_{3};
  Rule rule_;
  std::unique_ptr<Store> on_host_;
  std::unique_ptr<Store> on_device_;
};

TEST_P(Lookups, OfAnyNumberOfKeysFindWhatTheHostFinds) {
  const DefaultRows::Kind kinds[] = {DefaultRows::Kind::kInitializer, DefaultRows::Kind::kOneForAll,
                                     DefaultRows::Kind::kOneEach};
  for (const size_t dim : {3, 64, 70, 128, 200}) {
    for (const bool random : {false, true}) {
      RowInitializer constant;
      constant.a = 0.25;
      MakeStores(dim, random ? UniformInitializer() : constant);
      int number = 0;
      for (const size_t size : kSizes) {
        for (const int present : {0, 2, 4}) {
          for (const DefaultRows::Kind kind : kinds) {
            SCOPED_TRACE(testing::Message() << "dim " << dim << ", random " << random << ", "
                                            << size << " keys, present " << present << ", defaults "
                                            << static_cast<int>(kind));
            const bool distinct = number % 2 == 0;
            const std::vector<int64_t> keys = Keys(size, present, distinct);
            // Each combination occurs with some sizes.
            ExpectSame(keys, kind, number % 3 == 0, number / 2 % 2 == 0, number % 5 < 2);
            if (kind == DefaultRows::Kind::kInitializer) ExpectSameInsertion(keys);
            if (HasFatalFailure()) return;
            ++number;
          }
        }
      }
    }
  }
}

// A store without room for all keys. All places of a key get the default of its first place,
// whether the key is inserted or not.
TEST_P(Lookups, ThatInsertGiveAllPlacesOfAKeyTheDefaultOfTheFirst) {
  constexpr size_t kDim = 16, kDistinct = 600, kPlaces = 3 * kDistinct;
  StoreOptions options;
  options.dim = kDim;
  DeviceOptions device;
  device.max_bytes = 64 << 10;
  std::unique_ptr<Store> store;
  ASSERT_TRUE(GetParam().new_store(options, device, &store).ok());
  std::vector<int64_t> keys(kPlaces);
  for (size_t i = 0; i < kPlaces; ++i) keys[i] = static_cast<int64_t>(i % kDistinct);
  std::shuffle(keys.begin(), keys.end(), random_);
  std::vector<float> defaults(kPlaces * kDim);
  for (size_t i = 0; i < defaults.size(); ++i) defaults[i] = static_cast<float>(i / kDim);
  const OnDevice<int64_t> device_keys(memory(), keys);
  const OnDevice<float> device_defaults(memory(), defaults);
  const OnDevice<float> rows(memory(), std::vector<float>(kPlaces * kDim));
  const OnDevice<char> exists(memory(), std::vector<char>(kPlaces, 1));
  ASSERT_TRUE(store
                  ->FindOrInsert(context_, {device_keys.data(), kPlaces, nullptr},
                                 {DefaultRows::Kind::kOneEach, device_defaults.data()}, rows.data(),
                                 reinterpret_cast<bool*>(exists.data()))
                  .ok());
  std::map<int64_t, float> firsts;
  for (size_t i = 0; i < kPlaces; ++i) firsts.emplace(keys[i], static_cast<float>(i));
  const std::vector<float> given = rows.Values();
  for (size_t i = 0; i < given.size(); ++i) ASSERT_EQ(firsts[keys[i / kDim]], given[i]) << i / kDim;
  EXPECT_EQ(std::vector<char>(kPlaces, 0), exists.Values());
  const StoreStats stats = store->Stats();
  EXPECT_GT(stats.rows, 50u);
  EXPECT_GT(stats.refused, 50u);
  EXPECT_EQ(kDistinct, stats.rows + stats.refused);
}

TEST_P(Lookups, FindEachOfManyKeysOfAFullIndex) {
  MakeStores(64, UniformInitializer());
  std::vector<int64_t> keys = KeysFrom(-static_cast<int64_t>(kRows), 2 * kRows);
  std::shuffle(keys.begin(), keys.end(), random_);
  ExpectSame(keys, DefaultRows::Kind::kInitializer, false, true, true);
}

// A tile has present and expired keys. Used rows stay.
TEST_P(Lookups, UseSomeRowsAndTakeExpiredOnesForAbsent) {
  RowPolicy policy;
  policy.ttl_milliseconds = 10;
  policy.statistics = policy.statistics.With(Statistic::kLastTime);
  context_.now.milliseconds = 100;
  context_.training = true;
  MakeStores(64, UniformInitializer(), policy);
  const std::vector<int64_t> some = KeysFrom(0, kRows / 3, 3);
  context_.now.milliseconds = 106;
  ExpectSame(some, DefaultRows::Kind::kInitializer, false, true, false);
  context_.now.milliseconds = 112;
  const std::vector<int64_t> all = KeysFrom(0, kRows);
  const OnDevice<int64_t> device_all(memory(), all);
  const size_t words = on_host_->options().policy.statistics.size();
  std::vector<float> weights(kRows * 64);
  std::vector<char> exists(kRows);
  std::vector<uint64_t> statistics(kRows * words);
  const OnDevice<float> device_weights(memory(), weights);
  const OnDevice<char> device_exists(memory(), exists);
  const OnDevice<uint64_t> device_statistics(memory(), statistics);
  const KeyBatch batch{all.data(), kRows, nullptr};
  const KeyBatch device_batch{device_all.data(), kRows, nullptr};
  auto* const flags = reinterpret_cast<bool*>(exists.data());
  auto* const device_flags = reinterpret_cast<bool*>(device_exists.data());
  ASSERT_TRUE(on_host_->Find(context_, batch, {}, weights.data(), flags, {}).ok());
  ASSERT_TRUE(
      on_device_->Find(context_, device_batch, {}, device_weights.data(), device_flags, {}).ok());
  ExpectSameBits(weights, device_weights.Values(), "weights");
  EXPECT_EQ(exists, device_exists.Values());
  EXPECT_EQ(some.size(), std::count(exists.begin(), exists.end(), 1));
  ASSERT_TRUE(on_host_->eviction()->FindStatistics(context_, batch, statistics.data(), flags).ok());
  ASSERT_TRUE(on_device_->eviction()
                  ->FindStatistics(context_, device_batch, device_statistics.data(), device_flags)
                  .ok());
  EXPECT_EQ(statistics, device_statistics.Values());
}

INSTANTIATE_TEST_SUITE_P(Devices, Lookups, testing::ValuesIn(ContractDevices()), NameOfDevice);

}  // namespace
}  // namespace tf_embed
