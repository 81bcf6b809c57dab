// SPDX-License-Identifier: Apache-2.0
// One hash serves the whole engine: its high bits choose the stripe and its low bits the bucket, so
// the two choices are independent.
#ifndef TF_EMBED_CC_CORE_BASE_HASH_H_
#define TF_EMBED_CC_CORE_BASE_HASH_H_

#include <cstdint>

#include "cc/core/base/platform.h"

namespace tf_embed {

// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014): a bijection of 64 bits in which each input bit flips half of the output.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 2^64 divided by the golden ratio: the step of a Weyl sequence that visits every 64-bit number.
inline constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15u;

TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t HashKey(int64_t key) {
  return Mix64(static_cast<uint64_t>(key) + kGolden64);
}

// The key of a hash: HashKey is a bijection. The factors are the inverses of the factors above
// modulo 2^64.
inline int64_t KeyOfHash(uint64_t hash) {
  uint64_t x = hash;
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3u;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089u;
  x = x ^ (x >> 30) ^ (x >> 60);
  return static_cast<int64_t>(x - kGolden64);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_HASH_H_
