// SPDX-License-Identifier: Apache-2.0
// Kernels that insert rows into a bounded table and evict them, as row_kernels.h.
//
// Evictions are decided by eviction set: the keys whose hashes begin with the same bits, 128 to 255
// of a full table, or all of a smaller one. A new key that finds the table full takes the place of
// the lowest row of its eviction set that is not used in the present step. So no pass over the
// table is ever needed, and a tile that has an eviction set to itself decides without a lock, the
// same in every order of tiles. HierarchicalKV does the same, with 128 places.
//
// A planned write: SurveyKernel looks each distinct key up, notes the uses and marks the keys that
// want to come; expired rows are taken out; candidates are sorted by eviction set, in the order of
// the batch or of their scores; ChooseVictimsKernel chooses the rows that leave for them, and
// EraseRowsKernel removes those. Then it goes as any other.
#ifndef TF_EMBED_CC_DEVICE_POLICY_KERNELS_H_
#define TF_EMBED_CC_DEVICE_POLICY_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/device/row_kernels.h"
#include "cc/device/table_kernels.h"

namespace tf_embed {

// ProbeKernel with the policy's part: present rows are used, and expired ones are taken for absent,
// with their places in `expired` [batch size, all kNoPlace].
struct SurveyKernel {
  TableView table;
  BatchView batch;
  GroupsView groups;
  const bool* exists;
  Expiry expiry;
  Moment now;
  uint32_t* rows;
  uint32_t* marks;
  uint64_t* expired;  // null where nothing expires

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (i >= *groups.size) return;
    const DeviceGroup group = groups.groups[i];
    const uint64_t place = table.index.Find(tile, group.key, HashKey(group.key));
    if (tile.lane() != 0) return;
    rows[i] = kNoRow;
    if (place != IndexView::kNoPlace) {
      const uint32_t row = table.index.EntryAt(place).row;
      const DeviceStatistics<Tile> statistics = table.StatisticsAt<Tile>(row);
      if (!expiry.Has(statistics)) {
        statistics.Use(now);
        rows[i] = row;
        return;
      }
      // Erased by a later launch, because this one looks keys up.
      expired[i] = place;
    }
    if (exists == nullptr || FirstAbsent(group, batch.positions, exists) < group.count) {
      marks[group.members[0]] = 1;
    }
  }
};

// For each of some places, or kNoPlace: takes the row out, and counts it.
struct EraseRowsKernel {
  TableView table;
  const uint64_t* places;
  uint64_t* left;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (tile.lane() != 0 || places[i] == IndexView::kNoPlace) return;
    // No place comes twice: each is that of a distinct key, of one lane of a bucket, or of a victim
    // of one eviction set.
    EraseAt<Tile>(table, places[i]);
    Tile::Add(left, 1);
  }
};

// For each of some places, or kNoPlace: marks whether there is a row that leaves.
struct MarkPlacesKernel {
  const uint64_t* places;
  uint32_t* marks;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (tile.lane() == 0 && places[i] != IndexView::kNoPlace) marks[i] = 1;
  }
};

// For each of them, by the running sum of the marks: copies the whole row.
struct CopyLeavingKernel {
  TableView table;
  const uint64_t* places;
  const uint32_t* numbers;
  WholeRowsView rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (places[i] == IndexView::kNoPlace) return;
    rows.Put(tile, table, table.index.EntryAt(places[i]), numbers[i]);
  }
};

// Goes over buckets to take rows out, or, if a sink must learn of them before, to find their
// places. For each bucket of [first, end).
struct Finder {
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t* left = nullptr;    // counts those that it took out
  uint64_t* places = nullptr;  // those that it found, at their lanes

  template <class Tile, typename Leaves>
  TF_EMBED_DEVICE void Look(const Tile& tile, const TableView& table, size_t i, uint64_t bucket,
                            const Leaves& leaves) const {
    ForEachLane(tile, DeviceBucket::kLanes, [&](size_t lane) {
      const uint64_t place = bucket * DeviceBucket::kLanes + lane;
      if (!table.index.template Holds<Tile>(place) || !leaves(place)) return;
      // Nothing is erased yet: the sink gets a copy of these rows first.
      if (places != nullptr) {
        places[i * DeviceBucket::kLanes + lane] = place;
        return;
      }
      EraseAt<Tile>(table, place);
      Tile::Add(left, 1);
    });
  }
};

// Finds expired rows, in the buckets that are searched for the sake of `wanted` new keys, from the
// end of the last such pass. No more are launched than there are buckets.
struct SweepKernel : Finder {
  SweepKernel(const TableView& table, const Expiry& expiry, const uint32_t* wanted)
      : table(table), expiry(expiry), wanted(wanted) {}

  TableView table;
  Expiry expiry;
  const uint32_t* wanted;  // null: all

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    // The host launches as many tiles as the batch has keys to allow for, because only the device
    // knows how many are new.
    if (wanted != nullptr && first + i >= BucketsToSweep(*wanted)) return;
    const uint64_t bucket =
        (table.counts->buckets_swept + first + i) & (table.index.num_buckets() - 1);
    Look(tile, table, i, bucket, [&](uint64_t place) {
      return expiry.Has(table.StatisticsAt<Tile>(table.index.EntryAt(place).row));
    });
  }
};

// Finds the rows that rank below the limit.
struct EvictBelowKernel : Finder {
  EvictBelowKernel(const TableView& table, EvictionOrder order, const Rank& limit, bool no_limit)
      : table(table), order(order), limit(limit), no_limit(no_limit) {}

  TableView table;
  EvictionOrder order;
  Rank limit;
  bool no_limit;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    Look(tile, table, i, first + i, [&](uint64_t place) {
      return RankBelow(RankAt<Tile>(table, place, order), limit, no_limit);
    });
  }
};

// For each group: the bits of its score, at its first member.
struct ScoreKernel {
  BatchView batch;
  GroupsView groups;
  uint64_t* scores;
  uint64_t* falling;  // the same, to sort by: the highest first

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (i >= *groups.size || tile.lane() != 0) return;
    const DeviceGroup group = groups.groups[i];
    const uint64_t bits = ScoreBitsOf(batch.scores[batch.Last(group)]);
    scores[group.members[0]] = bits;
    falling[group.members[0]] = ~bits;
  }
};

// For each place of an order of the batch.
struct FillIndicesKernel {
  uint32_t* order;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (tile.lane() == 0) order[i] = static_cast<uint32_t>(i);
  }
};

// Keys whose hashes begin with the same bits.
struct EvictionSets {
  uint32_t bits;

  TF_EMBED_DEVICE uint64_t Of(uint64_t hash) const { return bits == 0 ? 0 : hash >> (64 - bits); }
  // The eviction set of keys that do not come.
  TF_EMBED_DEVICE uint64_t None() const { return uint64_t{1} << bits; }

  // Calls visit(place, entry, hash) for the keys of one, each by one lane.
  template <class Tile, typename Visit>
  TF_EMBED_DEVICE void ForEach(const Tile& tile, const IndexView& index, uint64_t number,
                               const Visit& visit) const {
    // An index of fewer buckets than there are eviction sets has room for far fewer rows than the
    // bound, so nothing needs to leave.
    if (index.buckets == nullptr || index.bits < bits) return;
    const uint64_t homes = index.num_buckets() >> bits;
    const auto look = [&](uint64_t place) {
      if (!index.template Holds<Tile>(place)) return;
      const DeviceBucket::Entry& entry = index.EntryAt(place);
      const uint64_t hash = HashKey(entry.key);
      // Keys that overflowed from the set before lie in these buckets too.
      if (Of(hash) == number) visit(place, entry, hash);
    };
    const uint64_t first = number * homes;
    ForEachLane(tile, homes * DeviceBucket::kLanes,
                [&](size_t i) { look(first * DeviceBucket::kLanes + i); });
    // And those that went on.
    uint64_t bucket = first + homes - 1;
    // Each bucket that a key passes has counted it, so the first count of 0 ends the chain. The
    // bound keeps saturated counts from going round and visiting a key twice.
    for (uint64_t more = index.num_buckets() - homes; more > 0; --more) {
      if (DeviceBucket::Passed(Tile::Load(&index.buckets[bucket].header)) == 0) break;
      bucket = index.After(bucket);
      ForEachLane(tile, DeviceBucket::kLanes,
                  [&](size_t lane) { look(bucket * DeviceBucket::kLanes + lane); });
    }
  }
};

// For each place of an order: the eviction set of the key that it names, to sort by.
struct EvictionSetKernel {
  const int64_t* keys;
  const uint32_t* wanted;  // the running sum
  const uint32_t* order;
  EvictionSets eviction_sets;
  uint64_t* numbers;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (tile.lane() != 0) return;
    const uint32_t member = order[i];
    numbers[i] = wanted[member + 1] != wanted[member] ? eviction_sets.Of(HashKey(keys[member]))
                                                      : eviction_sets.None();
  }
};

// For each candidate, sorted by eviction set; the first one's tile deals with them all. As many as
// the table has room for come at no row's cost; each further one needs a victim, the lowest of
// those left, and where scores decide, one of no higher score. Marks those that come.
struct ChooseVictimsKernel {
  TableView table;
  EvictionSets eviction_sets;
  const uint64_t* numbers;
  const uint32_t* order;
  uint64_t batch_size;
  NewRows wanted;
  const uint64_t* scores;  // by first member; null where they do not decide
  EvictionOrder eviction;
  uint64_t step;
  uint64_t* victims;  // their places; [batch size, all kNoPlace]
  uint32_t* marks;    // [batch size + 1, zeros]

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = numbers[i];
    // One tile owns all candidates of an eviction set. So no two tiles choose the same victim, and
    // no lock is needed.
    if (number == eviction_sets.None() || (i > 0 && numbers[i - 1] == number)) return;
    const uint64_t room = wanted.Room(*table.counts);
    uint32_t mine = 0;
    uint32_t mine_free = 0;
    for (uint64_t k = i + tile.lane(); k < batch_size && numbers[k] == number; k += Tile::kLanes) {
      ++mine;
      // Room goes to keys by their number in the batch, as in WriteKernel, whatever the order of
      // scores. Only the count matters here: that many of the set come without a victim.
      if (wanted.marks[order[k]] < room) ++mine_free;
    }
    uint32_t count = 0;
    uint32_t come = 0;
    for (size_t lane = 0; lane < Tile::kLanes; ++lane) {
      count += tile.From(mine, lane);
      come += tile.From(mine_free, lane);
    }
    for (Victim last; come < count; ++come) {
      // Victims are taken in rising rank, so each search starts above the one before and needs no
      // list of those taken. Ranks are distinct, because they end with the hash.
      last = LowestAbove(tile, number, last);
      if (last.place == IndexView::kNoPlace) break;
      if (scores != nullptr && scores[order[i + come]] < last.rank.score()) break;
      if (tile.lane() == 0) victims[i + come] = last.place;
    }
    ForEachLane(tile, come, [&](size_t k) { marks[order[i + k]] = 1; });
  }

 private:
  struct Victim {
    uint64_t place = IndexView::kNoPlace;
    Rank rank;

    TF_EMBED_DEVICE void TakeLower(const Victim& other) {
      if (other.place == IndexView::kNoPlace) return;
      if (place == IndexView::kNoPlace || other.rank < rank) *this = other;
    }
  };

  // The lowest row of an eviction set that may leave, above the one before if there is one.
  template <class Tile>
  TF_EMBED_DEVICE Victim LowestAbove(const Tile& tile, uint64_t number,
                                     const Victim& before) const {
    Victim lowest;
    eviction_sets.ForEach(tile, table.index, number,
                          [&](uint64_t place, const DeviceBucket::Entry& entry, uint64_t hash) {
                            const DeviceStatistics<Tile> statistics =
                                table.StatisticsAt<Tile>(entry.row);
                            // Rows of the present step stay: this includes all rows of the batch,
                            // whose use SurveyKernel has noted.
                            if (statistics.Get(Statistic::kLastStep) == step) return;
                            Victim here;
                            here.place = place;
                            here.rank = RankOf(eviction, statistics, hash);
                            if (before.place == IndexView::kNoPlace || before.rank < here.rank) {
                              lowest.TakeLower(here);
                            }
                          });
    const auto from = [&](const auto& move) {
      Victim moved;
      moved.place = move(lowest.place);
      moved.rank = Rank(move(lowest.rank.score()), move(lowest.rank.hash()));
      return moved;
    };
    for (size_t distance = Tile::kLanes / 2; distance > 0; distance /= 2) {
      lowest.TakeLower(from([&](uint64_t x) { return tile.Down(x, distance); }));
    }
    return from([&](uint64_t x) { return tile.From(x, 0); });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DEVICE_POLICY_KERNELS_H_
