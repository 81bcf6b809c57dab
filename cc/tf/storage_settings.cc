// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/storage_settings.h"

#include "cc/tf/settings.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

absl::Status StorageSettings::Read(const Settings& settings) {
  TF_RETURN_IF_ERROR(settings.GetNumber("gpu_total_bytes", -1, &gpu_total_bytes));
  TF_RETURN_IF_ERROR(settings.GetNumber("gpu_bytes", -1, &gpu_bytes));
  TF_RETURN_IF_ERROR(settings.GetNumber("host_bytes", -1, &host_bytes));
  TF_RETURN_IF_ERROR(settings.Get("evict_by_bytes", &evict_by_bytes));
  TF_RETURN_IF_ERROR(settings.Get("path", &path));
  TF_RETURN_IF_ERROR(settings.GetNumber("disk_bytes", -1, &disk_bytes));
  return settings.Get("keep_leftovers", &keep_leftovers);
}

absl::Status StorageSettings::ForShard(const std::string& table, int64_t shard, int64_t num_shards,
                                       int gpu, StorageOptions* options) const {
  const auto part = [num_shards](int64_t bytes) {
    return bytes < 0 ? UINT64_MAX : static_cast<uint64_t>(bytes / num_shards);
  };
  options->on_device = gpu >= 0;
  options->device.device = gpu;
  options->device.max_bytes = part(gpu_total_bytes);
  options->device.max_row_bytes = part(gpu_bytes);
  options->device.max_host_bytes = part(host_bytes);
  if (path.empty()) return absl::OkStatus();
  if (gpu < 0 && host_bytes < 0) {
    return InvalidArgumentError(
        "Table '", table,
        "' is on a CPU with a `path`, and needs `host_bytes`: rows go to disk "
        "only when the cache in host memory is full. Received: "
        "host_bytes=None.");
  }
  if (gpu >= 0 && gpu_bytes < 0) {
    return InvalidArgumentError(
        "Table '", table,
        "' is on a GPU with a `path`, and needs `gpu_bytes`: rows go to disk "
        "only when the cache in the GPU's memory is full. Received: "
        "gpu_bytes=None.");
  }
  if (gpu >= 0 && (gpu_total_bytes >= 0 || host_bytes > 0)) {
    return InvalidArgumentError("Table '", table,
                                "' is on a GPU with a `path`, and takes `gpu_bytes` alone of the "
                                "bounds on memory. Received: ",
                                gpu_total_bytes >= 0 ? "gpu_total_bytes=" : "host_bytes=",
                                gpu_total_bytes >= 0 ? gpu_total_bytes : host_bytes, ".");
  }
  options->tiers.path = path;
  options->tiers.name = absl::StrCat(table, "-", shard);
  options->tiers.cache_bytes = part(gpu >= 0 ? gpu_bytes : host_bytes);
  options->tiers.disk_bytes = part(disk_bytes);
  options->tiers.keep_leftovers = keep_leftovers;
  return absl::OkStatus();
}

}  // namespace tf_embed
