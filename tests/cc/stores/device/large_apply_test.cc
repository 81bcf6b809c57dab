// SPDX-License-Identifier: Apache-2.0
// Steps with more keys than a launch takes equal the host's, in scratch memory for a single launch.
// So do batches with the same key at half of the positions.
#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

constexpr size_t kScratchBytes = size_t{32} << 20;

class LargeApply : public testing::TestWithParam<DeviceKind> {
 protected:
  // Two steps; the first makes all rows. Keys share a few gradients.
  template <typename T>
  void ExpectAsOnTheHost(bool distinct) {
    constexpr size_t kDim = 512, kKeys = 17000, kAgain = 3000, kGradients = 7;
    static_assert(kKeys * kDim * sizeof(float) > kScratchBytes, "several launches");
    StoreOptions options;
    options.value_type = TypeOf<T>();
    options.dim = kDim;
    options.init_size = kKeys;
    std::unique_ptr<Store> on_device;
    ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &on_device).ok());
    const std::unique_ptr<Store> on_host = HostStore::Create(options);
    Random random(3);
    const Rule rule = MakeRule(RuleKind::kSgd, kDim);
    std::vector<int64_t> keys = KeysFrom(-40, kKeys);
    if (!distinct) {
      const std::vector<int64_t> again = RandomKeys(kAgain, -40, kKeys - 41, &random);
      keys.insert(keys.end(), again.begin(), again.end());
    }
    std::vector<size_t> begins(keys.size());
    for (int step = 0; step < 2; ++step) {
      std::shuffle(keys.begin(), keys.end(), random);
      for (size_t& begin : begins) begin = random() % kGradients * kDim;
      const std::vector<float> values = RandomValues<float>(kGradients * kDim, &random);
      const OnDevice<int64_t> device_keys(memory(), keys);
      const OnDevice<size_t> device_begins(memory(), begins);
      const OnDevice<float> device_values(memory(), values);
      KeyBatch batch;
      batch.keys = keys.data();
      batch.size = keys.size();
      batch.distinct = distinct;
      Gradients gradients{values.data(), DataType::kFloat, begins.data(), nullptr};
      ASSERT_TRUE(on_host->Apply(serial, batch, gradients, rule).ok());
      batch.keys = device_keys.data();
      gradients.values = device_values.data();
      gradients.begins = device_begins.data();
      ASSERT_TRUE(on_device->Apply(serial, batch, gradients, rule).ok());
    }
    EXPECT_EQ(on_host->size(), on_device->size());
    const std::vector<int64_t> all = KeysFrom(-40, kKeys);
    std::vector<T> wanted(kKeys * kDim);
    const OnDevice<int64_t> device_all(memory(), all);
    const OnDevice<T> found(memory(), wanted);
    KeyBatch batch{all.data(), kKeys, nullptr};
    ASSERT_TRUE(on_host->Find(serial, batch, {}, wanted.data(), nullptr, {}).ok());
    batch.keys = device_all.data();
    ASSERT_TRUE(on_device->Find(serial, batch, {}, found.data(), nullptr, {}).ok());
    ExpectSameBits(wanted, found.Values(), "rows");
  }

  static DeviceMemory* memory() { return GetParam().memory; }
  const ExecContext serial = ExecContext::Serial();
};

TEST_P(LargeApply, GivesTheRowsOfTheHost) {
  ExpectAsOnTheHost<float>(false);
  ExpectAsOnTheHost<float>(true);
  ExpectAsOnTheHost<BFloat16>(false);
}

// Rows of whole copy units, longer rows, and rows with an odd number of bytes.
TEST_P(LargeApply, AKeyOfHalfTheBatchHasWhatItHasOnTheHost) {
  constexpr size_t kKeys = 3000;
  Random random(5);
  std::vector<int64_t> keys = RandomKeys(kKeys, 0, 400, &random);
  for (size_t i = 0; i < kKeys; i += 2) keys[i] = 7;
  std::shuffle(keys.begin(), keys.end(), random);
  const OnDevice<int64_t> device_keys(memory(), keys);
  const KeyBatch host_batch{keys.data(), kKeys, nullptr};
  const KeyBatch device_batch{device_keys.data(), kKeys, nullptr};
  for (const size_t dim : {size_t{3}, size_t{64}, size_t{70}, size_t{200}}) {
    SCOPED_TRACE(dim);
    StoreOptions options;
    options.dim = dim;
    options.initializer = UniformInitializer();
    std::unique_ptr<Store> on_device;
    ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &on_device).ok());
    const std::unique_ptr<Store> on_host = HostStore::Create(options);
    const std::vector<float> values = RandomValues<float>(kKeys * dim, &random);
    const std::vector<float> factors = RandomValues<float>(kKeys, &random);
    const OnDevice<float> device_values(memory(), values);
    const OnDevice<float> device_factors(memory(), factors);
    std::vector<float> rows(kKeys * dim);
    const OnDevice<float> device_rows(memory(), rows);
    for (const bool has_factors : {false, true}) {
      ASSERT_TRUE(on_host->FindOrInsert(serial, host_batch, {}, rows.data(), nullptr).ok());
      ASSERT_TRUE(
          on_device->FindOrInsert(serial, device_batch, {}, device_rows.data(), nullptr).ok());
      ExpectSameBits(rows, device_rows.Values(), "rows of a lookup");
      const Rule rule = MakeRule(RuleKind::kAdam, dim);
      Gradients gradients{values.data(), DataType::kFloat, nullptr,
                          has_factors ? factors.data() : nullptr};
      ASSERT_TRUE(on_host->Apply(serial, host_batch, gradients, rule).ok());
      gradients.values = device_values.data();
      if (has_factors) gradients.factors = device_factors.data();
      ASSERT_TRUE(on_device->Apply(serial, device_batch, gradients, rule).ok());
    }
    ASSERT_TRUE(on_host->Find(serial, host_batch, {}, rows.data(), nullptr, {}).ok());
    ASSERT_TRUE(on_device->Find(serial, device_batch, {}, device_rows.data(), nullptr, {}).ok());
    ExpectSameBits(rows, device_rows.Values(), "rows after two steps");
  }
}

// Keys with more gradients than a tile adds on a GPU, in several launches. Some counts are at, or
// just above, the number of gradients that a block adds at a time.
TEST_P(LargeApply, KeysOfManyGradientsHaveWhatTheyHaveOnTheHost) {
  const bool is_slow = GetParam().name == std::string("Lockstep");
  std::vector<size_t> counts = {128, 129, 256, 257, 512};
  Random random(9);
  while (!is_slow && counts.size() < 150) counts.push_back(129 + random() % 500);
  std::vector<int64_t> keys;
  for (size_t i = 0; i < counts.size(); ++i) {
    keys.insert(keys.end(), counts[i], static_cast<int64_t>(i));
  }
  std::shuffle(keys.begin(), keys.end(), random);
  ForEachType([&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (!std::is_integral_v<T>) {
      constexpr size_t kDim = 70;
      StoreOptions options;
      options.value_type = TypeOf<T>();
      options.dim = kDim;
      std::unique_ptr<Store> on_device;
      ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &on_device).ok());
      const std::unique_ptr<Store> on_host = HostStore::Create(options);
      const std::vector<T> values = RandomValues<T>(keys.size() * kDim, &random);
      const OnDevice<int64_t> device_keys(memory(), keys);
      const OnDevice<T> device_values(memory(), values);
      const Rule rule = MakeRule(RuleKind::kAdagrad, kDim, 0.1);
      const KeyBatch host_batch{keys.data(), keys.size(), nullptr};
      const KeyBatch device_batch{device_keys.data(), keys.size(), nullptr};
      ASSERT_TRUE(on_host->Apply(serial, host_batch, values.data(), TypeOf<T>(), rule).ok());
      ASSERT_TRUE(
          on_device->Apply(serial, device_batch, device_values.data(), TypeOf<T>(), rule).ok());
      std::vector<T> rows(keys.size() * kDim);
      const OnDevice<T> device_rows(memory(), rows);
      ASSERT_TRUE(on_host->Find(serial, host_batch, {}, rows.data(), nullptr, {}).ok());
      ASSERT_TRUE(on_device->Find(serial, device_batch, {}, device_rows.data(), nullptr, {}).ok());
      ExpectSameBits(rows, device_rows.Values(), "rows");
    }
  });
}

// Keeps the size of the largest array that was ever allocated.
class WatchingAllocator final : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    size_t before = largest_.load();
    while (before < bytes && !largest_.compare_exchange_weak(before, bytes)) {
    }
    return HostAllocator()->Allocate(bytes);
  }
  void Deallocate(void* memory, size_t bytes) override {
    HostAllocator()->Deallocate(memory, bytes);
  }
  size_t largest() const { return largest_.load(); }

 private:
  std::atomic<size_t> largest_{0};
};

TEST(ScratchMemory, IsForOneLaunchOfAnApply) {
  constexpr size_t kDim = 64, kKeys = 350000;
  static_assert(kKeys * kDim * sizeof(float) > 2 * kScratchBytes, "far more than one launch has");
  WatchingAllocator allocator;
  StoreOptions options;
  options.dim = kDim;
  options.allocator = &allocator;
  std::unique_ptr<Store> store;
  ASSERT_TRUE(NewEmulatedDeviceStore(options, DeviceOptions(), &store).ok());
  Random random(3);
  const std::vector<int64_t> keys = RandomKeys(kKeys, 0, 999, &random);
  const std::vector<size_t> begins(kKeys);
  const std::vector<float> values(kDim, 1.0f);
  KeyBatch batch;
  batch.keys = keys.data();
  batch.size = kKeys;
  const Gradients gradients{values.data(), DataType::kFloat, begins.data(), nullptr};
  ASSERT_TRUE(
      store->Apply(ExecContext::Serial(), batch, gradients, MakeRule(RuleKind::kSgd, kDim)).ok());
  EXPECT_LE(allocator.largest(), kScratchBytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, LargeApply, testing::ValuesIn(ContractDevices()), NameOfDevice);

}  // namespace
}  // namespace tf_embed
