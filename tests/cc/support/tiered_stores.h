// SPDX-License-Identifier: Apache-2.0
// Stores with a cache of few rows, over lower tiers of each kind.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_TIERED_STORES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_TIERED_STORES_H_

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "cc/core/rows/row_layout.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/tiered/tiered_store.h"
#include "cc/tiers/disk/disk_tier.h"
#include "cc/tiers/memory/memory_tier.h"
#include "cc/tiers/memory/two_tiers.h"
#include "tests/cc/support/faulty_tier.h"

namespace tf_embed {

inline Status NewHostCache(const StoreOptions& options, std::unique_ptr<Store>* cache) {
  *cache = HostStore::Create(options);
  return *cache != nullptr ? Status() : NoMemoryForRow(options.name, 0);
}

// A cache in the memory of an emulated device.
inline Status NewDeviceCache(const StoreOptions& options, std::unique_ptr<Store>* cache) {
  std::unique_ptr<Store> on_device;
  TF_EMBED_RETURN_IF_ERROR(NewEmulatedDeviceStore(options, DeviceOptions(), &on_device));
  *cache = NewHostAccessStore(std::move(on_device), EmulatedDeviceMemory());
  return Status();
}

using NewCache = Status (*)(const StoreOptions& options, std::unique_ptr<Store>* cache);

// `rows`: the bound on host memory, if there is a bound, in rows with three slots a weight.
using NewLower = Status (*)(const StoreOptions& options, StatisticSet statistics, size_t rows,
                            std::unique_ptr<LowerTier>* lower);

inline MemoryTierOptions MemoryTierOptionsOf(const StoreOptions& options, StatisticSet statistics) {
  MemoryTierOptions made;
  made.table = options.name;
  made.value_type = options.value_type;
  made.dim = options.dim;
  made.statistics = statistics;
  made.allocator = options.allocator;
  return made;
}

// The bytes of a row with three slots a weight in memory.
inline size_t BytesOfRow(const StoreOptions& options, StatisticSet statistics) {
  const RowLayout layout(options.value_type, options.dim, 3 * options.dim, statistics.size());
  return layout.stride + statistics.size() * sizeof(uint64_t) + 1;
}

inline Status NewHostLower(const StoreOptions& options, StatisticSet statistics, size_t,
                           std::unique_ptr<LowerTier>* lower) {
  std::unique_ptr<MemoryTier> made;
  TF_EMBED_RETURN_IF_ERROR(MemoryTier::Create(MemoryTierOptionsOf(options, statistics), &made));
  *lower = std::move(made);
  return Status();
}

inline Status NewDiskLower(const StoreOptions& options, StatisticSet statistics, size_t,
                           std::unique_ptr<LowerTier>* lower) {
  static std::atomic<int> number{0};
  DiskTierOptions disk;
  std::error_code none;
  disk.path = std::filesystem::is_directory("/dev/shm", none) ? "/dev/shm" : "/tmp";
  disk.name = "tf_embed_test_" + std::to_string(getpid()) + "_" + std::to_string(++number);
  disk.value_type = options.value_type;
  disk.dim = options.dim;
  disk.statistics = statistics;
  disk.buffer_bytes = 64 << 10;
  disk.allocator = options.allocator;
  std::unique_ptr<DiskTier> made;
  TF_EMBED_RETURN_IF_ERROR(DiskTier::Open(disk, &made));
  *lower = std::move(made);
  return Status();
}

inline Status NewHostOverDisk(const StoreOptions& options, StatisticSet statistics, size_t rows,
                              std::unique_ptr<LowerTier>* lower) {
  std::unique_ptr<LowerTier> disk;
  std::unique_ptr<TwoTiers> made;
  TF_EMBED_RETURN_IF_ERROR(NewDiskLower(options, statistics, rows, &disk));
  MemoryTierOptions above = MemoryTierOptionsOf(options, statistics);
  above.most_bytes = rows * BytesOfRow(options, statistics);
  TF_EMBED_RETURN_IF_ERROR(TwoTiers::Create(above, std::move(disk), &made));
  *lower = std::move(made);
  return Status();
}

// A store with a cache of `cache_rows` rows with three slots a weight, so of more rows without
// slots. Sets `*below` to the lower tier if it is null.
inline std::unique_ptr<TieredStore> NewTieredStore(const StoreOptions& options, size_t cache_rows,
                                                   FaultyTier** below = nullptr,
                                                   NewCache new_cache = NewHostCache,
                                                   NewLower new_lower = NewHostLower) try {
  const StatisticSet words = options.policy.WithNeeds().statistics;
  TierOptions tiers;
  tiers.cache_bytes = cache_rows * BytesOfRow(options, words);
  tiers.new_cache = new_cache;
  tiers.new_lower = [=](StatisticSet statistics, std::unique_ptr<LowerTier>* made) {
    std::unique_ptr<LowerTier> lower;
    TF_EMBED_RETURN_IF_ERROR(new_lower(options, statistics, cache_rows, &lower));
    auto faulty = std::make_unique<FaultyTier>(std::move(lower));
    if (below != nullptr && *below == nullptr) *below = faulty.get();
    *made = std::move(faulty);
    return Status();
  };
  std::unique_ptr<TieredStore> store;
  if (!TieredStore::Create(options, tiers, &store).ok()) return nullptr;
  return store;
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_TIERED_STORES_H_
