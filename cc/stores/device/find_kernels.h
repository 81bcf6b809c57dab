// SPDX-License-Identifier: Apache-2.0
// The verbs that look keys up. A tile handles kKeysOfTile keys at once. Each of its first lanes has
// a key, finds its row and notes statistics; all lanes search and copy. So the loads of all keys
// are in flight before the tile waits for the first.
#ifndef TF_EMBED_CC_STORES_DEVICE_FIND_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_FIND_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/stores/device/batch_view.h"
#include "cc/stores/device/device_rows.h"

namespace tf_embed {

// Launches a kernel of this file on `size` keys, each of which costs `cost`.
template <class Device, class Kernel>
void LaunchLookups(const Device& device, const ExecContext& context, size_t keys, size_t cost,
                   const Kernel& kernel) {
  constexpr size_t kOfTile = kKeysOfTile<typename Device::Tile>;
  device.Launch(context, (keys + kOfTile - 1) / kOfTile, cost * kOfTile, kernel);
}

struct FindKernel {
  using MayWait = void;
  StoreView store;
  BatchView batch;
  DefaultsView defaults;
  char* weights;
  bool* exists;  // may be null
  char* slots;   // may be null
  bool uses;     // whether it counts as a use in statistics
  bool marks;    // the same in marks
  Moment now;
  Expiry expiry;  // expired rows are absent

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    Run</*kAll=*/true>(tile, i);
  }

  // `kAll`: supports slots and random defaults.
  template <bool kAll, class Tile>
  TF_EMBED_DEVICE void Run(const Tile& tile, size_t i) const {
    const DeviceRowLayout& layout = store.layout;
    const size_t bytes = layout.weight_bytes;
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t number = store.index.FindRows(tile, has, key);
    char* row = number == kNoRow ? nullptr : store.Row(number);
    if (row != nullptr && expiry.Has(store.StatisticsIn<Tile>(row))) row = nullptr;
    const bool is_absent = has && row == nullptr;
    const bool is_random = kAll && is_absent && defaults.AreRandom();
    // Uses of the key precede the copy, so that the key takes no registers from it. Statistics
    // follow it, because the copy would wait for their loads.
    if (has && exists != nullptr) exists[position] = row != nullptr;
    if (is_absent) CountMisses<Tile>(store.tallies, key, 1);
    CopyRows<kKeysOfTile<Tile>>(tile, is_absent && !is_random ? defaults.RowAt(position) : row,
                                bytes, weights + position * bytes);
    if (uses && row != nullptr) store.StatisticsIn<Tile>(row).Use(now);
    if (marks && row != nullptr) store.MarkOf<Tile>(row).Use(store.tick);
    if constexpr (kAll) {
      if (slots != nullptr) {
        const char* const own = row == nullptr ? store.initial_slots : row + layout.slot_offset;
        CopyRows<kKeysOfTile<Tile>>(tile, has ? own : nullptr, layout.slot_bytes,
                                    slots + position * layout.slot_bytes);
      }
      for (uint32_t left = tile.Where(is_random); left != 0; left &= left - 1) {
        // Read again. Otherwise key and place would take registers from all of the above.
        const size_t its = i * kKeysOfTile<Tile> + LowestBit(left);
        defaults.WriteInitial(tile, batch.keys[its], weights + batch.Position(its) * bytes);
      }
    }
  }
};

// FindKernel without slots and random defaults. It needs two thirds of the registers, so more tiles
// run at a time.
struct FindPlainKernel {
  using MayWait = void;
  FindKernel find;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    find.Run</*kAll=*/false>(tile, i);
  }
};

template <class Device>
void LaunchFind(const Device& device, const ExecContext& context, size_t cost,
                const FindKernel& find) {
  if (find.slots != nullptr || find.defaults.AreRandom()) {
    LaunchLookups(device, context, find.batch.size, cost, find);
  } else {
    LaunchLookups(device, context, find.batch.size, cost, FindPlainKernel{find});
  }
}

struct FindPointersKernel {
  StoreView store;
  BatchView batch;
  const void** rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t row = store.index.FindRows(tile, has, key);
    if (has) rows[position] = row == kNoRow ? nullptr : store.Row(row);
  }
};

struct ContainsKernel {
  StoreView store;
  BatchView batch;
  bool* exists;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t row = store.index.FindRows(tile, has, key);
    if (has) exists[position] = row != kNoRow;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_FIND_KERNELS_H_
