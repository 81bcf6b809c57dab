// SPDX-License-Identifier: Apache-2.0
// float16 and bfloat16 as storage: converted by bit operations, so that every machine rounds alike
// (to nearest, ties to even) and no compiler support is needed. Arithmetic happens in float.
#ifndef TF_EMBED_CC_CORE_BASE_HALF_H_
#define TF_EMBED_CC_CORE_BASE_HALF_H_

#include <cstdint>
#include <cstring>

#include "cc/core/base/platform.h"

namespace tf_embed {

TF_EMBED_HOST_DEVICE inline uint32_t FloatBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TF_EMBED_HOST_DEVICE inline float BitsToFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// `bits` without its lowest `count` bits (1 to 31), rounded to nearest, ties to even.
TF_EMBED_HOST_DEVICE inline uint32_t ShiftRoundToEven(uint32_t bits, int count) {
  const uint32_t kept = bits >> count;
  const uint32_t half = 1u << (count - 1);
  const uint32_t rest = bits & ((half << 1) - 1);
  return kept + ((rest > half || (rest == half && (kept & 1))) ? 1u : 0u);
}

struct BFloat16 {
  uint16_t bits;

  static TF_EMBED_HOST_DEVICE BFloat16 FromFloat(float value) {
    const uint32_t bits = FloatBits(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // A quiet bit keeps a NaN whose payload lies in the lost half from becoming infinity.
    const uint32_t high = is_nan ? (bits >> 16) | 0x40u : ShiftRoundToEven(bits, 16);
    return BFloat16{static_cast<uint16_t>(high)};
  }
  TF_EMBED_HOST_DEVICE float ToFloat() const {
    return BitsToFloat(static_cast<uint32_t>(bits) << 16);
  }
};

struct Half {
  uint16_t bits;

  static TF_EMBED_HOST_DEVICE Half FromFloat(float value) {
    const uint32_t bits = FloatBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;  // NaN
    } else if (magnitude >= 0x477ff000u) {
      half = 0x7c00u;  // 65520 and more round to infinity
    } else if (magnitude >= 0x38800000u) {
      half = ShiftRoundToEven(magnitude - 0x38000000u, 13);  // exponent bias 127 to 15
    } else if (magnitude >= 0x33000000u) {
      // Subnormal: the significand with its hidden bit, in units of 2^-24.
      const int shift = 126 - static_cast<int>(magnitude >> 23);
      half = ShiftRoundToEven((magnitude & 0x7fffffu) | 0x800000u, shift);
    } else {
      half = 0;  // at most half of the smallest subnormal
    }
    return Half{static_cast<uint16_t>(sign | half)};
  }
  TF_EMBED_HOST_DEVICE float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return BitsToFloat(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return BitsToFloat(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(magnitude) * BitsToFloat(0x33800000u);  // 2^-24
    return BitsToFloat(sign | FloatBits(subnormal));
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_HALF_H_
