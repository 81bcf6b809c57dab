// SPDX-License-Identifier: Apache-2.0
// Kernels of a lookup that inserts. The first makes a row for each absent key. The second copies
// the row of each key of the batch to its position. If the tile of a key copied its row to all
// positions instead, the most frequent key, a tenth of a batch in a power law, would take longer
// than all other keys together.
#ifndef TF_EMBED_CC_STORES_DEVICE_FIND_OR_INSERT_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_FIND_OR_INSERT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/stores/device/find_kernels.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// A new row gets the default row of its first position.
struct FindOrInsertVerb {
  static constexpr bool kWritesPresent = false;
  static constexpr bool kSums = false;
  static constexpr bool kGives = true;
  BatchView batch;
  DefaultsView defaults;
  char* weights;
  bool* exists;  // may be null

  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile&, const StoreView&, const DeviceGroup&, char*) const {}
  template <class Tile>
  TF_EMBED_DEVICE void New(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                           char* row) const {
    defaults.Write(tile, group.key, batch.First(group), row);
    WriteInitialSlots(tile, store, row);
    Absent(tile, store, group);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile& tile, const StoreView& store,
                              const DeviceGroup& group) const {
    if (tile.lane() == 0) CountMisses<Tile>(store.tallies, group.key, group.count);
  }
};

// WriteKernel, for as many groups as a tile has lanes. Each lane handles the present row of a
// group, and the whole tile makes one new row after another.
template <class Verb>
struct MakeRowsKernel {
  WriteKernel<Verb> write;
  size_t count;
  uint32_t* given;  // [groups]: the row, or kNoRow

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const size_t first = i * Tile::kLanes;
    const size_t own = first + tile.lane();
    uint32_t added = kNoRow;
    bool is_absent = false;
    if (own < count && write.groups.Has(own)) {
      const uint32_t row = write.rows[own];
      if (row != kNoRow) {
        write.template NotePresent<Tile>(write.groups.groups[own], row);
      } else {
        added = write.NewRowOf(own);
        is_absent = added == kNoRow;
      }
      given[own] = row != kNoRow ? row : added;
    }
    const uint32_t comes = tile.Where(added != kNoRow);
    for (uint32_t left = comes | tile.Where(is_absent); left != 0; left &= left - 1) {
      const uint32_t lane = LowestBit(left);
      const DeviceGroup group = write.groups.groups[first + lane];
      const uint32_t number = tile.From(added, lane);
      if (number == kNoRow) {
        write.Absent(tile, group);
        continue;
      }
      // The row is not in the index yet, so no other tile of the launch can reach it while it is
      // being written.
      write.verb.New(tile, write.store, group, write.store.Row(number));
      if (tile.lane() == 0) write.template Enter<Tile>(group, number);
    }
  }
};

// Copies the row of each key of the batch to its position, after MakeRowsKernel. For as many keys
// as a tile looks up at once.
template <class Verb>
struct GiveKernel {
  WriteKernel<Verb> write;
  const uint32_t* given;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const StoreView& store = write.store;
    const size_t bytes = store.layout.weight_bytes;
    int64_t key;
    size_t position;
    const bool has = write.batch.Take(tile, i, &key, &position);
    const size_t own = i * kKeysOfTile<Tile> + tile.lane();
    const uint32_t number = has ? write.groups.numbers[own] : 0;
    const uint32_t row = has ? given[number] : kNoRow;
    const bool is_absent = has && row == kNoRow;
    const char* from = row == kNoRow ? nullptr : store.Row(row);
    // The default row of the first position.
    size_t first = 0;
    if (is_absent) first = write.batch.First(write.groups.groups[number]);
    const bool is_random = is_absent && write.verb.defaults.AreRandom();
    if (is_absent && !is_random) from = write.verb.defaults.RowAt(first);
    CopyRows<kKeysOfTile<Tile>>(tile, from, bytes, write.verb.weights + position * bytes);
    if (has && write.verb.exists != nullptr) {
      write.verb.exists[position] = write.rows[number] != kNoRow;
    }
    for (uint32_t left = tile.Where(is_random); left != 0; left &= left - 1) {
      const size_t its = i * kKeysOfTile<Tile> + LowestBit(left);
      write.verb.defaults.WriteInitial(tile, write.batch.keys[its],
                                       write.verb.weights + write.batch.Position(its) * bytes);
    }
  }
};

template <class Device, class Verb>
void LaunchGives(const Device& device, const ExecContext& context, size_t keys, size_t cost,
                 const WriteKernel<Verb>& write, uint32_t* given) {
  LaunchLanes(device, context, keys, cost, MakeRowsKernel<Verb>{write, keys, given});
  LaunchLookups(device, context, keys, cost, GiveKernel<Verb>{write, given});
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_FIND_OR_INSERT_KERNELS_H_
