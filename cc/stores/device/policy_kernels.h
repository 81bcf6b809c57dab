// SPDX-License-Identifier: Apache-2.0
// Kernels that insert rows into a bounded store and evict them, as row_kernels.h.
//
// Evictions are decided by eviction set: the keys whose hashes begin with the same bits, 128 to 255
// of a full store, or all of a smaller one. A new key that finds the store full takes the place of
// the lowest row of its eviction set that is not used in the present step. So no pass over the
// store is ever needed, and a tile that has an eviction set to itself decides without a lock, the
// same in every order of tiles. HierarchicalKV does the same, with 128 places.
//
// A planned write: SurveyKernel looks each distinct key up, notes the uses and marks the keys that
// want to come; expired rows are taken out; candidates are sorted by eviction set, in the order of
// the batch or of their scores; ChooseVictimsKernel chooses the rows that leave for them, and
// EraseRowsKernel removes those. Then it goes as any other.
#ifndef TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

// ProbeKernel with the policy's part: present rows are used, and expired ones are taken for absent,
// with their places in `expired` [batch size, all kNoPlace].
struct SurveyKernel {
  StoreView store;
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
    uint32_t row;
    const uint64_t place = store.index.Find(tile, group.key, HashKey(group.key), &row);
    if (tile.lane() != 0) return;
    rows[i] = kNoRow;
    if (row != kNoRow) {
      const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(row);
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

// Takes out the row at each lane's place, or kNoPlace, and counts it. All lanes call.
template <class Tile>
TF_EMBED_DEVICE void EraseAndCount(const Tile& tile, const StoreView& store, uint64_t place,
                                   uint64_t* left) {
  const uint32_t count = EraseTogether(tile, store, place);
  if (count > 0 && tile.lane() == 0) Tile::Add(left, count);
}

// For as many of some places, or kNoPlace, as a tile has lanes: takes the rows out, and counts
// them.
struct EraseRowsKernel {
  StoreView store;
  const uint64_t* places;
  uint64_t size;
  uint64_t* left;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    EraseAndCount(tile, store, number < size ? places[number] : IndexView::kNoPlace, left);
  }
};

// For as many of some places, or kNoPlace, as a tile has lanes: marks whether there is a row that
// leaves.
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

// For each place, by the running sum of the marks: copies the whole row.
struct CopyLeavingKernel {
  StoreView store;
  const uint64_t* places;
  const uint32_t* numbers;
  WholeRowsView rows;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (places[i] == IndexView::kNoPlace) return;
    rows.Put(tile, store, store.index.EntryAt(places[i]), numbers[i]);
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
  TF_EMBED_DEVICE void Look(const Tile& tile, const StoreView& store, size_t i, uint64_t bucket,
                            const Leaves& leaves) const {
    // Not by ForEachLane, because all lanes must call EraseAndCount as often.
    for (size_t lanes = 0; lanes < DeviceBucket::kLanes; lanes += Tile::kLanes) {
      const size_t lane = lanes + tile.lane();
      const uint64_t place = bucket * DeviceBucket::kLanes + lane;
      const bool found =
          lane < DeviceBucket::kLanes && store.index.template Holds<Tile>(place) && leaves(place);
      if (places == nullptr) {
        EraseAndCount(tile, store, found ? place : IndexView::kNoPlace, left);
      } else if (found) {
        // Nothing is erased yet: the sink gets a copy of these rows first.
        places[i * DeviceBucket::kLanes + lane] = place;
      }
    }
  }
};

// Finds expired rows, in the buckets that are searched for the sake of `wanted` new keys, from the
// end of the last such pass. No more are launched than there are buckets.
struct SweepKernel : Finder {
  SweepKernel(const StoreView& store, const Expiry& expiry, const uint32_t* wanted)
      : store(store), expiry(expiry), wanted(wanted) {}

  StoreView store;
  Expiry expiry;
  const uint32_t* wanted;  // null: all

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    // The host launches as many tiles as the batch has keys to allow for, because only the device
    // knows how many are new.
    if (wanted != nullptr && first + i >= BucketsToSweep(*wanted)) return;
    const uint64_t bucket =
        (store.counts->buckets_swept + first + i) & (store.index.num_buckets() - 1);
    Look(tile, store, i, bucket, [&](uint64_t place) {
      return expiry.Has(store.StatisticsAt<Tile>(store.index.EntryAt(place).row));
    });
  }
};

// Finds the rows that rank below the limit.
struct EvictBelowKernel : Finder {
  EvictBelowKernel(const StoreView& store, EvictionOrder order, const Rank& limit, bool no_limit)
      : store(store), order(order), limit(limit), no_limit(no_limit) {}

  StoreView store;
  EvictionOrder order;
  Rank limit;
  bool no_limit;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    Look(tile, store, i, first + i, [&](uint64_t place) {
      return RankBelow(RankAt<Tile>(store, place, order), limit, no_limit);
    });
  }
};

// For as many groups as a tile has lanes: the bits of their scores, at their first members.
struct ScoreKernel {
  BatchView batch;
  GroupsView groups;
  uint64_t* scores;
  uint64_t* falling;  // the same, to sort by: the highest first

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= *groups.size) return;
    const DeviceGroup group = groups.groups[number];
    const uint64_t bits = ScoreBitsOf(batch.scores[batch.Last(group)]);
    scores[group.members[0]] = bits;
    falling[group.members[0]] = ~bits;
  }
};

// For as many places of an order of the batch as a tile has lanes.
struct FillIndicesKernel {
  uint32_t* order;
  uint64_t size;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number < size) order[number] = static_cast<uint32_t>(number);
  }
};

// Keys whose hashes begin with the same bits.
struct EvictionSets {
  uint32_t bits;

  TF_EMBED_DEVICE uint64_t Of(uint64_t hash) const { return bits == 0 ? 0 : hash >> (64 - bits); }
  // The eviction set of keys that do not come.
  TF_EMBED_DEVICE uint64_t None() const { return uint64_t{1} << bits; }

  // Calls visit(place, entry, hash) for the keys of one, each by one lane, the same each time.
  template <class Tile, typename Visit>
  TF_EMBED_DEVICE void ForEach(const Tile& tile, const IndexView& index, uint64_t number,
                               const Visit& visit) const {
    // An index of fewer buckets than there are eviction sets has room for far fewer rows than the
    // bound, so nothing needs to leave.
    if (index.buckets == nullptr || index.bits < bits) return;
    const uint64_t homes = index.num_buckets() >> bits;
    const auto look = [&](uint64_t place) {
      DeviceBucket::Entry& entry = index.EntryAt(place);
      // Beside the header and not after it: most places hold a key. And the key alone, because the
      // hint of another set's row may be written by another tile.
      const uint64_t hash = HashKey(entry.key);
      // Keys that overflowed from the set before lie in these buckets too.
      if (index.template Holds<Tile>(place) && Of(hash) == number) visit(place, &entry, hash);
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

// For as many places of an order as a tile has lanes: the eviction sets of the keys that they name,
// to sort by.
struct EvictionSetKernel {
  const int64_t* keys;
  const uint32_t* wanted;  // the running sum
  const uint32_t* order;
  uint64_t size;
  EvictionSets eviction_sets;
  uint64_t* numbers;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= size) return;
    const uint32_t member = order[number];
    numbers[number] = wanted[member + 1] != wanted[member] ? eviction_sets.Of(HashKey(keys[member]))
                                                           : eviction_sets.None();
  }
};

// For as many candidates, sorted by eviction set, as a tile has lanes: lists those that are the
// first of their sets, in any order.
struct FirstCandidatesKernel {
  const uint64_t* numbers;
  uint64_t size;
  EvictionSets eviction_sets;
  uint32_t* firsts;
  uint64_t* num_firsts;  // 0 before

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t k = i * Tile::kLanes + tile.lane();
    const bool is_first =
        k < size && numbers[k] != eviction_sets.None() && (k == 0 || numbers[k - 1] != numbers[k]);
    uint32_t count;
    const uint64_t place = AddTogether(tile, is_first, num_firsts, &count);
    if (is_first) firsts[place] = static_cast<uint32_t>(k);
  }
};

// For each eviction set that has candidates: as many of them as the store has room for come at no
// row's cost; each further one needs a victim, the lowest of those left, and where scores decide,
// one of no higher score. Marks those that come.
//
// Victims are found by the index and few rows. Each lane has a part of the set and goes over it by
// the index alone, as long as hints say how low its rows may be; it keeps the lowest of them as
// candidates. The lowest candidate of all lanes is then read: it leaves if it is as low as its hint
// said, and moves up otherwise. As hints are lower bounds, no other row is lower than one that
// leaves.
struct ChooseVictimsKernel {
  StoreView store;
  EvictionSets eviction_sets;
  const uint32_t* firsts;  // by FirstCandidatesKernel: few tiles work, and so they stand together
  const uint64_t* num_firsts;
  const uint64_t* numbers;  // of the candidates, sorted
  const uint32_t* order;
  uint64_t batch_size;
  NewRows wanted;
  const uint64_t* scores;  // by first member; null where they do not decide
  EvictionOrder eviction;
  uint64_t step;
  uint64_t* victims;  // their places; [batch size, all kNoPlace]
  uint32_t* marks;    // [batch size + 1, zeros]

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t n) const {
    // One tile owns all candidates of an eviction set. So no two tiles choose the same victim, and
    // no lock is needed.
    if (n >= *num_firsts) return;
    const size_t i = firsts[n];
    const uint64_t number = numbers[i];
    const uint64_t room = wanted.Room(*store.counts);
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
    Candidates candidates;
    for (; come < count; ++come) {
      // In rising rank. Ranks are distinct, because they end with the hash.
      const Row victim = TakeLowest(tile, number, &candidates);
      if (victim.place == IndexView::kNoPlace) break;
      if (scores != nullptr && scores[order[i + come]] < victim.rank.score()) break;
      if (tile.lane() == 0) victims[i + come] = victim.place;
    }
    ForEachLane(tile, come, [&](size_t k) { marks[order[i + k]] = 1; });
  }

 private:
  struct Row {
    uint64_t place = IndexView::kNoPlace;
    Rank rank;             // or, by its hint, a lower bound of it
    bool is_read = false;  // whether it is the rank, and the row may leave

    TF_EMBED_DEVICE bool IsBelow(const Row& other) const {
      return place != IndexView::kNoPlace &&
             (other.place == IndexView::kNoPlace || rank < other.rank);
    }
  };

  // Of a lane's part of an eviction set, the lowest rows, as far as is known.
  struct Candidates {
    static constexpr size_t kMost = 4;

    Row rows[kMost];           // rising, then those of no place
    bool left_out_any = true;  // whether there may be others, none of them lower
    // The last that was the lowest here. Whatever is not above it by its hint has left, or may not.
    Row last;

    TF_EMBED_DEVICE bool AreUsedUp() const {
      return left_out_any && rows[0].place == IndexView::kNoPlace;
    }
    TF_EMBED_DEVICE void Add(Row row) {
      // Behind the last one a row has a place only if none that was left out may be lower.
      bool fits = !left_out_any;
      TF_EMBED_UNROLL
      for (size_t i = 0; i < kMost; ++i) {
        if (rows[i].place == IndexView::kNoPlace ? !fits : !row.IsBelow(rows[i])) continue;
        const Row above = rows[i];
        rows[i] = row;
        row = above;
        fits = true;
      }
      if (row.place != IndexView::kNoPlace) left_out_any = true;
    }
    TF_EMBED_DEVICE void TakeFirst() {
      last = rows[0];
      TF_EMBED_UNROLL
      for (size_t i = 1; i < kMost; ++i) rows[i - 1] = rows[i];
      rows[kMost - 1] = Row();
    }
  };

  // Scores of users may fall.
  TF_EMBED_DEVICE bool HasHints() const { return eviction != EvictionOrder::kScore; }

  // Takes the lowest row of an eviction set that may leave and was not taken before. All lanes get
  // it.
  template <class Tile>
  TF_EMBED_DEVICE Row TakeLowest(const Tile& tile, uint64_t number, Candidates* candidates) const {
    for (;;) {
      // All lanes together, because one that looks alone would take as long.
      if (tile.Highest(candidates->AreUsedUp() ? 1 : 0) != 0) Look(tile, number, candidates);
      const Row lowest = Lowest(tile, candidates->rows[0]);
      if (lowest.place == IndexView::kNoPlace) return lowest;
      uint32_t leaves = 0;
      if (candidates->rows[0].place == lowest.place) leaves = TakeFirst<Tile>(candidates) ? 1 : 0;
      if (tile.Highest(leaves) != 0) return lowest;
    }
  }

  // Fills a lane's candidates up.
  template <class Tile>
  TF_EMBED_DEVICE void Look(const Tile& tile, uint64_t number, Candidates* candidates) const {
    if (!candidates->left_out_any ||
        candidates->rows[Candidates::kMost - 1].place != IndexView::kNoPlace) {
      return;
    }
    Candidates found;
    found.left_out_any = false;
    found.last = candidates->last;
    eviction_sets.ForEach(tile, store.index, number,
                          [&](uint64_t place, DeviceBucket::Entry* entry, uint64_t hash) {
                            Row row{place, Rank(), false};
                            if (HasHints() && entry->hint != DeviceBucket::kNoHint) {
                              row.rank = Rank(DeviceBucket::ScoreOf(entry->hint), hash);
                            } else if (!Read<Tile>(entry, hash, &row)) {
                              return;
                            }
                            if (found.last.IsBelow(row) || found.last.place == IndexView::kNoPlace)
                              found.Add(row);
                          });
    *candidates = found;
  }

  // Takes the first candidate of this lane; false if it does not leave, or not yet.
  template <class Tile>
  TF_EMBED_DEVICE bool TakeFirst(Candidates* candidates) const {
    Row row = candidates->rows[0];
    candidates->TakeFirst();
    if (row.is_read) return true;
    const Rank least = row.rank;
    if (!Read<Tile>(&store.index.EntryAt(row.place), least.hash(), &row)) return false;
    if (!(least < row.rank)) return true;
    // Used since its hint was written. If it is not added, the next look finds it by its new hint.
    candidates->Add(row);
    return false;
  }

  // Reads the rank of a row and writes its hint; false if the row may not leave.
  template <class Tile>
  TF_EMBED_DEVICE bool Read(DeviceBucket::Entry* entry, uint64_t hash, Row* row) const {
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(entry->row);
    row->rank = RankOf(eviction, statistics, hash);
    row->is_read = true;
    const uint32_t hint = HasHints() ? DeviceBucket::HintOf(row->rank.score()) : entry->hint;
    if (hint != entry->hint) entry->hint = hint;
    // Rows of the present step stay: this includes all rows of the batch, whose use SurveyKernel
    // has noted.
    return statistics.Get(Statistic::kLastStep) != step;
  }

  // The lowest of all lanes' rows.
  template <class Tile>
  static TF_EMBED_DEVICE Row Lowest(const Tile& tile, Row row) {
    const auto from = [&](const auto& move) {
      Row moved;
      moved.place = move(row.place);
      moved.rank = Rank(move(row.rank.score()), move(row.rank.hash()));
      return moved;
    };
    for (size_t distance = Tile::kLanes / 2; distance > 0; distance /= 2) {
      const Row other = from([&](uint64_t x) { return tile.Down(x, distance); });
      if (other.IsBelow(row)) row = other;
    }
    return from([&](uint64_t x) { return tile.From(x, 0); });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_
