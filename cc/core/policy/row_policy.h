// SPDX-License-Identifier: Apache-2.0
// Admission and eviction rules. They use the statistics of rows (row_statistics.h).
#ifndef TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_
#define TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/admission.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

// Receives the rows that a policy removes: evicted and expired rows.
class EvictionSink {
 public:
  virtual ~EvictionSink() = default;
  // Receives whole rows, with the slots of `rule`, before they leave. If it fails, they stay and
  // the verb fails. Several stores may call concurrently.
  virtual Status Evict(const WholeRows& rows, const RuleSlots& rule) = 0;
};

struct RowPolicy {
  StatisticSet statistics;  // the statistics that the policy needs, and others requested

  // The row bound. In a full store, a new row evicts the lowest of the rows not used in the present
  // step, or is refused if there is none. 0: unbounded.
  size_t max_rows = 0;
  // Whether new rows evict others. Otherwise a full store refuses new rows, in batch order, and
  // keeps no extra data for a row.
  bool evicts = true;
  EvictionOrder eviction = EvictionOrder::kLru;

  // Time without use after which a row is expired. A training verb treats an expired row as absent.
  // Inserting verbs remove the expired rows of their batch and some others. 0: never.
  uint64_t ttl_milliseconds = 0;

  // Decides when an apply makes a row; null: immediately. Stores may share an admission.
  std::shared_ptr<Admission> admission;

  EvictionSink* sink = nullptr;  // may be null; outlives the store

  // Whether new rows must be planned, so that writes run one at a time.
  bool plans_writes() const { return max_rows > 0 || ttl_milliseconds > 0 || admission != nullptr; }

  bool Expired(const RowStatistics& row, const Moment& now) const {
    return ttl_milliseconds > 0 &&
           row.Get(Statistic::kLastTime) + ttl_milliseconds <= now.milliseconds;
  }

  // Adds the statistics that its own rules read.
  RowPolicy WithNeeds() const {
    RowPolicy policy = *this;
    if (max_rows > 0 && evicts) {  // the last step tells which rows the batch in flight uses
      policy.statistics = policy.statistics.With(StatisticsOf(eviction)).With(Statistic::kLastStep);
    }
    if (ttl_milliseconds > 0) policy.statistics = policy.statistics.With(Statistic::kLastTime);
    if (policy.statistics.Has(Statistic::kCount)) {  // a key counts once a step
      policy.statistics = policy.statistics.With(Statistic::kLastStep);
    }
    return policy;
  }
};

// The number of index buckets that a verb with `num_absent` new keys searches for expired rows. If
// each bucket has at least one key, the whole store is searched while half as many rows are added.
constexpr size_t BucketsToSearch(size_t num_absent) { return 16 + 2 * num_absent; }

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_ROW_POLICY_H_
