// SPDX-License-Identifier: Apache-2.0
// The kernels with which an NVIDIA GPU groups the equal keys of a batch. Each key claims a place in
// a hash table for the batch. A stable sort by these places, which have few bits, puts equal keys
// next to each other in batch order. A sort by the 64-bit keys takes twice as long.
//
// Included only by device_store.cu.
#ifndef TF_EMBED_CC_STORES_DEVICE_CUDA_GROUPS_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_CUDA_GROUPS_INL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// The bits of a place. There are at least twice as many places as keys, except for the largest
// batches.
inline int BitsOfClaims(size_t keys) {
  int bits = 1;
  while (bits < 32 && (uint64_t{1} << bits) < 2 * uint64_t{keys}) ++bits;
  return bits;
}

// Returns the place of key i. `claims` [2^bits, zeros] has, for each taken place, 1 + the number of
// a key with this place. `salt` keeps chosen keys from making it slow.
__device__ inline uint32_t ClaimPlace(const int64_t* keys, size_t i, uint64_t salt, int bits,
                                      uint32_t* claims) {
  const int64_t key = keys[i];
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t place = Mix64(static_cast<uint64_t>(key) ^ salt) & mask;
  for (;;) {
    // A plain load first: the place of a frequent key is mostly taken, and atomics on an address
    // wait for each other.
    uint32_t there = *static_cast<const volatile uint32_t*>(claims + place);
    if (there == 0) there = atomicCAS(claims + place, 0u, static_cast<uint32_t>(i) + 1);
    if (there == 0 || keys[there - 1] == key) return static_cast<uint32_t>(place);
    place = (place + 1) & mask;
  }
}

// Writes the place and the number of each key, to sort the numbers by the places.
__global__ void ClaimPlaces(const int64_t* keys, size_t count, uint64_t salt, int bits,
                            uint32_t* claims, uint32_t* places, uint32_t* numbers) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  places[i] = ClaimPlace(keys, i, salt, bits, claims);
  numbers[i] = static_cast<uint32_t>(i);
}

// The first key of each place, as its distance from the end, and the number of keys. Initially
// zeros.
struct FirstOfPlace {
  uint32_t before_end;
  uint32_t count;
};

// ClaimPlaces, and `firsts` [2^bits] for WriteFirsts.
__global__ void ClaimFirsts(const int64_t* keys, size_t count, uint64_t salt, int bits,
                            uint32_t* claims, uint32_t* places, FirstOfPlace* firsts) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const unsigned lanes = __ballot_sync(0xffffffffu, i < count);
  if (i >= count) return;
  const uint32_t place = ClaimPlace(keys, i, salt, bits, claims);
  places[i] = place;
  // Once for all equal keys of a warp. The lowest of their lanes has the first key.
  const unsigned equal = __match_any_sync(lanes, place);
  if (__ffs(static_cast<int>(equal)) - 1 != static_cast<int>(threadIdx.x % 32)) return;
  atomicMax(&firsts[place].before_end, UINT32_MAX - static_cast<uint32_t>(i));
  atomicAdd(&firsts[place].count, static_cast<uint32_t>(__popc(equal)));
}

// Makes groups that know only their first member. The groups at the other members have count 0.
__global__ void WriteFirsts(const int64_t* keys, size_t count, const uint32_t* places,
                            const FirstOfPlace* firsts, uint32_t* members, uint32_t* numbers,
                            DeviceGroup* groups, uint32_t* size) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i == 0) *size = static_cast<uint32_t>(count);
  if (i >= count) return;
  const FirstOfPlace here = firsts[places[i]];
  const uint32_t first = UINT32_MAX - here.before_end;
  members[i] = static_cast<uint32_t>(i);
  numbers[i] = first;
  groups[i] = DeviceGroup{keys[i], members + i, first == i ? here.count : 0};
}

// Writes 1 to `heads` [count + 1] at each key whose place differs from the place before it.
__global__ void MarkHeads(const uint32_t* places, size_t count, uint32_t* heads) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // There is 1 thread more than keys: the last writes the 0 that RunningSum turns into the number
  // of groups.
  if (i > count) return;
  heads[i] = i < count && (i == 0 || places[i] != places[i - 1]) ? 1 : 0;
}

// `sums` is the running sum of MarkHeads. Writes the start of each group, and the group of each
// key.
__global__ void WriteStarts(const uint32_t* sums, const uint32_t* members, size_t count,
                            uint32_t* starts, uint32_t* numbers) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint32_t number = sums[i + 1] - 1;
  if (sums[i] == number) starts[number] = static_cast<uint32_t>(i);
  numbers[members[i]] = number;
}

__global__ void WriteGroups(const int64_t* keys, const uint32_t* members, const uint32_t* starts,
                            const uint32_t* size, size_t count, DeviceGroup* groups) {
  const size_t g = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (g >= *size) return;
  const uint32_t begin = starts[g];
  const uint32_t end = g + 1 < *size ? starts[g + 1] : static_cast<uint32_t>(count);
  groups[g] = DeviceGroup{keys[members[begin]], members + begin, end - begin};
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CUDA_GROUPS_INL_H_
