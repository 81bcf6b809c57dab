#include <utility>

#include "tests/cc/cuda/apart_table.h"
#include "tests/cc/cuda/contract_tables.h"

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
  kinds.push_back({"DeviceTableApart", create, false});
#endif
  return kinds;
}

}  // namespace tf_embed
