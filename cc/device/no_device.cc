// SPDX-License-Identifier: Apache-2.0
// Stubs for device_table.cu in builds without CUDA.
#include "cc/device/copying_table.h"
#include "cc/device/device_key_sums.h"
#include "cc/device/device_split.h"
#include "cc/device/device_table.h"

namespace tf_embed {

int NumGpus() { return 0; }

DeviceMemory* MemoryOfDevice(int) { return nullptr; }

std::unique_ptr<DeviceSplit> NewDeviceSplit(int) { return nullptr; }

std::unique_ptr<DeviceKeySums> NewDeviceKeySums(int) { return nullptr; }

Status NewDeviceTable(const TableOptions& options, const DeviceOptions&, std::unique_ptr<Table>*) {
  return Status::Unavailable("Table '" + options.name +
                             "' can't be on a GPU: there is no GPU support in this build.");
}

}  // namespace tf_embed
