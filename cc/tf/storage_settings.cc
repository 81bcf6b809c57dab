// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/storage_settings.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
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

absl::Status StorageSettings::ReadRedis(const std::string& text) {
  const std::map<std::string, std::string*> texts = {{"host", &redis.host},
                                                     {"username", &redis.username},
                                                     {"password", &redis.password},
                                                     {"prefix", &redis.prefix}};
  int64_t cluster = 0, slices = redis.slices, keys_per_command = redis.keys_per_command;
  int64_t port = redis.port, database = redis.database;
  int64_t connect_timeout_ms = redis.connect_timeout_ms, timeout_ms = redis.timeout_ms;
  int64_t max_connections = redis.max_connections;
  const std::map<std::string, int64_t*> numbers = {{"port", &port},
                                                   {"database", &database},
                                                   {"cluster", &cluster},
                                                   {"connect_timeout_ms", &connect_timeout_ms},
                                                   {"timeout_ms", &timeout_ms},
                                                   {"max_connections", &max_connections},
                                                   {"slices", &slices},
                                                   {"keys_per_command", &keys_per_command}};
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // At the first `=` only: a password may contain more.
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (const auto found = texts.find(field.first); found != texts.end()) {
      *found->second = field.second;
      continue;
    }
    const auto found = numbers.find(field.first);
    int64_t number;
    if (found == numbers.end() || !absl::SimpleAtoi(field.second, &number) || number < 0 ||
        number > INT32_MAX) {
      // Never print the value: it may be a password.
      return InvalidArgumentError("`redis` must have lines of known fields and their values. ",
                                  "Received: a line of '", field.first, "'.");
    }
    *found->second = number;
  }
  if (!text.empty() && redis.host.empty()) {
    return InvalidArgumentError("`redis` must be empty, or name a host. Received: ", text.size(),
                                " bytes without one.");
  }
  redis.port = static_cast<int32_t>(port);
  redis.database = static_cast<int32_t>(database);
  redis.is_cluster = cluster != 0;
  redis.connect_timeout_ms = static_cast<int32_t>(connect_timeout_ms);
  redis.timeout_ms = static_cast<int32_t>(timeout_ms);
  redis.max_connections = static_cast<int32_t>(max_connections);
  redis.slices = static_cast<uint32_t>(slices);
  redis.keys_per_command = static_cast<uint32_t>(keys_per_command);
  return absl::OkStatus();
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
