// SPDX-License-Identifier: Apache-2.0
// A tiered table whose first tier is device memory, for callers with arrays in that memory.
//
// The host knows the tier of each row. So each verb copies the keys of its batch to the host, 8
// bytes each, and its per-key results back to the device. Rows and gradients stay in place
// (ExecContext::rows_on_device). A pooled find also copies its sums. A step on bags also copies its
// weights and the start of each key's gradient.
#ifndef TF_EMBED_CC_STORES_DEVICE_TIERS_H_
#define TF_EMBED_CC_STORES_DEVICE_TIERS_H_

#include <memory>

#include "cc/core/table/table.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_table.h"

namespace tf_embed {

// REQUIRES: `tiers`, whose cache is a CopyingTable, and `memory` outlive the table.
std::unique_ptr<DeviceTable> NewDeviceTiers(Table* tiers, DeviceMemory* memory);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TIERS_H_
