// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/storage_settings.h"

#include <algorithm>

#include "cc/tf/settings.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

absl::Status StorageSettings::Read(const Settings& settings) {
  TF_RETURN_IF_ERROR(settings.GetNumber("gpu_total_bytes", -1, &gpu_total_bytes));
  TF_RETURN_IF_ERROR(settings.GetNumber("gpu_bytes", -1, &gpu_bytes));
  TF_RETURN_IF_ERROR(settings.GetNumber("host_bytes", -1, &host_bytes));
  TF_RETURN_IF_ERROR(settings.Get("gpu_cache", &gpu_cache));
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
  if (!HasTiers(gpu)) return absl::OkStatus();
  if (gpu < 0 && host_bytes < 0) {
    return InvalidArgumentError(
        "Table '", table,
        "' is on a CPU with a `path`, and needs `host_bytes`: rows go to disk "
        "only when the cache in host memory is full. Received: "
        "host_bytes=None.");
  }
  const char* const kind = path.empty() ? "`gpu_cache`" : "a `path`";
  if (gpu >= 0 && gpu_bytes < 0) {
    return InvalidArgumentError("Table '", table, "' is on a GPU with ", kind,
                                ", and needs `gpu_bytes`: rows go to lower tiers only when the "
                                "cache in the GPU's memory is full. Received: gpu_bytes=None.");
  }
  if (gpu >= 0 && gpu_total_bytes >= 0) {
    return InvalidArgumentError("Table '", table, "' is on a GPU with ", kind,
                                ", and takes `gpu_bytes`, not `gpu_total_bytes`, for its cache. "
                                "Received: gpu_total_bytes=",
                                gpu_total_bytes, ".");
  }
  if (gpu >= 0 && path.empty() && host_bytes >= 0) {
    return InvalidArgumentError("Table '", table,
                                "' is on a GPU with `gpu_cache` and without a `path`, and takes no "
                                "`host_bytes`: rows that leave the cache have no other place. "
                                "Received: host_bytes=",
                                host_bytes, ".");
  }
  options->tiers.path = path;
  options->tiers.name = absl::StrCat(table, "-", shard);
  options->tiers.cache_bytes = part(gpu >= 0 ? gpu_bytes : host_bytes);
  // Beside a disk no bound means no such tier. A part too small for a row is refused later.
  const bool has_host = host_bytes > 0 || path.empty();
  if (gpu >= 0 && has_host) {
    options->tiers.host_bytes = std::max<uint64_t>(1, part(host_bytes));
  }
  options->tiers.disk_bytes = part(disk_bytes);
  options->tiers.keep_leftovers = keep_leftovers;
  return absl::OkStatus();
}

}  // namespace tf_embed
