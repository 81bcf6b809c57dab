// SPDX-License-Identifier: Apache-2.0
// The statistics of a row, which a store keeps about its use.
//
// Statistics are 64-bit words that lie beside the rows, by row id. A store has the statistics that
// its policy needs, in this order:
//
//     last step    the step of the last use
//     last time    its time, in milliseconds since 1970
//     count        the number of steps in which the row was used since it was inserted
//     score        set by the user; 0 until then
//     epoch        the latest epoch of a use
//
// If the store has snapshots, the word `change` about the row's content (row_change.h) follows
// them. It is in no file, and verbs that set statistics leave it alone.
//
// A use is an apply, an upsert, an accum, or a lookup that is a part of training; a key that is
// used twice in a step counts once. All other lookups leave no trace.
#ifndef TF_EMBED_CC_CORE_ROWS_ROW_STATISTICS_H_
#define TF_EMBED_CC_CORE_ROWS_ROW_STATISTICS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/names.h"

namespace tf_embed {

// STATISTIC(enumerator, bit in files, name in Python): one line for each, in the order of the
// words. Never reuse a bit.
#define TF_EMBED_STATISTICS(STATISTIC)    \
  STATISTIC(kLastStep, 1, "last_step")    \
  STATISTIC(kLastTime, 2, "last_time_ms") \
  STATISTIC(kCount, 4, "count")           \
  STATISTIC(kScore, 8, "score")           \
  STATISTIC(kEpoch, 16, "last_epoch")

enum class Statistic : uint8_t {
#define TF_EMBED_STATISTIC(enumerator, bit, name) enumerator = bit,
  TF_EMBED_STATISTICS(TF_EMBED_STATISTIC)
#undef TF_EMBED_STATISTIC
      kChange = 32,
};
// All except kChange.
inline constexpr Statistic kAllStatistics[] = {
#define TF_EMBED_STATISTIC(enumerator, bit, name) Statistic::enumerator,
    TF_EMBED_STATISTICS(TF_EMBED_STATISTIC)
#undef TF_EMBED_STATISTIC
};
static_assert(std::size(kAllStatistics) < 8, "a set of them has eight bits");
constexpr bool BitsAreInOrder() {
  unsigned bit = 1;
  for (const Statistic statistic : kAllStatistics) {
    if (static_cast<unsigned>(statistic) != bit) return false;
    bit *= 2;
  }
  return static_cast<unsigned>(Statistic::kChange) == bit;
}
static_assert(BitsAreInOrder(), "1, 2, 4, ...: a word's place is the number of bits below its own");
inline constexpr NamedValue<Statistic> kStatisticNames[] = {
#define TF_EMBED_STATISTIC(enumerator, bit, name) {name, Statistic::enumerator},
    TF_EMBED_STATISTICS(TF_EMBED_STATISTIC)
#undef TF_EMBED_STATISTIC
};

class StatisticSet {
 public:
  static constexpr size_t kMax = std::size(kAllStatistics) + 1;

  constexpr StatisticSet() = default;
  static constexpr StatisticSet OfBits(uint8_t bits) {
    return StatisticSet(bits & ((1 << kMax) - 1));
  }
  constexpr StatisticSet With(Statistic statistic) const {
    return StatisticSet(bits_ | static_cast<uint8_t>(statistic));
  }
  constexpr StatisticSet With(StatisticSet others) const {
    return StatisticSet(bits_ | others.bits_);
  }
  // The statistics of use. They have the same places, because the word about changes is the last.
  constexpr StatisticSet OfUse() const {
    return StatisticSet(bits_ & ~static_cast<uint8_t>(Statistic::kChange));
  }

  constexpr bool Has(Statistic statistic) const {
    return (bits_ & static_cast<uint8_t>(statistic)) != 0;
  }
  constexpr uint8_t bits() const { return bits_; }
  constexpr size_t size() const { return BitsIn(bits_); }
  // The place of a word. REQUIRES: the set has it.
  constexpr size_t IndexOf(Statistic statistic) const {
    return BitsIn(bits_ & (static_cast<unsigned>(statistic) - 1u));
  }

 private:
  explicit constexpr StatisticSet(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  // Adds up neighboring bits, pairs and fours: each use of a row counts bits several times.
  static constexpr size_t BitsIn(unsigned bits) {
    static_assert(kMax <= 8, "the sets of a byte");
    bits = (bits & 0x55) + (bits >> 1 & 0x55);
    bits = (bits & 0x33) + (bits >> 2 & 0x33);
    return (bits & 0x0f) + (bits >> 4 & 0x0f);
  }
  uint8_t bits_ = 0;
};

// The statistics of one row, to read and to change. Any thread may do so at any time; a row's words
// may be of different moments.
class RowStatistics {
 public:
  using Word = std::atomic<uint64_t>;

  RowStatistics(StatisticSet set, Word* words) : set_(set), words_(words) {}

  uint64_t Get(Statistic statistic) const {
    return set_.Has(statistic) ? words_[set_.IndexOf(statistic)].load(std::memory_order_relaxed)
                               : 0;
  }
  void Set(Statistic statistic, uint64_t value) {
    if (set_.Has(statistic)) {
      words_[set_.IndexOf(statistic)].store(value, std::memory_order_relaxed);
    }
  }

  // Sets the statistics of a row inserted at a moment.
  void Begin(const Moment& now) {
    Set(Statistic::kLastStep, now.step);
    Set(Statistic::kLastTime, now.milliseconds);
    Set(Statistic::kCount, 1);
    Set(Statistic::kScore, ScoreBits(0));
    Set(Statistic::kEpoch, now.epoch);
  }

  // Notes a use. Only the first use in a step counts. The epoch is never set back, whatever the
  // clock says, so that a use raises the row in each order.
  void Use(const Moment& now) {
    const bool counts = set_.Has(Statistic::kCount);
    bool first = true;
    if (set_.Has(Statistic::kLastStep)) {
      Word& last = words_[set_.IndexOf(Statistic::kLastStep)];
      // Loaded first, so that repeated uses leave the cache line to all readers.
      first = last.load(std::memory_order_relaxed) != now.step;
      if (first && counts) {
        first = last.exchange(now.step, std::memory_order_relaxed) != now.step;
      } else if (first) {
        last.store(now.step, std::memory_order_relaxed);
      }
    }
    if (first && counts) {
      words_[set_.IndexOf(Statistic::kCount)].fetch_add(1, std::memory_order_relaxed);
    }
    Set(Statistic::kLastTime, now.milliseconds);
    if (set_.Has(Statistic::kEpoch)) {
      Word& epoch = words_[set_.IndexOf(Statistic::kEpoch)];
      uint64_t before = epoch.load(std::memory_order_relaxed);
      while (before < now.epoch &&
             !epoch.compare_exchange_weak(before, now.epoch, std::memory_order_relaxed)) {
      }
    }
  }

  // Scores are signed; their words compare as unsigned numbers.
  static uint64_t ScoreBits(int64_t score) { return static_cast<uint64_t>(score) ^ (1ull << 63); }
  static int64_t ScoreOf(uint64_t bits) { return static_cast<int64_t>(bits ^ (1ull << 63)); }

 private:
  StatisticSet set_;
  Word* words_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_ROW_STATISTICS_H_
