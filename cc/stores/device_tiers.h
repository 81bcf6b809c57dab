// SPDX-License-Identifier: Apache-2.0
// A tiered store whose first tier is device memory, for callers with arrays in that memory.
//
// The host knows the tier of each row. So each verb copies the keys of its batch to the host, 8
// bytes each, and its per-key results back to the device. Rows and gradients stay in place
// (ExecContext::rows_on_device). A pooled find also copies its sums. A step on bags also copies the
// weights and the start of each key's gradient.
#ifndef TF_EMBED_CC_STORES_DEVICE_TIERS_H_
#define TF_EMBED_CC_STORES_DEVICE_TIERS_H_

#include <memory>

#include "cc/core/store/store.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"

namespace tf_embed {

// REQUIRES: `tiers`, whose cache is a HostAccessStore, and `memory` outlive the store.
std::unique_ptr<DeviceStore> NewDeviceTiers(Store* tiers, DeviceMemory* memory);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TIERS_H_
