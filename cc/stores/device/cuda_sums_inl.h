// SPDX-License-Identifier: Apache-2.0
// Sums of the gradients of keys on an NVIDIA GPU. The sum of a key is a chain of additions in batch
// order, and a tile waits for sixteen loads at a time. If a key has a tenth of a batch, as in a
// power law, its tile would take longer than all other tiles together. So blocks load the gradients
// of frequent keys into shared memory, and a warp of each block adds them.
//
// Included only by device_store.cu.
#ifndef TF_EMBED_CC_STORES_DEVICE_CUDA_SUMS_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_CUDA_SUMS_INL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cc/stores/device/rule_kernels.h"

namespace tf_embed {

// Keys with more gradients than this are summed by blocks.
inline constexpr uint32_t kLongGroup = 128;

// The number of long groups, and their numbers.
struct LongGroups {
  uint32_t* count = nullptr;  // initially 0
  uint32_t* numbers = nullptr;

  static size_t Bytes(size_t keys) { return (1 + keys / kLongGroup) * sizeof(uint32_t); }
};

template <class Sums>
__global__ void ListLongGroups(const __grid_constant__ SumKernel<Sums> kernel, size_t count,
                               LongGroups listed) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count || !kernel.groups.Has(kernel.first + i)) return;
  const DeviceGroup& group = kernel.groups.groups[kernel.first + i];
  if (group.count > kLongGroup) {
    listed.numbers[atomicAdd(listed.count, 1u)] = static_cast<uint32_t>(i);
  }
}

// A block that adds gradients, a warp's width of columns at a time.
template <class Sums>
class LongSum {
 public:
  using Compute = typename decltype(Sums::gradients)::Compute;
  static constexpr unsigned kThreads = 512;
  static constexpr unsigned kColumns = 32;

  // The number of blocks for the columns.
  static __host__ __device__ size_t Slices(size_t dim) { return (dim + kColumns - 1) / kColumns; }

  // All threads of the block call it.
  static __device__ void Run(const Sums& sums, const DeviceGroup& group, size_t slice) {
    // Filled from registers, so that the loads of the next rows are in flight while a warp adds.
    __shared__ Compute stage[kRows][kColumns];
    const auto& gradients = sums.gradients;
    const unsigned lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
    const size_t column = slice * kColumns + lane;
    const bool has_column = column < gradients.dim;
    size_t begin = 0;  // start of the gradient that this lane looks up for its warp
    Compute factor{1};
    const auto look = [&](uint32_t first) {
      const uint32_t row = first + warp * kRowsOfWarp + lane;
      if (lane >= kRowsOfWarp || row >= group.count) return;
      const size_t position = sums.batch.Position(group.members[row]);
      begin = gradients.Begin(position);
      if (gradients.factors != nullptr) factor = gradients.factors[position];
    };
    Compute loaded[kRowsOfWarp];
    const auto load = [&](uint32_t first) {
#pragma unroll
      for (unsigned k = 0; k != kRowsOfWarp; ++k) {
        const size_t from = __shfl_sync(kAll, begin, static_cast<int>(k));
        loaded[k] = kNothing;
        if (!has_column || first + warp * kRowsOfWarp + k >= group.count) continue;
        loaded[k] = LoadGradient(gradients.values + from + column);
      }
      if (gradients.factors == nullptr) return;
#pragma unroll
      for (unsigned k = 0; k != kRowsOfWarp; ++k) {
        const Compute by = __shfl_sync(kAll, factor, static_cast<int>(k));
        if (first + warp * kRowsOfWarp + k < group.count) loaded[k] = loaded[k] * by;
      }
    };
    Compute sum = kNothing;
    look(0);
    load(0);
    look(kRows);
    for (uint32_t first = 0; first < group.count; first += kRows) {
#pragma unroll
      for (unsigned k = 0; k != kRowsOfWarp; ++k) stage[warp * kRowsOfWarp + k][lane] = loaded[k];
      __syncthreads();
      if (first + kRows < group.count) {
        load(first + kRows);
        look(first + 2 * kRows);
      }
      if (warp == 0) sum = Add(stage, lane, sum);
      __syncthreads();
    }
    if (warp == 0 && has_column) sums.PutSum(group, column, sum);
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr unsigned kWarps = kThreads / kColumns;
  static constexpr unsigned kRows = 32768 / (kColumns * sizeof(Compute));
  static constexpr unsigned kRowsOfWarp = kRows / kWarps;
  // x + -0 is x for every x. The value of rows after the last row, and the start of a sum.
  static constexpr Compute kNothing = Compute{-0.0};
  static constexpr unsigned kTogether = 32;

  // Reads the next rows while it adds. Otherwise each addition would wait for its load.
  static __device__ Compute Add(const Compute (&stage)[kRows][kColumns], unsigned lane,
                                Compute sum) {
    Compute next[kTogether];
#pragma unroll
    for (unsigned i = 0; i != kTogether; ++i) next[i] = stage[i][lane];
#pragma unroll
    for (unsigned first = 0; first != kRows; first += kTogether) {
      Compute here[kTogether];
#pragma unroll
      for (unsigned i = 0; i != kTogether; ++i) here[i] = next[i];
      if (first + kTogether != kRows) {
#pragma unroll
        for (unsigned i = 0; i != kTogether; ++i) next[i] = stage[first + kTogether + i][lane];
      }
#pragma unroll
      for (unsigned i = 0; i != kTogether; ++i) sum = sum + here[i];
    }
    return sum;
  }

  template <typename G>
  static __device__ Compute LoadGradient(const G* from) {
    return Number<G>::Load(*from);
  }
};

// The first blocks sum the long groups. The tiles of the other blocks sum the rest.
template <class Tile, class Sums>
__global__ void __launch_bounds__(LongSum<Sums>::kThreads)
    RunSums(const __grid_constant__ SumKernel<Sums> kernel, size_t count, LongGroups listed,
            unsigned long_blocks) {
  // Only the device knows the number of groups, which is mostly far below the number of keys.
  const size_t here = *kernel.groups.size > kernel.first ? *kernel.groups.size - kernel.first : 0;
  if (count > here) count = here;
  if (blockIdx.x >= long_blocks) {
    constexpr size_t kTiles = LongSum<Sums>::kThreads / Tile::kLanes;
    const size_t tiles = (gridDim.x - long_blocks) * kTiles;
    size_t i = (blockIdx.x - long_blocks) * kTiles + threadIdx.x / Tile::kLanes;
    for (; i < count * kernel.blocks; i += tiles) kernel(Tile(), i);
    return;
  }
  const size_t slices = LongSum<Sums>::Slices(kernel.sums.gradients.dim);
  for (size_t i = blockIdx.x; i < *listed.count * slices; i += long_blocks) {
    const DeviceGroup group = kernel.groups.Get(kernel.first, listed.numbers[i / slices]);
    if (kernel.sums.WantsSum(group)) LongSum<Sums>::Run(kernel.sums, group, i % slices);
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CUDA_SUMS_INL_H_
