// SPDX-License-Identifier: Apache-2.0
// Kernels that insert rows into a bounded store and evict them. The rules of row_kernels.h apply.
//
// Evictions happen within eviction sets. A set has the keys whose hashes begin with the same bits:
// 128 to 255 keys of a full store, or all keys of a smaller store. A new key that finds the store
// full replaces the lowest row of its eviction set that is not used in the present step. So no pass
// over the store is needed, and a tile with exclusive access to an eviction set decides without a
// lock, and with the same result in every order of tiles. HierarchicalKV does the same, with 128
// places.
//
// A planned write: SurveyKernel looks up each distinct key, notes the uses and marks the keys that
// want rows. Expired rows are removed. Candidates are sorted by eviction set, within a set in batch
// order or by score. ChooseVictimsKernel chooses the rows that leave for them, and EraseRowsKernel
// removes these. Then the write continues like any other.
#ifndef TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

// ProbeKernel with the policy: present rows are used, and expired rows count as absent, with their
// places in `expired` [batch size, all kNoPlace].
struct SurveyKernel {
  StoreView store;
  BatchView batch;
  GroupsView groups;
  const bool* exists;
  Expiry expiry;
  Moment now;
  uint32_t* rows;
  uint32_t* marks;
  uint64_t* expired;  // null if rows don't expire

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!groups.Has(i)) return;
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
      // Erased by a later launch, because this launch looks up keys.
      expired[i] = place;
    }
    if (exists == nullptr || FirstAbsent(group, batch.positions, exists) < group.count) {
      marks[i] = 1;
    }
  }
};

// Removes the row at each lane's place, or none for kNoPlace, and counts it. All lanes call it.
template <class Tile>
TF_EMBED_DEVICE void EraseAndCount(const Tile& tile, const StoreView& store, uint64_t place,
                                   uint64_t* left) {
  const uint32_t count = EraseTogether(tile, store, place);
  if (count > 0 && tile.lane() == 0) Tile::Add(left, count);
}

// For as many places as a tile has lanes, some of them kNoPlace: removes the rows, and counts them.
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

// For each bucket of [first, end): removes rows, or finds their places if the host is told of them
// first.
struct Finder {
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t* left = nullptr;    // counts the removed rows
  uint64_t* places = nullptr;  // places of the found rows, by lane

  template <class Tile, typename Leaves>
  TF_EMBED_DEVICE void Look(const Tile& tile, const StoreView& store, size_t i, uint64_t bucket,
                            const Leaves& leaves) const {
    // Not ForEachLane, because all lanes must call EraseAndCount equally often.
    for (size_t lanes = 0; lanes < DeviceBucket::kLanes; lanes += Tile::kLanes) {
      const size_t lane = lanes + tile.lane();
      const uint64_t place = bucket * DeviceBucket::kLanes + lane;
      const bool found =
          lane < DeviceBucket::kLanes && store.index.template Holds<Tile>(place) && leaves(place);
      if (places == nullptr) {
        EraseAndCount(tile, store, found ? place : IndexView::kNoPlace, left);
      } else if (found) {
        // Nothing is erased yet: the host gets a copy of these rows first.
        places[i * DeviceBucket::kLanes + lane] = place;
      }
    }
  }
};

// Finds expired rows in the buckets that are searched on behalf of `wanted` new keys, from the end
// of the last search on. The launch covers at most all buckets.
struct SweepKernel : Finder {
  SweepKernel(const StoreView& store, const Expiry& expiry, const uint32_t* wanted)
      : store(store), expiry(expiry), wanted(wanted) {}

  StoreView store;
  Expiry expiry;
  const uint32_t* wanted;  // null: searches all buckets

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    // The host launches tiles for all keys of the batch, because only the device knows how many are
    // new.
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

// For as many groups as a tile has lanes: writes the bits of each group's score.
struct ScoreKernel {
  BatchView batch;
  GroupsView groups;
  uint64_t* scores;
  uint64_t* falling;  // the same as sort keys: highest first

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (!groups.Has(number)) return;
    const uint64_t bits = ScoreBitsOf(batch.scores[batch.Last(groups.groups[number])]);
    scores[number] = bits;
    falling[number] = ~bits;
  }
};

// For as many entries of an order of the batch as a tile has lanes.
struct FillIndicesKernel {
  uint32_t* order;
  uint64_t size;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number < size) order[number] = static_cast<uint32_t>(number);
  }
};

// The eviction sets: each has the keys whose hashes begin with the same bits.
struct EvictionSets {
  uint32_t bits;

  TF_EMBED_DEVICE uint64_t Of(uint64_t hash) const { return bits == 0 ? 0 : hash >> (64 - bits); }
  // The set number of keys that are not candidates.
  TF_EMBED_DEVICE uint64_t None() const { return uint64_t{1} << bits; }

  // Calls visit(place, entry, hash) for the keys of a set. Each key is visited by one lane, the
  // same lane in each call.
  template <class Tile, typename Visit>
  TF_EMBED_DEVICE void ForEach(const Tile& tile, const IndexView& index, uint64_t number,
                               const Visit& visit) const {
    // An index of fewer buckets than there are eviction sets has room for far fewer rows than the
    // bound, so nothing needs to leave.
    if (index.buckets == nullptr || index.bits < bits) return;
    const uint64_t homes = index.num_buckets() >> bits;
    const auto look = [&](uint64_t place) {
      DeviceBucket::Entry& entry = index.EntryAt(place);
      // Reads the key together with the header, because most places hold a key. Reads only the key,
      // because another tile may write the hint of a row in another set.
      const uint64_t hash = HashKey(entry.key);
      // Keys that overflowed from the set before are in these buckets too.
      if (index.template Holds<Tile>(place) && Of(hash) == number) visit(place, &entry, hash);
    };
    const uint64_t first = number * homes;
    ForEachLane(tile, homes * DeviceBucket::kLanes,
                [&](size_t i) { look(first * DeviceBucket::kLanes + i); });
    // The keys that went on to later buckets.
    uint64_t bucket = first + homes - 1;
    // Each bucket that a key passes has counted it, so the first count of 0 ends the chain. The
    // bound keeps saturated counts from leading round the index, which would visit a key twice.
    for (uint64_t more = index.num_buckets() - homes; more > 0; --more) {
      if (DeviceBucket::Passed(Tile::Load(&index.buckets[bucket].header)) == 0) break;
      bucket = index.After(bucket);
      ForEachLane(tile, DeviceBucket::kLanes,
                  [&](size_t lane) { look(bucket * DeviceBucket::kLanes + lane); });
    }
  }
};

// For as many entries of an order as a tile has lanes: writes the eviction sets of the keys, to
// sort by.
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

// For as many candidates, sorted by eviction set, as a tile has lanes: lists the first candidate of
// each set, in any order.
struct FirstCandidatesKernel {
  const uint64_t* numbers;
  uint64_t size;
  EvictionSets eviction_sets;
  uint32_t* firsts;
  uint64_t* num_firsts;  // initially 0

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

// For each eviction set with candidates: marks the candidates that get rows. As many as the store
// has room for need no victim. Each further candidate needs a victim: the lowest remaining row, and
// if scores decide, only a row with no higher score.
//
// Victims are found in the index, by reading few rows. Each lane goes over a part of the set in the
// index alone, as long as hints bound the ranks of the rows, and keeps the lowest rows as
// candidates. Then the lowest candidate of all lanes is read. If it is as low as its hint said, it
// leaves; otherwise it moves up. Hints are lower bounds, so no other row is lower than a row that
// leaves.
struct ChooseVictimsKernel {
  StoreView store;
  EvictionSets eviction_sets;
  const uint32_t* firsts;  // from FirstCandidatesKernel, which packs the work for few tiles
  const uint64_t* num_firsts;
  const uint64_t* numbers;  // set numbers of the candidates, sorted
  const uint32_t* order;
  uint64_t batch_size;
  NewRows wanted;
  const uint64_t* scores;  // by first member; null if scores do not decide
  EvictionOrder eviction;
  uint64_t step;
  uint64_t* victims;  // places of the victims [batch size, all kNoPlace]
  uint32_t* marks;    // [batch size + 1, zeros]

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t n) const {
    // A tile owns all candidates of an eviction set. So no two tiles choose the same victim, and no
    // lock is needed.
    if (n >= *num_firsts) return;
    const size_t i = firsts[n];
    const uint64_t number = numbers[i];
    const uint64_t room = wanted.Room(*store.counts);
    uint32_t mine = 0;
    uint32_t mine_free = 0;
    for (uint64_t k = i + tile.lane(); k < batch_size && numbers[k] == number; k += Tile::kLanes) {
      ++mine;
      // Room goes to keys by their number in the batch, as in WriteKernel, whatever the order of
      // scores. Only the count matters here: this many candidates of the set need no victim.
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
    Rank rank;             // or a lower bound, from the hint
    bool is_read = false;  // whether the rank is exact, and the row may leave

    TF_EMBED_DEVICE bool IsBelow(const Row& other) const {
      return place != IndexView::kNoPlace &&
             (other.place == IndexView::kNoPlace || rank < other.rank);
    }
  };

  // The lowest rows of a lane's part of an eviction set, as far as is known.
  struct Candidates {
    static constexpr size_t kMost = 4;

    Row rows[kMost];           // rising, then rows without a place
    bool left_out_any = true;  // whether other rows may exist, none of them lower
    // The last row that was the lowest here. A row whose hint is not above it has left, or may not
    // leave.
    Row last;

    TF_EMBED_DEVICE bool AreUsedUp() const {
      return left_out_any && rows[0].place == IndexView::kNoPlace;
    }
    TF_EMBED_DEVICE void Add(Row row) {
      // A row fits after the last candidate only if no omitted row may be lower.
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

  // Users may lower scores, so hints would not be lower bounds.
  TF_EMBED_DEVICE bool HasHints() const { return eviction != EvictionOrder::kScore; }

  // Takes the lowest row of an eviction set that may leave and was not taken before. All lanes get
  // the result.
  template <class Tile>
  TF_EMBED_DEVICE Row TakeLowest(const Tile& tile, uint64_t number, Candidates* candidates) const {
    for (;;) {
      // All lanes look together, because a single lane would take as long.
      if (tile.Highest(candidates->AreUsedUp() ? 1 : 0) != 0) Look(tile, number, candidates);
      const Row lowest = Lowest(tile, candidates->rows[0]);
      if (lowest.place == IndexView::kNoPlace) return lowest;
      uint32_t leaves = 0;
      if (candidates->rows[0].place == lowest.place) leaves = TakeFirst<Tile>(candidates) ? 1 : 0;
      if (tile.Highest(leaves) != 0) return lowest;
    }
  }

  // Refills a lane's candidates.
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

  // Takes the first candidate of this lane. Returns false if it does not leave, or not yet.
  template <class Tile>
  TF_EMBED_DEVICE bool TakeFirst(Candidates* candidates) const {
    Row row = candidates->rows[0];
    candidates->TakeFirst();
    if (row.is_read) return true;
    const Rank least = row.rank;
    if (!Read<Tile>(&store.index.EntryAt(row.place), least.hash(), &row)) return false;
    if (!(least < row.rank)) return true;
    // The row was used after its hint was written. If it is not added, the next look finds it by
    // its new hint.
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

  // The lowest row of all lanes.
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
