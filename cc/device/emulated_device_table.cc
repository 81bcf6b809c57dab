// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cc/device/device_key_sums_inl.h"
#include "cc/device/device_split_inl.h"
#include "cc/device/device_table_inl.h"
#include "cc/device/emulated_device.h"

namespace tf_embed {

Status NewEmulatedDeviceTable(const TableOptions& options, const DeviceOptions& device,
                              std::unique_ptr<Table>* table, Allocator* pinned) {
  return DeviceTableImpl<EmulatedDevice>::Create(
      options, device, EmulatedDevice(options.allocator, pinned, /*in_serial=*/options.is_cache),
      table);
}

std::unique_ptr<DeviceSplit> NewEmulatedDeviceSplit(Allocator* allocator) {
  return std::make_unique<DeviceSplitOn<EmulatedDevice>>(EmulatedDevice(allocator), allocator);
}

std::unique_ptr<DeviceKeySums> NewEmulatedDeviceKeySums(Allocator* allocator) {
  return std::make_unique<DeviceKeySumsOn<EmulatedDevice>>(EmulatedDevice(allocator), allocator);
}

}  // namespace tf_embed
