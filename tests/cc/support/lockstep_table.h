// SPDX-License-Identifier: Apache-2.0
// A DeviceTable on the host whose tiles have as many lanes as a GPU's. The lanes of a tile take
// turns, from one call that all lanes make to the next, first in one order and then in the other; a
// lane that reads a value before another has written it reads a wrong one in one of the two, and a
// call that some lanes make and others do not ends the test.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_TABLE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_TABLE_H_

#include <memory>

#include "cc/device/device_key_sums.h"
#include "cc/device/device_split.h"
#include "cc/device/device_table.h"

namespace tf_embed {

// Whether this build can.
bool HasLockstep();

Status NewLockstepTable(const TableOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Table>* table);
std::unique_ptr<DeviceSplit> NewLockstepSplit();
std::unique_ptr<DeviceKeySums> NewLockstepKeySums();

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_LOCKSTEP_TABLE_H_
