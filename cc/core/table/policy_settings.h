// SPDX-License-Identifier: Apache-2.0
// Admission and eviction of a table's rows, as its maker asks for them and as a save keeps them.
#ifndef TF_EMBED_CC_CORE_TABLE_POLICY_SETTINGS_H_
#define TF_EMBED_CC_CORE_TABLE_POLICY_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/admission.h"
#include "cc/core/policy/row_policy.h"

namespace tf_embed {

struct PolicySettings {
  int64_t max_rows = 0;          // over all shards; 0: no bound
  std::string eviction = "lru";  // an eviction order, or "none": a full table refuses new rows
  int64_t steps_per_epoch = 0;   // 0: SetEpoch alone sets the epoch
  int64_t ttl_milliseconds = 0;  // after which an unused row expires; 0: never
  std::string admission = "none";
  int64_t admission_threshold = 1;     // steps with a key after which it gets its row
  float admission_error_rate = 0.01f;  // the chance that a Bloom filter admits a key early
  int64_t admission_max_keys = 0;      // bound on the waiting keys; 0: none
  int32_t statistics = 0;              // bits of statistics to keep besides the order's
  bool log_evicted = false;

  // Calls visit(name, field) for each field, or visit(name, field, least value).
  template <typename Self, typename Visit>
  static void ForEachField(Self& self, const Visit& visit) {
    visit("max_rows", self.max_rows);
    visit("eviction", self.eviction);
    visit("steps_per_epoch", self.steps_per_epoch);
    visit("ttl_milliseconds", self.ttl_milliseconds);
    visit("admission", self.admission);
    visit("admission_threshold", self.admission_threshold, 1);
    visit("admission_error_rate", self.admission_error_rate);
    visit("admission_max_keys", self.admission_max_keys);
    visit("statistics", self.statistics);
    visit("log_evicted", self.log_evicted);
  }

  // Fails if a field is out of range.
  Status Check(size_t num_shards) const;
  // Equal for equal settings only.
  std::string DebugString() const;
  friend bool operator==(const PolicySettings& a, const PolicySettings& b) {
    return a.DebugString() == b.DebugString();
  }

  StatisticSet kept_statistics() const {
    return StatisticSet::OfBits(static_cast<uint8_t>(statistics));
  }

  // Makes the admission filter; null if rows need no admission.
  Status NewAdmission(Allocator* allocator, std::shared_ptr<Admission>* made) const;

  // The policy of one shard. The row bound is divided; the first shards take the remainder.
  RowPolicy ForShard(size_t shard, size_t num_shards, std::shared_ptr<Admission> shared,
                     EvictionSink* sink) const;
};

// The policy of a saved table, as a vector of numbers:
//
//     | format = 1 | the clock's step | bits of the statistics of a row | what admission counted
//     ... |
//
// Format 2 is used if epochs are among the statistics. It has the clock's epoch after them.
struct SavedPolicy {
  uint64_t step = 0;  // 0: no clock
  uint64_t epoch = 0;
  StatisticSet statistics;
  std::vector<int64_t> admission;  // empty if nothing was counted

  std::vector<int64_t> Encode() const;
  // Reads the output of Encode. Rejects any other numbers.
  static Status Decode(const int64_t* numbers, size_t count, SavedPolicy* saved);
  // Whether a table with these settings can continue counting from `admission`.
  bool CountsFor(const PolicySettings& policy) const;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_POLICY_SETTINGS_H_
