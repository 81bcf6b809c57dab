// SPDX-License-Identifier: Apache-2.0
// A tile: the lanes that work together on a key, or a few. Kernels are written once, for a Tile
// type. On a GPU its lanes are threads of a warp. On the host there is one lane. The tests have a
// tile with many lanes that take turns.
//
//     kLanes             the number of lanes, a divisor of kSquareSums
//     kBlocks            whether blocks of tiles help: LaunchBlocks (device_content.h)
//     lane()             the number of this lane
//     Sync()             writes of all lanes before it are visible to all after it
//     From(x, lane)      the x of `lane`, which may differ between lanes; all lanes call it
//     Down(x, distance)  the x of the lane `distance` above; unspecified for the last lanes
//     Highest(x)         the largest x of a uint32
//     Where(x)           a bit for each lane: whether its x is true
//     Equal(x)           a bit for each lane: whether its x, a uint64, is that of this lane
//
// and relaxed atomics on any memory that kernels of a launch share: Load, Add, Max, Exchange and
// CompareExchange of uint64_t. A launch sees all writes of the launches before it.
//
// Each loop over the columns of a row gives column j to lane j % kLanes. So a lane may read its own
// writes of a loop in the next loop without a Sync.
#ifndef TF_EMBED_CC_STORES_DEVICE_TILE_H_
#define TF_EMBED_CC_STORES_DEVICE_TILE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/platform.h"

// The building blocks of kernels, for the device that a file is compiled for.
#if defined(__CUDACC__)
#define TF_EMBED_DEVICE __device__ inline
#define TF_EMBED_UNROLL _Pragma("unroll")  // otherwise a lane's arrays would be in memory
#else
#define TF_EMBED_DEVICE inline
#define TF_EMBED_UNROLL
#endif

namespace tf_embed {

// Calls body(i) for this lane's i in [0, count).
template <class Tile, typename Body>
TF_EMBED_DEVICE void ForEachLane(const Tile& tile, size_t count, const Body& body) {
  for (size_t i = tile.lane(); i < count; i += Tile::kLanes) body(i);
}

// The number of the lowest set bit. REQUIRES: bits != 0.
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

// Adds the number of lanes with `mine` to a word, in one atomic, because lanes and tiles would wait
// for each other there. Each lane with `mine` gets the old word plus the number of such lanes
// before it. All lanes call it and get the `count`.
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

// The atomics of a device that consists of this process's threads.
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
  // On failure, `expected` becomes the present value.
  static bool CompareExchange(uint64_t* to, uint64_t* expected, uint64_t x) {
    return __atomic_compare_exchange_n(to, expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
};

// A tile of one lane.
struct SingleTile : HostAtomics {
  static constexpr size_t kLanes = 1;
  static constexpr bool kBlocks = false;
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
  uint32_t Equal(uint64_t) const { return 1; }
};

#endif  // !defined(__CUDACC__)

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TILE_H_
