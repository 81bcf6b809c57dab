#include "cc/cuda/device_table_inl.h"
#include "cc/cuda/host_device.h"

namespace tf_embed {

Status NewDeviceTableOnHost(const TableOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Table>* table, Allocator* pinned) {
  return DeviceTable<HostDevice>::Create(options, device, HostDevice(options.allocator, pinned),
                                         table);
}

}  // namespace tf_embed
