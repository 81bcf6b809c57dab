// SPDX-License-Identifier: Apache-2.0
// A store on a device for callers whose arrays are on the host: each verb copies them to device
// memory and back. So these callers need to know nothing of GPUs.
#ifndef TF_EMBED_CC_STORES_DEVICE_HOST_ACCESS_STORE_H_
#define TF_EMBED_CC_STORES_DEVICE_HOST_ACCESS_STORE_H_

#include <cstddef>
#include <memory>

#include "cc/core/base/exec_context.h"
#include "cc/core/store/store.h"

namespace tf_embed {

// The memory of a device, for callers of its stores. Each call is a part of the context's stream:
// work queued before a Free may still use the memory, but no work queued after it. CopyOut and Wait
// return when all queued work is done. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* Allocate(const ExecContext& context, size_t bytes) = 0;  // nullptr without memory
  virtual void Free(const ExecContext& context, void* memory, size_t bytes) = 0;
  virtual Status CopyIn(const ExecContext& context, const void* host, size_t bytes,
                        void* device) = 0;
  virtual Status CopyOut(const ExecContext& context, const void* device, size_t bytes,
                         void* host) = 0;
  // Copies from one device array to another.
  virtual Status CopyWithin(const ExecContext& context, const void* from, size_t bytes,
                            void* to) = 0;
  virtual Status Wait(const ExecContext& context) = 0;
};

// Host memory in place of device memory, for stores of NewEmulatedDeviceStore.
DeviceMemory* EmulatedDeviceMemory();

// The memory of a GPU; null if this build has no GPU support.
DeviceMemory* MemoryOfDevice(int device);

// `memory` outlives the store.
std::unique_ptr<Store> NewHostAccessStore(std::unique_ptr<Store> store, DeviceMemory* memory);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_HOST_ACCESS_STORE_H_
