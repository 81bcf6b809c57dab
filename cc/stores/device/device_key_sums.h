// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a batch in device memory, and the sums of their gradients. Results are equal
// to KeySums to the last bit, for keys that the host can't read.
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

  // Called once. `keys` [num_keys] is in device memory, `padding` in host memory, as in
  // KeySums::Build. Waits for the stream of the context, because the caller needs the number of
  // distinct keys to allocate memory for them. The stream and `keys` outlive the sums.
  virtual Status Build(const ExecContext& context, const int64_t* keys, size_t num_keys,
                       const int64_t* padding) = 0;

  // Number of distinct keys.
  virtual size_t size() const = 0;

  // KeySums::WriteKeys and WriteInverse.
  virtual Status WriteKeys(int64_t* distinct, int32_t* inverse) const = 0;

  // KeySums::WriteSums. Bags and padding are on the host and are copied.
  virtual Status WriteSums(const KeyGradients& gradients, DataType type, void* sums) const = 0;
};

// On a GPU; null if this build has no GPU support.
std::unique_ptr<DeviceKeySums> NewDeviceKeySums(int device);

// On the emulated device, whose memory is the allocator.
std::unique_ptr<DeviceKeySums> NewEmulatedDeviceKeySums(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_H_
