// SPDX-License-Identifier: Apache-2.0
// The storage settings of a table: the memory or disk that holds its rows.
#ifndef TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
#define TF_EMBED_CC_TF_STORAGE_SETTINGS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cc/stores/new_store.h"

namespace tf_embed {

class SettingsText;

// Byte limits are totals over all shards; -1 is unlimited.
struct StorageSettings {
  int64_t gpu_total_bytes = -1;  // index and rows
  int64_t gpu_bytes = -1;        // rows alone
  // On a GPU: for the rows that do not fit there. On a GPU with a `path`: for the tier between
  // cache and disk; -1 is no such tier. On a CPU with a `path`: for the cache.
  int64_t host_bytes = 0;
  bool gpu_cache = false;       // GPU memory is a cache over host memory
  bool evict_by_bytes = false;  // at these bounds rows leave; otherwise new rows are refused
  std::string path;             // in which the table makes its own folder; empty: no disk tier
  int64_t disk_bytes = -1;
  bool keep_leftovers = false;  // rename, not remove, the files of an earlier process there
  RedisOptions redis;           // no host: not in Redis

  void Read(SettingsText* text);
  // Fails if there are settings of a Redis server without its host.
  absl::Status Check() const;

  // Whether the table has a cache over lower tiers.
  bool HasTiers(int gpu) const { return !path.empty() || (gpu >= 0 && gpu_cache); }

  // The settings of one shard, on GPU `gpu`, or on the host if it is -1.
  absl::Status ForShard(const std::string& table, int64_t shard, int64_t num_shards, int gpu,
                        StorageOptions* options) const;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STORAGE_SETTINGS_H_
