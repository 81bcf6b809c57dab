// SPDX-License-Identifier: Apache-2.0
// Kernels that choose the rows that leave a full store. The rules of row_kernels.h apply.
//
// Evictions happen within eviction sets. A set has the keys whose hashes begin with the same bits:
// 128 to 255 keys of a full store, or all keys of a smaller store. A new key that finds the store
// full replaces the lowest row of its eviction set that is not used in the present step. So no pass
// over the store is needed, and a tile with exclusive access to an eviction set decides without a
// lock, and with the same result in every order of tiles. HierarchicalKV does the same, with 128
// places.
#ifndef TF_EMBED_CC_STORES_DEVICE_VICTIM_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_VICTIM_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

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
// Victims are found by reading as little as possible. First each lane reads the priorities of a
// part of the buckets, and keeps the lowest buckets. Then the tile takes the lowest of all lanes,
// again and again:
//   - A bucket is opened. The lanes keep the lowest of its rows by their hints.
//   - A row is read. If it is as low as its hint said, it leaves; otherwise it moves up.
// Priorities and hints are bounds, so no other row is lower than a row that leaves.
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
      const Candidate victim = TakeLowest(tile, number, &candidates);
      if (victim.what == Candidate::kNone) break;
      if (scores != nullptr && scores[order[i + come]] < victim.rank.score()) break;
      if (tile.lane() == 0) victims[i + come] = PlaceOf(number, victim);
    }
    ForEachLane(tile, come, [&](size_t k) { marks[order[i + k]] = 1; });
  }

 private:
  // A row, or a bucket that was not opened.
  struct Candidate {
    static constexpr uint32_t kNone = ~uint32_t{0};
    static constexpr uint32_t kBucket = uint32_t{1} << 31;
    static constexpr uint32_t kRead = uint32_t{1} << 30;  // the rank is exact, the row may leave

    // A row by its place in the buckets of its set, or kBucket + the number of a bucket. Few bits,
    // because candidates take registers.
    uint32_t what = kNone;
    Rank rank;  // or a lower bound; of a bucket, of all its rows

    TF_EMBED_DEVICE bool IsBucket() const { return (what & kBucket) != 0; }
    TF_EMBED_DEVICE uint32_t Place() const { return what % kRead; }
    TF_EMBED_DEVICE bool IsBelow(const Candidate& other) const {
      return what != kNone && (other.what == kNone || rank < other.rank);
    }
  };

  // The lowest candidates of a lane, as far as is known.
  struct Candidates {
    // Registers decide how many tiles run at a time, and most tiles take few victims.
    static constexpr size_t kMost = 3;

    Candidate all[kMost];      // rising, then kNone
    bool left_out_any = true;  // whether other candidates may exist, none of them lower
    // The rank of the last candidate that was the lowest of all lanes. Lower rows have left or may
    // not leave, and so has the row of this rank, if it was a row.
    Rank last;
    bool last_was_row = false;
    // Of the bucket that was opened last: the row of the highest priority, or kNone if the bucket
    // has rows of other sets; and the priority of the other rows.
    uint32_t highest = Candidate::kNone;
    uint64_t priority_of_others = 0;

    TF_EMBED_DEVICE bool AreUsedUp() const {
      return left_out_any && all[0].what == Candidate::kNone;
    }
    TF_EMBED_DEVICE void Clear() {
      TF_EMBED_UNROLL
      for (size_t i = 0; i < kMost; ++i) all[i] = Candidate();
      left_out_any = false;
    }
    TF_EMBED_DEVICE void Add(Candidate added) {
      // It fits after the last candidate only if no omitted candidate may be lower.
      bool fits = !left_out_any;
      TF_EMBED_UNROLL
      for (size_t i = 0; i < kMost; ++i) {
        if (all[i].what == Candidate::kNone ? !fits : !added.IsBelow(all[i])) continue;
        const Candidate above = all[i];
        all[i] = added;
        added = above;
        fits = true;
      }
      if (added.what != Candidate::kNone) left_out_any = true;
    }
    TF_EMBED_DEVICE void AddRow(const Candidate& row) {
      if (last < row.rank || (last == row.rank && !last_was_row)) Add(row);
    }
    // Removes the lowest candidate of all lanes.
    TF_EMBED_DEVICE void Take(const Candidate& lowest) {
      if (!lowest.IsBucket() || last < lowest.rank) {
        last = lowest.rank;
        last_was_row = !lowest.IsBucket();
      }
      if (all[0].what != lowest.what) return;  // it is of another lane
      TF_EMBED_UNROLL
      for (size_t i = 1; i < kMost; ++i) all[i - 1] = all[i];
      all[kMost - 1] = Candidate();
    }
  };

  // A bucket takes a lane for each of its units. So a tile of enough lanes has several parts, which
  // open a bucket each.
  template <class Tile>
  static constexpr uint32_t kParts =
      Tile::kLanes < DeviceBucket::kUnits ? 1 : Tile::kLanes / DeviceBucket::kUnits;
  template <class Tile>
  static constexpr uint32_t kLanesOfPart = Tile::kLanes / kParts<Tile>;
  static constexpr uint32_t kLooks = 2;  // loads of a lane that are in flight together

  // Buckets of an eviction set have numbers: the homes of its keys, then the buckets that some keys
  // went on to.
  static constexpr uint32_t kNoBucket = ~uint32_t{0};
  // An index of fewer buckets than there are eviction sets has no homes. It has room for far fewer
  // rows than the bound, so nothing needs to leave.
  TF_EMBED_DEVICE uint32_t Homes() const {
    return static_cast<uint32_t>(store.index.num_buckets() >> eviction_sets.bits);
  }
  TF_EMBED_DEVICE uint64_t IndexOf(uint64_t number, uint32_t bucket) const {
    return (number * Homes() + bucket) & (store.index.num_buckets() - 1);
  }
  TF_EMBED_DEVICE DeviceBucket& BucketAt(uint64_t number, uint32_t bucket) const {
    return store.index.buckets[IndexOf(number, bucket)];
  }

  TF_EMBED_DEVICE uint64_t PlaceOf(uint64_t number, const Candidate& row) const {
    constexpr auto kLanes = static_cast<uint32_t>(DeviceBucket::kLanes);
    return IndexOf(number, row.Place() / kLanes) * kLanes + row.Place() % kLanes;
  }

  // Takes the lowest row of an eviction set that may leave and was not taken before. All lanes get
  // the result.
  template <class Tile>
  TF_EMBED_DEVICE Candidate TakeLowest(const Tile& tile, uint64_t number,
                                       Candidates* candidates) const {
    uint32_t next = kNoBucket;  // the next bucket to look at
    uint32_t first = 0;         // the buckets to open: a bit for each, from this bucket on
    uint32_t opened = 0;
    // A bucket is always opened by the same part, so that a hint is read by the lane that wrote it.
    const auto open = [&](uint32_t bucket) {
      first = bucket - bucket % kParts<Tile>;
      opened = 1u << bucket % kParts<Tile>;
    };
    // All steps are in one loop, because a copy of their code would take more registers.
    for (;;) {
      if (opened != 0) {
        const auto part = static_cast<uint32_t>(tile.lane() / kLanesOfPart<Tile>);
        Open(tile, number, (opened >> part & 1) != 0 ? first + part : kNoBucket, candidates);
        first += kParts<Tile>;
        opened >>= kParts<Tile>;
      } else if (next < Homes()) {
        first = next;
        opened = Look(tile, number, first, candidates);
        next += kLooks * static_cast<uint32_t>(Tile::kLanes);
        if (next > Homes()) next = Homes();
      } else if (next != kNoBucket) {
        // Each bucket that a key passes has counted it, so the first count of 0 ends the chain. The
        // bound keeps saturated counts from leading round the index, which would visit a key twice.
        if (next < store.index.num_buckets() &&
            DeviceBucket::Passed(Tile::Load(&BucketAt(number, next - 1).header)) != 0) {
          open(next++);
        } else {
          next = kNoBucket;
        }
      } else if (tile.Where(candidates->AreUsedUp()) != 0) {
        // All lanes look together, because a single lane would take as long.
        candidates->Clear();
        if (Homes() != 0) next = 0;
      } else {
        const Candidate own = candidates->all[0];
        const Candidate lowest = Lowest(tile, own);
        if (lowest.what == Candidate::kNone) return lowest;
        candidates->Take(lowest);
        if (lowest.IsBucket()) {
          open(lowest.what - Candidate::kBucket);
          continue;
        }
        const bool leaves = own.what == lowest.what && Check<Tile>(number, own, candidates);
        if (tile.Where(leaves) != 0) return lowest;
      }
    }
  }

  // Looks at some buckets from `first` on. They become candidates, except buckets that are to be
  // opened at once, for each of which it returns a bit.
  template <class Tile>
  TF_EMBED_DEVICE uint32_t Look(const Tile& tile, uint64_t number, uint32_t first,
                                Candidates* candidates) const {
    SixteenBytes heads[kLooks];
    TF_EMBED_UNROLL
    for (uint32_t k = 0; k < kLooks; ++k) {
      const auto bucket = static_cast<uint32_t>(first + k * Tile::kLanes + tile.lane());
      heads[k] = {};
      // Header and priority by one load. The launch changes no header, and only this tile changes
      // the priorities of the homes of its set.
      if (bucket < Homes()) {
        heads[k] =
            reinterpret_cast<const Unit<SixteenBytes>*>(&BucketAt(number, bucket).header)->value;
      }
    }
    uint32_t opened = 0;
    TF_EMBED_UNROLL
    for (uint32_t k = 0; k < kLooks; ++k) {
      bool opens = false;
      if (DeviceBucket::HasRows(heads[k].words[0])) {
        const auto bucket = static_cast<uint32_t>(first + k * Tile::kLanes + tile.lane());
        const Candidate own{Candidate::kBucket + bucket, Rank::LowestOf(heads[k].words[1])};
        // It has rows of unknown rank, or was opened before. As a candidate, it would take the
        // place of its rows again and again.
        opens = !(candidates->last < own.rank);
        if (!opens) candidates->Add(own);
      }
      opened |= tile.Where(opens) << (k * Tile::kLanes);
    }
    return opened;
  }

  // Makes the rows of a bucket candidates, and lowers its priority to that of its rows. Each part
  // of the tile has a bucket of its own, or kNoBucket.
  template <class Tile>
  TF_EMBED_DEVICE void Open(const Tile& tile, uint64_t number, uint32_t bucket,
                            Candidates* candidates) const {
    DeviceBucket& line = BucketAt(number, bucket);
    const uint64_t header = bucket == kNoBucket ? 0 : Tile::Load(&line.header);
    // Another tile may write the hints of rows of another set, and the priority of their home.
    bool is_shared = bucket >= Homes();
    uint32_t what = Candidate::kNone;
    uint64_t priority = 0;
    uint64_t priority_of_others = 0;
    for (size_t lane = tile.lane() % kLanesOfPart<Tile>;
         lane < DeviceBucket::kLanes && bucket != kNoBucket; lane += kLanesOfPart<Tile>) {
      DeviceBucket::Entry& entry = line.entries[lane];
      // Reads the key together with the header, because most places hold a key.
      const uint64_t hash = HashKey(entry.key);
      if (DeviceBucket::Digest(header, lane) == 0) continue;
      if (eviction_sets.Of(hash) != number) {
        is_shared = true;
        continue;
      }
      Candidate row{static_cast<uint32_t>(bucket * DeviceBucket::kLanes + lane), Rank()};
      bool may_leave = true;
      if (HasHints(store.eviction) && entry.hint != DeviceBucket::kNoHint) {
        row.rank = Rank(DeviceBucket::ScoreOf(entry.hint), hash);
      } else {
        may_leave = Read<Tile>(&entry, hash, &row);
      }
      if (may_leave) candidates->AddRow(row);
      uint64_t other = row.rank.Priority();
      if (other > priority) {
        what = row.what;
        const uint64_t before = priority;
        priority = other;
        other = before;
      }
      if (other > priority_of_others) priority_of_others = other;
    }
    TF_EMBED_UNROLL
    for (uint32_t part = 0; part < kParts<Tile>; ++part) {
      const bool is_of_part = tile.lane() / kLanesOfPart<Tile> == part;
      if (!HasHints(store.eviction) || tile.Where(is_of_part && is_shared) != 0) continue;
      const uint64_t highest = Highest(tile, is_of_part ? priority : 0);
      const uint32_t holder = LowestBit(tile.Where(is_of_part && priority == highest));
      const bool is_holder = tile.lane() == holder;
      if (is_holder) line.priority = highest;
      const uint64_t other = is_holder ? priority_of_others : priority;
      candidates->highest = tile.From(what, holder);
      candidates->priority_of_others = Highest(tile, is_of_part ? other : 0);
    }
  }

  // Checks that a row of this lane is as low as its candidate says. Returns false if it does not
  // leave, or not yet.
  template <class Tile>
  TF_EMBED_DEVICE bool Check(uint64_t number, Candidate row, Candidates* candidates) const {
    DeviceBucket& line = BucketAt(number, row.Place() / DeviceBucket::kLanes);
    const bool is_highest = row.what == candidates->highest;
    const Rank least = row.rank;
    const bool may_leave =
        (row.what & Candidate::kRead) != 0 ||
        Read<Tile>(&line.entries[row.Place() % DeviceBucket::kLanes], least.hash(), &row);
    const bool leaves = may_leave && !(least < row.rank);
    if (is_highest) {
      // Without the row that leaves, although it does so in a later launch, because that does not
      // read the bucket.
      const uint64_t own = leaves ? 0 : row.rank.Priority();
      const uint64_t others = candidates->priority_of_others;
      line.priority = own > others ? own : others;
    }
    // The row was used after its hint was written. If it is not added, the next look finds it by
    // its new hint.
    if (may_leave && !leaves) candidates->Add(row);
    return leaves;
  }

  // Reads the rank of a row and writes its hint; false if the row may not leave.
  template <class Tile>
  TF_EMBED_DEVICE bool Read(DeviceBucket::Entry* entry, uint64_t hash, Candidate* row) const {
    const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(entry->row);
    row->rank = RankOf(store.eviction, statistics, hash);
    row->what |= Candidate::kRead;
    const uint32_t hint =
        HasHints(store.eviction) ? DeviceBucket::HintOf(row->rank.score()) : entry->hint;
    if (hint != entry->hint) entry->hint = hint;
    // Rows of the present step stay: this includes all rows of the batch, whose use SurveyKernel
    // has noted.
    return statistics.Get(Statistic::kLastStep) != step;
  }

  // The lowest candidate of all lanes.
  template <class Tile>
  static TF_EMBED_DEVICE Candidate Lowest(const Tile& tile, Candidate candidate) {
    const auto from = [&](const auto& move) {
      Candidate moved;
      moved.what = move(candidate.what);
      moved.rank = Rank(move(candidate.rank.score()), move(candidate.rank.hash()));
      return moved;
    };
    for (size_t distance = Tile::kLanes / 2; distance > 0; distance /= 2) {
      const Candidate other = from([&](auto x) { return tile.Down(x, distance); });
      if (other.IsBelow(candidate)) candidate = other;
    }
    return from([&](auto x) { return tile.From(x, 0); });
  }

  template <class Tile>
  static TF_EMBED_DEVICE uint64_t Highest(const Tile& tile, uint64_t x) {
    const uint32_t high = tile.Highest(static_cast<uint32_t>(x >> 32));
    const uint32_t low = tile.Highest(x >> 32 == high ? static_cast<uint32_t>(x) : 0);
    return uint64_t{high} << 32 | low;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_VICTIM_KERNELS_H_
