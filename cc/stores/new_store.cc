// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/new_store.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "cc/core/files/row_file.h"
#include "cc/stores/device_tiers.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/redis/redis_store.h"
#include "cc/stores/tiered/tiered_store.h"
#include "cc/tiers/disk/disk_tier.h"
#include "cc/tiers/memory/memory_tier.h"
#include "cc/tiers/memory/two_tiers.h"

namespace tf_embed {
namespace {

Status NewHostStore(const StoreOptions& options, std::unique_ptr<Store>* store) {
  *store = HostStore::Create(options);
  return *store != nullptr ? Status() : NoMemoryForRow(options.name, 0);
}

Status MakeDeviceStore(const StoreOptions& options, const DeviceOptions& device, MadeStore* made) {
  std::unique_ptr<Store> store;
  TF_EMBED_RETURN_IF_ERROR(EmulatesDevice() ? NewEmulatedDeviceStore(options, device, &store)
                                            : NewDeviceStore(options, device, &store));
  made->on_device = static_cast<DeviceStore*>(store.get());
  made->store = NewHostAccessStore(std::move(store), MemoryOfStores(device.device));
  return Status();
}

// The file, `path` or a parent, that keeps `path` from being a folder. "" if there is none.
std::string FileInTheWay(const std::string& path) {
  std::error_code error;
  for (std::filesystem::path part = path; !part.empty(); part = part.parent_path()) {
    const std::filesystem::file_status status = std::filesystem::status(part, error);
    if (std::filesystem::exists(status)) {
      return std::filesystem::is_directory(status) ? "" : part.string();
    }
    if (part == part.parent_path()) break;
  }
  return "";
}

// Size of the smallest row file, with one block, plus the compaction reserve: a quarter of the
// limit, or two segments as RowLog makes them. Assumes rows without slots.
uint64_t LeastDiskBytes(const StoreOptions& options) {
  RowFileHeader header;
  header.value_type = static_cast<StoredType>(options.value_type);
  header.meta.value_type = options.value_type;
  header.meta.dim = options.dim;
  header.padded = true;
  const PaddedBlocks blocks = PaddedBlocks::Of(header);
  const uint64_t file = blocks.begin + blocks.bytes + PaddedBlocks::kEndBytes;
  const uint64_t segment =
      std::max<uint64_t>(blocks.bytes / 16, DiskTierOptions().buffer_bytes / 8);
  return file + std::min((file + 2) / 3, 2 * segment);
}

// A folder name in `path` that is unique in this process. Replaces characters of `name` other than
// letters, digits, dots and dashes. Appends a number to a repeated name. The folder's lock detects
// use by another process.
Status TakeFolderName(const std::string& path, std::string name, DiskTierOptions* disk) {
  constexpr size_t kMaxName = 128;
  static std::mutex mutex;
  static std::set<std::string>* const in_use = new std::set<std::string>;  // never destroyed
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    if (const std::string file = FileInTheWay(path); !file.empty()) {
      return Status::InvalidArgument("`path` must name a folder, and '" + file +
                                     "' is a file. Received: path='" + path + "'.");
    }
    return Status::Unavailable("Can't make the folder '" + path + "': " + error.message() + ".");
  }
  disk->path = std::filesystem::canonical(path, error).string();
  if (error) {
    return Status::Unavailable("Can't open the folder '" + path + "': " + error.message() + ".");
  }
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && std::strchr(".-_", c) == nullptr) c = '_';
  }
  if (name.size() > kMaxName) name.erase(0, name.size() - kMaxName);  // the end has the shard
  if (name.empty() || name[0] == '.') name.insert(0, "table");
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t n = 1;; ++n) {
    disk->name = n == 1 ? name : name + "." + std::to_string(n);
    const std::string whole = disk->path + "/" + disk->name;
    if (!in_use->insert(whole).second) continue;
    disk->lease = std::shared_ptr<const void>(in_use, [whole](const void*) {
      const std::lock_guard<std::mutex> lock(mutex);
      in_use->erase(whole);
    });
    return Status();
  }
}

// Configures the cache factory, in host memory or a GPU's.
void SetCache(const StorageOptions& storage, TierOptions* options) {
  options->cache_bytes_argument = storage.tiers.cache_bytes_argument;
  if (!storage.on_device) {
    options->new_cache = NewHostStore;
    return;
  }
  DeviceOptions device;
  device.device = storage.device.device;
  options->new_cache = [device](const StoreOptions& of_cache, std::unique_ptr<Store>* cache) {
    MadeStore made;
    TF_EMBED_RETURN_IF_ERROR(MakeDeviceStore(of_cache, device, &made));
    *cache = std::move(made.store);
    return Status();
  };
  DeviceMemory* const memory = MemoryOfStores(device.device);
  options->copy_row = [memory](const ExecContext& context, const void* row, size_t bytes,
                               void* to) { return memory->CopyIn(context, row, bytes, to); };
}

// Makes an empty tier on disk.
Status NewDiskTier(const StoreOptions& options, const LowerTierOptions& tiers,
                   StatisticSet statistics, std::unique_ptr<LowerTier>* tier) {
  DiskTierOptions disk;
  disk.value_type = options.value_type;
  disk.dim = options.dim;
  disk.statistics = statistics;
  disk.most_disk_bytes = tiers.disk_bytes == UINT64_MAX ? 0 : tiers.disk_bytes;
  disk.keep_leftovers = tiers.keep_leftovers;
  disk.allocator = options.allocator;
  TF_EMBED_RETURN_IF_ERROR(TakeFolderName(tiers.path, tiers.name, &disk));
  std::unique_ptr<DiskTier> opened;
  TF_EMBED_RETURN_IF_ERROR(DiskTier::Open(disk, &opened));
  *tier = std::move(opened);
  return Status();
}

// Makes the empty tiers below a cache, as one LowerTier.
Status NewLowerTiers(const StoreOptions& options, const LowerTierOptions& tiers,
                     StatisticSet statistics, std::unique_ptr<LowerTier>* tier) {
  std::unique_ptr<LowerTier> disk;
  if (!tiers.path.empty()) {
    TF_EMBED_RETURN_IF_ERROR(NewDiskTier(options, tiers, statistics, &disk));
  }
  if (tiers.host_bytes == 0) {
    *tier = std::move(disk);
    return Status();
  }
  MemoryTierOptions host;
  host.table = options.name;
  host.value_type = options.value_type;
  host.dim = options.dim;
  host.statistics = statistics;
  host.most_bytes = tiers.host_bytes;
  host.allocator = options.allocator;
  if (disk == nullptr) {
    std::unique_ptr<MemoryTier> alone;
    TF_EMBED_RETURN_IF_ERROR(MemoryTier::Create(host, &alone));
    *tier = std::move(alone);
    return Status();
  }
  std::unique_ptr<TwoTiers> over_disk;
  TF_EMBED_RETURN_IF_ERROR(TwoTiers::Create(host, std::move(disk), &over_disk));
  *tier = std::move(over_disk);
  return Status();
}

// Makes a cache over lower tiers.
Status MakeTieredStore(const StoreOptions& options, const StorageOptions& storage,
                       MadeStore* made) {
  const LowerTierOptions& tiers = storage.tiers;
  const uint64_t least = LeastDiskBytes(options);
  if (!tiers.path.empty() && tiers.disk_bytes < least) {
    return Status::InvalidArgument(
        "`disk_bytes` must have room for a file of rows of table '" + options.name +
        "' and a reserve for compaction, which take " + std::to_string(least) +
        " bytes. Received: disk_bytes=" + std::to_string(tiers.disk_bytes) + " for each shard.");
  }
  TierOptions tier_options;
  tier_options.cache_bytes = tiers.cache_bytes;
  SetCache(storage, &tier_options);
  StoreOptions of_rows;
  of_rows.name = options.name;
  of_rows.value_type = options.value_type;
  of_rows.dim = options.dim;
  of_rows.allocator = options.allocator;
  tier_options.new_lower = [of_rows, tiers](StatisticSet statistics,
                                            std::unique_ptr<LowerTier>* made) {
    return NewLowerTiers(of_rows, tiers, statistics, made);
  };
  std::unique_ptr<TieredStore> store;
  TF_EMBED_RETURN_IF_ERROR(TieredStore::Create(options, tier_options, &store));
  made->store = std::move(store);
  if (storage.on_device) {
    made->own_on_device = NewDeviceTiers(made->store.get(), MemoryOfStores(storage.device.device));
    made->on_device = made->own_on_device.get();
  }
  return Status();
}

Status MakeRedisStore(const StoreOptions& options, const RedisOptions& redis, MadeStore* made) {
  std::unique_ptr<RedisStore> store;
  TF_EMBED_RETURN_IF_ERROR(RedisStore::Open(options, redis, &store));
  made->store = std::move(store);
  return Status();
}

}  // namespace

Status NewStore(const StoreOptions& options, const StorageOptions& storage, MadeStore* made) {
  if (!storage.redis.host.empty()) return MakeRedisStore(options, storage.redis, made);
  if (storage.tiers.any()) return MakeTieredStore(options, storage, made);
  if (storage.on_device) return MakeDeviceStore(options, storage.device, made);
  return NewHostStore(options, &made->store);
}

bool EmulatesDevice() {
  const char* const value = std::getenv("TF_EMBED_EMULATE_GPU");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

DeviceMemory* MemoryOfStores(int device) {
  return EmulatesDevice() ? EmulatedDeviceMemory() : MemoryOfDevice(device);
}

}  // namespace tf_embed
