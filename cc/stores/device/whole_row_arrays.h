// SPDX-License-Identifier: Apache-2.0
// Arrays in device memory for whole rows, with copies to and from the host.
#ifndef TF_EMBED_CC_STORES_DEVICE_WHOLE_ROW_ARRAYS_H_
#define TF_EMBED_CC_STORES_DEVICE_WHOLE_ROW_ARRAYS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

template <class Device>
class WholeRowArrays {
 public:
  WholeRowArrays(const Device& device, const ExecContext& context)
      : device_(device),
        context_(context),
        keys_(device, context),
        weights_(device, context),
        slots_(device, context),
        statistics_(device, context) {}

  // Makes room for `count` rows, on the device and in `rows`.
  Status Make(size_t count, const DeviceRowLayout& layout, WholeRows* rows) {
    TF_EMBED_RETURN_IF_ERROR(keys_.Make(count));
    TF_EMBED_RETURN_IF_ERROR(weights_.Make(count * layout.weight_bytes));
    TF_EMBED_RETURN_IF_ERROR(slots_.Make(count * layout.slot_bytes));
    TF_EMBED_RETURN_IF_ERROR(statistics_.Make(count * layout.statistics));
    return rows->Resize(count, layout.weight_bytes, layout.slot_bytes, layout.statistics);
  }

  // Makes room for the rows on the device, and copies them in.
  Status CopyIn(const WholeRows& rows, const DeviceRowLayout& layout) {
    const size_t count = rows.size;
    TF_EMBED_RETURN_IF_ERROR(keys_.Make(count));
    TF_EMBED_RETURN_IF_ERROR(weights_.Make(count * layout.weight_bytes));
    TF_EMBED_RETURN_IF_ERROR(slots_.Make(count * layout.slot_bytes));
    TF_EMBED_RETURN_IF_ERROR(statistics_.Make(count * layout.statistics));
    device_.CopyIn(context_, rows.keys.data(), count * sizeof(int64_t), keys_.data());
    device_.CopyIn(context_, rows.weights.data(), count * layout.weight_bytes, weights_.data());
    device_.CopyIn(context_, rows.slots.data(), count * layout.slot_bytes, slots_.data());
    device_.CopyIn(context_, rows.statistics.data(), count * layout.statistics * sizeof(uint64_t),
                   statistics_.data());
    return Status();
  }

  WholeRowsView view() {
    return {keys_.data(), weights_.data(), slots_.data(), statistics_.data()};
  }

  // Copies the first `count` rows to the host. They have arrived after a Check.
  void CopyOut(size_t count, const DeviceRowLayout& layout, WholeRows* rows) const {
    device_.CopyOut(context_, keys_.data(), count * sizeof(int64_t), rows->keys.data());
    device_.CopyOut(context_, weights_.data(), count * layout.weight_bytes, rows->weights.data());
    device_.CopyOut(context_, slots_.data(), count * layout.slot_bytes, rows->slots.data());
    device_.CopyOut(context_, statistics_.data(), count * layout.statistics * sizeof(uint64_t),
                    rows->statistics.data());
  }

 private:
  const Device& device_;
  const ExecContext& context_;
  DeviceArray<Device, int64_t> keys_;
  DeviceArray<Device, char> weights_;
  DeviceArray<Device, char> slots_;
  DeviceArray<Device, uint64_t> statistics_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_WHOLE_ROW_ARRAYS_H_
