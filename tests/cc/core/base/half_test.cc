// SPDX-License-Identifier: Apache-2.0
// float16 and bfloat16 against the definition of rounding, computed in double.
#include "cc/core/base/half.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

// IEEE 754 rounding to a format with `fraction_bits` and `smallest_exponent`, its lowest normal
// exponent: the nearest multiple of the place value, ties to even. Infinity from `overflow` on.
double Rounded(double x, int fraction_bits, int smallest_exponent, double overflow) {
  if (std::isnan(x) || std::isinf(x) || x == 0.0) return x;
  if (std::abs(x) >= overflow) return std::copysign(INFINITY, x);
  const int exponent = std::max(std::ilogb(x), smallest_exponent);
  const double place = std::ldexp(1.0, exponent - fraction_bits);
  return std::copysign(std::nearbyint(std::abs(x) / place) * place, x);
}

template <typename T>
struct Format;
template <>
struct Format<Half> {
  static double Round(float x) { return Rounded(x, 10, -14, 65520.0); }
};
template <>
struct Format<BFloat16> {
  static double Round(float x) {
    return Rounded(x, 7, -126, std::ldexp(1.0, 128) - std::ldexp(1.0, 119));
  }
};

template <typename T>
class NarrowFloats : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(NarrowFloats, Types);

template <typename T>
bool RoundsRight(float x) {
  const float stored = T::FromFloat(x).ToFloat();
  if (std::isnan(x)) return std::isnan(stored);
  return FloatBits(stored) == FloatBits(static_cast<float>(Format<T>::Round(x)));
}

TYPED_TEST(NarrowFloats, AllValuesSurviveTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const TypeParam value{static_cast<uint16_t>(bits)};
    const float wide = value.ToFloat();
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(TypeParam::FromFloat(wide).ToFloat())) << bits;
    } else {
      ASSERT_EQ(bits, TypeParam::FromFloat(wide).bits);
    }
  }
}

TYPED_TEST(NarrowFloats, RoundsToNearestAndTiesToEven) {
  // The midpoint of each two adjacent values, and the floats beside it.
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    const float low = TypeParam{static_cast<uint16_t>(bits)}.ToFloat();
    const float high = TypeParam{static_cast<uint16_t>(bits + 1)}.ToFloat();
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2.0);
    for (float x : {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      ASSERT_TRUE(RoundsRight<TypeParam>(x)) << x;
    }
  }
}

TYPED_TEST(NarrowFloats, RoundsFloatsOfAllMagnitudes) {
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1999) {
    const float x = BitsToFloat(static_cast<uint32_t>(bits));
    ASSERT_TRUE(RoundsRight<TypeParam>(x)) << x;
  }
}

TYPED_TEST(NarrowFloats, KeepsNanInfinityAndTheSignOfZero) {
  for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(TypeParam::FromFloat(BitsToFloat(bits)).ToFloat())) << bits;
  }
  EXPECT_EQ(INFINITY, TypeParam::FromFloat(INFINITY).ToFloat());
  EXPECT_EQ(-INFINITY, TypeParam::FromFloat(-INFINITY).ToFloat());
  EXPECT_EQ(0x8000u, TypeParam::FromFloat(-0.0f).bits);
  EXPECT_EQ(0x8000u, TypeParam::FromFloat(-BitsToFloat(1)).bits) << "the smallest float";
}

TEST(Half, OverflowsHalfAStepBeyondItsLargestValue) {
  EXPECT_EQ(65504.0f, Half::FromFloat(65519.996f).ToFloat());
  EXPECT_EQ(INFINITY, Half::FromFloat(65520.0f).ToFloat());
}

TEST(Half, SubnormalsAreMultiplesOfTwoToTheMinus24) {
  EXPECT_EQ(1u, Half::FromFloat(std::ldexp(1.0f, -24)).bits);
  EXPECT_EQ(0u, Half::FromFloat(std::ldexp(1.0f, -25)).bits) << "a tie with zero";
  EXPECT_EQ(1u, Half::FromFloat(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits);
  EXPECT_EQ(0x3ffu, Half::FromFloat(1023.0f * std::ldexp(1.0f, -24)).bits);
  EXPECT_EQ(0x400u, Half::FromFloat(1023.5f * std::ldexp(1.0f, -24)).bits) << "up to a normal";
}

}  // namespace
}  // namespace tf_embed
