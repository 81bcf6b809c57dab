// SPDX-License-Identifier: Apache-2.0
// Distinct keys and the sums of their gradients on a device, compared with KeySums on the host.
#include "cc/stores/device/device_key_sums.h"

#include "cc/core/pooling/key_sums.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

constexpr int64_t kPadding = -2;

class DeviceKeySumsTest : public testing::TestWithParam<DeviceKind> {
 protected:
  static DeviceMemory* memory() { return GetParam().memory; }

  // `of`: gradients [size] of type G and weights, on the host.
  template <typename G, typename S>
  void ExpectAsOnTheHost(const std::vector<int64_t>& keys, KeyGradients of, size_t size,
                         const int64_t* padding) {
    using Compute = typename Number<G>::Compute;
    KeySums wanted(HostAllocator());
    ASSERT_TRUE(wanted.Build(context, keys.data(), keys.size(), padding).ok());
    std::vector<int64_t> wanted_keys(wanted.size());
    std::vector<int32_t> wanted_inverse(keys.size());
    std::vector<S> wanted_sums(wanted.size() * of.dim);
    wanted.WriteKeys(wanted_keys.data());
    wanted.WriteInverse(context, wanted_inverse.data());
    ASSERT_TRUE(wanted.WriteSums(context, of, TypeOf<S>(), wanted_sums.data()).ok());

    const OnDevice<int64_t> device_keys(memory(), keys);
    const auto found = GetParam().new_key_sums();
    ASSERT_TRUE(found->Build(context, device_keys.data(), keys.size(), padding).ok());
    ASSERT_EQ(wanted.size(), found->size());
    const OnDevice<int64_t> found_keys(memory(), std::vector<int64_t>(wanted.size()));
    const OnDevice<int32_t> found_inverse(memory(), std::vector<int32_t>(keys.size(), -7));
    ASSERT_TRUE(found->WriteKeys(found_keys.data(), found_inverse.data()).ok());
    EXPECT_EQ(wanted_keys, found_keys.Values());
    EXPECT_EQ(wanted_inverse, found_inverse.Values());
    const auto* const values = static_cast<const G*>(of.gradients);
    const auto* const weights = static_cast<const Compute*>(of.pooling.weights);
    const OnDevice<G> device_values(memory(), std::vector<G>(values, values + size));
    const OnDevice<Compute> device_weights(
        memory(), weights == nullptr ? std::vector<Compute>()
                                     : std::vector<Compute>(weights, weights + keys.size()));
    const OnDevice<S> sums(memory(), std::vector<S>(wanted_sums.size()));
    of.gradients = device_values.data();
    if (weights != nullptr) of.pooling.weights = device_weights.data();
    ASSERT_TRUE(found->WriteSums(of, TypeOf<S>(), sums.data()).ok());
    ExpectSameBits(wanted_sums, sums.Values(), "sums");
  }

  template <typename G, typename S>
  void CheckGradientsOfKeys(const std::vector<int64_t>& keys, size_t dim, Random* random) {
    const std::vector<G> values = RandomValues<G>(keys.size() * dim, random);
    const KeyGradients of{values.data(), TypeOf<G>(), dim, nullptr, {}};
    ExpectAsOnTheHost<G, S>(keys, of, values.size(), nullptr);
    ExpectAsOnTheHost<G, S>(keys, of, values.size(), &kPadding);
  }

  template <typename G, typename S>
  void CheckGradientsOfBags(const std::vector<int64_t>& keys, Bags* bags, size_t dim,
                            Random* random) {
    const std::vector<G> values = RandomValues<G>(bags->size() * dim, random);
    const auto weights = RandomValues<typename Number<G>::Compute>(keys.size(), random);
    for (Combiner combiner :
         {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn, Combiner::kMeanOfCount}) {
      for (bool weighted : {false, true}) {
        for (bool padded : {false, true}) {
          const int64_t* const padding = padded ? &kPadding : nullptr;
          const Pooling pooling{combiner, weighted ? weights.data() : nullptr, padding};
          const KeyGradients of{values.data(), TypeOf<G>(), dim, bags, pooling};
          ExpectAsOnTheHost<G, S>(keys, of, values.size(), padding);
        }
      }
    }
  }

  const ExecContext context = ExecContext::Serial();
};

TEST_P(DeviceKeySumsTest, NumbersAndSumsAsTheHostDoes) {
  Random random(1);
  for (size_t size : {0, 1, 17, 400, 3000}) {
    for (int64_t range : {0, 5, 5000}) {
      const std::vector<int64_t> keys = RandomKeys(size, -range, range, &random);
      CheckGradientsOfKeys<float, float>(keys, 5, &random);
    }
  }
  std::vector<int64_t> keys = ExtremeKeys();
  const std::vector<int64_t> again = ExtremeKeys();
  keys.insert(keys.end(), again.begin(), again.end());
  CheckGradientsOfKeys<float, float>(keys, 2, &random);
}

TEST_P(DeviceKeySumsTest, SumsGradientsOfEveryTypeAndDim) {
  Random random(2);
  const std::vector<int64_t> keys = RandomKeys(100, -10, 10, &random);
  for (size_t dim : {1, 16, 33}) {
    CheckGradientsOfKeys<float, float>(keys, dim, &random);
    CheckGradientsOfKeys<float, Half>(keys, dim, &random);
    CheckGradientsOfKeys<Half, float>(keys, dim, &random);
    CheckGradientsOfKeys<Half, Half>(keys, dim, &random);
    CheckGradientsOfKeys<BFloat16, float>(keys, dim, &random);
    CheckGradientsOfKeys<float, BFloat16>(keys, dim, &random);
    CheckGradientsOfKeys<double, double>(keys, dim, &random);
  }
}

TEST_P(DeviceKeySumsTest, ReadsGradientsBagByBag) {
  Random random(4);
  const int64_t shape[] = {20, 9};
  for (size_t size : {0, 20, 400}) {
    const std::vector<int64_t> keys = RandomKeys(size, -9, 30, &random);
    Bags lines(HostAllocator());
    lines.OfLines(20, size / 20);
    CheckGradientsOfBags<float, float>(keys, &lines, 16, &random);
    std::vector<int64_t> splits = RandomKeys(30, 0, static_cast<int64_t>(size), &random);
    splits.insert(splits.end(), {0, 0, static_cast<int64_t>(size)});
    std::sort(splits.begin(), splits.end());
    Bags runs(HostAllocator());
    ASSERT_TRUE(runs.OfSplits(splits.data(), splits.size(), size).ok());
    CheckGradientsOfBags<float, Half>(keys, &runs, 3, &random);
    std::vector<int64_t> indices;
    for (int64_t line : RandomKeys(size, 0, 19, &random)) {
      indices.insert(indices.end(), {line, line % 9});
    }
    Bags scattered(HostAllocator());
    ASSERT_TRUE(scattered.OfIndices(indices.data(), size, shape, 2).ok());
    CheckGradientsOfBags<double, double>(keys, &scattered, 1, &random);
  }
}

TEST_P(DeviceKeySumsTest, RefusesWhatTheHostRefuses) {
  const OnDevice<int64_t> keys(memory(), {1});
  const OnDevice<double> gradient(memory(), {1.0});
  const auto sums = GetParam().new_key_sums();
  EXPECT_EQ(StatusCode::kInvalidArgument,
            sums->Build(context, keys.data(), size_t{INT32_MAX} + 1, nullptr).code());
  ASSERT_TRUE(sums->Build(context, keys.data(), 1, nullptr).ok());
  const KeyGradients of{gradient.data(), DataType::kDouble, 1, nullptr, {}};
  EXPECT_EQ(StatusCode::kInvalidArgument,
            sums->WriteSums(of, DataType::kFloat, gradient.data()).code());
}

TEST(DeviceKeySums, EachAllocationMayFail) {
  Random random(5);
  const std::vector<int64_t> keys = RandomKeys(1000, -50, 50, &random);
  const std::vector<float> values = RandomValues<float>(50 * 3, &random);
  int64_t failures = 0;
  for (bool done = false; !done; failures += done ? 0 : 1) {
    FailingAllocator allocator;
    Bags bags(&allocator);
    std::vector<int64_t> splits;
    for (int64_t bag = 0; bag <= 50; ++bag) splits.push_back(20 * bag);
    ASSERT_TRUE(bags.OfSplits(splits.data(), splits.size(), keys.size()).ok());
    const KeyGradients of{
        values.data(), DataType::kFloat, 3, &bags, {Combiner::kMean, nullptr, &kPadding}};
    std::vector<Half> found(101 * 3);
    allocator.FailAfter(failures, true);
    const auto sums = NewEmulatedDeviceKeySums(&allocator);
    Status status = sums->Build(Threads(2), keys.data(), keys.size(), &kPadding);
    if (status.ok()) status = sums->WriteSums(of, DataType::kHalf, found.data());
    done = status.ok();
    EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
    ASSERT_LT(failures, 1000);
  }
  EXPECT_GT(failures, 5);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceKeySumsTest, testing::ValuesIn(ContractDevices()),
                         NameOfDevice);

}  // namespace
}  // namespace tf_embed
