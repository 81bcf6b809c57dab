// SPDX-License-Identifier: Apache-2.0
// Splits of batches in device memory.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_

#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/table/shard_split.h"

namespace tf_embed {

// On a GPU; null if this build has no GPU support.
std::unique_ptr<DeviceSplit> NewDeviceSplit(int device);

// On the emulated device, whose memory is the allocator.
std::unique_ptr<DeviceSplit> NewEmulatedDeviceSplit(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_H_
