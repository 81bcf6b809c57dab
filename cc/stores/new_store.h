// SPDX-License-Identifier: Apache-2.0
// Makes the store that options ask for: the one place that knows all of them. A new store is a room
// of its own, a field of StorageOptions if it has options, and a line in NewStore.
#ifndef TF_EMBED_CC_STORES_NEW_STORE_H_
#define TF_EMBED_CC_STORES_NEW_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_table.h"
#include "cc/redis/redis_options.h"

namespace tf_embed {

// A cache of rows over rows in host memory, on disk, or both.
struct LowerTierOptions {
  std::string path;  // where tables have their folders; "": no rows on disk
  std::string name;  // of the shard, for its folder
  uint64_t cache_bytes =
      UINT64_MAX;           // of rows in the cache, which is in the host's memory or a GPU's
  uint64_t host_bytes = 0;  // of rows in host memory below it; 0: none, UINT64_MAX: no bound
  uint64_t disk_bytes = UINT64_MAX;  // of the folder
  // What a process that has died left in the folder is kept, under another name.
  bool keep_leftovers = false;

  bool any() const { return !path.empty() || host_bytes > 0; }
};

// Where the rows of one shard are.
struct StorageOptions {
  bool on_device = false;  // on a GPU, with these options; else in host memory
  DeviceOptions device;    // of a table over several tiers, the number counts
  LowerTierOptions tiers;
  RedisOptions redis;  // with a host: rows are there, and nowhere else
};

struct Store {
  std::unique_ptr<Table> table;  // takes arrays on the host, wherever its rows are
  // The same table for arrays in device memory. Null in host memory.
  DeviceTable* on_device = nullptr;
  std::unique_ptr<DeviceTable> own_on_device;  // if it does not live in `table`
};

// Without memory for an empty table kResourceExhausted; without a GPU kUnavailable.
Status NewStore(const TableOptions& options, const StorageOptions& storage, Store* store);

// Whether the host stands in for every GPU: TF_EMBED_EMULATE_GPU=1 in the environment.
bool EmulatesDevice();

// The memory of a device with such tables.
DeviceMemory* MemoryOfStores(int device);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_NEW_STORE_H_
