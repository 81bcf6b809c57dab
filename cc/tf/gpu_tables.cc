// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/gpu_tables.h"

#include "cc/tf/table_resource.h"

namespace tf_embed {

namespace tf = ::tensorflow;

bool HasGpuTables() { return NumGpus() > 0 || EmulatesDevice(); }

int GpuOf(tf::OpKernelConstruction* construction) {
  const auto* const info = construction->device()->tensorflow_accelerator_device_info();
  return info != nullptr ? info->gpu_id : construction->device()->parsed_name().id;
}

absl::Status WithMemoryAdvice(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return ResourceExhaustedError(
      status.message(),
      " TensorFlow takes nearly all memory of a GPU at its start: "
      "`tf.config.experimental.set_memory_growth(gpu, True)` leaves it to tables too.");
}

std::unique_ptr<DeviceSplit> NewGpuSplit(int gpu) {
  return EmulatesDevice() ? NewEmulatedDeviceSplit(HostAllocator()) : NewDeviceSplit(gpu);
}

std::unique_ptr<DeviceKeySums> NewGpuKeySums(int gpu) {
  return EmulatesDevice() ? NewEmulatedDeviceKeySums(HostAllocator()) : NewDeviceKeySums(gpu);
}

}  // namespace tf_embed
