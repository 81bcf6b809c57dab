// SPDX-License-Identifier: Apache-2.0
// A tile: the lanes that work on a key, or a few, together. Kernels are written once, over a Tile
// type; on a GPU its lanes are threads of a warp, on the host there is one, and the tests have a
// tile of many lanes that take turns.
//
//     kLanes             how many, a divisor of kSquareSums
//     lane()             which of them this is
//     Sync()             writes of all lanes before it are visible to all after it
//     From(x, lane)      the x of that lane, which may be another for each; all lanes call
//     Down(x, distance)  the x of the lane so far above; of the last ones, anything
//     Highest(x)         the largest x of a uint32
//     Where(x)           a bit for each lane: whether its x is true
//
// and, of any memory that kernels of one launch share, relaxed atomics: Load, Add, Max, Exchange,
// CompareExchange of uint64_t. A launch sees all that the launches before it wrote.
//
// A loop over the columns of a row gives column j to lane j % kLanes, everywhere: a lane may read
// its own writes of one loop in the next without a Sync.
#ifndef TF_EMBED_CC_STORES_DEVICE_TILE_H_
#define TF_EMBED_CC_STORES_DEVICE_TILE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/platform.h"

// The building blocks of kernels, for the one device that a file is compiled for.
#if defined(__CUDACC__)
#define TF_EMBED_DEVICE __device__ inline
#define TF_EMBED_UNROLL _Pragma("unroll")  // or arrays of a lane would be in memory
#else
#define TF_EMBED_DEVICE inline
#define TF_EMBED_UNROLL
#endif

namespace tf_embed {

// Calls body(i) for the i in [0, count) that are this lane's.
template <class Tile, typename Body>
TF_EMBED_DEVICE void ForEachLane(const Tile& tile, size_t count, const Body& body) {
  for (size_t i = tile.lane(); i < count; i += Tile::kLanes) body(i);
}

// The number of the lowest bit that is set. REQUIRES: there is one.
TF_EMBED_DEVICE uint32_t LowestBit(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffs(static_cast<int>(bits))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(bits));
#endif
}

TF_EMBED_DEVICE uint32_t CountBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

// Adds the number of lanes that say `mine` to a word, once for all of them, because lanes and tiles
// would wait for each other there. Returns the word before, and for each further such lane one
// more; all lanes call and get the `count`.
template <class Tile>
TF_EMBED_DEVICE uint64_t AddTogether(const Tile& tile, bool mine, uint64_t* to, uint32_t* count) {
  const uint32_t who = tile.Where(mine);
  *count = CountBits(who);
  if (who == 0) return 0;
  uint64_t first = 0;
  if (tile.lane() == 0) first = Tile::Add(to, *count);
  return tile.From(first, 0) + CountBits(who & ((1u << tile.lane()) - 1));
}

#if !defined(__CUDACC__)

// The atomics of a device that is this process's threads.
struct HostAtomics {
  static uint64_t Load(const uint64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
  static uint64_t Add(uint64_t* to, uint64_t x) {
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
  }
  static uint64_t Exchange(uint64_t* to, uint64_t x) {
    return __atomic_exchange_n(to, x, __ATOMIC_RELAXED);
  }
  static void Max(uint64_t* to, uint64_t x) {
    uint64_t before = Load(to);
    while (before < x && !CompareExchange(to, &before, x)) {
    }
  }
  // If it fails, `expected` becomes the present value.
  static bool CompareExchange(uint64_t* to, uint64_t* expected, uint64_t x) {
    return __atomic_compare_exchange_n(to, expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
};

// One lane.
struct SingleTile : HostAtomics {
  static constexpr size_t kLanes = 1;
  size_t lane() const { return 0; }
  void Sync() const {}
  template <typename T>
  T From(T x, size_t) const {
    return x;
  }
  template <typename T>
  T Down(T x, size_t) const {
    return x;
  }
  uint32_t Highest(uint32_t x) const { return x; }
  uint32_t Where(bool x) const { return x ? 1 : 0; }
};

#endif  // !defined(__CUDACC__)

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TILE_H_
