// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tests/cc/support/contract_tables.h"
#include "tests/cc/support/isolated_table.h"
#include "tests/cc/support/lockstep_table.h"

namespace tf_embed {

std::vector<TableKind> ContractTables() {
  std::vector<TableKind> kinds = AllTables();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // If a sanitizer watches addresses, this table need not.
  IsolatedMemory::Get()->set_one_in(32);
  const auto create = [](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewIsolatedTable(options, DeviceOptions(), &table);
    return NewCopyingTable(std::move(table), IsolatedMemory::Get());
  };
  kinds.push_back({"IsolatedDeviceTable", create, false, true, /*on_device=*/true});
#endif
  return kinds;
}

TableKind DeviceTables(const DeviceOptions& device) {
  const auto create = [=](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewEmulatedDeviceTable(options, device, &table);
    return table;
  };
  return {"EmulatedDeviceTable", create, true, true, /*on_device=*/true};
}

std::vector<DeviceKind> ContractDevices() {
  std::vector<DeviceKind> kinds;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  kinds.push_back(
      {"Isolated", IsolatedMemory::Get(), NewIsolatedTable, NewIsolatedSplit, NewIsolatedKeySums});
#endif
  if (HasLockstep()) {
    kinds.push_back({"Lockstep", EmulatedDeviceMemory(), NewLockstepTable, NewLockstepSplit,
                     NewLockstepKeySums});
  }
  const auto new_table = [](const TableOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Table>* table) {
    return NewEmulatedDeviceTable(options, device, table);
  };
  kinds.push_back({"Host", EmulatedDeviceMemory(), new_table,
                   [] { return NewEmulatedDeviceSplit(HostAllocator()); },
                   [] { return NewEmulatedDeviceKeySums(HostAllocator()); }});
  return kinds;
}

}  // namespace tf_embed
