// SPDX-License-Identifier: Apache-2.0
// The tables that the suites of the contract and of policies run on. A program defines which: the
// everyday tests all that this machine has (contract_tables_on_host.cc), `make cuda-test` those of
// a GPU (gpu_test.cc).
#ifndef TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_TABLES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_TABLES_H_

#include <functional>
#include <memory>
#include <vector>

#include "cc/device/copying_table.h"
#include "cc/device/device_key_sums.h"
#include "cc/device/device_split.h"
#include "cc/device/device_table.h"
#include "tests/cc/support/test_tables.h"

namespace tf_embed {

// Tables, which take arrays on the host.
std::vector<TableKind> ContractTables();

// A table of the last device below.
TableKind DeviceTables(const DeviceOptions& device);

// A device: its memory, and a constructor of tables that take arrays there.
struct DeviceKind {
  const char* name;
  DeviceMemory* memory;
  std::function<Status(const TableOptions&, const DeviceOptions&, std::unique_ptr<Table>*)>
      new_table;
  std::function<std::unique_ptr<DeviceSplit>()> new_split;
  std::function<std::unique_ptr<DeviceKeySums>()> new_key_sums;
};
std::vector<DeviceKind> ContractDevices();

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string NameOfDevice(const testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_TABLES_H_
