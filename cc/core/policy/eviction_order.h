// SPDX-License-Identifier: Apache-2.0
// The order in which rows leave a bounded store. An order is a struct and a line of the list below.
// Names in ops and Python, the statistics that a store keeps for it, and the dispatch on host and
// device derive from these.
#ifndef TF_EMBED_CC_CORE_POLICY_EVICTION_ORDER_H_
#define TF_EMBED_CC_CORE_POLICY_EVICTION_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/names.h"
#include "cc/core/base/platform.h"
#include "cc/core/rows/row_statistics.h"

// ORDER(enumerator, name, struct)
#define TF_EMBED_EVICTION_ORDERS(ORDER)        \
  ORDER(kLru, "lru", LruOrder)                 \
  ORDER(kLfu, "lfu", LfuOrder)                 \
  ORDER(kTtl, "ttl", TtlOrder)                 \
  ORDER(kScore, "score", ScoreOrder)           \
  ORDER(kEpochLru, "epoch_lru", EpochLruOrder) \
  ORDER(kEpochLfu, "epoch_lfu", EpochLfuOrder)

namespace tf_embed {

enum class EvictionOrder : uint8_t {
#define TF_EMBED_ORDER(enumerator, name, order) enumerator,
  TF_EMBED_EVICTION_ORDERS(TF_EMBED_ORDER)
#undef TF_EMBED_ORDER
};
inline constexpr NamedValue<EvictionOrder> kEvictionOrderNames[] = {
#define TF_EMBED_ORDER(enumerator, name, order) {name, EvictionOrder::enumerator},
    TF_EMBED_EVICTION_ORDERS(TF_EMBED_ORDER)
#undef TF_EMBED_ORDER
};

// The members of an order:
//   kStatistics  the statistics of a row that it reads
//   Score        a row's number in the order, from its statistics and the hash of its key: the
//                lowest leaves first, and the hash breaks ties. Uses only raise it.
//   Shown        the number that users see, from a row's statistics and its Score; by default
//                the Score
// Row: RowStatistics, or its counterpart on a device.
struct OrderBase {
  static int64_t Shown(const RowStatistics&, uint64_t score) { return static_cast<int64_t>(score); }
  // Packs two numbers in one word. The first saturates; the second keeps its lower bits.
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t Pair(uint64_t first, uint64_t second,
                                                            int second_bits) {
    first = std::min(first, (uint64_t{1} << (64 - second_bits)) - 1);
    return first << second_bits | (second & ((uint64_t{1} << second_bits) - 1));
  }
  // An epoch above a number; 63 bits.
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t InEpoch(uint64_t epoch, uint32_t number) {
    return std::min(epoch, uint64_t{kMaxEpoch}) << 32 | number;
  }
};

#if defined(__CUDACC__)
#define TF_EMBED_ORDER_FUNCTION                         \
  _Pragma("nv_exec_check_disable") template <class Row> \
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE
#else
#define TF_EMBED_ORDER_FUNCTION \
  template <class Row>          \
  static TF_EMBED_INLINE
#endif

// The last step of use.
struct LruOrder : OrderBase {
  static constexpr StatisticSet kStatistics = StatisticSet().With(Statistic::kLastStep);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    return row.Get(Statistic::kLastStep);
  }
};

// The count, then the last step.
struct LfuOrder : OrderBase {
  static constexpr StatisticSet kStatistics =
      StatisticSet().With(Statistic::kLastStep).With(Statistic::kCount);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    return Pair(row.Get(Statistic::kCount), row.Get(Statistic::kLastStep), 40);
  }
  static int64_t Shown(const RowStatistics& row, uint64_t) {
    return static_cast<int64_t>(row.Get(Statistic::kCount));
  }
};

// The last time of use, then the last step. 44 bits of milliseconds last until the year 2527.
struct TtlOrder : OrderBase {
  static constexpr StatisticSet kStatistics =
      StatisticSet().With(Statistic::kLastStep).With(Statistic::kLastTime);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    return Pair(row.Get(Statistic::kLastTime), row.Get(Statistic::kLastStep), 20);
  }
  static int64_t Shown(const RowStatistics& row, uint64_t) {
    return static_cast<int64_t>(row.Get(Statistic::kLastTime));
  }
};

// The user's score.
struct ScoreOrder : OrderBase {
  static constexpr StatisticSet kStatistics = StatisticSet().With(Statistic::kScore);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    return row.Get(Statistic::kScore);
  }
  static int64_t Shown(const RowStatistics&, uint64_t score) {
    return RowStatistics::ScoreOf(score);
  }
};

// The epoch, then the last step or the count: strategies of NVIDIA's HierarchicalKV. The step keeps
// its lower bits, so that steps of a clock keep their order; the count saturates.
struct EpochLruOrder : OrderBase {
  static constexpr StatisticSet kStatistics =
      StatisticSet().With(Statistic::kLastStep).With(Statistic::kEpoch);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    const uint64_t step = row.Get(Statistic::kLastStep);
    return InEpoch(row.Get(Statistic::kEpoch), static_cast<uint32_t>(step));
  }
};
struct EpochLfuOrder : OrderBase {
  static constexpr StatisticSet kStatistics =
      StatisticSet().With(Statistic::kLastStep).With(Statistic::kCount).With(Statistic::kEpoch);
  TF_EMBED_ORDER_FUNCTION uint64_t Score(const Row& row, uint64_t) {
    const uint64_t count = std::min<uint64_t>(row.Get(Statistic::kCount), UINT32_MAX);
    return InEpoch(row.Get(Statistic::kEpoch), static_cast<uint32_t>(count));
  }
};

#undef TF_EMBED_ORDER_FUNCTION

inline StatisticSet StatisticsOf(EvictionOrder order) {
  switch (order) {
#define TF_EMBED_ORDER(enumerator, name, order) \
  case EvictionOrder::enumerator:               \
    return order::kStatistics;
    TF_EMBED_EVICTION_ORDERS(TF_EMBED_ORDER)
#undef TF_EMBED_ORDER
  }
  return StatisticSet();
}

// A row's position in an order; the lowest leaves first. Ranks are unique, because hashes break
// ties. So evictions depend neither on threads nor on the positions of rows. The hash also
// determines the key (KeyOfHash).
class Rank {
 public:
  constexpr Rank() = default;
  constexpr Rank(uint64_t score, uint64_t hash) : score_(score), turned_hash_(Turn(hash, 8)) {}

  constexpr uint64_t score() const { return score_; }
  constexpr uint64_t hash() const { return Turn(turned_hash_, 56); }

  // A rank in 64 bits: a lower rank has an equal or higher priority of eviction. It has the length
  // of the score, then as many bits of score and hash as fit, so that small scores lose no bit.
  TF_EMBED_HOST_DEVICE inline uint64_t Priority() const {
#if defined(__CUDA_ARCH__)
    const int length = 64 - __clzll(static_cast<long long>(score_));
#else
    const int length = score_ == 0 ? 0 : 64 - __builtin_clzll(score_);
#endif
    // The leading 1 of the score follows from its length.
    const uint64_t digits =
        length < 2 ? turned_hash_ : score_ << (65 - length) | turned_hash_ >> (length - 1);
    return ~(static_cast<uint64_t>(length) << kDigits | digits >> (64 - kDigits));
  }
  // The lowest rank of a priority. The highest priority gives the lowest rank of all.
  static constexpr Rank LowestOf(uint64_t priority) {
    const int length = static_cast<int>(~priority >> kDigits);
    const uint64_t digits = ~priority << (64 - kDigits);
    Rank rank;
    rank.score_ = length;
    rank.turned_hash_ = digits;
    if (length < 2) return rank;
    rank.score_ = uint64_t{1} << (length - 1) | digits >> (65 - length);
    rank.turned_hash_ = digits << (length - 1);
    return rank;
  }

  friend constexpr bool operator<(const Rank& a, const Rank& b) {
    return a.score_ != b.score_ ? a.score_ < b.score_ : a.turned_hash_ < b.turned_hash_;
  }
  friend constexpr bool operator==(const Rank& a, const Rank& b) {
    return a.score_ == b.score_ && a.turned_hash_ == b.turned_hash_;
  }

 private:
  static constexpr int kDigits = 57;
  static constexpr uint64_t Turn(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

  uint64_t score_ = 0;
  // The highest bits of a hash are a stripe's number. Here they are the lowest bits, so that the
  // rows of some stripes are a fair sample of an order that hashes decide.
  uint64_t turned_hash_ = 0;
};
inline constexpr Rank kHighestRank{UINT64_MAX, UINT64_MAX};

// The rank of a row by its statistics and the hash of its key.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // RowStatistics is for the host only
#endif
template <class Row>
TF_EMBED_HOST_DEVICE inline Rank RankOf(EvictionOrder order, const Row& row, uint64_t hash) {
  switch (order) {
#define TF_EMBED_ORDER(enumerator, name, order) \
  case EvictionOrder::enumerator:               \
    return Rank(order::Score(row, hash), hash);
    TF_EMBED_EVICTION_ORDERS(TF_EMBED_ORDER)
#undef TF_EMBED_ORDER
  }
  return Rank();
}

// The leading number of an order, as shown to users.
inline int64_t ShownScore(EvictionOrder order, const RowStatistics& row, uint64_t hash) {
  const uint64_t score = RankOf(order, row, hash).score();
  switch (order) {
#define TF_EMBED_ORDER(enumerator, name, order) \
  case EvictionOrder::enumerator:               \
    return order::Shown(row, score);
    TF_EMBED_EVICTION_ORDERS(TF_EMBED_ORDER)
#undef TF_EMBED_ORDER
  }
  return 0;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_EVICTION_ORDER_H_
