// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a batch in the memory of a device, and the sums of their gradients: KeySums,
// with the same numbers and the same bits, for keys that the host can't read.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/pooling/key_gradients.h"

namespace tf_embed {

class DeviceKeySums {
 public:
  virtual ~DeviceKeySums() = default;

  // Comes once. `keys` [num_keys] in the device's memory, `padding` in the host's, as in
  // KeySums::Build. Waits for the stream of the context, as the caller must know how many distinct
  // keys there are before he has memory for them. The stream and `keys` outlive the sums.
  virtual Status Build(const ExecContext& context, const int64_t* keys, size_t num_keys,
                       const int64_t* padding) = 0;

  // Number of distinct keys.
  virtual size_t size() const = 0;

  // KeySums::WriteKeys and WriteInverse.
  virtual Status WriteKeys(int64_t* distinct, int32_t* inverse) const = 0;

  // KeySums::WriteSums. Bags and padding are on the host and copied.
  virtual Status WriteSums(const KeyGradients& gradients, DataType type, void* sums) const = 0;
};

// On a GPU; null where this build has no GPU support.
std::unique_ptr<DeviceKeySums> NewDeviceKeySums(int device);

// With the host for a device, whose memory is the allocator.
std::unique_ptr<DeviceKeySums> NewEmulatedDeviceKeySums(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_H_
