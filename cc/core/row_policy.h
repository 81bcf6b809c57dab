// When rows come and when they leave: what a table keeps about the use of each row, and the rules
// that go by it.
//
// Statistics are 64-bit words that lie beside the rows, by slot number; a table has those that its
// policy needs, in this order:
//
//     last step    the step of the last use
//     last time    its time, in milliseconds since 1970
//     count        the number of steps in which the row was used since it came
//     score        what the user said; 0 until then
//     epoch        the latest epoch of a use
//
// A use is an apply, an upsert, an accum, or a lookup that is a part of training; a key that is
// used twice in a step counts once. All other lookups leave no trace.
#ifndef TF_EMBED_CC_CORE_ROW_POLICY_H_
#define TF_EMBED_CC_CORE_ROW_POLICY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include "cc/core/admission.h"
#include "cc/core/exec_context.h"
#include "cc/core/platform.h"
#include "cc/core/status.h"

namespace tf_embed {

enum class Statistic : uint8_t {
  kLastStep = 1,
  kLastTime = 2,
  kCount = 4,
  kScore = 8,
  kEpoch = 16,
};
inline constexpr Statistic kAllStatistics[] = {Statistic::kLastStep, Statistic::kLastTime,
                                               Statistic::kCount, Statistic::kScore,
                                               Statistic::kEpoch};

class StatisticSet {
 public:
  static constexpr size_t kMost = std::size(kAllStatistics);

  constexpr StatisticSet() = default;
  static constexpr StatisticSet OfBits(uint8_t bits) { return StatisticSet(bits & 31); }
  constexpr StatisticSet With(Statistic statistic) const {
    return StatisticSet(bits_ | static_cast<uint8_t>(statistic));
  }
  constexpr StatisticSet With(StatisticSet others) const {
    return StatisticSet(bits_ | others.bits_);
  }

  constexpr bool Has(Statistic statistic) const {
    return (bits_ & static_cast<uint8_t>(statistic)) != 0;
  }
  constexpr uint8_t bits() const { return bits_; }
  constexpr size_t size() const { return BitsIn(bits_); }
  // The place of a word that is there.
  constexpr size_t IndexOf(Statistic statistic) const {
    return BitsIn(bits_ & (static_cast<unsigned>(statistic) - 1u));
  }

 private:
  explicit constexpr StatisticSet(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  static constexpr size_t BitsIn(unsigned bits) {
    return (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3 & 1) + (bits >> 4 & 1);
  }
  uint8_t bits_ = 0;
};

// The statistics of one row, to read and to change. Any thread may at any time; a row's words are
// not of one moment.
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

  // Those of a row that comes at a moment.
  void Begin(const Moment& now) {
    Set(Statistic::kLastStep, now.step);
    Set(Statistic::kLastTime, now.milliseconds);
    Set(Statistic::kCount, 1);
    Set(Statistic::kScore, ScoreBits(0));
    Set(Statistic::kEpoch, now.epoch);
  }

  // Notes a use. The first one in a step counts. The epoch is never set back, whatever the clock
  // says, so that a use raises the row in each order.
  void Use(const Moment& now) {
    bool first = true;
    if (set_.Has(Statistic::kLastStep)) {
      Word& last = words_[set_.IndexOf(Statistic::kLastStep)];
      first = last.load(std::memory_order_relaxed) != now.step &&
              last.exchange(now.step, std::memory_order_relaxed) != now.step;
    }
    Set(Statistic::kLastTime, now.milliseconds);
    if (first && set_.Has(Statistic::kCount)) {
      words_[set_.IndexOf(Statistic::kCount)].fetch_add(1, std::memory_order_relaxed);
    }
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

// Which row leaves first.
enum class EvictionOrder : uint8_t {
  kLru,    // the last step of use
  kLfu,    // the count, then the last step
  kTtl,    // the last time of use, then the last step
  kScore,  // the score
  // The epoch, then the last step or the count: the strategies of NVIDIA's HierarchicalKV.
  kEpochLru,
  kEpochLfu,
};

inline StatisticSet StatisticsOf(EvictionOrder order) {
  switch (order) {
    case EvictionOrder::kLru:
      return StatisticSet().With(Statistic::kLastStep);
    case EvictionOrder::kLfu:
      return StatisticSet().With(Statistic::kLastStep).With(Statistic::kCount);
    case EvictionOrder::kTtl:
      return StatisticSet().With(Statistic::kLastStep).With(Statistic::kLastTime);
    case EvictionOrder::kEpochLru:
      return StatisticSet().With(Statistic::kLastStep).With(Statistic::kEpoch);
    case EvictionOrder::kEpochLfu:
      return StatisticSet()
          .With(Statistic::kLastStep)
          .With(Statistic::kCount)
          .With(Statistic::kEpoch);
    case EvictionOrder::kScore:
      break;
  }
  return StatisticSet().With(Statistic::kScore);
}

// A row's place in an order; the lowest leaves first. No two rows have the same one: where scores
// are equal, hashes decide. So who leaves does not depend on threads, or on where rows lie. The
// hash tells the key besides (KeyOfHash).
class Rank {
 public:
  constexpr Rank() = default;
  constexpr Rank(uint64_t score, uint64_t hash) : score_(score), turned_hash_(Turn(hash, 8)) {}

  constexpr uint64_t score() const { return score_; }
  constexpr uint64_t hash() const { return Turn(turned_hash_, 56); }

  friend constexpr bool operator<(const Rank& a, const Rank& b) {
    return a.score_ != b.score_ ? a.score_ < b.score_ : a.turned_hash_ < b.turned_hash_;
  }
  friend constexpr bool operator==(const Rank& a, const Rank& b) {
    return a.score_ == b.score_ && a.turned_hash_ == b.turned_hash_;
  }

 private:
  static constexpr uint64_t Turn(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

  uint64_t score_ = 0;
  // The highest bits of a hash are the number of a stripe. They come last here, so that the rows of
  // some stripes are a fair sample of an order in which hashes decide.
  uint64_t turned_hash_ = 0;
};
inline constexpr Rank kHighestRank{UINT64_MAX, UINT64_MAX};

// Row: RowStatistics, or what stands for it on a device.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // the former is the host's
#endif
template <class Row>
TF_EMBED_HOST_DEVICE inline uint64_t EvictionScore(EvictionOrder order, const Row& row) {
  // Two numbers in one word: the first saturates, of the second the lower bits decide.
  const auto pair = [](uint64_t first, uint64_t second, int second_bits) {
    first = std::min(first, (uint64_t{1} << (64 - second_bits)) - 1);
    return first << second_bits | (second & ((uint64_t{1} << second_bits) - 1));
  };
  // An epoch above the low half, in which the number saturates; 63 bits.
  const auto in_epoch = [](uint64_t epoch, uint64_t number) {
    return std::min(epoch, uint64_t{kMostEpoch}) << 32 | std::min(number, uint64_t{UINT32_MAX});
  };
  switch (order) {
    case EvictionOrder::kLru:
      return row.Get(Statistic::kLastStep);
    case EvictionOrder::kLfu:
      return pair(row.Get(Statistic::kCount), row.Get(Statistic::kLastStep), 40);
    case EvictionOrder::kTtl:  // 44 bits of milliseconds last until the year 2527
      return pair(row.Get(Statistic::kLastTime), row.Get(Statistic::kLastStep), 20);
    case EvictionOrder::kEpochLru:
      return in_epoch(row.Get(Statistic::kEpoch), row.Get(Statistic::kLastStep));
    case EvictionOrder::kEpochLfu:
      return in_epoch(row.Get(Statistic::kEpoch), row.Get(Statistic::kCount));
    case EvictionOrder::kScore:
      break;
  }
  return row.Get(Statistic::kScore);
}

// The number that an order goes by first, as it is told to users.
inline int64_t ShownScore(EvictionOrder order, const RowStatistics& row) {
  switch (order) {
    case EvictionOrder::kLru:
      return static_cast<int64_t>(row.Get(Statistic::kLastStep));
    case EvictionOrder::kLfu:
      return static_cast<int64_t>(row.Get(Statistic::kCount));
    case EvictionOrder::kTtl:
      return static_cast<int64_t>(row.Get(Statistic::kLastTime));
    case EvictionOrder::kEpochLru:
    case EvictionOrder::kEpochLfu:
      return static_cast<int64_t>(EvictionScore(order, row));
    case EvictionOrder::kScore:
      break;
  }
  return RowStatistics::ScoreOf(row.Get(Statistic::kScore));
}

// Who wants to know of rows that leave by a policy: evicted ones and expired ones.
class EvictionSink {
 public:
  virtual ~EvictionSink() = default;
  // Takes note of rows, `weights` [count, dim], before they leave. Where it fails they stay, and
  // the verb fails. Several tables may call at once.
  virtual Status Evict(size_t count, const int64_t* keys, const void* weights) = 0;
};

struct RowPolicy {
  StatisticSet statistics;  // what the rest needs, and what else is wanted

  // A new row needs its room: where there are so many rows, the lowest of all that are not used in
  // the present step leave for it, and where that is not enough it is refused. 0: no bound.
  size_t max_rows = 0;
  EvictionOrder eviction = EvictionOrder::kLru;

  // A row that was not used for so long is expired: a verb of training that meets it takes it for
  // absent, and verbs that insert take expired rows out, its own and some others. 0: never.
  uint64_t ttl_milliseconds = 0;

  // Decides when an apply makes a row; null: at once. Tables may share one.
  std::shared_ptr<Admission> admission;

  EvictionSink* sink = nullptr;  // may be null; outlives the table

  // Whether writes must be planned before rows are touched, and so go one at a time.
  bool plans_writes() const { return max_rows > 0 || ttl_milliseconds > 0 || admission != nullptr; }

  bool Expired(const RowStatistics& row, const Moment& now) const {
    return ttl_milliseconds > 0 &&
           row.Get(Statistic::kLastTime) + ttl_milliseconds <= now.milliseconds;
  }

  // With the statistics that its own rules read.
  RowPolicy WithNeeds() const {
    RowPolicy policy = *this;
    if (max_rows > 0) {  // the last step tells the rows of the batch in flight
      policy.statistics = policy.statistics.With(StatisticsOf(eviction)).With(Statistic::kLastStep);
    }
    if (ttl_milliseconds > 0) policy.statistics = policy.statistics.With(Statistic::kLastTime);
    if (policy.statistics.Has(Statistic::kCount)) {  // a key counts once a step
      policy.statistics = policy.statistics.With(Statistic::kLastStep);
    }
    return policy;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROW_POLICY_H_
