// SPDX-License-Identifier: Apache-2.0
// Batches in a device's memory are split over shards as on the host, and written to stores there.
#include "cc/stores/device/device_split.h"

#include <map>
#include <utility>

#include "cc/core/table/shard_split.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {
namespace {

class DeviceSplitTest : public testing::TestWithParam<DeviceKind> {
 protected:
  // A copy of an array in the device's memory.
  template <typename T>
  class Copy {
   public:
    explicit Copy(const std::vector<T>& values) : bytes_((values.size() + 1) * sizeof(T)) {
      data_ = static_cast<T*>(memory()->Allocate(ExecContext::Serial(), bytes_));
      memory()->CopyIn(ExecContext::Serial(), values.data(), values.size() * sizeof(T), data_);
    }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    ~Copy() { memory()->Free(ExecContext::Serial(), data_, bytes_); }

    T* data() const { return data_; }

   private:
    T* data_;
    size_t bytes_;
  };

  static DeviceMemory* memory() { return GetParam().memory; }

  template <typename T>
  static std::vector<T> ValuesAt(const T* from, size_t size) {
    std::vector<T> values(size);
    const ExecContext context = ExecContext::Serial();
    EXPECT_TRUE(memory()->CopyOut(context, from, size * sizeof(T), values.data()).ok());
    return values;
  }

  static void ExpectAsOnTheHost(const std::vector<int64_t>& keys, const int32_t* owners,
                                size_t num_shards, bool unsigned_keys);
  static std::map<int64_t, std::vector<float>> RowsOf(
      const std::vector<std::unique_ptr<Store>>& stores, size_t dim);
};

void DeviceSplitTest::ExpectAsOnTheHost(const std::vector<int64_t>& keys, const int32_t* owners,
                                        size_t num_shards, bool unsigned_keys) {
  ShardSplit expected(HostAllocator());
  ASSERT_TRUE(expected.Build(keys.data(), keys.size(), owners, num_shards, unsigned_keys).ok());
  const Copy<int64_t> on_device(keys);
  const auto split = GetParam().new_split();
  const Status status =
      split->Build(Threads(2), on_device.data(), keys.size(), owners, num_shards, unsigned_keys);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t number = 0; number < num_shards; ++number) {
    SCOPED_TRACE("shard " + std::to_string(number) + " of " + std::to_string(num_shards));
    const KeyBatch wanted = expected.shard(number);
    const KeyBatch shard = split->shard(number);
    ASSERT_EQ(wanted.size, shard.size);
    if (num_shards == 1 || keys.empty()) {
      EXPECT_EQ(nullptr, shard.positions);
      continue;
    }
    EXPECT_EQ(std::vector<int64_t>(wanted.keys, wanted.keys + wanted.size),
              ValuesAt(shard.keys, shard.size));
    EXPECT_EQ(std::vector<uint32_t>(wanted.positions, wanted.positions + wanted.size),
              ValuesAt(shard.positions, shard.size));
  }
}

TEST_P(DeviceSplitTest, GivesShardsTheKeysThatTheyGetOnTheHost) {
  Random random(1);
  for (const size_t size : {0, 1, 2, 15, 16, 17, 1000, 20000}) {
    for (const size_t num_shards : {1, 2, 3, 7, 8, 9, 300}) {
      SCOPED_TRACE(size);
      const std::vector<int64_t> keys = RandomKeys(size, INT64_MIN, INT64_MAX, &random);
      ExpectAsOnTheHost(keys, nullptr, num_shards, false);
      ExpectAsOnTheHost(keys, nullptr, num_shards, true);
      std::vector<int32_t> owners(size);
      for (int32_t& owner : owners) owner = static_cast<int32_t>(random() % num_shards);
      ExpectAsOnTheHost(keys, owners.data(), num_shards, false);
    }
  }
}

TEST_P(DeviceSplitTest, ShardsWithoutKeysAreEmpty) {
  const std::vector<int64_t> keys = {4, -6, 4, 14};
  for (const int64_t shift : {0, 1, 5, 9}) {
    std::vector<int64_t> shifted = keys;
    for (int64_t& key : shifted) key += shift;
    ExpectAsOnTheHost(shifted, nullptr, 10, false);
  }
  ExpectAsOnTheHost(ExtremeKeys(), nullptr, 5, false);
}

TEST_P(DeviceSplitTest, RefusesOwnersOutOfRangeAndNamesThem) {
  const Copy<int64_t> keys({10, 77});
  for (const size_t num_shards : {1, 4}) {
    for (const int32_t wrong : {-1, 4, INT32_MIN, INT32_MAX}) {
      const int32_t owners[] = {0, wrong};
      const Status status = GetParam().new_split()->Build(ExecContext::Serial(), keys.data(), 2,
                                                          owners, num_shards, false);
      EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
      EXPECT_NE(std::string::npos, status.message().find(std::to_string(wrong)));
      EXPECT_NE(std::string::npos, status.message().find("77"));
    }
  }
}

// The float rows of all stores by key, weights followed by slots.
std::map<int64_t, std::vector<float>> DeviceSplitTest::RowsOf(
    const std::vector<std::unique_ptr<Store>>& stores, size_t dim) {
  std::map<int64_t, std::vector<float>> all;
  for (const auto& store : stores) {
    const size_t slots = store->rule().slots_per_row();
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      EXPECT_TRUE(store->maintenance()->ExportBatch(1000, &cursor, &rows).ok());
      const auto* const weights = reinterpret_cast<const float*>(rows.weights.data());
      const auto* const more = reinterpret_cast<const float*>(rows.slots.data());
      for (size_t i = 0; i < rows.size; ++i) {
        std::vector<float>& row = all[rows.keys[i]];
        EXPECT_TRUE(row.empty()) << "a key in two shards";
        row.assign(weights + i * dim, weights + (i + 1) * dim);
        row.insert(row.end(), more + i * slots, more + (i + 1) * slots);
      }
    }
  }
  return all;
}

TEST_P(DeviceSplitTest, ShardsHoldTogetherWhatOneStoreHolds) {
  constexpr size_t kDim = 5, kKeys = 3000;
  const ExecContext context = Threads(2);
  std::map<int64_t, std::vector<float>> expected;
  for (const size_t num_shards : {1, 3, 4}) {
    StoreOptions options;
    options.dim = kDim;
    options.initializer = UniformInitializer();
    std::vector<std::unique_ptr<Store>> shards;
    for (size_t i = 0; i < num_shards; ++i) {
      ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &shards.emplace_back()).ok());
    }
    Random random(7);
    Rule rule = MakeRule(RuleKind::kAdam, kDim);
    for (rule.step = 1; rule.step <= 4; ++rule.step) {
      const std::vector<int64_t> batch = RandomKeys(kKeys, -500, 500, &random);
      const Copy<int64_t> keys(batch);
      const Copy<float> gradients(RandomValues<float>(kKeys * kDim, &random));
      const Copy<float> found(std::vector<float>(kKeys * kDim));
      const auto split = GetParam().new_split();
      ASSERT_TRUE(split->Build(context, keys.data(), kKeys, nullptr, num_shards, false).ok());
      for (size_t i = 0; i < num_shards; ++i) {
        ASSERT_TRUE(shards[i]
                        ->Apply(context, split->shard(i), gradients.data(), DataType::kFloat, rule)
                        .ok());
        ASSERT_TRUE(shards[i]
                        ->Find(context, split->shard(i), DefaultRows(), found.data(), nullptr, {})
                        .ok());
      }
      const std::vector<float> rows = ValuesAt(found.data(), kKeys * kDim);
      const auto all = RowsOf(shards, kDim);
      for (size_t i = 0; i < kKeys; ++i) {
        const std::vector<float>& row = all.at(batch[i]);
        ASSERT_TRUE(std::equal(rows.begin() + static_cast<ptrdiff_t>(i * kDim),
                               rows.begin() + static_cast<ptrdiff_t>((i + 1) * kDim), row.begin()))
            << "place " << i;
      }
    }
    const auto all = RowsOf(shards, kDim);
    if (num_shards == 1) expected = all;
    EXPECT_TRUE(expected == all) << num_shards << " shards";
    for (size_t i = 0; i < num_shards; ++i) {
      size_t keys = 0;
      for (const auto& [key, row] : expected) keys += DefaultShard(key, num_shards, false) == i;
      EXPECT_EQ(keys, shards[i]->size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSplitTest, testing::ValuesIn(ContractDevices()),
                         NameOfDevice);

}  // namespace
}  // namespace tf_embed
