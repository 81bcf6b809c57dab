// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/gpu_tables.h"

#include "cc/tf/table_resource.h"

namespace tf_embed {

namespace tf = ::tensorflow;

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

}  // namespace tf_embed
