// SPDX-License-Identifier: Apache-2.0
// A store on a device and a store on the host, trained by the same hundred steps: lookups and steps
// of each rule, on batches with a few frequent keys. Weights, slots and rows of lookups are equal
// to the last bit. Rules with powers are left out, because `pow` differs on a GPU.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

constexpr size_t kBatch = 48;
constexpr int64_t kKeys = 200;

class ManySteps : public testing::TestWithParam<DeviceKind> {
 protected:
  template <typename T>
  void ExpectRowsOfTheHost(const Rule& given, size_t dim) {
    SCOPED_TRACE(testing::Message() << "rule " << static_cast<int>(given.slots.kind));
    StoreOptions options;
    options.value_type = TypeOf<T>();
    options.dim = dim;
    options.initializer = UniformInitializer();
    std::unique_ptr<Store> on_device;
    ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), &on_device).ok());
    const std::unique_ptr<Store> on_host = HostStore::Create(options);
    Random random(7);
    Rule rule = given;
    rule.stochastic_rounding = sizeof(T) == 2;
    std::vector<T> wanted(kBatch * dim);
    const OnDevice<T> found(memory(), wanted);
    const OnDevice<int64_t> device_keys(memory(), std::vector<int64_t>(kBatch));
    const OnDevice<float> device_values(memory(), std::vector<float>(kBatch * dim));
    // Lanes that take turns are slow.
    const int steps = GetParam().name == std::string("Lockstep") ? 10 : 100;
    for (int step = 1; step <= steps; ++step) {
      const std::vector<int64_t> keys = SkewedKeys(&random);
      const std::vector<float> values = RandomValues<float>(kBatch * dim, &random);
      device_keys.Write(keys);
      device_values.Write(values);
      const KeyBatch host_batch{keys.data(), kBatch, nullptr};
      const KeyBatch device_batch{device_keys.data(), kBatch, nullptr};
      ASSERT_TRUE(on_host->FindOrInsert(training, host_batch, {}, wanted.data(), nullptr).ok());
      ASSERT_TRUE(on_device->FindOrInsert(training, device_batch, {}, found.data(), nullptr).ok());
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(wanted, found.Values(), "rows of a lookup"));
      rule.step = step;
      ASSERT_TRUE(on_host->Apply(training, host_batch, values.data(), DataType::kFloat, rule).ok());
      ASSERT_TRUE(
          on_device->Apply(training, device_batch, device_values.data(), DataType::kFloat, rule)
              .ok());
    }
    EXPECT_EQ(on_host->size(), on_device->size());
    const RuleSlots slots = on_host->rule();
    ASSERT_TRUE(SameRule(slots, on_device->rule()));
    const std::vector<int64_t> all = KeysFrom(0, kKeys);
    std::vector<T> rows(kKeys * dim);
    std::vector<float> of_slots(kKeys * slots.slots_per_row());
    const OnDevice<int64_t> device_all(memory(), all);
    const OnDevice<T> device_rows(memory(), rows);
    const OnDevice<float> device_slots(memory(), of_slots);
    ASSERT_TRUE(on_host
                    ->Find(reading, {all.data(), kKeys, nullptr}, {}, rows.data(), nullptr,
                           {&slots, of_slots.data()})
                    .ok());
    ASSERT_TRUE(on_device
                    ->Find(reading, {device_all.data(), kKeys, nullptr}, {}, device_rows.data(),
                           nullptr, {&slots, device_slots.data()})
                    .ok());
    ExpectSameBits(rows, device_rows.Values(), "rows");
    ExpectSameBits(of_slots, device_slots.Values(), "slots");
  }

  static std::vector<int64_t> SkewedKeys(Random* random) {
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    std::vector<int64_t> keys(kBatch);
    for (int64_t& key : keys) key = static_cast<int64_t>(std::pow(uniform(*random), 3) * kKeys);
    return keys;
  }
  static DeviceMemory* memory() { return GetParam().memory; }
  void SetUp() override { training.training = true; }

  const ExecContext reading = ExecContext::Serial();
  ExecContext training = ExecContext::Serial();
};

TEST_P(ManySteps, OfEachRuleGiveTheRowsOfTheHost) {
  constexpr size_t kDim = 20;
  for (const Rule& rule : AllRules(kDim)) {
    if (TakesPowers(rule)) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectRowsOfTheHost<float>(rule, kDim));
  }
}

TEST_P(ManySteps, OfNarrowRowsGiveTheRowsOfTheHost) {
  constexpr size_t kDim = 20;
  const Rule adam = MakeRule(RuleKind::kAdam, kDim);
  ASSERT_NO_FATAL_FAILURE(ExpectRowsOfTheHost<Half>(adam, kDim));
  ASSERT_NO_FATAL_FAILURE(ExpectRowsOfTheHost<BFloat16>(adam, kDim));
}

INSTANTIATE_TEST_SUITE_P(Devices, ManySteps, testing::ValuesIn(ContractDevices()), NameOfDevice);

}  // namespace
}  // namespace tf_embed
