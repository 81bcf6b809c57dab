// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding against its definition, in double. A value is rounded to either of its two
// neighbours. The probability of the upper neighbour is the value's distance from the lower
// neighbour, as a share of the interval.
#include "cc/core/rows/stochastic_rounding.h"

#include <cmath>
#include <limits>
#include <map>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

// The neighbours of a value in a format, given its fraction bits and lowest normal exponent.
struct Between {
  Between(double x, int fraction_bits, int smallest_exponent) {
    const int exponent = x == 0.0 ? smallest_exponent : std::max(std::ilogb(x), smallest_exponent);
    place = std::ldexp(1.0, exponent - fraction_bits);
    low = std::floor(x / place) * place;
    part = x / place - low / place;  // exact: both are multiples of a power of 2
  }
  double place;
  double low;   // the neighbour below, or the value
  double part;  // the value's share of the way to low + place
};

template <typename T>
struct Format;
template <>
struct Format<Half> {
  static Between Of(float x) { return Between(x, 10, -14); }
  static constexpr float kLargest = 65504.0f;
  static constexpr float kOverflow = 65520.0f;  // to nearest
  static constexpr int kSmallestExponent = -24;
  // Smaller numbers have bits below the 32 bits that are compared with noise.
  static double ToleranceOfPart(float x) {
    return std::abs(x) < std::ldexp(1.0f, -14) ? std::ldexp(1.0, -32) : 0.0;
  }
};
template <>
struct Format<BFloat16> {
  static Between Of(float x) { return Between(x, 7, -126); }
  static constexpr float kLargest = 0x1.fep127f;
  static constexpr float kOverflow = 0x1.ffp127f;
  static constexpr int kSmallestExponent = -133;
  static double ToleranceOfPart(float) { return 0.0; }
};

template <typename T>
float Rounded(float value, uint32_t noise) {
  return RoundByNoise<T>(value, noise).ToFloat();
}

// The share of all noise values that round the magnitude up.
template <typename T>
double ShareUp(float value) {
  const float towards_zero = Rounded<T>(value, 0);
  if (Rounded<T>(value, kAll) == towards_zero) return 0.0;
  uint32_t low = 0;  // rounds down
  uint32_t high = kAll;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (Rounded<T>(value, middle) == towards_zero ? low : high) = middle;
  }
  return std::ldexp(4294967296.0 - high, -32);
}

template <typename T>
class StochasticRounding : public testing::Test {
 protected:
  // Values of all magnitudes of a T, and far below.
  static std::vector<float> Values() {
    Random random(3);
    std::vector<float> values;
    for (int exponent = Format<T>::kSmallestExponent - 12; exponent < 128; ++exponent) {
      if (std::ldexp(1.0, exponent) > Format<T>::kLargest) break;
      for (int i = 0; i < 40; ++i) {
        const double fraction = std::ldexp(static_cast<double>(random() >> 11), -53);
        const float value = static_cast<float>(std::ldexp(1.0 + fraction, exponent));
        if (value < Format<T>::kLargest) values.insert(values.end(), {value, -value});
      }
    }
    return values;
  }

  static RowInitializer Zeros(uint64_t seed, uint64_t table_id) {
    RowInitializer initializer;
    initializer.seed = seed;
    initializer.table_id = table_id;
    return initializer;
  }

  // A rule that subtracts the gradient, for a store of zeros.
  static Rule Subtraction(size_t dim, int64_t step) {
    Rule rule = MakeRule(RuleKind::kSgd, dim);
    rule.learning_rate = 1.0;
    rule.step = step;
    rule.stochastic_rounding = true;
    return rule;
  }

  static std::unique_ptr<Store> NewStore(const StoreKind& kind, size_t dim,
                                         const RowInitializer& initializer) {
    StoreOptions options;
    options.value_type = TypeOf<T>();
    options.dim = dim;
    options.initializer = initializer;
    return kind.create(options);
  }

  static std::vector<T> Weights(const Store& store, const Batch& batch) {
    std::vector<T> weights(batch.size() * store.options().dim);
    EXPECT_TRUE(
        store.Find(ExecContext::Serial(), batch, DefaultRows(), weights.data(), nullptr, {}).ok());
    return weights;
  }
};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(StochasticRounding, Types);

TYPED_TEST(StochasticRounding, KeepsWhatTheTypeCanHold) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const TypeParam value{static_cast<uint16_t>(bits)};
    const float wide = value.ToFloat();
    for (const uint32_t noise : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffff0000u, kAll}) {
      if (std::isnan(wide)) {
        ASSERT_TRUE(std::isnan(Rounded<TypeParam>(wide, noise))) << bits;
      } else {
        ASSERT_EQ(bits, RoundByNoise<TypeParam>(wide, noise).bits) << noise;
      }
    }
  }
  // A NaN with its whole payload in the bits that are dropped.
  EXPECT_TRUE(std::isnan(Rounded<TypeParam>(BitsToFloat(0x7f800001u), kAll)));
}

TYPED_TEST(StochasticRounding, GoesToEitherNeighbourWithTheRightProbability) {
  for (const float value : this->Values()) {
    const Between between = Format<TypeParam>::Of(value);
    const double other = between.part == 0.0 ? between.low : between.low + between.place;
    const double inner = value > 0 ? between.low : other;
    const double outer = value > 0 ? other : between.low;
    ASSERT_EQ(inner, Rounded<TypeParam>(value, 0)) << value;
    const double outermost = Rounded<TypeParam>(value, kAll);
    ASSERT_TRUE(outermost == outer || outermost == inner) << value;
    const double towards_outer =
        between.part == 0.0 || value > 0 ? between.part : 1.0 - between.part;
    ASSERT_NEAR(towards_outer, ShareUp<TypeParam>(value), Format<TypeParam>::ToleranceOfPart(value))
        << value;
  }
}

TYPED_TEST(StochasticRounding, OverflowsWhereRoundingToNearestDoes) {
  using F = Format<TypeParam>;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t noise : {0u, 0x80000000u, kAll}) {
    for (const float sign : {1.0f, -1.0f}) {
      for (float value = F::kLargest; value < F::kOverflow;
           value = std::nextafter(value * (1.0f + 1e-6f), infinity)) {
        ASSERT_EQ(sign * F::kLargest, Rounded<TypeParam>(sign * value, noise)) << value;
      }
      const float last = std::nextafter(F::kOverflow, 0.0f);
      EXPECT_EQ(sign * F::kLargest, Rounded<TypeParam>(sign * last, noise));
      EXPECT_EQ(sign * infinity, Rounded<TypeParam>(sign * F::kOverflow, noise));
      EXPECT_EQ(sign * infinity, Rounded<TypeParam>(sign * infinity, noise));
      const float below = std::nextafter(F::kLargest, 0.0f);
      EXPECT_LE(std::abs(Rounded<TypeParam>(sign * below, noise)), F::kLargest);
    }
  }
}

// The mean of the rounded values is the value, over many keys, steps, columns, tables or seeds
// alone.
TYPED_TEST(StochasticRounding, MeansAreTheValueOverEachPartOfTheNoise) {
  using Of = RoundingNoise::Of;
  constexpr size_t kCount = 40000;
  const auto check = [](float value, const char* over, const auto& round_some) {
    const Between between = Format<TypeParam>::Of(value);
    double mean = 0.0;
    for (size_t i = 0; i < kCount; ++i) {
      const double rounded = round_some(static_cast<int64_t>(i));
      ASSERT_TRUE(rounded == between.low || rounded == between.low + between.place);
      mean += (rounded - between.low) / between.place / kCount;
    }
    const double sigma = std::sqrt(between.part * (1.0 - between.part) / kCount);
    EXPECT_NEAR(between.part, mean, 5.0 * sigma) << value << " over " << over;
  };
  for (const double factor : {1.0 + 1.0 / 4096, 1.3337, -1.7, 1.99993}) {
    for (const int exponent : {-3, 0, 9, Format<TypeParam>::kSmallestExponent + 4,
                               Format<TypeParam>::kSmallestExponent - 1}) {
      const float value = static_cast<float>(std::ldexp(factor, exponent));
      const std::vector<float> one(7, value);
      const auto round_one = [&](const RoundingNoise& noise, int64_t key, size_t column) {
        TypeParam row[7];
        noise.Round(key, one.data(), one.size(), row);
        return row[column].ToFloat();
      };
      const RoundingNoise noise(this->Zeros(5, 6), 1, Of::kStep);
      for (const size_t column : {0, 1, 2, 3, 6}) {
        check(value, "keys", [&](int64_t i) { return round_one(noise, i - 200, column); });
      }
      check(value, "steps", [&](int64_t i) {
        return round_one(RoundingNoise(this->Zeros(5, 6), i, Of::kStep), 77, 1);
      });
      check(value, "passes", [&](int64_t i) {
        return round_one(RoundingNoise(this->Zeros(5, 6), i, Of::kPass), 77, 1);
      });
      check(value, "tables", [&](int64_t i) {
        return round_one(RoundingNoise(this->Zeros(5, static_cast<uint64_t>(i)), 1, Of::kStep), 77,
                         1);
      });
      check(value, "seeds", [&](int64_t i) {
        return round_one(RoundingNoise(this->Zeros(static_cast<uint64_t>(i), 6), 1, Of::kStep), 77,
                         1);
      });
      const std::vector<float> wide(kCount, value);
      std::vector<TypeParam> row(kCount);
      noise.Round(77, wide.data(), kCount, row.data());
      check(value, "columns", [&](int64_t i) { return row[static_cast<size_t>(i)].ToFloat(); });
    }
  }
}

// The noise of adjacent keys, steps and columns, and of a step and its pass, agrees as often as by
// chance.
TYPED_TEST(StochasticRounding, NeighboursAreIndependent) {
  using Of = RoundingNoise::Of;
  constexpr int64_t kCount = 40000;
  const std::vector<float> halfway(5, 0.5f * (1.0f + Rounded<TypeParam>(1.0001f, kAll)));
  const auto ups = [&](int64_t key, int64_t step, Of of) {
    TypeParam row[5];
    RoundingNoise(this->Zeros(5, 6), step, of).Round(key, halfway.data(), 5, row);
    std::vector<bool> up;
    for (const TypeParam weight : row) up.push_back(weight.ToFloat() > 1.0f);
    return up;
  };
  std::map<std::string, int64_t> agree;
  for (int64_t i = 0; i < kCount; ++i) {
    const std::vector<bool> here = ups(i, i % 50, Of::kStep);
    for (size_t j = 1; j < 5; ++j) agree["column " + std::to_string(j)] += here[0] == here[j];
    agree["key"] += here[0] == ups(i + 1, i % 50, Of::kStep)[0];
    agree["step"] += here[0] == ups(i, i % 50 + 1, Of::kStep)[0];
    agree["pass"] += here[0] == ups(i, i % 50, Of::kPass)[0];
  }
  for (const auto& [with, count] : agree) {
    EXPECT_NEAR(0.5, static_cast<double>(count) / kCount, 2.5 / std::sqrt(kCount)) << with;
  }
}

TYPED_TEST(StochasticRounding, OfATableIsOfSeedTableStepKeyAndColumnAlone) {
  constexpr size_t kDim = 7;
  const RowInitializer initializer = this->Zeros(8, 9);
  Random random(1);
  Batch all(KeysFrom(-1500, 3000));
  const std::vector<float> ones(2 * all.size() * kDim, -1.0001f);
  // The expected value of each weight, from the definition.
  std::vector<TypeParam> expected;
  for (const int64_t key : all.keys) {
    std::vector<float> row(kDim);
    std::vector<TypeParam> narrow(kDim);
    for (const int64_t step : {4, 5}) {
      for (size_t j = 0; j < kDim; ++j) row[j] = narrow[j].ToFloat() + 1.0001f;
      RoundingNoise(initializer, step, RoundingNoise::Of::kStep)
          .Round(key, row.data(), kDim, narrow.data());
    }
    expected.insert(expected.end(), narrow.begin(), narrow.end());
  }
  const auto check = [&](const StoreKind& kind, const ExecContext& context, size_t num_batches,
                         bool shuffled) {
    const auto store = this->NewStore(kind, kDim, initializer);
    for (const int64_t step : {4, 5}) {
      std::vector<int64_t> keys = all.keys;
      if (shuffled) std::shuffle(keys.begin(), keys.end(), random);
      const size_t size = keys.size() / num_batches;
      for (size_t i = 0; i < num_batches; ++i) {
        const auto begin = keys.begin() + static_cast<ptrdiff_t>(i * size);
        Batch batch(std::vector<int64_t>(begin, begin + static_cast<ptrdiff_t>(size)));
        if (shuffled) batch = Scattered(std::move(batch), &random);
        ASSERT_TRUE(store
                        ->Apply(context, batch, ones.data(), DataType::kFloat,
                                this->Subtraction(kDim, step))
                        .ok());
      }
    }
    ExpectSameBits(expected, this->Weights(*store, all), "weights");
  };
  for (const StoreKind& kind : AllStores()) {
    check(kind, ExecContext::Serial(), 1, false);
    check(kind, Threads(4), 1, true);
    check(kind, Threads(3), 10, true);
  }
  const auto other = this->NewStore(AllStores().back(), kDim, this->Zeros(8, 10));
  ASSERT_TRUE(other
                  ->Apply(ExecContext::Serial(), all, ones.data(), DataType::kFloat,
                          this->Subtraction(kDim, 4))
                  .ok());
  size_t up = 0;
  for (const TypeParam weight : this->Weights(*other, all)) up += weight.ToFloat() > 1.0f;
  EXPECT_GT(up, 0u);
  EXPECT_LT(up, all.size() * kDim);
}

// Each step is a thousandth of a place. Rounding to the nearest would lose all of them.
TYPED_TEST(StochasticRounding, ManySmallStepsAddUp) {
  constexpr size_t kDim = 16;
  constexpr int64_t kSteps = 500;
  const double place = Format<TypeParam>::Of(1.0f).place;
  RowInitializer initializer = this->Zeros(1, 2);
  initializer.a = 1.0;
  const Batch all(KeysFrom(0, 500));
  const std::vector<float> gradients(all.size() * kDim, static_cast<float>(-place / 1000));
  const StoreKind kind = AllStores().back();
  const auto mean_of = [&](bool stochastic) {
    const auto store = this->NewStore(kind, kDim, initializer);
    for (int64_t step = 1; step <= kSteps; ++step) {
      Rule rule = this->Subtraction(kDim, step);
      rule.stochastic_rounding = stochastic;
      EXPECT_TRUE(store->Apply(Threads(2), all, gradients.data(), DataType::kFloat, rule).ok());
    }
    double sum = 0.0;
    for (const TypeParam weight : this->Weights(*store, all)) sum += weight.ToFloat();
    return sum / static_cast<double>(all.size() * kDim);
  };
  // 1 + the step, in float arithmetic, so only the error of the rounding remains.
  const double step = static_cast<double>(1.0f - gradients[0]) - 1.0;
  const double part = step / place;
  const double sigma =
      place * std::sqrt(kSteps * part * (1.0 - part) / static_cast<double>(all.size() * kDim));
  EXPECT_NEAR(1.0 + kSteps * step, mean_of(true), 5.0 * sigma);
  EXPECT_EQ(1.0, mean_of(false));
}

// The pass at the end of a step rounds with other noise than the step.
TYPED_TEST(StochasticRounding, PassesRoundByNoiseOfTheirOwn) {
  constexpr size_t kDim = 8;
  const RowInitializer initializer = this->Zeros(3, 4);
  const Batch all(KeysFrom(0, 2000));
  Rule rule = MakeRule(RuleKind::kEmaRowwiseAdagrad, kDim);
  ChangeHyper<EmaRowwiseAdagradRule>(&rule, [](auto& hyper) {
    hyper.average_every = 1;
    hyper.average_coefficient = 0.3;
  });
  rule.stochastic_rounding = true;
  std::vector<float> gradients(all.size() * kDim);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = i % kDim < kDim / 2 ? -1.0f : 0.0f;
  const auto run = [&](const ExecContext& context) {
    const auto store = this->NewStore(AllStores().back(), kDim, initializer);
    EXPECT_TRUE(store->Apply(context, all, gradients.data(), DataType::kFloat, rule).ok());
    const std::vector<TypeParam> before = this->Weights(*store, all);
    EXPECT_TRUE(store->UpdateAllRows(context, rule).ok());
    const std::vector<TypeParam> after = this->Weights(*store, all);
    const RoundingNoise noise(initializer, rule.step, RoundingNoise::Of::kPass);
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<float> row(kDim);
      std::vector<TypeParam> narrow(kDim);
      for (size_t j = 0; j < kDim; ++j) row[j] = before[i * kDim + j].ToFloat();
      for (size_t j = kDim / 2; j < kDim; ++j) row[j] += 0.3f * (row[j - kDim / 2] - row[j]);
      noise.Round(all.keys[i], row.data(), kDim, narrow.data());
      ExpectSameBits(narrow,
                     std::vector<TypeParam>(after.begin() + static_cast<ptrdiff_t>(i * kDim),
                                            after.begin() + static_cast<ptrdiff_t>((i + 1) * kDim)),
                     "row");
    }
    return after;
  };
  ExpectSameBits(run(ExecContext::Serial()), run(Threads(3)), "weights");
}

TEST(StochasticRoundingOfKeys, IsThatOfEarlierVersions) {
  RowInitializer initializer;
  initializer.seed = 8;
  initializer.table_id = 9;
  const auto of_64_keys = [&](int64_t step, RoundingNoise::Of of) {
    uint64_t up = 0;
    for (int64_t key = 0; key < 64; ++key) {
      const float weights[3] = {0.0f, 0.0f, 1.0f + 0x1p-11f};  // halfway to a neighbour
      Half rounded[3];
      RoundingNoise(initializer, step, of).Round(key - 32, weights, 3, rounded);
      up = 2 * up + (rounded[2].ToFloat() > 1.0f ? 1 : 0);
    }
    return up;
  };
  EXPECT_EQ(0x86d047a804359b4bu, of_64_keys(4, RoundingNoise::Of::kStep));
  EXPECT_EQ(0xc76bb693fff3e792u, of_64_keys(4, RoundingNoise::Of::kPass));
  EXPECT_EQ(0xb3434fd7022b7d0bu, of_64_keys(5, RoundingNoise::Of::kStep));
}

TEST(StochasticRoundingOfWideWeights, ChangesNothing) {
  constexpr size_t kDim = 5;
  const Batch all(KeysFrom(0, 100));
  Random random(2);
  const auto gradients = RandomValues<float>(all.size() * kDim, &random);
  std::vector<float> weights[2];
  for (const bool stochastic : {false, true}) {
    StoreOptions options;
    options.dim = kDim;
    options.initializer = UniformInitializer();
    const std::unique_ptr<Store> store = HostStore::Create(options);
    Rule rule = MakeRule(RuleKind::kAdagrad, kDim);
    rule.stochastic_rounding = stochastic;
    ASSERT_TRUE(
        store->Apply(ExecContext::Serial(), all, gradients.data(), DataType::kFloat, rule).ok());
    std::vector<float>& out = weights[stochastic];
    out.resize(gradients.size());
    ASSERT_TRUE(
        store->Find(ExecContext::Serial(), all, DefaultRows(), out.data(), nullptr, {}).ok());
  }
  ExpectSameBits(weights[0], weights[1], "weights");
}

}  // namespace
}  // namespace tf_embed
