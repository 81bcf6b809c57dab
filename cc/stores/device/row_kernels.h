// SPDX-License-Identifier: Apache-2.0
// The verbs of a store in device memory on rows: a kernel per verb. Each is called for all i of a
// launch, in any order, many at once, by all lanes of a tile. See tile.h for the rules.
//
// A writing verb has two steps. ProbeKernel looks up each distinct key and numbers the absent keys.
// WriteKernel changes the present rows and makes new rows; for an optimizer, after SumKernel
// (rule_kernels.h). If there may not be room for all, ProbeKernel only marks the absent keys, and a
// running sum numbers them in batch order. Then the number decides which keys find room, so a full
// store refuses the same keys in every order of tiles.
#ifndef TF_EMBED_CC_STORES_DEVICE_ROW_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/data_type.h"
#include "cc/stores/device/batch_view.h"
#include "cc/stores/device/device_rows.h"

namespace tf_embed {

// The first position of a group whose `exists` is false.
inline TF_EMBED_HOST_DEVICE uint32_t FirstAbsent(const DeviceGroup& group,
                                                 const uint32_t* positions, const bool* exists) {
  uint32_t first = 0;
  while (first < group.count) {
    const uint32_t member = group.members[first];
    if (!exists[positions == nullptr ? member : positions[member]]) break;
    ++first;
  }
  return first;
}

// For each kKeysOfTile groups: writes the row of each group, or kNoRow. If `exists` is given, only
// keys with a position that says "absent" are wanted. If absent keys are left to the caller, none
// is.
struct ProbeKernel {
  using MayWait = void;
  IndexView index;
  BatchView batch;
  GroupsView groups;
  const bool* exists;
  uint32_t* rows;
  // If `numbers_new`, the number of each absent key that is wanted, and kNoRow for the others.
  // Otherwise 1 for the former [batch size + 1, zeros].
  uint32_t* wanted;
  bool numbers_new;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const size_t g = i * kKeysOfTile<Tile> + tile.lane();
    const bool has = tile.lane() < kKeysOfTile<Tile> && groups.Has(g);
    const DeviceGroup group = has ? groups.groups[g] : DeviceGroup{};
    const uint32_t row = index.FindRows(tile, has, group.key);
    if (has) rows[g] = row;
    const bool is_wanted =
        has && row == kNoRow && batch.absent == nullptr &&
        (exists == nullptr || FirstAbsent(group, batch.positions, exists) < group.count);
    if (!numbers_new) {
      if (is_wanted) wanted[g] = 1;
      return;
    }
    uint32_t count;
    const uint64_t number = AddTogether(tile, is_wanted, &groups.counters->new_keys, &count);
    if (has) wanted[g] = is_wanted ? static_cast<uint32_t>(number) : kNoRow;
  }
};

// The numbers of new rows of a batch.
struct NewRows {
  const uint32_t* marks = nullptr;  // running sum [batch size + 1], by group
  uint64_t most_rows = 0;           // bound on the store's rows
  // Instead of the sum, if all new rows certainly have room: their numbers, by group.
  const uint32_t* numbers = nullptr;

  TF_EMBED_DEVICE uint64_t Room(const StoreCounts& counts) const {
    // The store may have more rows than allowed, for example after a restore; the difference must
    // not wrap around.
    return most_rows - (counts.rows() < most_rows ? counts.rows() : most_rows);
  }
};

// For each group. Verb has
//     Present(tile, store, group, row)   for a present key
//     New(tile, store, group, row)       for a new key
//     Absent(tile, store, group)         for a key that gets no row
//     kWritesPresent                     whether Present changes the row
//     kSums                              whether SumKernel runs before (rule_kernels.h)
//     kGives                             whether other kernels replace this kernel
//                                        (find_or_insert_kernels.h)
template <class Verb>
struct WriteKernel {
  using MayWait = void;
  StoreView store;
  BatchView batch;
  GroupsView groups;
  size_t first;  // first group of this launch
  const uint32_t* rows;
  NewRows coming;
  bool uses;
  Moment now;
  Verb verb;
  uint64_t new_score = NewScore(store.eviction, now);  // on the host

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t number) const {
    const size_t i = first + number;
    if (!groups.Has(i)) return;
    const DeviceGroup group = groups.Get(first, number);
    // Found by an earlier launch. Nothing was inserted or erased since, so the row is still there.
    if (rows[i] != kNoRow) return Present(tile, group, rows[i]);
    const uint32_t added = NewRowOf(i);
    if (added == kNoRow) return Absent(tile, group);
    char* const row = store.Row(added);
    // The row is not in the index yet, so no other tile of the launch can reach it while it is
    // being written.
    verb.New(tile, store, group, row);
    if (tile.lane() == 0) Enter<Tile>(group, added);
  }

  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile& tile, const DeviceGroup& group) const {
    verb.Absent(tile, store, group);
    batch.LeaveAbsent(tile, group);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile& tile, const DeviceGroup& group, uint32_t row) const {
    verb.Present(tile, store, group, store.Row(row));
    if (tile.lane() == 0) NotePresent<Tile>(group, row);
  }

  // The parts of a lane. The row that an absent key gets, or kNoRow.
  TF_EMBED_DEVICE uint32_t NewRowOf(size_t group) const {
    if (coming.numbers != nullptr) {
      const uint32_t number = coming.numbers[group];
      return number == kNoRow ? kNoRow : store.NewRow(number);
    }
    const uint32_t* const mark = coming.marks + group;
    const uint32_t before = mark[0];  // number of new rows before this row
    // The running sum rises after a marked key. Its number is compared with the room here, on the
    // device: the host may not know how many rows there are.
    const bool comes = mark[1] != before && before < coming.Room(*store.counts);
    return comes ? store.NewRow(before) : kNoRow;
  }
  // Called after the new row was written.
  template <class Tile>
  TF_EMBED_DEVICE void Enter(const DeviceGroup& group, uint32_t added) const {
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(added);
    statistics.Begin(now);
    SetScore(statistics, group);
    statistics.NoteChange(store.period);
    if (store.layout.has_marks) store.template MarkOf<Tile>(store.Row(added)).Change(store.tick);
    const uint64_t hash = HashKey(group.key);
    DeviceBucket::Entry entry{group.key, added};
    uint64_t priority = DeviceBucket::kUnknownPriority;
    if (HasHints(store.eviction)) {
      entry.hint = DeviceBucket::HintOf(new_score);
      priority = Rank(new_score, hash).Priority();
    }
    store.index.template Insert<Tile>(entry, hash, priority);
  }
  template <class Tile>
  TF_EMBED_DEVICE void NotePresent(const DeviceGroup& group, uint32_t row) const {
    if (store.layout.has_marks) {
      const DeviceMark<Tile> mark = store.template MarkOf<Tile>(store.Row(row));
      if (Verb::kWritesPresent) {
        mark.Change(store.tick);
      } else {
        mark.Use(store.tick);
      }
    }
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(row);
    if (uses) statistics.Use(now);
    if (!Verb::kWritesPresent) return;
    SetScore(statistics, group);
    statistics.NoteChange(store.period);
  }

 private:
  template <class Statistics>
  TF_EMBED_DEVICE void SetScore(const Statistics& statistics, const DeviceGroup& group) const {
    // The last of equal keys wins, as for weights.
    if (batch.scores != nullptr) statistics.SetScore(batch.scores[batch.Last(group)]);
  }
};

// Buckets to search for expired rows when `new_keys` keys want rows. If each bucket has at least
// one key, a pass over the store ends before the new keys exceed half of its rows.
inline TF_EMBED_HOST_DEVICE uint64_t BucketsToSweep(uint64_t new_keys) {
  constexpr uint64_t kOfNewKey = 2;
  constexpr uint64_t kAtLeast = 16;
  return kAtLeast + kOfNewKey * new_keys;
}

// Counts the new rows of a batch once they are made. For a single tile.
struct CommitCountsKernel {
  using MayWait = void;
  StoreCounts* counts;
  StoreTallies* tallies;
  NewRows coming;
  const uint32_t* wanted;  // running sum [batch size + 1] of the keys that wanted rows
  const BatchCounters* counters;
  uint64_t batch_size;
  bool swept;  // whether SweepKernel ran
  bool counts_refused;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t) const {
    if (tile.lane() != 0) return;
    if (coming.numbers != nullptr) {
      counts->Take(counters->new_keys);
      tallies->admitted += counters->new_keys;
      return;
    }
    // More keys may be marked than the store has room for. WriteKernel has inserted the first keys;
    // the minimum below is their number.
    const uint64_t chosen = coming.marks[batch_size];
    const uint64_t room = coming.Room(*counts);
    const uint64_t came = chosen < room ? chosen : room;
    counts->Take(came);
    tallies->admitted += came;
    if (swept) counts->buckets_swept += BucketsToSweep(wanted[batch_size]);
    if (counts_refused) tallies->refused += wanted[batch_size] - came;
  }
};

template <class Tile>
TF_EMBED_DEVICE void WriteInitialSlots(const Tile& tile, const StoreView& store, char* row) {
  CopyBytes(tile, store.initial_slots, store.layout.slot_bytes, row + store.layout.slot_offset);
}

struct AssignVerb {
  static constexpr bool kWritesPresent = true;
  static constexpr bool kSums = false;
  static constexpr bool kGives = false;
  BatchView batch;
  const char* weights;
  const char* slots;  // may be null

  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                               char* row) const {
    const DeviceRowLayout& layout = store.layout;
    const size_t last = batch.Last(group);
    CopyBytes(tile, weights + last * layout.weight_bytes, layout.weight_bytes, row);
    if (slots != nullptr) {
      CopyBytes(tile, slots + last * layout.slot_bytes, layout.slot_bytes,
                row + layout.slot_offset);
    }
  }
  template <class Tile>
  TF_EMBED_DEVICE void New(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                           char* row) const {
    Present(tile, store, group, row);
    if (slots == nullptr) WriteInitialSlots(tile, store, row);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile&, const StoreView&, const DeviceGroup&) const {}
};

// a + b and a - b in the compute type; integers wrap around.
template <typename T>
TF_EMBED_DEVICE T WrappingSum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return Number<T>::Store(Number<T>::Load(a) + Number<T>::Load(b));
  }
}
template <typename T>
TF_EMBED_DEVICE T WrappingDifference(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  } else {
    return Number<T>::Store(Number<T>::Load(a) - Number<T>::Load(b));
  }
}

template <typename T>
struct AccumVerb {
  static constexpr bool kWritesPresent = true;
  static constexpr bool kSums = false;
  static constexpr bool kGives = false;
  BatchView batch;
  const T* old_rows;
  const T* new_rows;
  const bool* exists;

  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                               char* row) const {
    Add(tile, store, group, 0, row);
  }
  template <class Tile>
  TF_EMBED_DEVICE void New(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                           char* row) const {
    // In the order of the batch, differences for a row that does not exist yet count for nothing.
    // The first member that says "absent" inserts its row, and later members add to it.
    const uint32_t first = FirstAbsent(group, batch.positions, exists);
    const T* const from = new_rows + batch.Position(group.members[first]) * store.layout.dim;
    T* const to = reinterpret_cast<T*>(row);
    ForEachLane(tile, store.layout.dim, [&](size_t j) { to[j] = from[j]; });
    WriteInitialSlots(tile, store, row);
    Add(tile, store, group, first + 1, row);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile&, const StoreView&, const DeviceGroup&) const {}

 private:
  // Adds the differences of members, from `first` on, that say that the key exists.
  template <class Tile>
  TF_EMBED_DEVICE void Add(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                           uint32_t first, char* row) const {
    const size_t dim = store.layout.dim;
    T* const weights = reinterpret_cast<T*>(row);
    ForEachLane(tile, dim, [&](size_t j) {
      // A column belongs to one lane, which adds the members in order. So the result does not
      // depend on the number of lanes.
      T sum = weights[j];
      for (uint32_t k = first; k < group.count; ++k) {
        const size_t position = batch.Position(group.members[k]);
        if (!exists[position]) continue;
        const size_t at = position * dim + j;
        sum = WrappingSum(sum, WrappingDifference(new_rows[at], old_rows[at]));
      }
      weights[j] = sum;
    });
  }
};

// For each group: writes the place of its key, or IndexView::kNoPlace.
struct PlaceKernel {
  IndexView index;
  GroupsView groups;
  uint64_t* places;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!groups.Has(i)) return;
    const int64_t key = groups.groups[i].key;
    const uint64_t place = index.Find(tile, key, HashKey(key));
    if (tile.lane() == 0) places[i] = place;
  }
};

// Erases the key at each lane's place, or none for kNoPlace, and frees its row. Repeated places in
// a launch are harmless. All lanes call it and get the number of erased keys.
template <class Tile>
TF_EMBED_DEVICE uint32_t EraseTogether(const Tile& tile, const StoreView& store, uint64_t place) {
  uint32_t row = kNoRow;
  bool mine = false;
  if (place != IndexView::kNoPlace) {
    const DeviceBucket::Entry& entry = store.index.EntryAt(place);
    row = entry.row;
    // An erased entry still has its key, so a second Erase computes the same hash, and does
    // nothing.
    mine = store.index.template Erase<Tile>(HashKey(entry.key), place);
  }
  uint32_t count;
  // The list has room for every row number, so it can't overflow.
  const uint64_t end = AddTogether(tile, mine, &store.counts->rows_free, &count);
  if (mine) *store.rows.Free(static_cast<uint32_t>(end)) = row;
  return count;
}

// For as many places as a tile has lanes, after PlaceKernel.
struct EraseKernel {
  StoreView store;
  const uint64_t* places;  // [size], some of them kNoPlace
  uint64_t size;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    EraseTogether(tile, store, number < size ? places[number] : IndexView::kNoPlace);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_ROW_KERNELS_H_
