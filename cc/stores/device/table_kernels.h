// SPDX-License-Identifier: Apache-2.0
// The kernels of a store in device memory on all its rows, and on the statistics of some rows. The
// rules of row_kernels.h apply. "For each place" means the places of an index.
#ifndef TF_EMBED_CC_STORES_DEVICE_TABLE_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_TABLE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// For each place: puts the key into another index, with the same row.
struct ReindexKernel {
  IndexView from;
  IndexView to;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (tile.lane() != 0 || !from.Holds<Tile>(place)) return;
    const DeviceBucket::Entry& entry = from.EntryAt(place);
    // The launch reads one index and only inserts into the other. Rows stay where they are.
    to.Insert<Tile>(entry, HashKey(entry.key), from.buckets[place / DeviceBucket::kLanes].priority);
  }
};

// For each place: copies the row to the same number of other slabs, with other slots.
struct ChangeLayoutKernel {
  StoreView from;
  StoreView to;  // initial_slots: the new slots

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (!from.index.Holds<Tile>(place)) return;
    // Row numbers do not change, so the index and the list of free rows stay valid for the new
    // slabs.
    const uint32_t number = from.index.EntryAt(place).row;
    char* const old_row = from.Row(number);
    char* const row = to.Row(number);
    CopyBytes(tile, old_row, from.layout.weight_bytes, row);
    WriteInitialSlots(tile, to, row);
    ForEachLane(tile, from.layout.words,
                [&](size_t i) { to.StatisticsOf(row)[i] = from.StatisticsOf(old_row)[i]; });
  }
};

// For each place: copies key and row to an empty store of the same layout with enough room. Readers
// of the old store may run concurrently, but note no uses.
struct CopyStoreKernel {
  StoreView from;
  StoreView to;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (!from.index.Holds<Tile>(place)) return;
    const DeviceBucket::Entry& entry = from.index.EntryAt(place);
    uint32_t number = 0;
    if (tile.lane() == 0) number = static_cast<uint32_t>(Tile::Add(&to.counts->rows_begun, 1));
    number = tile.From(number, 0);
    char* const old_row = from.Row(entry.row);
    char* const row = to.Row(number);
    CopyBytes(tile, old_row, from.layout.weight_bytes, row);
    const size_t slots = from.layout.slot_offset;
    CopyBytes(tile, old_row + slots, from.layout.slot_bytes, row + slots);
    ForEachLane(tile, from.layout.words,
                [&](size_t i) { to.StatisticsOf(row)[i] = from.StatisticsOf(old_row)[i]; });
    if (tile.lane() == 0) to.index.Insert<Tile>({entry.key, number}, HashKey(entry.key));
  }
};

// A part of an export, which is in the order of the keys' hashes, in units of 2^24. The order does
// not change if the index grows or shrinks between two parts.
struct HashRange {
  static constexpr int kUnitBits = 24;
  static constexpr uint64_t kEnd = uint64_t{1} << (64 - kUnitBits);

  uint64_t begin;
  uint64_t end;

  TF_EMBED_DEVICE bool Has(uint64_t hash) const {
    const uint64_t unit = hash >> kUnitBits;
    return unit >= begin && unit < end;
  }
};

// The output arrays for whole rows, which are consecutive.
struct WholeRowsView {
  int64_t* keys = nullptr;
  char* weights = nullptr;
  char* slots = nullptr;
  uint64_t* statistics = nullptr;

  // Writes a row at a place.
  template <class Tile>
  TF_EMBED_DEVICE void Put(const Tile& tile, const StoreView& store,
                           const DeviceBucket::Entry& entry, uint64_t place) const {
    const DeviceRowLayout& layout = store.layout;
    char* const row = store.Row(entry.row);
    if (tile.lane() == 0) keys[place] = entry.key;
    CopyBytes(tile, row, layout.weight_bytes, weights + place * layout.weight_bytes);
    CopyBytes(tile, row + layout.slot_offset, layout.slot_bytes, slots + place * layout.slot_bytes);
    ForEachLane(tile, layout.statistics, [&](size_t k) {
      statistics[place * layout.statistics + k] = Tile::Load(&store.StatisticsOf(row)[k]);
    });
  }
};

// For each key: its place, or IndexView::kNoPlace.
struct FindPlacesKernel {
  IndexView index;
  const int64_t* keys;
  uint64_t* places;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t place = index.Find(tile, keys[i], HashKey(keys[i]));
    if (tile.lane() == 0) places[i] = place;
  }
};

// For each bucket from `first` on: exports the keys whose home it is and whose hashes are in the
// range. `rows` has room for all of them. For a snapshot, exports the rows that it wants, and
// claims them.
struct ExportKernel {
  StoreView store;
  uint64_t first;
  HashRange range;
  WantedRows wanted;  // without a snapshot: all rows
  uint64_t* count;
  WholeRowsView rows;  // null arrays: rows are only counted

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const IndexView& index = store.index;
    const uint64_t home = first + i;
    // By home and not by place: an overflowed key is exported with its home bucket. So only its
    // hash determines the part of the export that a key is in.
    uint64_t bucket = home;
    for (uint64_t searched = 0; searched < index.num_buckets(); ++searched) {
      const uint64_t header = Tile::Load(&index.buckets[bucket].header);
      for (size_t lane = 0; lane < DeviceBucket::kLanes; ++lane) {
        if (DeviceBucket::Digest(header, lane) == 0) continue;
        const DeviceBucket::Entry& entry = index.buckets[bucket].entries[lane];
        const uint64_t hash = HashKey(entry.key);
        if (index.HomeOf(hash) == home && range.Has(hash)) Export(tile, entry);
      }
      if (DeviceBucket::Passed(header) == 0) break;
      bucket = index.After(bucket);
    }
  }

 private:
  template <class Tile>
  TF_EMBED_DEVICE void Export(const Tile& tile, const DeviceBucket::Entry& entry) const {
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(entry.row);
    if (wanted.snapshot != 0 && !statistics.IsWanted(wanted)) return;
    uint64_t place = 0;
    if (tile.lane() == 0) place = Tile::Add(count, 1);
    // The first launch only counts, to size the arrays.
    if (rows.keys == nullptr) return;
    rows.Put(tile, store, entry, tile.From(place, 0));
    // All lanes have asked by now, because From waits for them.
    if (wanted.snapshot != 0 && tile.lane() == 0) statistics.TakeFor(wanted);
  }
};

// For each key of a batch.
struct FindStatisticsKernel {
  StoreView store;
  BatchView batch;
  uint64_t* statistics;
  bool* exists;  // may be null

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const size_t words = store.layout.statistics;
    const size_t position = batch.Position(i);
    const uint32_t row = store.index.FindRow(tile, batch.keys[i]);
    ForEachLane(tile, words, [&](size_t k) {
      statistics[position * words + k] =
          row == kNoRow ? 0 : Tile::Load(&store.StatisticsOf(store.Row(row))[k]);
    });
    if (exists != nullptr && tile.lane() == 0) exists[position] = row != kNoRow;
  }
};

// For each group.
struct AssignStatisticsKernel {
  StoreView store;
  BatchView batch;
  GroupsView groups;
  StatisticSet set;
  const uint64_t* statistics;  // words of `set`

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!groups.Has(i)) return;
    const DeviceGroup group = groups.groups[i];
    uint32_t row;
    const uint64_t place = store.index.Find(tile, group.key, HashKey(group.key), &row);
    if (row == kNoRow || tile.lane() != 0) return;
    // The row may rank lower from now on.
    store.index.ForgetRank<Tile>(place);
    const DeviceStatistics<Tile> present{store.statistics, store.StatisticsOf(store.Row(row))};
    const uint64_t* const words = statistics + batch.Last(group) * set.size();
    for (size_t i = 0; i + 1 < StatisticSet::kMax; ++i) {  // all but the last, kChange
      const Statistic statistic = static_cast<Statistic>(1u << i);
      if (set.Has(statistic)) present.Set(statistic, words[set.IndexOf(statistic)]);
    }
    // Scores are the user's, so a snapshot of changes has them.
    if (set.Has(Statistic::kScore)) present.NoteChange(store.period);
  }
};

template <class Tile>
TF_EMBED_DEVICE Rank RankAt(const StoreView& store, uint64_t place, EvictionOrder order) {
  const DeviceBucket::Entry& entry = store.index.EntryAt(place);
  const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(entry.row);
  return RankOf(order, statistics, HashKey(entry.key));
}

TF_EMBED_DEVICE bool RankBelow(const Rank& rank, const Rank& limit, bool no_limit) {
  return no_limit || rank < limit;
}

// For each place. `counts`: ranks in the range, ranks below it.
struct CollectRanksKernel {
  StoreView store;
  EvictionOrder order;
  size_t one_in;  // by the highest byte of a hash
  Rank low;
  Rank high;
  bool no_limit;
  Rank* ranks;  // has room for all rows
  uint64_t* counts;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (tile.lane() != 0 || !store.index.Holds<Tile>(place)) return;
    if ((HashKey(store.index.EntryAt(place).key) >> 56) % one_in != 0) return;
    const Rank rank = RankAt<Tile>(store, place, order);
    if (rank < low) {
      Tile::Add(&counts[1], 1);
    } else if (RankBelow(rank, high, no_limit)) {
      // Can't overflow: no write runs, and there is room for all rows.
      ranks[Tile::Add(&counts[0], 1)] = rank;
    }
  }
};

// For each place of a sample: counts keys, and the buckets that a find of these keys reads.
struct CountProbesKernel {
  IndexView index;
  uint64_t* counts;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (tile.lane() != 0 || !index.Holds<Tile>(place)) return;
    const uint64_t home = index.HomeOf(HashKey(index.EntryAt(place).key));
    const uint64_t bucket = place / DeviceBucket::kLanes;
    Tile::Add(&counts[0], 1);
    Tile::Add(&counts[1], ((bucket - home) & (index.num_buckets() - 1)) + 1);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_TABLE_KERNELS_H_
