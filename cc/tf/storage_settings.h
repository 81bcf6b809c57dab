// SPDX-License-Identifier: Apache-2.0
// The storage settings of a table: the memory or disk that holds its rows.
#ifndef TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
#define TF_EMBED_CC_TF_STORAGE_SETTINGS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cc/stores/new_store.h"

namespace tf_embed {

class Settings;

// Byte limits are totals over all shards; -1 is unlimited.
struct StorageSettings {
  int64_t gpu_total_bytes = -1;
  int64_t gpu_bytes = -1;
  int64_t host_bytes = 0;
  bool gpu_cache = false;  // GPU memory is a cache over host memory
  bool evict_by_bytes = false;
  std::string path;  // empty: no disk tier
  int64_t disk_bytes = -1;
  bool keep_leftovers = false;
  RedisOptions redis;  // no host: not in Redis

  absl::Status Read(const Settings& settings);
  // Reads "host=127.0.0.1\nport=6379\n...", with a line for each field that has no default. The
  // text is empty if the table is not in Redis. It is an input of TfEmbedNewTable, not an
  // attribute, so that a password is never stored in a graph.
  absl::Status ReadRedis(const std::string& text);

  // Whether the table has a cache over lower tiers.
  bool HasTiers(int gpu) const { return !path.empty() || (gpu >= 0 && gpu_cache); }

  // The settings of one shard, on GPU `gpu`, or on the host if it is -1.
  absl::Status ForShard(const std::string& table, int64_t shard, int64_t num_shards, int gpu,
                        StorageOptions* options) const;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
