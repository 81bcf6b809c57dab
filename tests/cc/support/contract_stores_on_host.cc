// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/isolated_store.h"
#include "tests/cc/support/lockstep_store.h"

namespace tf_embed {

std::vector<StoreKind> ContractStores() {
  std::vector<StoreKind> kinds = AllStores();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Sanitizers check addresses already, so they run without this store.
  IsolatedMemory::Get()->set_one_in(32);
  const auto create = [](const StoreOptions& options) {
    std::unique_ptr<Store> store;
    (void)NewIsolatedStore(options, DeviceOptions(), &store);
    return NewHostAccessStore(std::move(store), IsolatedMemory::Get());
  };
  kinds.push_back({"IsolatedDeviceStore", create, false, true, /*on_device=*/true});
#endif
  return kinds;
}

StoreKind DeviceStores(const DeviceOptions& device) {
  const auto create = [=](const StoreOptions& options) {
    std::unique_ptr<Store> store;
    (void)NewEmulatedDeviceStore(options, device, &store);
    return store;
  };
  return {"EmulatedDeviceStore", create, true, true, /*on_device=*/true};
}

std::vector<DeviceKind> ContractDevices() {
  std::vector<DeviceKind> kinds;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  kinds.push_back(
      {"Isolated", IsolatedMemory::Get(), NewIsolatedStore, NewIsolatedSplit, NewIsolatedKeySums});
#endif
  if (HasLockstep()) {
    kinds.push_back({"Lockstep", EmulatedDeviceMemory(), NewLockstepStore, NewLockstepSplit,
                     NewLockstepKeySums});
  }
  const auto new_store = [](const StoreOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Store>* store) {
    return NewEmulatedDeviceStore(options, device, store);
  };
  kinds.push_back({"Host", EmulatedDeviceMemory(), new_store,
                   [] { return NewEmulatedDeviceSplit(HostAllocator()); },
                   [] { return NewEmulatedDeviceKeySums(HostAllocator()); }});
  return kinds;
}

}  // namespace tf_embed
