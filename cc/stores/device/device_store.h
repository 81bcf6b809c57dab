// SPDX-License-Identifier: Apache-2.0
// Makes stores whose rows are in the memory of a device: an NVIDIA GPU, or the host in its place.
// The arrays of a batch (keys, positions, rows, gradients, flags, defaults) are in memory that the
// device reads and writes, and are ready on the stream of the ExecContext. Exports are on the host.
// Verbs allocate memory and may wait, so a CUDA graph can't capture them. This file has no CUDA
// types.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_H_

#include <cstdint>
#include <memory>

#include "cc/core/base/status.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/store/store.h"

namespace tf_embed {

struct DeviceOptions {
  int device = 0;  // the GPU's number
  // Limit on the device memory of the index and the rows. At the limit, a store refuses new keys
  // and counts them (StoreStats::refused). If its policy bounds its rows (RowPolicy::max_rows;
  // SIZE_MAX if bytes alone decide), its bound is at most the number of rows that fit.
  uint64_t max_bytes = UINT64_MAX;
  // Limit on the device memory of the rows. If the limits or the device leave no memory for rows,
  // they go to pinned host memory, up to `max_host_bytes`, which the device accesses over the bus.
  // So stores can be larger than the GPU's memory. A row never moves. The index and all counters
  // are always on the device, 30 to 60 bytes for each row in either memory. A store with rows on
  // the host needs this limit, which leaves memory for them.
  uint64_t max_row_bytes = UINT64_MAX;
  uint64_t max_host_bytes = 0;
};

// A bounded store evicts within eviction sets. There are 2^EvictionSetBits(bound) sets, and the
// highest bits of a key's hash select its set. A new key that finds the store full replaces the
// lowest row of its eviction set that is not used in the present step; if there is no such row, the
// key is refused. An eviction set of a full store has at least this many rows on average. So the
// evicted row is the lowest of 128 to 255 rows, or of all rows if the bound is below 256. On the
// host it is the lowest of all rows.
inline constexpr uint64_t kMinEvictionSetRows = 128;
inline uint32_t EvictionSetBits(uint64_t bound) {
  uint32_t bits = 0;
  while (bound >> (bits + 1) >= kMinEvictionSetRows) ++bits;
  return bits;
}

// Some bags of a store's keys, and the gradients of the pooled rows, in device memory.
struct BagGradients {
  const int64_t* keys = nullptr;  // [num_keys], of all bags, consecutively
  size_t num_keys = 0;
  // [num_bags + 1]: bag b has keys splits[b] - splits[0] up to splits[b + 1] - splits[0].
  const int64_t* splits = nullptr;
  size_t num_bags = 0;
  const float* weights = nullptr;  // [num_keys]; null: all 1
  // The gradient of bag b begins at begin + b * stride.
  size_t begin = 0;
  size_t stride = 0;
};

// A store in the memory of a device, as NewDeviceStore and NewEmulatedDeviceStore make it.
class DeviceStore : public Store {
 public:
  // Writes the address of the weights of each key's row, null for an absent key, to `rows` in
  // device memory: a find without copies. An address is valid until the store is written or shrunk.
  virtual Status FindPointers(const ExecContext& context, const KeyBatch& batch,
                              const void** rows) const = 0;

  // FindPooled (pooled_find.h) in as few launches as carry all batches, of this store and other
  // stores on its device. Bags, owners, padding and the structs are on the host, and arrays among
  // them are copied. Keys, weights, defaults and pooled rows are in device memory. The host does
  // not wait, except for a snapshot of changes. Sums have the same order as on the host, so the
  // same bits. For a batch in several shards, the first shard counts hits and misses.
  virtual Status FindPooled(const ExecContext& context, const PooledFind* finds,
                            size_t count) const = 0;

  // Apply for the keys of some batches of bags, consecutively. The gradient of a key is its bag's
  // gradient in `gradients`, multiplied by the key's weight and, with kMeanOfCount, divided by the
  // number of keys in the bag. Gradients are read bag by bag, and per-key gradients are never
  // stored. Refuses other combiners than kMeanOfCount and kSum, and stores of double.
  virtual Status ApplyBags(const ExecContext& context, const float* gradients,
                           const BagGradients* batches, size_t count, Combiner combiner,
                           const Rule& rule) = 0;
};

// The number of GPUs that can hold stores. 0 if this build has no GPU support, or if the driver is
// older than the build's CUDA.
int NumGpus();

// Makes a store on a GPU. kUnavailable if this build has no GPU support, the machine has no GPU, or
// the GPU's driver has no memory pools. Admission counts, sinks and change logs are on the host, so
// writes of a store with any of them wait for the device. Writes of other stores do not.
Status NewDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                      std::unique_ptr<Store>* store);

// The same store with the host as the device: its memory is the allocator of the options, and its
// threads are the caller's. For tests, and to predict the behaviour of a store on a GPU. `pinned`
// stands for host memory that the device can reach; null: the same allocator.
Status NewEmulatedDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                              std::unique_ptr<Store>* store, Allocator* pinned = nullptr);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_H_
