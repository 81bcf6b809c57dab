// SPDX-License-Identifier: Apache-2.0
// A table over several tiers whose first one is in a device's memory, for callers whose arrays are
// there.
//
// Where a row is, is known on the host. So each verb copies the keys of its batch to the host, 8
// bytes for each, and what it says of keys back to the device. Rows and gradients stay where they
// are (ExecContext::rows_on_device). A pooled find copies its sums, and a step of bags its weights
// and where the gradient of each key begins.
#ifndef TF_EMBED_CC_STORES_DEVICE_TIERS_H_
#define TF_EMBED_CC_STORES_DEVICE_TIERS_H_

#include <memory>

#include "cc/core/table/table.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_table.h"

namespace tf_embed {

// `tiers`, whose cache is a CopyingTable, and `memory` outlive the table.
std::unique_ptr<DeviceTable> NewDeviceTiers(Table* tiers, DeviceMemory* memory);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TIERS_H_
