// SPDX-License-Identifier: Apache-2.0
// The layout of rows in device memory. A row holds all that belongs to a key:
//
//     | weights | pad to 8 | slots | pad to 8 | statistics: 64-bit words | mark | pad to 16 |
//     0                    slot_offset        statistics_offset                    stride
//
// Only rows of a cache have marks (row_mark.h). A mark takes a word, because the atomics of a
// device work on words.
//
// Rows are in slabs, by number. The first four slabs have the same size, the next four twice that
// size, and so on. So a store takes at most a fifth more than it needs, no row ever moves, and a
// launch can carry the pointers of all slabs. Each slab has an array of as many row numbers;
// together these arrays are the list of freed rows. Slabs may be pinned host memory; the arrays of
// numbers are always in device memory.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_ROWS_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/rows/row_change.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/rows/row_mark.h"
#include "cc/stores/device/device_index.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

// RowLayout, as kernels need it, and the statistics.
struct DeviceRowLayout {
  explicit DeviceRowLayout(const RowLayout& layout)
      : dim(layout.dim),
        weight_bytes(layout.weight_bytes),
        slot_offset(layout.slot_offset),
        slot_bytes(layout.slot_bytes),
        statistics(layout.statistics_per_row),
        has_marks(layout.has_marks),
        words(layout.statistics_per_row + (layout.has_marks ? 1 : 0)),
        statistics_offset(
            RowLayout::RoundUp(layout.slot_offset + layout.slot_bytes, RowLayout::kWord)),
        stride(RowLayout::RoundUp(statistics_offset + words * sizeof(uint64_t),
                                  RowLayout::kAlignment)) {}

  size_t dim;
  size_t weight_bytes;
  size_t slot_offset;
  size_t slot_bytes;
  size_t statistics;  // words
  bool has_marks;
  size_t words;  // statistics and the mark after them
  size_t statistics_offset;
  size_t stride;
};

struct RowSlabs {
  static constexpr uint32_t kFirstRows = 256;
  static constexpr uint32_t kOfOneSize = 4;
  static constexpr uint32_t kMax = 88;  // nearly 2^32 rows

  char* slabs[kMax] = {};
  uint32_t* freed[kMax] = {};

  static uint64_t RowsOf(uint32_t slab) { return uint64_t{kFirstRows} << (slab / kOfOneSize); }
  // The number of rows in the slabs before this slab.
  static uint64_t RowsBefore(uint32_t slab) {
    const uint32_t doublings = slab / kOfOneSize;
    const uint64_t quarters = uint64_t{kOfOneSize + slab % kOfOneSize} << doublings;
    return (quarters - kOfOneSize) * kFirstRows;
  }

  struct Place {
    uint32_t slab;
    uint32_t offset;
  };
  static TF_EMBED_HOST_DEVICE inline Place PlaceOf(uint32_t row) {
    // The inverse of RowsBefore without a loop: counted in first slabs and shifted by four, slab
    // sizes double at each new highest bit. The two bits below it choose one of the four slabs.
    const uint32_t quarters = row / kFirstRows + kOfOneSize;
#if defined(__CUDA_ARCH__)
    const uint32_t doublings = 29 - __clz(static_cast<int>(quarters));
#else
    const uint32_t doublings = 29 - static_cast<uint32_t>(__builtin_clz(quarters));
#endif
    const uint32_t number = quarters >> doublings;
    const uint32_t begin = ((number << doublings) - kOfOneSize) * kFirstRows;
    return {doublings * kOfOneSize + number - kOfOneSize, row - begin};
  }

  TF_EMBED_DEVICE char* Row(uint32_t row, size_t stride) const {
    const Place place = PlaceOf(row);
    return slabs[place.slab] + place.offset * stride;
  }
  // Entry `i` of the list of free rows.
  TF_EMBED_DEVICE uint32_t* Free(uint32_t i) const {
    const Place place = PlaceOf(i);
    return freed[place.slab] + place.offset;
  }
};

// The unit of copies of memory of any type.
template <typename T>
struct __attribute__((may_alias)) Unit {
  T value;
};
struct alignas(16) SixteenBytes {
  uint64_t words[2];
};

template <typename T, class Tile>
TF_EMBED_DEVICE void CopyUnits(const Tile& tile, const void* from, size_t bytes, void* to) {
  ForEachLane(tile, bytes / sizeof(T), [&](size_t i) {
    static_cast<Unit<T>*>(to)[i] = static_cast<const Unit<T>*>(from)[i];
  });
}

// Copies in the widest units that the alignment of both ends allows.
template <class Tile>
TF_EMBED_DEVICE void CopyBytes(const Tile& tile, const void* from, size_t bytes, void* to) {
  const size_t ends = reinterpret_cast<size_t>(from) | reinterpret_cast<size_t>(to) | bytes;
  if (ends % sizeof(SixteenBytes) == 0) {
    CopyUnits<SixteenBytes>(tile, from, bytes, to);
  } else if (ends % sizeof(uint64_t) == 0) {
    CopyUnits<uint64_t>(tile, from, bytes, to);
  } else if (ends % sizeof(uint32_t) == 0) {
    CopyUnits<uint32_t>(tile, from, bytes, to);
  } else {
    CopyUnits<char>(tile, from, bytes, to);
  }
}

// Copies rows of the same size, one for each of the first kRows lanes, which pass the row's ends;
// none if `from` is null. In each round, a lane reads a unit of each row before it writes the
// first, so that a tile waits for all loads at once. More units per lane would cost more tiles than
// they gain.
template <uint32_t kRows, class Tile>
TF_EMBED_DEVICE void CopyRows(const Tile& tile, const char* from, size_t bytes, char* to) {
  using Held = SixteenBytes;
  const uint64_t own_source = reinterpret_cast<uint64_t>(from);
  const uint64_t own_target = from == nullptr ? 0 : reinterpret_cast<uint64_t>(to);
  // One by one if the alignment of some ends does not allow these units, or if kRows is 1.
  if (kRows == 1 || tile.Where((own_source | own_target | bytes) % sizeof(Held) != 0) != 0) {
    for (uint32_t r = 0; r != kRows; ++r) {
      const uint64_t source = tile.From(own_source, r);
      const uint64_t target = tile.From(own_target, r);
      if (source == 0) continue;
      CopyBytes(tile, reinterpret_cast<const char*>(source), bytes,
                reinterpret_cast<char*>(target));
    }
    return;
  }
  const uint32_t given = tile.Where(own_source != 0);
  if (given == 0) return;
  // No load has a condition: nvcc would let the third wait for the first. Instead of a row that is
  // not given, another row is read, and instead of units after the end the last.
  const uint64_t some_source = tile.From(own_source, LowestBit(given));
  const uint64_t own_read = own_source == 0 ? some_source : own_source;
  const auto units = static_cast<uint32_t>(bytes / sizeof(Held));
  for (uint32_t first = 0; first < units; first += Tile::kLanes) {
    const uint32_t unit = first + static_cast<uint32_t>(tile.lane());
    const uint32_t read = unit < units ? unit : units - 1;
    Held held[kRows];
    TF_EMBED_UNROLL
    for (uint32_t r = 0; r != kRows; ++r) {
      held[r] = reinterpret_cast<const Unit<Held>*>(tile.From(own_read, r))[read].value;
    }
    TF_EMBED_UNROLL
    for (uint32_t r = 0; r != kRows; ++r) {
      auto* const target = reinterpret_cast<Unit<Held>*>(tile.From(own_target, r));
      if (target != nullptr && unit < units) target[unit].value = held[r];
    }
  }
}

// The counts of row numbers given out, which determine the numbers of new rows.
struct StoreCounts {
  uint64_t rows_begun = 0;     // rows that ever had a number
  uint64_t rows_free = 0;      // of these, in the list of free rows
  uint64_t buckets_swept = 0;  // end of the last search for expired rows

  TF_EMBED_HOST_DEVICE uint64_t rows() const { return rows_begun - rows_free; }
  // Counts new rows, which have the numbers that StoreView::NewRow gives.
  TF_EMBED_DEVICE void Take(uint64_t count) {
    // Freed numbers go first, so the slabs fill without gaps before they grow.
    const uint64_t reused = count < rows_free ? count : rows_free;
    rows_free -= reused;
    rows_begun += count - reused;
  }
};

// Counts of the events of a store since it was made.
struct StoreTallies {
  static constexpr size_t kMissCounters = 64;  // by hash, to spread the atomics
  struct Counter {                             // a GPU cache line each, for the same reason
    uint64_t count = 0;
    char rest_of_line[128 - sizeof(uint64_t)] = {};
  };

  uint64_t admitted = 0;
  uint64_t refused = 0;
  uint64_t evicted = 0;
  uint64_t expired = 0;
  uint64_t padding = 0;  // padding of pooled finds, which is not looked up
  Counter misses[kMissCounters];
};

template <class Tile>
struct DeviceStatistics;

// RowMark, for kernels. A single lane calls it.
template <class Tile>
struct DeviceMark {
  uint64_t* word;

  TF_EMBED_DEVICE uint8_t Get() const { return static_cast<uint8_t>(Tile::Load(word)); }
  TF_EMBED_DEVICE void Set(uint8_t mark) const {
    if (Tile::Load(word) != mark) Tile::Exchange(word, mark);
  }
  TF_EMBED_DEVICE void Change(uint8_t tick) const { Set(RowMark::Of(tick, true)); }
  TF_EMBED_DEVICE void Use(uint8_t tick) const {
    const uint8_t mark = Get();
    // Most uses find the present tick already set, and a load is cheaper than an atomic.
    if (RowMark::TickOf(mark) == tick) return;
    // Fails if another lane has noted a use, which is just as good.
    Replace(mark, RowMark::Of(tick, RowMark::IsChanged(mark)));
  }
  // Changes only the bit.
  TF_EMBED_DEVICE void SetChanged(bool changed) const {
    uint8_t mark;
    do {
      mark = Get();
    } while (!Replace(mark, RowMark::Of(RowMark::TickOf(mark), changed)));
  }
  TF_EMBED_DEVICE bool Replace(uint8_t before, uint8_t after) const {
    uint64_t expected = before;
    return before == after || Tile::CompareExchange(word, &expected, after);
  }
};

// The kernels' view of a store. Copied into each launch.
struct StoreView {
  explicit StoreView(const DeviceRowLayout& layout) : layout(layout) {}

  IndexView index;
  RowSlabs rows;
  DeviceRowLayout layout;
  StatisticSet statistics;
  EvictionOrder eviction = EvictionOrder::kScore;  // without hints
  StoreCounts* counts = nullptr;
  StoreTallies* tallies = nullptr;
  const char* initial_slots = nullptr;  // [slot_bytes]
  uint8_t tick = 0;                     // of a cache
  uint32_t period = 0;                  // of changes (row_change.h)

  TF_EMBED_DEVICE char* Row(uint32_t row) const { return rows.Row(row, layout.stride); }
  TF_EMBED_DEVICE uint64_t* StatisticsOf(char* row) const {
    return reinterpret_cast<uint64_t*>(row + layout.statistics_offset);
  }
  template <class Tile>
  TF_EMBED_DEVICE DeviceStatistics<Tile> StatisticsAt(uint32_t row) const {
    return StatisticsIn<Tile>(Row(row));
  }
  template <class Tile>
  TF_EMBED_DEVICE DeviceStatistics<Tile> StatisticsIn(char* row) const {
    return {statistics, StatisticsOf(row)};
  }
  // REQUIRES: layout.has_marks.
  template <class Tile>
  TF_EMBED_DEVICE DeviceMark<Tile> MarkOf(char* row) const {
    return {StatisticsOf(row) + layout.statistics};
  }
  // The number of a new row of a launch, with `before` new rows before it.
  TF_EMBED_DEVICE uint32_t NewRow(uint64_t before) const {
    // The list is read from its end, but not shortened. All tiles of the launch compute disjoint
    // numbers from the same counts, and StoreCounts::Take shortens the list afterwards.
    const uint64_t free = counts->rows_free;
    return before < free ? *rows.Free(static_cast<uint32_t>(free - 1 - before))
                         : static_cast<uint32_t>(counts->rows_begun + before - free);
  }
};

TF_EMBED_DEVICE uint64_t ScoreBitsOf(int64_t score) {  // RowStatistics::ScoreBits
  // With the sign bit turned, signed scores are in order as unsigned words.
  return static_cast<uint64_t>(score) ^ uint64_t { 1 } << 63;
}

// Whether the index has hints and priorities. Users may lower scores, so these would be no bounds.
TF_EMBED_DEVICE bool HasHints(EvictionOrder order) { return order != EvictionOrder::kScore; }

// The score of a row that is inserted at a moment.
inline uint64_t NewScore(EvictionOrder order, const Moment& now) {
  RowStatistics::Word words[StatisticSet::kMax];
  RowStatistics row(StatisticsOf(order), words);
  row.Begin(now);
  return RankOf(order, row, 0).score();
}

// RowStatistics, for kernels. A single lane calls it.
template <class Tile>
struct DeviceStatistics {
  StatisticSet set;
  uint64_t* words;

  TF_EMBED_DEVICE uint64_t Get(Statistic statistic) const {
    const uint64_t* const word = Word(statistic);
    return word == nullptr ? 0 : Tile::Load(word);
  }
  TF_EMBED_DEVICE uint64_t* Word(Statistic statistic) const {
    return set.Has(statistic) ? words + set.IndexOf(statistic) : nullptr;
  }
  // Most uses of a row in a step find the value already set, and a load is cheaper than an atomic.
  TF_EMBED_DEVICE void Set(Statistic statistic, uint64_t value) const {
    uint64_t* const word = Word(statistic);
    if (word != nullptr && Tile::Load(word) != value) Tile::Exchange(word, value);
  }
  TF_EMBED_DEVICE void Begin(const Moment& now) const {
    Set(Statistic::kLastStep, now.step);
    Set(Statistic::kLastTime, now.milliseconds);
    Set(Statistic::kCount, 1);
    Set(Statistic::kScore, ScoreBitsOf(0));
    Set(Statistic::kEpoch, now.epoch);
  }
  TF_EMBED_DEVICE void Use(const Moment& now) const {
    bool first = true;
    if (uint64_t* const last = Word(Statistic::kLastStep)) {
      // If many lanes use a row in a step, exactly one lane gets the old step from the exchange,
      // and only this lane counts the step.
      first = Tile::Load(last) != now.step && Tile::Exchange(last, now.step) != now.step;
    }
    Set(Statistic::kLastTime, now.milliseconds);
    uint64_t* const count = Word(Statistic::kCount);
    if (first && count != nullptr) Tile::Add(count, 1);
    uint64_t* const epoch = Word(Statistic::kEpoch);
    // An epoch never goes back, because the choice of victims relies on ranks that only rise with
    // use.
    if (epoch != nullptr && Tile::Load(epoch) < now.epoch) Tile::Max(epoch, now.epoch);
  }
  TF_EMBED_DEVICE void SetScore(int64_t score) const { Set(Statistic::kScore, ScoreBitsOf(score)); }

  // Notes a change in a period. REQUIRES: the snapshot in progress has the row if it wants it.
  TF_EMBED_DEVICE void NoteChange(uint32_t period) const {
    Set(Statistic::kChange, RowChange::Of(0, period));
  }
  TF_EMBED_DEVICE bool IsWanted(const WantedRows& wanted) const {
    return RowChange::IsWanted(Get(Statistic::kChange), wanted);
  }
  // Records that the snapshot has the row from now on. False: the snapshot does not want it, or
  // another lane has claimed it. The copy may follow, as long as no use or change precedes it.
  TF_EMBED_DEVICE bool TakeFor(const WantedRows& wanted) const {
    uint64_t present = Get(Statistic::kChange);
    return RowChange::IsWanted(present, wanted) &&
           Tile::CompareExchange(Word(Statistic::kChange), &present,
                                 RowChange::Of(wanted.snapshot, RowChange::PeriodOf(present)));
  }
};

// The rows that have expired at a moment.
struct Expiry {
  uint64_t ttl_milliseconds = 0;  // 0: none
  uint64_t now = 0;               // milliseconds

  template <class Statistics>
  TF_EMBED_DEVICE bool Has(const Statistics& statistics) const {
    return ttl_milliseconds > 0 && statistics.Get(Statistic::kLastTime) + ttl_milliseconds <= now;
  }
  // All lanes call it and get the same result, although a launch with an earlier clock may use the
  // row meanwhile.
  template <class Tile, class Statistics>
  TF_EMBED_DEVICE bool Has(const Tile& tile, const Statistics& statistics) const {
    return ttl_milliseconds > 0 && tile.From(Has(statistics), 0);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_ROWS_H_
