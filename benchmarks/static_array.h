// SPDX-License-Identifier: Apache-2.0
// The baseline of a table in device_store_benchmark.cu: embeddings of ids from 0 on in arrays,
// row `id` at id * dim, with Adam. Equal ids of a batch are brought together by a sort, of no more
// bits than the ids have, and a row changes once, by the sum of its gradients.
#ifndef TF_EMBED_BENCHMARKS_STATIC_ARRAY_H_
#define TF_EMBED_BENCHMARKS_STATIC_ARRAY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "benchmarks/device_machine.h"
#include "cc/core/rules/rule_list.h"

#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#endif

namespace tf_embed {

#if defined(__CUDACC__)

// A row of 16 threads; `dim` is a multiple of 4.
__global__ void GatherRows(const int64_t* ids, size_t count, const float* weights, size_t dim,
                           float* rows) {
  const size_t i = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 16;
  if (i >= count) return;
  const float4* const from = reinterpret_cast<const float4*>(weights + ids[i] * dim);
  float4* const to = reinterpret_cast<float4*>(rows + i * dim);
  for (size_t j = threadIdx.x % 16; j < dim / 4; j += 16) to[j] = from[j];
}

__global__ void NumberIds(uint32_t* places, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) places[i] = static_cast<uint32_t>(i);
}

// 1 at the first of equal ids; `heads` [count + 1].
__global__ void MarkFirstIds(const int64_t* ids, size_t count, uint32_t* heads) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i <= count) heads[i] = i < count && (i == 0 || ids[i] != ids[i - 1]) ? 1 : 0;
}

__global__ void WriteFirstIds(const uint32_t* sums, size_t count, uint32_t* firsts) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && sums[i + 1] != sums[i]) firsts[sums[i]] = static_cast<uint32_t>(i);
  if (i == count) firsts[sums[count]] = static_cast<uint32_t>(count);
}

// A block for each distinct id, a thread for each column. Gradients are loaded sixteen at a time.
__global__ void StepRows(const RuleConstants<float> constants, const int64_t* ids,
                         const uint32_t* places, const uint32_t* firsts, const uint32_t* distinct,
                         const float* gradients, size_t dim, float* weights, float* moments) {
  if (blockIdx.x >= *distinct) return;
  const uint32_t begin = firsts[blockIdx.x], end = firsts[blockIdx.x + 1];
  __shared__ uint32_t here[1024];
  const size_t j = threadIdx.x;
  float sum = 0;
  for (uint32_t first = begin; first < end; first += blockDim.x) {
    const uint32_t count = end - first < blockDim.x ? end - first : blockDim.x;
    __syncthreads();
    if (threadIdx.x < count) here[threadIdx.x] = places[first + threadIdx.x];
    __syncthreads();
    for (uint32_t k = 0; k < count; k += 16) {
      float loaded[16];
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        loaded[i] = k + i < count ? gradients[here[k + i] * dim + j] : 0.0f;
      }
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) sum += loaded[i];
    }
  }
  const size_t at = ids[begin] * dim + j;
  float* const of_row = moments + 2 * ids[begin] * dim;
  float slots[] = {of_row[j], of_row[dim + j]};
  float weight = weights[at];
  AdamRule<false>::Step(constants.Of<AdamRule<false>>(), sum, weight, slots);
  weights[at] = weight;
  of_row[j] = slots[0];
  of_row[dim + j] = slots[1];
}

#endif

class StaticArray {
 public:
  // For batches of `batch` ids; `dim` is at most 1024.
  StaticArray(size_t rows, size_t dim, size_t batch)
      : dim_(dim), batch_(batch), weights_(rows * dim), moments_(2 * rows * dim) {
    while ((rows - 1) >> bits_ > 0) ++bits_;
#if defined(__CUDACC__)
    size_t sort_bytes = 0, sum_bytes = 0;
    Sort(nullptr, nullptr, &sort_bytes, Machine::Stream());
    Sum(nullptr, &sum_bytes, Machine::Stream());
    scratch_bytes_ = std::max(sort_bytes, sum_bytes);
    scratch_ = std::make_unique<MachineArray<char>>(scratch_bytes_);
#endif
  }

#if defined(__CUDACC__)

  void Gather(const int64_t* ids, float* rows, cudaStream_t stream) {
    GatherRows<<<Blocks(16 * batch_), kThreads, 0, stream>>>(ids, batch_, weights_.data(), dim_,
                                                             rows);
    Machine::Check(cudaGetLastError());
  }

  void Step(const int64_t* ids, const float* gradients, const Rule& rule, cudaStream_t stream) {
    const unsigned blocks = Blocks(batch_ + 1);
    NumberIds<<<blocks, kThreads, 0, stream>>>(places_.data(), batch_);
    Sort(scratch_->data(), ids, &scratch_bytes_, stream);
    MarkFirstIds<<<blocks, kThreads, 0, stream>>>(sorted_ids_.data(), batch_, heads_.data());
    Sum(scratch_->data(), &scratch_bytes_, stream);
    WriteFirstIds<<<blocks, kThreads, 0, stream>>>(heads_.data(), batch_, firsts_.data());
    StepRows<<<static_cast<unsigned>(batch_), static_cast<unsigned>(dim_), 0, stream>>>(
        RuleConstants<float>(rule), sorted_ids_.data(), sorted_places_.data(), firsts_.data(),
        heads_.data() + batch_, gradients, dim_, weights_.data(), moments_.data());
    Machine::Check(cudaGetLastError());
  }

 private:
  static constexpr unsigned kThreads = 256;
  static unsigned Blocks(size_t threads) {
    return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  }
  void Sort(char* scratch, const int64_t* ids, size_t* bytes, cudaStream_t stream) {
    Machine::Check(cub::DeviceRadixSort::SortPairs(scratch, *bytes, ids, sorted_ids_.data(),
                                                   places_.data(), sorted_places_.data(), batch_, 0,
                                                   bits_, stream));
  }
  void Sum(char* scratch, size_t* bytes, cudaStream_t stream) {
    Machine::Check(cub::DeviceScan::ExclusiveSum(scratch, *bytes, heads_.data(), heads_.data(),
                                                 batch_ + 1, stream));
  }

#else

  void Gather(const int64_t* ids, float* rows, void*) {
    for (size_t i = 0; i < batch_; ++i) {
      std::copy_n(weights_.data() + static_cast<size_t>(ids[i]) * dim_, dim_, rows + i * dim_);
    }
  }

  void Step(const int64_t* ids, const float* gradients, const Rule& rule, void*) {
    const RuleConstants<float> constants(rule);
    std::vector<size_t> places(batch_);
    std::iota(places.begin(), places.end(), size_t{0});
    std::stable_sort(places.begin(), places.end(),
                     [ids](size_t a, size_t b) { return ids[a] < ids[b]; });
    for (size_t begin = 0, end; begin < batch_; begin = end) {
      const size_t id = static_cast<size_t>(ids[places[begin]]);
      end = begin + 1;
      while (end < batch_ && ids[places[end]] == ids[places[begin]]) ++end;
      float* const of_row = moments_.data() + 2 * id * dim_;
      for (size_t j = 0; j < dim_; ++j) {
        float sum = 0;
        for (size_t k = begin; k < end; ++k) sum += gradients[places[k] * dim_ + j];
        float slots[] = {of_row[j], of_row[dim_ + j]};
        AdamRule<false>::Step(constants.Of<AdamRule<false>>(), sum, weights_.data()[id * dim_ + j],
                              slots);
        of_row[j] = slots[0];
        of_row[dim_ + j] = slots[1];
      }
    }
  }

 private:
#endif
  const size_t dim_;
  const size_t batch_;
  int bits_ = 0;
  MachineArray<float> weights_;
  MachineArray<float> moments_;  // of a row beside one another
#if defined(__CUDACC__)
  MachineArray<int64_t> sorted_ids_{batch_};
  MachineArray<uint32_t> places_{batch_};
  MachineArray<uint32_t> sorted_places_{batch_};
  MachineArray<uint32_t> heads_{batch_ + 1};
  MachineArray<uint32_t> firsts_{batch_ + 1};
  size_t scratch_bytes_ = 0;
  std::unique_ptr<MachineArray<char>> scratch_;
#endif
};

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_STATIC_ARRAY_H_
