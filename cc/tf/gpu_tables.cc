// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/gpu_tables.h"

#include <utility>

#include "cc/stores/device/launch_queue.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

namespace tf = ::tensorflow;

int GpuOf(tf::OpKernelConstruction* construction) {
  const auto* const info = construction->device()->tensorflow_accelerator_device_info();
  return info != nullptr ? info->gpu_id : construction->device()->parsed_name().id;
}

absl::Status FindPooledOnGpu(const ExecContext& exec, const std::vector<const Table*>& tables,
                             const std::vector<PooledFind>& finds) {
  std::vector<PooledFind> together;
  DeviceStore* first = nullptr;
  for (size_t i = 0; i < finds.size(); ++i) {
    DeviceStore* const on_device = OnDevice(*tables[i]);
    if (tables[i]->store(0)->tiers() != nullptr) {
      TF_RETURN_IF_ERROR(ToTensorFlow(on_device->FindPooled(exec, &finds[i], 1)));
    } else {
      together.push_back(finds[i]);
      if (first == nullptr) first = on_device;
    }
  }
  if (first == nullptr) return absl::OkStatus();
  return ToTensorFlow(first->FindPooled(exec, together.data(), together.size()));
}

absl::Status TogetherOnGpu(const ExecContext& exec, size_t count,
                           absl::FunctionRef<Status(const ExecContext& exec, size_t i)> work) {
  LaunchQueue queue(count);
  ExecContext each = exec;
  each.queue = &queue;
  Status status;
  for (size_t i = 0; i < count && status.ok(); ++i) {
    queue.NextStore(exec);
    status = work(each, i);
  }
  const Status launched = queue.Finish(exec);
  return ToTensorFlow(status.ok() ? launched : std::move(status));
}

absl::Status WithMemoryAdvice(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return ResourceExhaustedError(
      status.message(),
      " TensorFlow takes nearly all memory of a GPU at its start: "
      "`tf.config.experimental.set_memory_growth(gpu, True)` leaves it to tables too.");
}

}  // namespace tf_embed
