// The rules by which rows come and leave. They go by the statistics of rows (row_statistics.h).
#ifndef TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_
#define TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/platform.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/admission.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

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
  // Takes note of whole rows, with the slots of `rule`, before they leave. If it fails they stay,
  // and the verb fails. Several tables may call at once.
  virtual Status Evict(const WholeRows& rows, const RuleSlots& rule) = 0;
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

#endif  // TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_
