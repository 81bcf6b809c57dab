// SPDX-License-Identifier: Apache-2.0
// A DeviceStore on the host whose tiles have as many lanes as a GPU's. The lanes of a tile take
// turns, from one call that all lanes make to the next, first in one order and then in the other; a
// lane that reads a value before another has written it reads a wrong one in one of the two, and a
// call that some lanes make and others do not ends the test.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_

#include <memory>

#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"

namespace tf_embed {

// Whether this build can.
bool HasLockstep();

Status NewLockstepStore(const StoreOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Store>* store);
std::unique_ptr<DeviceSplit> NewLockstepSplit();
std::unique_ptr<DeviceKeySums> NewLockstepKeySums();

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_STORE_H_
