#include <utility>

#include "tests/cc/cuda/apart_table.h"
#include "tests/cc/cuda/contract_tables.h"

namespace tf_embed {

std::vector<TableKind> ContractTables() {
  std::vector<TableKind> kinds = AllTables();
  const auto create = [](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewApartTable(options, DeviceOptions(), &table);
    return NewCopyingTable(std::move(table), ApartMemory::Get());
  };
  kinds.push_back({"DeviceTableApart", create, false});
  return kinds;
}

}  // namespace tf_embed
