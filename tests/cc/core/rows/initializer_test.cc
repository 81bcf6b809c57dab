// SPDX-License-Identifier: Apache-2.0
// Initial rows: functions against values of 50 digits (mpmath), distributions by statistics, and
// the bits of a few rows. These bits must never change, because saved models depend on them.
#include "cc/core/rows/initializer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

struct Point {
  double x;
  double y;
};

// From mpmath at 50 digits.
constexpr Point kLogs[] = {
    {1.1102230246251565e-16, -36.736800569677101399},
    {2.2250738585072014e-308, -708.39641853226410622},
    {1e-300, -690.77552789821370518},
    {1e-16, -36.841361487904730965},
    {1e-05, -11.512925464970228338},
    {0.1, -2.3025850929940456285},
    {0.5, -0.69314718055994530942},
    {0.7071067811865475, -0.34657359027997274336},
    {0.7071067811865476, -0.34657359027997258635},
    {0.75, -0.28768207245178092744},
    {0.999999999, -9.9999997221806850863e-10},
    {0.9999999999999999, -1.1102230246251566021e-16},
    {1.0, 0.0},
    {1.0000000000000002, 2.2204460492503128343e-16},
    {1.0000001, 9.9999995058387045178e-8},
    {1.4142135623730951, 0.34657359027997272307},
    {1.4142135623730954, 0.34657359027997288008},
    {1.5, 0.40546510810816438198},
    {2.0, 0.69314718055994530942},
    {2.718281828459045, 0.99999999999999994682},
    {10.0, 2.302585092994045684},
    {12345.678, 9.4210613212918319671},
    {1e+100, 230.25850929940456842},
    {1.7976931348623157e+308, 709.78271289338399673},
};
constexpr Point kQuantiles[] = {
    {1.1102230246251565e-16, -8.2095361516013868556},
    {1e-16, -8.2220822161304356152},
    {1e-15, -7.9413453261709967713},
    {1e-12, -7.0344838253011319326},
    {1.3887943864964021e-11, -6.6579046435011035837},  // the outer tail begins here
    {1e-09, -5.9978070150076868614},
    {1e-06, -4.7534243088228989573},
    {0.0001, -3.7190164854556805523},
    {0.001, -3.0902323061678135354},
    {0.01, -2.3263478740408410931},
    {0.02275013194817921, -1.9999999999999999743},
    {0.0749, -1.4402382675279636631},
    {0.075, -1.4395314709384559349},  // the inner tail begins here
    {0.0751, -1.4388253927525399824},
    {0.1, -1.2815515655446004353},
    {0.25, -0.6744897501960817432},
    {0.4, -0.25334710313579974132},
    {0.49, -0.025068908258711058033},
    {0.4999999, -2.5066282747031065135e-7},
    {0.5000001, 2.5066282733116483012e-7},
    {0.51, 0.025068908258711058033},
    {0.6, 0.25334710313579974132},
    {0.75, 0.6744897501960817432},
    {0.9, 1.2815515655446005935},
    {0.925, 1.4395314709384562291},
    {0.9251, 1.4402382675279638594},
    {0.99, 2.3263478740408407676},
    {0.9999, 3.7190164854557083867},
    {0.999999, 4.7534243088170877657},
    {0.999999999, 5.9978070196016374264},
    {0.9999999999999999, 8.2095361516013868556},
};

TEST(PortableLog, AgreesWithMpmathToAFewUnitsInTheLastPlace) {
  for (const Point& point : kLogs) {
    EXPECT_NEAR(point.y, PortableLog(point.x), 6e-16 * std::abs(point.y)) << point.x;
  }
}

TEST(NormalQuantile, AgreesWithMpmathIntoTheTails) {
  for (const Point& point : kQuantiles) {
    EXPECT_NEAR(point.y, NormalQuantile(point.x), 2e-15 * std::abs(point.y)) << point.x;
  }
  EXPECT_EQ(0.0, NormalQuantile(0.5));
}

TEST(NormalQuantile, NeverFalls) {
  double last = -9.0;
  for (double p = 1e-16; p < 0.5; p *= 1.0001) {
    ASSERT_LE(last, NormalQuantile(p)) << p;
    last = NormalQuantile(p);
  }
  for (int i = 0; i < 100000; ++i) {
    const double p = 0.5 + i * 4.9999e-6;
    ASSERT_LE(last, NormalQuantile(p)) << p;
    last = NormalQuantile(p);
  }
}

RowInitializer Initializer(InitializerKind kind, double a, double b, uint64_t seed = 7,
                           uint64_t table_id = 11) {
  RowInitializer initializer;
  initializer.kind = kind;
  initializer.a = a;
  initializer.b = b;
  initializer.seed = seed;
  initializer.table_id = table_id;
  return initializer;
}

template <typename T>
std::vector<T> Row(const RowInitializer& initializer, int64_t key, size_t dim) {
  std::vector<T> row(dim);
  InitializeWeights(initializer, key, dim, row.data());
  return row;
}

std::vector<uint32_t> Bits(const std::vector<float>& row) {
  std::vector<uint32_t> bits;
  for (float value : row) bits.push_back(FloatBits(value));
  return bits;
}

// Computed in Python with mpmath from the definition, not with the code under test.
TEST(Initializer, GoldenBitsOfUniformRows) {
  const RowInitializer uniform = Initializer(InitializerKind::kUniform, -1.0, 1.0);
  using B = std::vector<uint32_t>;
  EXPECT_EQ((B{0xbeed3d05, 0x3f4c05db, 0xbf49d3e8, 0x3f53f759}), Bits(Row<float>(uniform, 0, 4)));
  EXPECT_EQ((B{0x3b8f6f3b, 0xbb1f7c27, 0x3f61148d, 0xbe4ab164}), Bits(Row<float>(uniform, -1, 4)));
  EXPECT_EQ((B{0x3d19888c, 0xbeffa4db, 0x3f185740, 0xbf1791d1}),
            Bits(Row<float>(uniform, 12345678901, 4)));
  EXPECT_EQ((B{0x3f2ee242, 0x3f4942c4, 0x3f22f5c2, 0x3e977cf1}),
            Bits(Row<float>(uniform, INT64_MIN, 4)));
}

TEST(Initializer, GoldenBitsOfNormalRows) {
  const RowInitializer normal = Initializer(InitializerKind::kNormal, 0.0, 1.0);
  using B = std::vector<uint32_t>;
  EXPECT_EQ((B{0xbf1e2e71, 0x3fa2f009, 0xbf9fe423, 0x3faed1fc}), Bits(Row<float>(normal, 0, 4)));
  EXPECT_EQ((B{0x3bb3c4f7, 0xbb47e295, 0x3fc697c9, 0xbe8059c7}), Bits(Row<float>(normal, -1, 4)));
  EXPECT_EQ((B{0x3d407f14, 0xbf2c63ae, 0x3f5536e6, 0xbf53d9a3}),
            Bits(Row<float>(normal, 12345678901, 4)));
}

TEST(Initializer, GoldenBitsOfTruncatedNormalRows) {
  const RowInitializer truncated = Initializer(InitializerKind::kTruncatedNormal, 0.0, 1.0);
  using B = std::vector<uint32_t>;
  EXPECT_EQ((B{0xbf16129d, 0x3f969f8b, 0xbf9407bf, 0x3fa09199}), Bits(Row<float>(truncated, 0, 4)));
  EXPECT_EQ((B{0x3bab96fa, 0xbb3eca4c, 0x3fb3830a, 0xbe74ca6f}),
            Bits(Row<float>(truncated, -1, 4)));
}

TEST(Initializer, ConstantAndRowAreTheSameForAllKeys) {
  EXPECT_EQ((std::vector<float>{2.5f, 2.5f}),
            Row<float>(Initializer(InitializerKind::kConstant, 2.5, 0.0), 9, 2));
  EXPECT_EQ((std::vector<int64_t>{-3}),
            Row<int64_t>(Initializer(InitializerKind::kConstant, -3.0, 0.0), 9, 1));
  RowInitializer row = Initializer(InitializerKind::kRow, 0.0, 0.0);
  row.row = {1.0, -2.0, 0.5};
  EXPECT_EQ((std::vector<double>{1.0, -2.0, 0.5}), Row<double>(row, INT64_MAX, 3));
}

TEST(Initializer, LanesDoNotDependOnTheDim) {
  const RowInitializer normal = Initializer(InitializerKind::kNormal, 1.0, 2.0);
  const std::vector<double> longer = Row<double>(normal, 5, 100);
  const std::vector<double> shorter = Row<double>(normal, 5, 17);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TEST(Initializer, NarrowTypesAreTheRoundedFloats) {
  const RowInitializer normal = Initializer(InitializerKind::kNormal, 0.0, 1.0);
  const std::vector<float> floats = Row<float>(normal, 3, 64);
  const std::vector<Half> halves = Row<Half>(normal, 3, 64);
  const std::vector<BFloat16> narrow = Row<BFloat16>(normal, 3, 64);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(Half::FromFloat(floats[i]).bits, halves[i].bits);
    EXPECT_EQ(BFloat16::FromFloat(floats[i]).bits, narrow[i].bits);
  }
}

// ---- Statistics: 200,000 numbers of fixed seeds, lanes of many keys or many keys' first lanes
// ----

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double Cdf(InitializerKind kind, double x) {  // of the parameters (0, 1)
  if (kind == InitializerKind::kUniform) return std::clamp(x, 0.0, 1.0);
  if (kind == InitializerKind::kNormal) return NormalCdf(x);
  const double below = NormalCdf(-2.0);
  return std::clamp((NormalCdf(x) - below) / (1.0 - 2.0 * below), 0.0, 1.0);
}

std::vector<double> Sample(const RowInitializer& initializer, size_t keys, size_t dim) {
  std::vector<double> sample;
  for (size_t key = 0; key < keys; ++key) {
    const std::vector<double> row = Row<double>(initializer, static_cast<int64_t>(key), dim);
    sample.insert(sample.end(), row.begin(), row.end());
  }
  return sample;
}

struct Shape {
  InitializerKind kind;
  double mean;
  double variance;
};
// The variance of a normal distribution cut at two standard deviations.
constexpr Shape kShapes[] = {{InitializerKind::kUniform, 0.5, 1.0 / 12.0},
                             {InitializerKind::kNormal, 0.0, 1.0},
                             {InitializerKind::kTruncatedNormal, 0.0, 0.7737413035499232}};

TEST(Initializer, DistributionsPassKolmogorovAndSmirnov) {
  for (const Shape& shape : kShapes) {
    for (uint64_t seed : {0, 1, 2}) {
      for (size_t dim : {1, 100}) {
        std::vector<double> sample =
            Sample(Initializer(shape.kind, 0.0, 1.0, seed), 200000 / dim, dim);
        std::sort(sample.begin(), sample.end());
        const double n = static_cast<double>(sample.size());
        double distance = 0.0;
        for (size_t i = 0; i < sample.size(); ++i) {
          const double cdf = Cdf(shape.kind, sample[i]);
          distance = std::max({distance, (i + 1) / n - cdf, cdf - i / n});
        }
        // A correct generator passes with a probability of 0.9993. The seeds are fixed.
        EXPECT_LT(distance * std::sqrt(n), 2.0) << static_cast<int>(shape.kind) << " dim " << dim;
      }
    }
  }
}

TEST(Initializer, MomentsAreRight) {
  for (const Shape& shape : kShapes) {
    const std::vector<double> sample = Sample(Initializer(shape.kind, 0.0, 1.0), 2000, 100);
    const double n = static_cast<double>(sample.size());
    double sum = 0.0, squares = 0.0;
    for (double x : sample) {
      sum += x;
      squares += (x - shape.mean) * (x - shape.mean);
    }
    EXPECT_NEAR(shape.mean, sum / n, 4.0 * std::sqrt(shape.variance / n));
    EXPECT_NEAR(shape.variance, squares / n, 4.0 * shape.variance * std::sqrt(2.0 / n));
  }
}

TEST(Initializer, ParametersScaleAndStayInTheirBounds) {
  for (double x : Sample(Initializer(InitializerKind::kUniform, -0.05, 0.05), 1000, 10)) {
    ASSERT_TRUE(x >= -0.05 && x < 0.05);
  }
  for (double x : Sample(Initializer(InitializerKind::kTruncatedNormal, 10.0, 0.5), 1000, 10)) {
    ASSERT_TRUE(x >= 9.0 && x <= 11.0);
  }
  double sum = 0.0;
  for (double x : Sample(Initializer(InitializerKind::kNormal, 10.0, 0.5), 1000, 10)) sum += x;
  EXPECT_NEAR(10.0, sum / 10000, 0.02);
}

double Correlation(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - 0.5) * (y[i] - 0.5);
  return 12.0 * sum / static_cast<double>(x.size());
}

TEST(Initializer, KeysTablesSeedsAndLanesAreUncorrelated) {
  const auto sample = [](uint64_t seed, uint64_t table_id) {
    return Sample(Initializer(InitializerKind::kUniform, 0.0, 1.0, seed, table_id), 2000, 50);
  };
  const std::vector<double> base = sample(1, 1);
  const auto shifted = [&](size_t by) {
    std::vector<double> other(base.begin() + by, base.end());
    other.insert(other.end(), base.begin(), base.begin() + by);
    return other;
  };
  const double bound = 4.0 / std::sqrt(100000.0);
  EXPECT_LT(std::abs(Correlation(base, sample(2, 1))), bound) << "seeds";
  EXPECT_LT(std::abs(Correlation(base, sample(1, 2))), bound) << "tables";
  EXPECT_LT(std::abs(Correlation(sample(1, 2), sample(2, 1))), bound) << "both, exchanged";
  EXPECT_LT(std::abs(Correlation(base, shifted(1))), bound) << "lanes";
  EXPECT_LT(std::abs(Correlation(base, shifted(50))), bound) << "keys";
}

TEST(Initializer, StreamsOfDifferentKeysStartApart) {
  std::set<uint64_t> states;
  size_t count = 0;
  for (uint64_t seed : {0ull, 1ull, ~0ull}) {
    for (uint64_t table_id : {0ull, 1ull, 1ull << 63}) {
      for (int64_t key = -1000; key < 1000; ++key, ++count) {
        states.insert(InitialState(seed, table_id, key));
        states.insert(InitialState(seed, table_id, key * (int64_t{1} << 32) + 5000));
      }
    }
  }
  EXPECT_EQ(2 * count, states.size());
}

}  // namespace
}  // namespace tf_embed
