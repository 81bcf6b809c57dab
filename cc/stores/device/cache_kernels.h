// SPDX-License-Identifier: Apache-2.0
// The kernels of a cache in device memory, for the store over it (store_cache.h). The rules of
// row_kernels.h apply, but a key may occur twice in a batch.
#ifndef TF_EMBED_CC_STORES_DEVICE_CACHE_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_CACHE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/rows/row_mark.h"
#include "cc/core/store/store_cache.h"
#include "cc/stores/device/policy_kernels.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

// For each key of a batch.
struct TouchKernel {
  StoreView store;
  BatchView batch;
  bool* exists;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint32_t row = store.index.FindRow(tile, batch.keys[i]);
    if (tile.lane() != 0) return;
    exists[batch.Position(i)] = row != kNoRow;
    // Lanes change the word of a mark by compare-and-swap, so concurrent finds of a row need no
    // order.
    if (row != kNoRow) store.MarkOf<Tile>(store.Row(row)).Use(store.tick);
  }
};

// For each key of a batch.
struct SetChangedKernel {
  StoreView store;
  BatchView batch;
  bool changed;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint32_t row = store.index.FindRow(tile, batch.keys[i]);
    if (row == kNoRow || tile.lane() != 0) return;
    store.MarkOf<Tile>(store.Row(row)).SetChanged(changed);
  }
};

// For each key of a batch.
struct FindMarksKernel {
  StoreView store;
  BatchView batch;
  uint8_t* marks;
  bool* exists;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint32_t row = store.index.FindRow(tile, batch.keys[i]);
    if (tile.lane() != 0) return;
    const size_t position = batch.Position(i);
    exists[position] = row != kNoRow;
    marks[position] = row == kNoRow ? uint8_t{0} : store.MarkOf<Tile>(store.Row(row)).Get();
  }
};

// For each key of a batch.
struct NoteUsesKernel {
  StoreView store;
  BatchView batch;
  Expiry expiry;
  Moment now;
  StoreCache::Found* found;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint32_t row = store.index.FindRow(tile, batch.keys[i]);
    if (tile.lane() != 0) return;
    StoreCache::Found& what = found[batch.Position(i)];
    what = StoreCache::Found::kAbsent;
    if (row == kNoRow) return;
    // Checked before the use is noted: a use would make an expired row young again.
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(row);
    if (expiry.Has(statistics)) {
      what = StoreCache::Found::kExpired;
    } else {
      what = StoreCache::Found::kPresent;
      statistics.Use(now);
    }
  }
};

// The output array for the ranks that a launch finds. Ranks beyond its size are only counted.
struct FoundRanks {
  Rank* ranks = nullptr;
  uint64_t room = 0;
  uint64_t* count = nullptr;

  template <class Tile>
  TF_EMBED_DEVICE void Add(const Rank& rank) const {
    // The caller launches twice, first with no room to learn the size. Tiles race for places, so
    // the ranks are in no order.
    const uint64_t place = Tile::Add(count, 1);
    if (place < room) ranks[place] = rank;
  }
};

// For each place: finds rows of at least `least_age`, and refreshes marks before they wrap
// (StoreCache::CollectAges).
struct CollectAgesKernel {
  StoreView store;
  size_t one_in;  // by the highest byte of a hash
  uint8_t least_age;
  FoundRanks found;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (tile.lane() != 0 || !store.index.Holds<Tile>(place)) return;
    const DeviceBucket::Entry& entry = store.index.EntryAt(place);
    const uint64_t hash = HashKey(entry.key);
    // Rows are sampled by hash and not by place, so a sample does not depend on the size of the
    // index.
    if ((hash >> 56) % one_in != 0) return;
    const DeviceMark<Tile> word = store.MarkOf<Tile>(store.Row(entry.row));
    uint8_t mark = word.Get();
    // Ticks wrap around. So a full pass sets older rows back to the oldest age, before they would
    // look young again.
    if (one_in == 1 && RowMark::Age(mark, store.tick) > RowMark::kOldest) {
      const uint8_t oldest = static_cast<uint8_t>(store.tick - RowMark::kOldest) % RowMark::kTicks;
      const uint8_t aged = RowMark::Of(oldest, RowMark::IsChanged(mark));
      // The swap fails if a find has used the row since Get; then its new mark counts.
      mark = word.Replace(mark, aged) ? aged : word.Get();
    }
    if (RowMark::Age(mark, store.tick) >= least_age) found.Add<Tile>(Rank(mark, hash));
  }
};

// For each of some buckets from `first` on, which may wrap around: finds expired rows.
struct FindExpiredKernel {
  StoreView store;
  Expiry expiry;
  uint64_t first;
  FoundRanks found;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    // The number of buckets is a power of two, so the mask wraps.
    const uint64_t bucket = (first + i) & (store.index.num_buckets() - 1);
    ForEachLane(tile, DeviceBucket::kLanes, [&](size_t lane) {
      const uint64_t place = bucket * DeviceBucket::kLanes + lane;
      if (!store.index.Holds<Tile>(place)) return;
      const DeviceBucket::Entry& entry = store.index.EntryAt(place);
      if (expiry.Has(store.StatisticsAt<Tile>(entry.row))) {
        found.Add<Tile>(Rank(0, HashKey(entry.key)));
      }
    });
  }
};

// For each row: adds it, marked unchanged. REQUIRES: its key is absent; there is room for all rows.
struct AddRowsKernel {
  StoreView store;
  WholeRowsView rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const DeviceRowLayout& layout = store.layout;
    // The counts do not change until CommitAddedKernel, so only i determines the row's number.
    const uint32_t number = store.NewRow(i);
    char* const row = store.Row(number);
    CopyBytes(tile, rows.weights + i * layout.weight_bytes, layout.weight_bytes, row);
    CopyBytes(tile, rows.slots + i * layout.slot_bytes, layout.slot_bytes,
              row + layout.slot_offset);
    ForEachLane(tile, layout.statistics, [&](size_t k) {
      store.StatisticsOf(row)[k] = rows.statistics[i * layout.statistics + k];
    });
    if (tile.lane() != 0) return;
    store.MarkOf<Tile>(row).Set(RowMark::Of(store.tick, false));
    store.index.Insert<Tile>({rows.keys[i], number}, HashKey(rows.keys[i]));
  }
};

// Counts the added rows. For a single tile.
struct CommitAddedKernel {
  StoreCounts* counts;
  uint64_t added;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t) const {
    if (tile.lane() == 0) counts->Take(added);
  }
};

// For as many places as a tile has lanes, possibly repeated: erases the rows.
struct DropKernel {
  StoreView store;
  const uint64_t* places;
  uint64_t size;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    // A separate launch from FindPlacesKernel: a lookup must not meet an entry that is being
    // erased.
    EraseTogether(tile, store, number < size ? places[number] : IndexView::kNoPlace);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CACHE_KERNELS_H_
