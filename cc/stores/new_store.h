// SPDX-License-Identifier: Apache-2.0
// Makes the store that options ask for. Only this file knows all stores. A new store adds a folder,
// a field of StorageOptions if it has options, and a line in NewStore.
#ifndef TF_EMBED_CC_STORES_NEW_STORE_H_
#define TF_EMBED_CC_STORES_NEW_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/core/store/store.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"
#include "cc/stores/redis/redis_options.h"

namespace tf_embed {

// A cache of rows over rows in host memory, on disk, or both.
struct LowerTierOptions {
  std::string path;  // parent of the stores' folders; "": no rows on disk
  std::string name;  // the shard's name, for its folder
  // Of rows in the cache, which is in the host's memory or a GPU's, and the argument for it.
  uint64_t cache_bytes = UINT64_MAX;
  const char* cache_bytes_argument = "host_bytes";
  uint64_t host_bytes = 0;           // host tier below the cache; 0: none, UINT64_MAX: unlimited
  uint64_t disk_bytes = UINT64_MAX;  // limit on the folder
  // Keep, under another name, files left in the folder by a dead process.
  bool keep_leftovers = false;

  bool any() const { return !path.empty() || host_bytes > 0; }
};

// The location of the rows of one shard.
struct StorageOptions {
  bool on_device = false;  // on a GPU, with the options below; otherwise in host memory
  DeviceOptions device;    // a store over several tiers uses only the number
  LowerTierOptions tiers;
  RedisOptions redis;  // if it has a host, all rows are there
};

struct MadeStore {
  std::unique_ptr<Store> store;  // takes arrays on the host, wherever the rows are
  // The same store for arrays in device memory. Null if the store is in host memory.
  DeviceStore* on_device = nullptr;
  std::unique_ptr<DeviceStore> own_on_device;  // unless `store` owns it
};

// Returns kResourceExhausted if memory is short, and kUnavailable without a GPU.
Status NewStore(const StoreOptions& options, const StorageOptions& storage, MadeStore* made);

// Whether the host emulates all GPUs: TF_EMBED_EMULATE_GPU=1 in the environment.
bool EmulatesDevice();

// The memory of a device, real or emulated.
DeviceMemory* MemoryOfStores(int device);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_NEW_STORE_H_
