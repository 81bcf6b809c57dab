// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to float16 and bfloat16: up or down with the probability that makes the mean
// of the result the value. So many small steps are not lost one by one.
//
// The noise of a weight is a pure function of (seed, table, key, step, column), as an initial row
// is of the first three (initializer.h): the same for any number of threads, order of the batch,
// number of shards and process.
#ifndef TF_EMBED_CC_CORE_ROWS_STOCHASTIC_ROUNDING_H_
#define TF_EMBED_CC_CORE_ROWS_STOCHASTIC_ROUNDING_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/half.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/platform.h"
#include "cc/core/rows/initializer.h"

namespace tf_embed {

// `value` rounded away from zero if `noise`, uniform in 32 bits, and the bits that a T can't hold
// carry into the other bits; otherwise rounded towards zero. Values that a T can hold stay as they
// are, as do NaN and infinity. Values above the largest finite T are rounded to nearest.
template <typename T>
TF_EMBED_HOST_DEVICE T RoundByNoise(float value, uint32_t noise);

template <>
TF_EMBED_HOST_DEVICE inline BFloat16 RoundByNoise(float value, uint32_t noise) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f7f0000u) return BFloat16::FromFloat(value);
  return BFloat16{static_cast<uint16_t>((bits + (noise >> 16)) >> 16)};
}

template <>
TF_EMBED_HOST_DEVICE inline Half RoundByNoise(float value, uint32_t noise) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x477fe000u) return Half::FromFloat(value);
  uint32_t half = 0;
  if (magnitude >= 0x38800000u) {
    half = (magnitude - 0x38000000u + (noise >> 19)) >> 13;  // exponent bias 127 to 15
  } else {
    // Subnormal: in units of 2^-24, with 32 bits after the point.
    const uint32_t exponent = magnitude >> 23;
    constexpr uint32_t kSmallest = 126 - 56;  // smaller values have none of these bits
    if (exponent > kSmallest) {
      const uint64_t significand = (magnitude & 0x7fffffu) | 0x800000u;
      half = static_cast<uint32_t>((((significand << 32) >> (126 - exponent)) + noise) >> 32);
    }
  }
  return Half{static_cast<uint16_t>(sign | half)};
}

// The noise of one step of a table.
class RoundingNoise {
 public:
  // The step rounds rows once, and a pass over all rows, if one follows, rounds them again.
  enum class Of : uint64_t { kStep = 0, kPass = 1 };

  RoundingNoise(const RowInitializer& initializer, int64_t step, Of of)
      : state_(Mix64(Mix64(Mix64(initializer.seed + kGolden64) ^ initializer.table_id) +
                     Mix64(2 * static_cast<uint64_t>(step) + static_cast<uint64_t>(of)))) {}

  // Rounds the weights [dim] of a key's row.
  template <typename T>
  void Round(int64_t key, const float* weights, size_t dim, T* rounded) const {
    const uint64_t row = OfRow(key);
    for (size_t begin = 0; begin < dim; begin += 4) {
      const uint64_t random = OfFourColumns(row, begin);
      const size_t count = dim - begin < 4 ? dim - begin : 4;
      for (size_t k = 0; k < count; ++k) {
        rounded[begin + k] = RoundByNoise<T>(weights[begin + k], Part(random, k));
      }
    }
  }

  // Rounds one weight; `row` is OfRow of its key.
  template <typename T>
  TF_EMBED_HOST_DEVICE static T RoundColumn(uint64_t row, float weight, size_t column) {
    return RoundByNoise<T>(weight, Part(OfFourColumns(row, column), column % 4));
  }
  TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t OfRow(int64_t key) const {
    return Mix64(state_ + Mix64(static_cast<uint64_t>(key) + kGolden64));
  }

 private:
  // Four columns share a number, each from another quarter on, so that each column has separate
  // deciding bits (13 and 16, except in subnormals of float16).
  TF_EMBED_HOST_DEVICE static TF_EMBED_INLINE uint64_t OfFourColumns(uint64_t row, size_t column) {
    return Mix64(row + (column / 4 + 1) * kGolden64);
  }
  TF_EMBED_HOST_DEVICE static TF_EMBED_INLINE uint32_t Part(uint64_t random, size_t k) {
    const uint64_t from_it = k == 0 ? random : random << (16 * k) | random >> (64 - 16 * k);
    return static_cast<uint32_t>(from_it >> 32);
  }

  uint64_t state_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_STOCHASTIC_ROUNDING_H_
