// SPDX-License-Identifier: Apache-2.0
// Frequent keys on an NVIDIA GPU. If a key has a tenth of a batch, as in a power law, its tile
// would take longer than all other tiles together. So blocks order the positions of frequent keys,
// and sum their gradients.
//
// Included only by device_store.cu.
#ifndef TF_EMBED_CC_STORES_DEVICE_CUDA_FREQUENT_KEYS_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_CUDA_FREQUENT_KEYS_INL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cc/stores/device/group_kernels.h"
#include "cc/stores/device/rule_kernels.h"

namespace tf_embed {

inline constexpr unsigned kThreadsOfBlock = 512;

// A block that orders the positions of a key: it sets a bit for each, and reads the bits in order.
class FrequentOrder {
 public:
  // All threads of the block call it.
  static __device__ void Run(const GroupsInProgress& made, const DeviceGroup& group) {
    __shared__ uint32_t bits[kWords];
    __shared__ uint32_t ends[kThreadsOfBlock / 32];  // of the warps
    const size_t begin = group.members - made.members;
    const uint32_t* const from = made.unordered + begin;
    uint32_t* to = made.members + begin;
    // A window of the batch at a time, which is mostly the whole batch.
    for (uint64_t first = 0; first < made.size; first += uint64_t{kWords} * 32) {
      const uint64_t size = made.size - first;
      const unsigned words = size < kWords * 32 ? static_cast<unsigned>(size + 31) / 32 : kWords;
      for (unsigned w = threadIdx.x; w < words; w += kThreadsOfBlock) bits[w] = 0;
      __syncthreads();
      for (uint32_t k = threadIdx.x; k < group.count; k += kThreadsOfBlock) {
        const uint64_t at = from[k] - first;  // wraps around before the window
        if (at < uint64_t{kWords} * 32) atomicOr(&bits[at / 32], 1u << at % 32);
      }
      __syncthreads();
      // A thread has consecutive words.
      const unsigned own = (words + kThreadsOfBlock - 1) / kThreadsOfBlock;
      const unsigned low = min(threadIdx.x * own, words);
      const unsigned high = min(low + own, words);
      uint32_t count = 0;
      for (unsigned w = low; w < high; ++w) count += __popc(bits[w]);
      uint32_t total;
      uint32_t* next = to + CountBefore(count, ends, &total);
      for (unsigned w = low; w < high; ++w) {
        for (uint32_t left = bits[w]; left != 0; left &= left - 1) {
          *next++ = static_cast<uint32_t>(first + w * 32 + LowestBit(left));
        }
      }
      to += total;
      __syncthreads();  // the next window overwrites the bits
    }
  }

 private:
  static constexpr unsigned kWords = 8192;  // 32 KiB

  // The sum of the counts of the threads before this thread.
  static __device__ uint32_t CountBefore(uint32_t count, uint32_t* ends, uint32_t* total) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = count;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += lower;
    }
    if (lane == 31) ends[warp] = sum;
    __syncthreads();
    uint32_t before = sum - count;
    *total = 0;
    for (unsigned w = 0; w < kThreadsOfBlock / 32; ++w) {
      if (w < warp) before += ends[w];
      *total += ends[w];
    }
    return before;
  }
};

// A block that sums the gradients of a key, a warp's width of columns at a time. The sum is a chain
// of additions in batch order. The block loads the gradients into shared memory, and a warp adds
// them.
template <class Sums>
class FrequentSum {
 public:
  using Compute = typename decltype(Sums::gradients)::Compute;
  static constexpr unsigned kColumns = kColumnsOfBlock;

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
  static constexpr unsigned kWarps = kThreadsOfBlock / kColumns;
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

struct CudaBlock {
  static __device__ void Order(const GroupsInProgress& made, const DeviceGroup& group) {
    FrequentOrder::Run(made, group);
  }
  template <class Sums>
  static __device__ void Sum(const Sums& sums, const DeviceGroup& group, size_t slice) {
    FrequentSum<Sums>::Run(sums, group, slice);
  }
};

// The first blocks do the parts for blocks, and the tiles of the others the rest.
template <class Tile, class Kernel>
__global__ void __launch_bounds__(kThreadsOfBlock)
    RunBlocks(const __grid_constant__ Kernel kernel, unsigned num_blocks) {
  if (blockIdx.x < num_blocks) {
    const size_t count = kernel.NumForBlocks();
    for (size_t i = blockIdx.x; i < count; i += num_blocks) kernel.template OnBlock<CudaBlock>(i);
    return;
  }
  constexpr size_t kTiles = kThreadsOfBlock / Tile::kLanes;
  const size_t tiles = (gridDim.x - num_blocks) * kTiles;
  const size_t count = kernel.NumTiles();
  size_t i = (blockIdx.x - num_blocks) * kTiles + threadIdx.x / Tile::kLanes;
  for (; i < count; i += tiles) kernel(Tile(), i);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CUDA_FREQUENT_KEYS_INL_H_
