// SPDX-License-Identifier: Apache-2.0
// Rows on their way from a device to the host before a verb uses, changes or removes them: for the
// snapshot in progress, which wants the rows as they were, and for rows that leave.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_CHANGES_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_CHANGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc/core/rows/row_change.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/store/change_log.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/table_kernels.h"
#include "cc/stores/device/whole_row_arrays.h"

namespace tf_embed {

// For as many places as a tile has lanes, some of them kNoPlace: marks the others.
struct MarkPlacesKernel {
  const uint64_t* places;
  uint64_t size;
  uint32_t* marks;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number < size && places[number] != IndexView::kNoPlace) marks[number] = 1;
  }
};

// The same for the rows that a snapshot wants, which it claims.
struct ClaimWantedKernel {
  StoreView store;
  const uint64_t* places;
  uint64_t size;
  WantedRows wanted;
  uint32_t* marks;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= size || places[number] == IndexView::kNoPlace) return;
    const uint32_t row = store.index.EntryAt(places[number]).row;
    if (store.StatisticsAt<Tile>(row).TakeFor(wanted)) marks[number] = 1;
  }
};

// For each place: copies the whole row, if it was marked, to its index in the running sum.
struct CopyMarkedKernel {
  StoreView store;
  const uint64_t* places;
  const uint32_t* numbers;
  WholeRowsView rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (numbers[i] == numbers[i + 1]) return;
    rows.Put(tile, store, store.index.EntryAt(places[i]), numbers[i]);
  }
};

// Copies rows at some of `places` [count] to the host: `mark(marks)` launches what marks them.
// Waits for the device.
template <class Device, typename Mark>
Status CopyRowsAt(const Device& device, const ExecContext& context, const StoreView& store,
                  const uint64_t* places, size_t count, const Mark& mark, WholeRows* rows) {
  constexpr size_t kRowCost = 100;  // ns
  DeviceArray<Device, uint32_t> numbers(device, context);
  WholeRowArrays<Device> arrays(device, context);
  rows->size = 0;
  TF_EMBED_RETURN_IF_ERROR(numbers.MakeZeros(count + 1));
  mark(numbers.data());
  TF_EMBED_RETURN_IF_ERROR(device.RunningSum(context, numbers.data(), count + 1));
  uint32_t copied = 0;
  device.CopyOut(context, numbers.data() + count, sizeof(copied), &copied);
  TF_EMBED_RETURN_IF_ERROR(device.Check(context));
  if (copied == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(arrays.Make(copied, store.layout, rows));
  device.Launch(context, count, kRowCost,
                CopyMarkedKernel{store, places, numbers.data(), arrays.view()});
  arrays.CopyOut(copied, store.layout, rows);
  TF_EMBED_RETURN_IF_ERROR(device.Check(context));
  rows->size = copied;
  return Status();
}

// Hands over the rows at `places` [count], of which some are kNoPlace, that the snapshot in
// progress wants. Without memory the snapshot fails, and the caller goes on. REQUIRES: no other
// verb uses or changes these rows meanwhile.
template <class Device>
Status GiveWanted(const Device& device, const ExecContext& context, const StoreView& store,
                  const uint64_t* places, size_t count, Allocator* allocator, ChangeLog* changes) {
  constexpr size_t kPlaceCost = 5;  // ns
  // In parts, because soon after the snapshot began it wants nearly all rows of a large batch.
  constexpr size_t kTogether = size_t{1} << 14;
  for (size_t first = 0; first < count; first += kTogether) {
    const WantedRows wanted = changes->wanted();
    if (wanted.snapshot == 0) return Status();
    const size_t size = std::min(kTogether, count - first);
    const auto claim = [&](uint32_t* marks) {
      LaunchLanes(device, context, size, kPlaceCost,
                  ClaimWantedKernel{store, places + first, size, wanted, marks});
    };
    WholeRows rows(allocator);
    Status status = CopyRowsAt(device, context, store, places + first, size, claim, &rows);
    if (status.ok()) {
      changes->Give(std::move(rows));
      continue;
    }
    changes->Fail(status);  // nobody else hands over what was claimed
    return status.code() == StatusCode::kResourceExhausted ? Status() : status;
  }
  return Status();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_CHANGES_H_
