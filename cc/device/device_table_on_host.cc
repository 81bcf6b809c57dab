#include <memory>

#include "cc/device/device_key_sums_inl.h"
#include "cc/device/device_split_inl.h"
#include "cc/device/device_table_inl.h"
#include "cc/device/host_device.h"

namespace tf_embed {

Status NewDeviceTableOnHost(const TableOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Table>* table, Allocator* pinned) {
  return DeviceTable<HostDevice>::Create(options, device, HostDevice(options.allocator, pinned),
                                         table);
}

std::unique_ptr<DeviceSplit> NewDeviceSplitOnHost(Allocator* allocator) {
  return std::make_unique<DeviceSplitOn<HostDevice>>(HostDevice(allocator), allocator);
}

std::unique_ptr<DeviceKeySums> NewDeviceKeySumsOnHost(Allocator* allocator) {
  return std::make_unique<DeviceKeySumsOn<HostDevice>>(HostDevice(allocator), allocator);
}

}  // namespace tf_embed
