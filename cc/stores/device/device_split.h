// SPDX-License-Identifier: Apache-2.0
// Splits a batch in device memory over the shards that a table has there. Results are equal to
// ShardSplit, for keys that the host can't read.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/store/store.h"

namespace tf_embed {

class DeviceSplit {
 public:
  virtual ~DeviceSplit() = default;

  // Called once. `keys` [size] is in device memory. `owners` [size], in host memory, has the shard
  // of each key; null means DefaultShard. If there are several shards, waits for the stream of the
  // context, because verbs need the sizes of their batches. `owners` may go when it returns. The
  // stream and `keys` outlive the split.
  virtual Status Build(const ExecContext& context, const int64_t* keys, size_t size,
                       const int32_t* owners, size_t num_shards, bool unsigned_keys) = 0;

  // The keys of a shard, with their positions, in device memory.
  virtual KeyBatch shard(size_t number) const = 0;
};

// On a GPU; null if this build has no GPU support.
std::unique_ptr<DeviceSplit> NewDeviceSplit(int device);

// On the emulated device, whose memory is the allocator.
std::unique_ptr<DeviceSplit> NewEmulatedDeviceSplit(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_
