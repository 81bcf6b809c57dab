// SPDX-License-Identifier: Apache-2.0
// The settings of a table that say in which memory, or on which disk, its rows are.
#ifndef TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
#define TF_EMBED_CC_TF_STORAGE_SETTINGS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cc/stores/new_store.h"

namespace tf_embed {

class Settings;

// Bytes are those of all shards together, -1 for no bound.
struct StorageSettings {
  int64_t gpu_total_bytes = -1;
  int64_t gpu_bytes = -1;
  int64_t host_bytes = 0;
  bool gpu_cache = false;  // a GPU's memory is a cache over the host's
  bool evict_by_bytes = false;
  std::string path;  // "": no rows on disk
  int64_t disk_bytes = -1;
  bool keep_leftovers = false;
  RedisOptions redis;  // without a host: not in Redis

  absl::Status Read(const Settings& settings);
  // Reads "host=127.0.0.1\nport=6379\n...", with a line for each field that has no default; "" for
  // a table that is not in Redis. It is an input of TfEmbedNewTable and no attribute, so no graph
  // has a password.
  absl::Status ReadRedis(const std::string& text);

  // Whether a table has a cache and other tiers below it.
  bool HasTiers(int gpu) const { return !path.empty() || (gpu >= 0 && gpu_cache); }

  // Those of one shard of so many, on that GPU, or with -1 on the host.
  absl::Status ForShard(const std::string& table, int64_t shard, int64_t num_shards, int gpu,
                        StorageOptions* options) const;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
