// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/key_sums.h"

#include <map>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr int64_t kPadding = -2;

template <typename S>
struct Result {
  std::vector<int64_t> keys;
  std::vector<int32_t> inverse;
  std::vector<S> sums;
};

// The oracle, with a map: adds `gradient(position)` [dim] of each key except padding, in batch
// order.
template <typename S, typename Gradient>
Result<S> Oracle(const std::vector<int64_t>& keys, const int64_t* padding, size_t dim,
                 const Gradient& gradient) {
  using Compute = typename Number<S>::Compute;
  Result<S> result;
  std::map<int64_t, int32_t> numbers;
  std::vector<Compute> sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (padding != nullptr && keys[i] == *padding) {
      result.inverse.push_back(-1);
      continue;
    }
    const auto [found, is_new] = numbers.insert({keys[i], static_cast<int32_t>(numbers.size())});
    result.inverse.push_back(found->second);
    const std::vector<Compute> added = gradient(i);
    if (is_new) {
      result.keys.push_back(keys[i]);
      sums.insert(sums.end(), added.begin(), added.end());
    } else {
      for (size_t j = 0; j < dim; ++j) sums[found->second * dim + j] += added[j];
    }
  }
  for (Compute sum : sums) result.sums.push_back(Number<S>::Store(sum));
  return result;
}

template <typename S>
void ExpectResult(const Result<S>& wanted, const std::vector<int64_t>& keys, const int64_t* padding,
                  const KeyGradients& gradients) {
  for (const ExecContext& context : {ExecContext::Serial(), Threads(3)}) {
    KeySums sums(HostAllocator());
    ASSERT_TRUE(sums.Build(context, keys.data(), keys.size(), padding).ok());
    ASSERT_EQ(wanted.keys.size(), sums.size());
    std::vector<int64_t> distinct(sums.size());
    sums.WriteKeys(distinct.data());
    EXPECT_EQ(wanted.keys, distinct);
    std::vector<int32_t> inverse(keys.size(), -7);
    sums.WriteInverse(context, inverse.data());
    EXPECT_EQ(wanted.inverse, inverse);
    std::vector<S> found(sums.size() * gradients.dim);
    ASSERT_TRUE(sums.WriteSums(context, gradients, TypeOf<S>(), found.data()).ok());
    ExpectSameBits(wanted.sums, found, "sum");
  }
}

template <typename G, typename S>
void CheckGradientsOfKeys(const std::vector<int64_t>& keys, size_t dim, Random* random) {
  using Compute = typename Number<G>::Compute;
  const std::vector<G> values = RandomValues<G>(keys.size() * dim, random);
  const auto gradient = [&](size_t i) {
    std::vector<Compute> row;
    for (size_t j = 0; j < dim; ++j) row.push_back(Number<G>::Load(values[i * dim + j]));
    return row;
  };
  for (const int64_t* padding : {static_cast<const int64_t*>(nullptr), &kPadding}) {
    const Result<S> wanted = Oracle<S>(keys, padding, dim, gradient);
    ExpectResult(wanted, keys, padding, {values.data(), TypeOf<G>(), dim, nullptr, {}});
  }
}

TEST(KeySums, SumsGradientsOfEqualKeysInTheOrderOfTheBatch) {
  Random random(1);
  for (size_t size : {0, 1, 17, 1000, 20000}) {
    for (int64_t range : {0, 5, 30000}) {
      const std::vector<int64_t> keys = RandomKeys(size, -range, range, &random);
      CheckGradientsOfKeys<float, float>(keys, 5, &random);
    }
  }
}

TEST(KeySums, SumsGradientsOfEveryTypeAndDim) {
  Random random(2);
  const std::vector<int64_t> keys = RandomKeys(300, -20, 20, &random);
  for (size_t dim : {1, 3, 16, 64, 65}) {
    CheckGradientsOfKeys<float, float>(keys, dim, &random);
    CheckGradientsOfKeys<float, Half>(keys, dim, &random);
    CheckGradientsOfKeys<Half, float>(keys, dim, &random);
    CheckGradientsOfKeys<Half, Half>(keys, dim, &random);
    CheckGradientsOfKeys<BFloat16, float>(keys, dim, &random);
    CheckGradientsOfKeys<float, BFloat16>(keys, dim, &random);
    CheckGradientsOfKeys<double, double>(keys, dim, &random);
  }
}

TEST(KeySums, TellsExtremeKeysApart) {
  Random random(3);
  std::vector<int64_t> keys = ExtremeKeys();
  const std::vector<int64_t> again = ExtremeKeys();
  keys.insert(keys.end(), again.begin(), again.end());
  CheckGradientsOfKeys<float, float>(keys, 2, &random);
}

template <typename G, typename S>
void CheckGradientsOfBags(const std::vector<int64_t>& keys, Bags* bags, size_t dim,
                          Random* random) {
  using Compute = typename Number<G>::Compute;
  const std::vector<G> values = RandomValues<G>(bags->size() * dim, random);
  const std::vector<Compute> weights = RandomValues<Compute>(keys.size(), random);
  std::vector<size_t> bag_of(keys.size());
  for (size_t bag = 0; bag < bags->size(); ++bag) {
    for (size_t place = bags->begin(bag); place < bags->begin(bag + 1); ++place) {
      bag_of[bags->Position(place)] = bag;
    }
  }
  for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (bool weighted : {false, true}) {
      for (const int64_t* padding : {static_cast<const int64_t*>(nullptr), &kPadding}) {
        const Pooling pooling{combiner, weighted ? weights.data() : nullptr, padding};
        const auto gradient = [&](size_t i) {
          const Compute divisor = DivisorOf<Compute>(*bags, pooling, keys.data(), bag_of[i]);
          Compute factor = weighted ? weights[i] : 1;
          if (combiner != Combiner::kSum) factor *= divisor == 0 ? 0 : 1 / divisor;
          std::vector<Compute> row;
          for (size_t j = 0; j < dim; ++j) {
            row.push_back(factor * Number<G>::Load(values[bag_of[i] * dim + j]));
          }
          return row;
        };
        const Result<S> wanted = Oracle<S>(keys, padding, dim, gradient);
        ExpectResult(wanted, keys, padding, {values.data(), TypeOf<G>(), dim, bags, pooling});
      }
    }
  }
}

TEST(KeySums, ReadsGradientsBagByBag) {
  Random random(4);
  const int64_t shape[] = {40, 9};
  for (size_t size : {0, 40, 400, 12000}) {
    const std::vector<int64_t> keys = RandomKeys(size, -9, 300, &random);
    Bags lines(HostAllocator());
    lines.OfLines(40, size / 40);
    CheckGradientsOfBags<float, float>(keys, &lines, 16, &random);
    std::vector<int64_t> splits = RandomKeys(30, 0, static_cast<int64_t>(size), &random);
    splits.insert(splits.end(), {0, 0, static_cast<int64_t>(size)});
    std::sort(splits.begin(), splits.end());
    Bags runs(HostAllocator());
    ASSERT_TRUE(runs.OfSplits(splits.data(), splits.size(), size).ok());
    CheckGradientsOfBags<float, Half>(keys, &runs, 3, &random);
    std::vector<int64_t> indices;
    for (int64_t line : RandomKeys(size, 0, 39, &random)) {
      indices.insert(indices.end(), {line, line % 9});
    }
    Bags scattered(HostAllocator());
    ASSERT_TRUE(scattered.OfIndices(indices.data(), size, shape, 2).ok());
    CheckGradientsOfBags<double, double>(keys, &scattered, 1, &random);
  }
}

TEST(KeySums, RefusesSumsOfAnotherComputeType) {
  const std::vector<int64_t> keys = {1};
  const double gradient = 1.0;
  float sum;
  KeySums sums(HostAllocator());
  ASSERT_TRUE(sums.Build(ExecContext::Serial(), keys.data(), 1, nullptr).ok());
  const KeyGradients gradients{&gradient, DataType::kDouble, 1, nullptr, {}};
  EXPECT_EQ(StatusCode::kInvalidArgument,
            sums.WriteSums(ExecContext::Serial(), gradients, DataType::kFloat, &sum).code());
}

TEST(KeySums, EachAllocationMayFail) {
  Random random(5);
  const std::vector<int64_t> keys = RandomKeys(10000, -500, 500, &random);
  const std::vector<float> values = RandomValues<float>(500 * 3, &random);
  int64_t failures = 0;
  for (bool done = false; !done; failures += done ? 0 : 1) {
    FailingAllocator allocator;
    Bags bags(&allocator);
    bags.OfLines(500, 20);
    const KeyGradients gradients{
        values.data(), DataType::kFloat, 3, &bags, {Combiner::kMean, nullptr, &kPadding}};
    std::vector<Half> found(1001 * 3);
    allocator.FailAfter(failures, true);
    KeySums sums(&allocator);
    Status status = sums.Build(Threads(2), keys.data(), keys.size(), &kPadding);
    if (status.ok()) status = sums.WriteSums(Threads(2), gradients, DataType::kHalf, found.data());
    done = status.ok();
    EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
    ASSERT_LT(failures, 1000);
  }
  EXPECT_GT(failures, 5);
}

}  // namespace
}  // namespace tf_embed
