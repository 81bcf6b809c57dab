// SPDX-License-Identifier: Apache-2.0
// A DeviceStore on the host with as many lanes in a tile as on a GPU. The lanes of a tile take
// turns between the calls that all lanes make: in rising order for every other piece of work, and
// in falling order for the rest. So a lane that reads a value before another lane writes it gets a
// wrong value in half of the pieces. A call that only some lanes make ends the test.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_

#include <memory>

#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"

namespace tf_embed {

// Whether this build supports it.
bool HasLockstep();

Status NewLockstepStore(const StoreOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Store>* store);
std::unique_ptr<DeviceSplit> NewLockstepSplit();
std::unique_ptr<DeviceKeySums> NewLockstepKeySums();

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_
