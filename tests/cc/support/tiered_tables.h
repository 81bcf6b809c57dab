// SPDX-License-Identifier: Apache-2.0
// Tables whose cache has room for few rows, over stores of each kind.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_TIERED_TABLES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_TIERED_TABLES_H_

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "cc/core/rows/row_layout.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_table.h"
#include "cc/disk/disk_store.h"
#include "cc/host/host_table.h"
#include "cc/memory/host_store.h"
#include "cc/memory/host_tier.h"
#include "cc/tiered/tiered_table.h"
#include "tests/cc/support/faulty_store.h"

namespace tf_embed {

inline Status NewHostCache(const TableOptions& options, std::unique_ptr<Table>* cache) {
  *cache = HostTable::Create(options);
  return *cache != nullptr ? Status() : NoMemoryForRow(options.name, 0);
}

// A cache in the memory of a device that is the host.
inline Status NewDeviceCache(const TableOptions& options, std::unique_ptr<Table>* cache) {
  std::unique_ptr<Table> on_device;
  TF_EMBED_RETURN_IF_ERROR(NewEmulatedDeviceTable(options, DeviceOptions(), &on_device));
  *cache = NewCopyingTable(std::move(on_device), EmulatedDeviceMemory());
  return Status();
}

using NewCache = Status (*)(const TableOptions& options, std::unique_ptr<Table>* cache);

// `rows`: those of three slots a weight that a bound in host memory leaves room for, if there is
// one.
using NewLower = Status (*)(const TableOptions& options, StatisticSet statistics, size_t rows,
                            std::unique_ptr<BackingStore>* store);

inline HostStoreOptions HostStoreOptionsOf(const TableOptions& options, StatisticSet statistics) {
  HostStoreOptions made;
  made.table = options.name;
  made.value_type = options.value_type;
  made.dim = options.dim;
  made.statistics = statistics;
  made.allocator = options.allocator;
  return made;
}

// Bytes of a row of three slots a weight in memory.
inline size_t BytesOfRow(const TableOptions& options, StatisticSet statistics) {
  const RowLayout layout(options.value_type, options.dim, 3 * options.dim, statistics.size());
  return layout.stride + statistics.size() * sizeof(uint64_t) + 1;
}

inline Status NewHostLower(const TableOptions& options, StatisticSet statistics, size_t,
                           std::unique_ptr<BackingStore>* store) {
  std::unique_ptr<HostStore> made;
  TF_EMBED_RETURN_IF_ERROR(HostStore::Create(HostStoreOptionsOf(options, statistics), &made));
  *store = std::move(made);
  return Status();
}

inline Status NewDiskLower(const TableOptions& options, StatisticSet statistics, size_t,
                           std::unique_ptr<BackingStore>* store) {
  static std::atomic<int> number{0};
  DiskStoreOptions disk;
  std::error_code none;
  disk.path = std::filesystem::is_directory("/dev/shm", none) ? "/dev/shm" : "/tmp";
  disk.name = "tf_embed_test_" + std::to_string(getpid()) + "_" + std::to_string(++number);
  disk.value_type = options.value_type;
  disk.dim = options.dim;
  disk.statistics = statistics;
  disk.buffer_bytes = 64 << 10;
  disk.allocator = options.allocator;
  std::unique_ptr<DiskStore> made;
  TF_EMBED_RETURN_IF_ERROR(DiskStore::Open(disk, &made));
  *store = std::move(made);
  return Status();
}

inline Status NewHostOverDisk(const TableOptions& options, StatisticSet statistics, size_t rows,
                              std::unique_ptr<BackingStore>* store) {
  std::unique_ptr<BackingStore> disk;
  std::unique_ptr<HostTier> made;
  TF_EMBED_RETURN_IF_ERROR(NewDiskLower(options, statistics, rows, &disk));
  HostStoreOptions above = HostStoreOptionsOf(options, statistics);
  above.most_bytes = rows * BytesOfRow(options, statistics);
  TF_EMBED_RETURN_IF_ERROR(HostTier::Create(above, std::move(disk), &made));
  *store = std::move(made);
  return Status();
}

// A table with a cache of `cache_rows` rows of three slots a weight; so without slots there is room
// for more. `store`: set to the store below, if `*store` is null so far.
inline std::unique_ptr<TieredTable> NewTieredTable(const TableOptions& options, size_t cache_rows,
                                                   FaultyStore** store = nullptr,
                                                   NewCache new_cache = NewHostCache,
                                                   NewLower new_lower = NewHostLower) try {
  const StatisticSet words = options.policy.WithNeeds().statistics;
  TierOptions tiers;
  tiers.cache_bytes = cache_rows * BytesOfRow(options, words);
  tiers.new_cache = new_cache;
  tiers.new_store = [=](StatisticSet statistics, std::unique_ptr<BackingStore>* made) {
    std::unique_ptr<BackingStore> lower;
    TF_EMBED_RETURN_IF_ERROR(new_lower(options, statistics, cache_rows, &lower));
    auto faulty = std::make_unique<FaultyStore>(std::move(lower));
    if (store != nullptr && *store == nullptr) *store = faulty.get();
    *made = std::move(faulty);
    return Status();
  };
  std::unique_ptr<TieredTable> table;
  if (!TieredTable::Create(options, tiers, &table).ok()) return nullptr;
  return table;
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_TIERED_TABLES_H_
