#include <utility>

#include "tests/cc/support/apart_table.h"
#include "tests/cc/support/contract_tables.h"
#include "tests/cc/support/lockstep_table.h"

namespace tf_embed {

std::vector<TableKind> ContractTables() {
  std::vector<TableKind> kinds = AllTables();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Where a sanitizer watches addresses, this table need not.
  ApartMemory::Get()->set_one_in(32);
  const auto create = [](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewApartTable(options, DeviceOptions(), &table);
    return NewCopyingTable(std::move(table), ApartMemory::Get());
  };
  kinds.push_back({"DeviceTableApart", create, false, true, /*on_device=*/true});
#endif
  return kinds;
}

TableKind DeviceTables(const DeviceOptions& device) {
  const auto create = [=](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewDeviceTableOnHost(options, device, &table);
    return table;
  };
  return {"DeviceTableOnHost", create, true, true, /*on_device=*/true};
}

std::vector<DeviceKind> ContractDevices() {
  std::vector<DeviceKind> kinds;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  kinds.push_back({"Apart", ApartMemory::Get(), NewApartTable, NewApartSplit, NewApartKeySums});
#endif
  if (HasLockstep()) {
    kinds.push_back(
        {"Lockstep", HostAsDeviceMemory(), NewLockstepTable, NewLockstepSplit, NewLockstepKeySums});
  }
  const auto new_table = [](const TableOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Table>* table) {
    return NewDeviceTableOnHost(options, device, table);
  };
  kinds.push_back({"Host", HostAsDeviceMemory(), new_table,
                   [] { return NewDeviceSplitOnHost(HostAllocator()); },
                   [] { return NewDeviceKeySumsOnHost(HostAllocator()); }});
  return kinds;
}

}  // namespace tf_embed
