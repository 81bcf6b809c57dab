// SPDX-License-Identifier: Apache-2.0
// Makes stores whose rows are in the memory of a device: an NVIDIA GPU, or the host in its place.
// The arrays of a batch (keys, positions, rows, gradients, flags, defaults) are then in memory that
// the device reads and writes, and are ready on the stream of the ExecContext; what is exported is
// on the host. Verbs take memory and may wait, so they can't be captured in a CUDA graph. Free of
// CUDA types.
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
  // The most bytes of the device's memory that index and rows may take. A store that would need
  // more refuses new keys and counts them (StoreStats::refused); one whose policy bounds its rows
  // (RowPolicy::max_rows; SIZE_MAX if bytes alone decide) takes as many as there are places for as
  // its bound.
  uint64_t max_bytes = UINT64_MAX;
  // The most bytes that rows alone may take of it. Rows for which bounds or device leave no memory
  // go to pinned memory of the host, up to `max_host_bytes`, which the device reads and writes over
  // the bus: for stores larger than the card. A row stays where it came. The index, and all
  // counters, are always on the device, 30 to 60 bytes for each row of both memories, for which a
  // store with rows on the host leaves memory by this bound.
  uint64_t max_row_bytes = UINT64_MAX;
  uint64_t max_host_bytes = 0;
};

// Evictions from a bounded store are decided by eviction set: there are 2^EvictionSetBits(bound),
// and the highest bits of a key's hash select its set. A new key that finds the store full takes
// the place of the lowest row of its eviction set that is not used in the present step; if there is
// none, it is refused. An eviction set of a full store has at least so many rows on average, so the
// row that leaves is the lowest of 128 to 255, or of all if the bound is lower than 256. On the
// host it is the lowest of all.
inline constexpr uint64_t kMinEvictionSetRows = 128;
inline uint32_t EvictionSetBits(uint64_t bound) {
  uint32_t bits = 0;
  while (bound >> (bits + 1) >= kMinEvictionSetRows) ++bits;
  return bits;
}

// Some bags of a store's keys, and the gradients of their pooled rows, in device memory.
struct BagGradients {
  const int64_t* keys = nullptr;  // [num_keys], of all bags, one behind the other
  size_t num_keys = 0;
  // [num_bags + 1]: bag b has keys splits[b] - splits[0] up to splits[b + 1] - splits[0].
  const int64_t* splits = nullptr;
  size_t num_bags = 0;
  const float* weights = nullptr;  // [num_keys]; null: ones
  // The gradient of bag b is the values from begin + b * stride on.
  size_t begin = 0;
  size_t stride = 0;
};

// A store in the memory of a device: all that NewDeviceStore and NewEmulatedDeviceStore make.
class DeviceStore : public Store {
 public:
  // Writes where the weights of each key's row are, null for an absent key, to `rows` in device
  // memory: a find that copies none. An address is good until the store is written again, or
  // shrunk.
  virtual Status FindPointers(const ExecContext& context, const KeyBatch& batch,
                              const void** rows) const = 0;

  // FindPooled (pooled_find.h), by one launch for all batches, of this store and others on its
  // device. Bags, owners, padding and the structs are on the host and copied; keys, weights,
  // defaults and pooled rows are in device memory. The host does not wait. Sums have the order that
  // they have on the host, so the same bits. Of a batch in several shards the first one counts hits
  // and misses.
  virtual Status FindPooled(const ExecContext& context, const PooledFind* finds,
                            size_t count) const = 0;

  // Apply of the keys of some batches of bags, one behind the other: the gradient of a key is that
  // of its bag in `gradients`, multiplied with the key's weight and, with kMeanOfCount, divided by
  // the number of keys in the bag. It is read bag by bag, and none is written down. Other combiners
  // than this and kSum, and stores of double, are refused.
  virtual Status ApplyBags(const ExecContext& context, const float* gradients,
                           const BagGradients* batches, size_t count, Combiner combiner,
                           const Rule& rule) = 0;
};

// The number of GPUs that can hold stores: none if this build has no GPU support, or if the
// driver is older than the CUDA of the build.
int NumGpus();

// Makes a store on a GPU. kUnavailable if this build has no GPU support, the machine has no GPU, or
// the GPU's driver has no memory pools.
// Admission counts on the host, and sinks are there, so that the writes of a store that has either
// wait for the device; those of others do not.
Status NewDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                      std::unique_ptr<Store>* store);

// The same store with the host for a device, whose memory is the allocator of the options and whose
// threads are the caller's. For tests, and to predict the behaviour of a store on a GPU. `pinned`
// stands for the host memory that the device can reach; null: it is the same allocator.
Status NewEmulatedDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                              std::unique_ptr<Store>* store, Allocator* pinned = nullptr);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_H_
