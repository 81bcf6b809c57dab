// SPDX-License-Identifier: Apache-2.0
// Packs: a few numbers in one register. A loop over a row is written once, for packs of any width
// and for single numbers. All give the same bits, because nothing here contracts or reorders.
#ifndef TF_EMBED_CC_CORE_BASE_PACK_H_
#define TF_EMBED_CC_CORE_BASE_PACK_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#include "cc/core/base/platform.h"

namespace tf_embed {

// Sqrt(x), x a number or a pack.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE float Sqrt(float x) { return std::sqrt(x); }
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double Sqrt(double x) { return std::sqrt(x); }

// `x` in each place of a V.
template <typename V, typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Broadcast(T x) {
  if constexpr (std::is_same_v<V, T>) {
    return x;
  } else {
    return V{} + x;
  }
}

// x to the power of p, number by number.
template <typename V, typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Power(V x, T p) {
  if constexpr (std::is_same_v<V, T>) {
    return std::pow(x, p);
  } else {
    for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) x[i] = std::pow(x[i], p);
    return x;
  }
}

// Whether x is 0, or all of a pack.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE bool IsZero(float x) { return x == 0; }
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE bool IsZero(double x) { return x == 0; }

#if !defined(__CUDACC__)

// kBytes / sizeof(T) numbers. Addresses only need the alignment of a single number.
template <typename T, size_t kBytes>
struct PackOf {
  typedef T Type __attribute__((vector_size(kBytes)));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
};

template <typename V, typename T = std::decay_t<decltype(V{}[0])>,
          std::enable_if_t<!std::is_arithmetic_v<V>, int> = 0>
TF_EMBED_INLINE V Sqrt(V x) {
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) {
    if constexpr (sizeof(T) == 4) return (V)_mm_sqrt_ps((__m128)x);
    if constexpr (sizeof(T) == 8) return (V)_mm_sqrt_pd((__m128d)x);
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) {
    if constexpr (sizeof(T) == 4) return (V)_mm256_sqrt_ps((__m256)x);
    if constexpr (sizeof(T) == 8) return (V)_mm256_sqrt_pd((__m256d)x);
  }
#endif
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    if constexpr (sizeof(T) == 4) return (V)_mm512_sqrt_ps((__m512)x);
    if constexpr (sizeof(T) == 8) return (V)_mm512_sqrt_pd((__m512d)x);
  }
#endif
  for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) x[i] = Sqrt(x[i]);
  return x;
}

template <typename V, std::enable_if_t<!std::is_arithmetic_v<V>, int> = 0>
TF_EMBED_INLINE bool IsZero(V x) {
  bool is_zero = true;
  for (size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) is_zero &= x[i] == 0;
  return is_zero;
}

template <typename V, typename T>
TF_EMBED_INLINE V LoadPack(const T* from) {
  V pack;
  std::memcpy(&pack, from, sizeof(pack));
  return pack;
}

// Calls body(i, V()) for i from 0 to n in steps of the widest packs that fit, at most kMaxBytes
// wide; V is T itself for the remainder.
template <size_t kMaxBytes, typename T, typename Body>
TF_EMBED_INLINE void ForEachPack(size_t n, const Body& body) {
  size_t i = 0;
  if constexpr (kMaxBytes >= 64) {
    using V = typename PackOf<T, 64>::Type;
    for (; i + 64 / sizeof(T) <= n; i += 64 / sizeof(T)) body(i, V{});
  }
  if constexpr (kMaxBytes >= 32) {
    using V = typename PackOf<T, 32>::Type;
    for (; i + 32 / sizeof(T) <= n; i += 32 / sizeof(T)) body(i, V{});
  }
  if constexpr (kMaxBytes >= 16) {
    using V = typename PackOf<T, 16>::Type;
    for (; i + 16 / sizeof(T) <= n; i += 16 / sizeof(T)) body(i, V{});
  }
  for (; i < n; ++i) body(i, T{});
}

#endif  // !defined(__CUDACC__)

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_PACK_H_
