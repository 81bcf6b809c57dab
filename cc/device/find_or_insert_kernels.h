// SPDX-License-Identifier: Apache-2.0
// Kernels of a lookup that inserts. WriteKernel makes a row of each absent key; behind it a tile
// copies the row of each key of the batch to its place. If instead the tile of a key copied it to
// all of its places, the most frequent one, a tenth of a batch by a power law, would take longer
// than all others together.
#ifndef TF_EMBED_CC_DEVICE_FIND_OR_INSERT_KERNELS_H_
#define TF_EMBED_CC_DEVICE_FIND_OR_INSERT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/device/row_kernels.h"

namespace tf_embed {

// A new row begins as the default of the first of its places.
struct FindOrInsertVerb {
  static constexpr bool kWritesPresent = false;
  static constexpr bool kSums = false;
  static constexpr bool kGives = true;
  BatchView batch;
  DefaultsView defaults;
  char* weights;
  bool* exists;  // may be null

  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile&, const TableView&, const DeviceGroup&, char*) const {}
  template <class Tile>
  TF_EMBED_DEVICE void New(const Tile& tile, const TableView& table, const DeviceGroup& group,
                           char* row) const {
    defaults.Write(tile, group.key, batch.First(group), row);
    WriteInitialSlots(tile, table, row);
    Absent(tile, table, group);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile& tile, const TableView& table,
                              const DeviceGroup& group) const {
    if (tile.lane() == 0) CountMisses<Tile>(table.tallies, group.key, group.count);
  }

  // For one place of a key: copies its row, or the default if there is none.
  template <class Tile>
  TF_EMBED_DEVICE void Give(const Tile& tile, const TableView& table, const DeviceGroup& group,
                            uint32_t row, bool present, size_t position) const {
    char* const to = weights + position * table.layout.weight_bytes;
    if (row == kNoRow) {
      defaults.Write(tile, group.key, batch.First(group), to);
    } else {
      CopyBytes(tile, table.Row(row), table.layout.weight_bytes, to);
    }
    if (exists != nullptr && tile.lane() == 0) exists[position] = present;
  }
};

// For each key of a batch, behind WriteKernel.
template <class Verb>
struct GiveKernel {
  WriteKernel<Verb> write;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint32_t number = write.groups.NumberOf(i);
    // A key that came too late (distinct_kernels.h).
    if (!write.groups.Has(number)) return;
    write.verb.Give(tile, write.table, write.groups.groups[number], write.given[number],
                    write.rows[number] != kNoRow, write.batch.Position(i));
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DEVICE_FIND_OR_INSERT_KERNELS_H_
