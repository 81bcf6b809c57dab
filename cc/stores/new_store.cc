// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/new_store.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cc/host/host_table.h"

namespace tf_embed {
namespace {

Status NewHostStore(const TableOptions& options, Store* store) {
  store->table = HostTable::Create(options);
  return store->table != nullptr ? Status() : NoMemoryForRow(options.name, 0);
}

Status NewDeviceStore(const TableOptions& options, const DeviceOptions& device, Store* store) {
  std::unique_ptr<Table> made;
  TF_EMBED_RETURN_IF_ERROR(EmulatesDevice() ? NewEmulatedDeviceTable(options, device, &made)
                                            : NewDeviceTable(options, device, &made));
  store->on_device = static_cast<DeviceTable*>(made.get());
  store->table = NewCopyingTable(std::move(made), MemoryOfStores(device.device));
  return Status();
}

}  // namespace

Status NewStore(const TableOptions& options, const StorageOptions& storage, Store* store) {
  if (storage.on_device) return NewDeviceStore(options, storage.device, store);
  return NewHostStore(options, store);
}

bool EmulatesDevice() {
  const char* const value = std::getenv("TF_EMBED_EMULATE_GPU");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

DeviceMemory* MemoryOfStores(int device) {
  return EmulatesDevice() ? EmulatedDeviceMemory() : MemoryOfDevice(device);
}

}  // namespace tf_embed
