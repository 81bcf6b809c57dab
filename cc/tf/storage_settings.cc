// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/storage_settings.h"

#include <algorithm>

#include "cc/tf/settings_text.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

void StorageSettings::Read(SettingsText* text) {
  text->Read("gpu_total_bytes", &gpu_total_bytes, -1);
  text->Read("gpu_bytes", &gpu_bytes, -1);
  text->Read("host_bytes", &host_bytes, -1);
  text->Read("gpu_cache", &gpu_cache);
  text->Read("evict_by_bytes", &evict_by_bytes);
  text->Read("path", &path);
  text->Read("disk_bytes", &disk_bytes, -1);
  text->Read("keep_leftovers", &keep_leftovers);
  text->Read("redis_host", &redis.host);
  text->Read("redis_port", &redis.port);
  text->Read("redis_username", &redis.username);
  text->Read("redis_password", &redis.password);
  text->Read("redis_database", &redis.database);
  text->Read("redis_cluster", &redis.is_cluster);
  text->Read("redis_connect_timeout_ms", &redis.connect_timeout_ms);
  text->Read("redis_timeout_ms", &redis.timeout_ms);
  text->Read("redis_max_connections", &redis.max_connections);
  text->Read("redis_prefix", &redis.prefix);
  text->Read("redis_slices", &redis.slices);
  text->Read("redis_keys_per_command", &redis.keys_per_command);
}

absl::Status StorageSettings::Check() const {
  // Such a table would be in memory, where the other processes do not find it.
  if (!redis.host.empty() || (redis.prefix.empty() && redis.password.empty())) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("`redis_host` must be given with a `redis_prefix` or a password.");
}

absl::Status StorageSettings::ForShard(const std::string& table, int64_t shard, int64_t num_shards,
                                       int gpu, StorageOptions* options) const {
  const auto part = [num_shards](int64_t bytes) {
    // Rounded down, so that all shards together stay within the bound.
    return bytes < 0 ? UINT64_MAX : static_cast<uint64_t>(bytes / num_shards);
  };
  options->redis = redis;
  if (!redis.host.empty()) {
    // The server spreads the table itself, by slices.
    if (gpu < 0 && num_shards == 1 && path.empty()) return absl::OkStatus();
    return InvalidArgumentError("Table '", table,
                                "' is in Redis, and must be on a CPU, in one shard, without a "
                                "`path`. Received: ",
                                gpu < 0 ? "a CPU" : "a GPU", ", ", num_shards, " shards, path='",
                                path, "'.");
  }
  options->on_device = gpu >= 0;
  options->device.device = gpu;
  options->device.max_bytes = part(gpu_total_bytes);
  options->device.max_row_bytes = part(gpu_bytes);
  options->device.max_host_bytes = part(host_bytes);
  if (!HasTiers(gpu)) return absl::OkStatus();
  // The same storage serves on a machine without a GPU.
  const bool by_gpu_bytes = gpu >= 0 || host_bytes < 0;
  const int64_t cache_bytes = by_gpu_bytes ? gpu_bytes : host_bytes;
  if (gpu < 0 && cache_bytes < 0) {
    return InvalidArgumentError("Table '", table,
                                "' is on a CPU with a `path`, and needs `host_bytes` or "
                                "`gpu_bytes`: rows go to disk only when the cache in host memory "
                                "is full. Received: host_bytes=None, gpu_bytes=None.");
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
  options->tiers.cache_bytes = part(cache_bytes);
  if (by_gpu_bytes) options->tiers.cache_bytes_argument = "gpu_bytes";
  // With a disk tier, an unset bound means no host tier. A share too small for a row fails later.
  const bool has_host = host_bytes > 0 || path.empty();
  if (gpu >= 0 && has_host) {
    options->tiers.host_bytes = std::max<uint64_t>(1, part(host_bytes));
  }
  options->tiers.disk_bytes = part(disk_bytes);
  options->tiers.keep_leftovers = keep_leftovers;
  return absl::OkStatus();
}

}  // namespace tf_embed
