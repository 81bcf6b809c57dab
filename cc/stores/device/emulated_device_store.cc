// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cc/stores/device/device_key_sums_inl.h"
#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "cc/stores/device/launch_queue.h"

namespace tf_embed {

Status NewEmulatedDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                              std::unique_ptr<Store>* store, Allocator* pinned) {
  using Device = QueuedDevice<EmulatedDevice>;
  return DeviceStoreImpl<Device>::Create(
      options, device, Device(options.allocator, pinned, /*in_serial=*/options.is_cache), store);
}

std::unique_ptr<DeviceSplit> NewEmulatedDeviceSplit(Allocator* allocator) {
  using Device = QueuedDevice<EmulatedDevice>;
  return std::make_unique<DeviceSplitOn<Device>>(Device(allocator), allocator);
}

std::unique_ptr<DeviceKeySums> NewEmulatedDeviceKeySums(Allocator* allocator) {
  return std::make_unique<DeviceKeySumsOn<EmulatedDevice>>(EmulatedDevice(allocator), allocator);
}

}  // namespace tf_embed
