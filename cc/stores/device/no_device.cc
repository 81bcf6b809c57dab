// SPDX-License-Identifier: Apache-2.0
// Stubs for device_store.cu in builds without CUDA.
#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"

namespace tf_embed {

int NumGpus() { return 0; }

DeviceMemory* MemoryOfDevice(int) { return nullptr; }

std::unique_ptr<DeviceSplit> NewDeviceSplit(int) { return nullptr; }

std::unique_ptr<DeviceKeySums> NewDeviceKeySums(int) { return nullptr; }

Status NewDeviceStore(const StoreOptions& options, const DeviceOptions&, std::unique_ptr<Store>*) {
  return Status::Unavailable("Table '" + options.name +
                             "' can't be on a GPU: there is no GPU support in this build.");
}

}  // namespace tf_embed
