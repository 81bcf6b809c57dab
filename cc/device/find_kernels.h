// SPDX-License-Identifier: Apache-2.0
// The verbs that look keys up. A tile deals with kKeysOfTile keys at once: each of its first lanes
// has one, whose row it finds out about and whose statistics it notes; all lanes search and copy.
// So the loads of all of the keys are under way before the first is waited for.
#ifndef TF_EMBED_CC_DEVICE_FIND_KERNELS_H_
#define TF_EMBED_CC_DEVICE_FIND_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/device/batch_view.h"
#include "cc/device/device_rows.h"

namespace tf_embed {

// Launches one of these kernels on so many keys, of which each costs `cost`.
template <class Device, class Kernel>
void LaunchLookups(const Device& device, const ExecContext& context, size_t keys, size_t cost,
                   const Kernel& kernel) {
  constexpr size_t kOfTile = kKeysOfTile<typename Device::Tile>;
  device.Launch(context, (keys + kOfTile - 1) / kOfTile, cost * kOfTile, kernel);
}

struct FindKernel {
  TableView table;
  BatchView batch;
  DefaultsView defaults;
  char* weights;
  bool* exists;  // may be null
  char* slots;   // may be null
  bool uses;     // whether it is a use of the rows, by their statistics
  bool marks;    // the same, by their marks
  Moment now;
  Expiry expiry;  // expired rows are absent

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const DeviceRowLayout& layout = table.layout;
    const size_t bytes = layout.weight_bytes;
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t number = table.index.FindRows(tile, has, key);
    char* row = number == kNoRow ? nullptr : table.Row(number);
    if (row != nullptr && expiry.Has(table.StatisticsIn<Tile>(row))) row = nullptr;
    const bool is_absent = has && row == nullptr;
    const bool is_random = is_absent && defaults.AreRandom();
    const char* const from = is_absent && !is_random ? defaults.RowAt(position) : row;
    char* const to = has ? weights + position * bytes : nullptr;
    CopyRows<kKeysOfTile<Tile>>(tile, from, bytes, to);
    for (uint32_t left = tile.Where(is_random); left != 0; left &= left - 1) {
      const uint32_t lane = LowestBit(left);
      char* const random = weights + tile.From(position, lane) * bytes;
      defaults.WriteInitial(tile, tile.From(key, lane), random);
    }
    if (slots != nullptr) {
      const char* const own = row == nullptr ? table.initial_slots : row + layout.slot_offset;
      CopyRows<kKeysOfTile<Tile>>(tile, has ? own : nullptr, layout.slot_bytes,
                                  has ? slots + position * layout.slot_bytes : nullptr);
    }
    if (!has) return;
    if (exists != nullptr) exists[position] = row != nullptr;
    if (row == nullptr) return CountMisses<Tile>(table.tallies, key, 1);
    if (uses) table.StatisticsIn<Tile>(row).Use(now);
    if (marks) table.MarkOf<Tile>(row).Use(table.tick);
  }
};

struct FindPointersKernel {
  TableView table;
  BatchView batch;
  const void** rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t row = table.index.FindRows(tile, has, key);
    if (has) rows[position] = row == kNoRow ? nullptr : table.Row(row);
  }
};

struct ContainsKernel {
  TableView table;
  BatchView batch;
  bool* exists;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    int64_t key;
    size_t position;
    const bool has = batch.Take(tile, i, &key, &position);
    const uint32_t row = table.index.FindRows(tile, has, key);
    if (has) exists[position] = row != kNoRow;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DEVICE_FIND_KERNELS_H_
