// SPDX-License-Identifier: Apache-2.0
// The stores that the suites of the contract and of policies run on. A program defines them:
// everyday tests have all stores of this machine (contract_stores_on_host.cc), and `make cuda-test`
// has the stores of a GPU (gpu_test.cc).
#ifndef TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_STORES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_STORES_H_

#include <functional>
#include <memory>
#include <vector>

#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {

// Stores that take arrays on the host.
std::vector<StoreKind> ContractStores();

// A store on the last device of ContractDevices.
StoreKind DeviceStores(const DeviceOptions& device);

// A device: its memory, and a constructor of stores that take arrays there.
struct DeviceKind {
  const char* name;
  DeviceMemory* memory;
  std::function<Status(const StoreOptions&, const DeviceOptions&, std::unique_ptr<Store>*)>
      new_store;
  std::function<std::unique_ptr<DeviceSplit>()> new_split;
  std::function<std::unique_ptr<DeviceKeySums>()> new_key_sums;
};
std::vector<DeviceKind> ContractDevices();

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string NameOfDevice(const testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_CONTRACT_STORES_H_
