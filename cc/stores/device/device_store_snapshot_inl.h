// SPDX-License-Identifier: Apache-2.0
// DeviceStore's part in snapshots while other verbs run. The end of device_store_inl.h includes it.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_SNAPSHOT_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_SNAPSHOT_INL_H_

#include <mutex>
#include <utility>

#include "cc/stores/device/device_changes.h"
#include "cc/stores/device/device_store_inl.h"

namespace tf_embed {

template <class Device>
Status DeviceStoreImpl<Device>::GiveBefore(const ExecContext& context, const int64_t* keys,
                                           size_t count) const {
  if (changes_ == nullptr || changes_->wanted().snapshot == 0 || count == 0) return Status();
  // Finds run together. A find that begins after the snapshot takes its turn here, and its copies
  // have arrived when it launches its uses. A find from before the snapshot has ended on the host;
  // on the device, the copies wait for it.
  const std::lock_guard<OrderedMutex> turn(giving_);
  // A thread with the turn waits for no pool, whose threads may wait for the turn.
  const ExecContext serial = context.InSerial();
  order_.WaitForAll(serial);
  Array<uint64_t> places(device_, serial);
  TF_EMBED_RETURN_IF_ERROR(places.Make(count));
  device_.Launch(serial, count, kFindCost,
                 FindPlacesKernel{content_->index(), keys, places.data()});
  return GiveWanted(device_, serial, View(), places.data(), count, options_.allocator,
                    changes_.get());
}

template <class Device>
Status DeviceStoreImpl<Device>::GiveAll(const ExecContext& context) const {
  constexpr size_t kTogether = size_t{1} << 14;  // rows
  if (changes_ == nullptr) return Status();
  for (ExportCursor cursor; !cursor.done;) {
    const WantedRows wanted = changes_->wanted();
    if (wanted.snapshot == 0) return Status();
    WholeRows rows(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(Export(context, wanted, kTogether, &cursor, &rows));
    changes_->Give(std::move(rows));
  }
  return Status();
}

template <class Device>
Status DeviceStoreImpl<Device>::ExportSnapshot(const ExecContext& context, size_t max_rows,
                                               ExportCursor* cursor, WholeRows* rows) {
  // Alone, because it marks the rows that it copies.
  const Writing writing(this, context, /*keeps_keys=*/true);
  const WantedRows wanted = changes_->wanted();
  if (wanted.snapshot == 0) {  // it has failed
    rows->size = 0;
    cursor->done = true;
    return Status();
  }
  return Export(context, wanted, max_rows, cursor, rows);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_SNAPSHOT_INL_H_
