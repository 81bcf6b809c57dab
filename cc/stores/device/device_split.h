// SPDX-License-Identifier: Apache-2.0
// Spreads a batch in the memory of a device over the shards that a variable has there: ShardSplit,
// by the same rule and in the same order, for keys that the host can't read.
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

  // Comes once. `keys` [size] in the device's memory; `owners` [size] in the host's: the shard of
  // each key, or null for DefaultShard. Of more shards than one it waits for the stream of the
  // context, since verbs are told the sizes of their batches; `owners` may go when it returns. The
  // stream and `keys` outlive the split.
  virtual Status Build(const ExecContext& context, const int64_t* keys, size_t size,
                       const int32_t* owners, size_t num_shards, bool unsigned_keys) = 0;

  // The keys of a shard, with their positions, in the device's memory.
  virtual KeyBatch shard(size_t number) const = 0;
};

// On a GPU; null where this build has no GPU support.
std::unique_ptr<DeviceSplit> NewDeviceSplit(int device);

// With the host for a device, whose memory is the allocator.
std::unique_ptr<DeviceSplit> NewEmulatedDeviceSplit(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_
