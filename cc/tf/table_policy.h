// SPDX-License-Identifier: Apache-2.0
// By which rows of a variable come and leave, as its handle op says it, and what its shards share
// for that: the clock, and the log of rows that left.
#ifndef TF_EMBED_CC_TF_TABLE_POLICY_H_
#define TF_EMBED_CC_TF_TABLE_POLICY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/policy/admission.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/table/table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

class Settings;
class TableResource;

// Reads the setting of that name, an order as TfEmbedTable's `eviction` names it.
absl::Status ReadEvictionOrder(const Settings& settings, const char* name, EvictionOrder* order);

// The settings of a table about rows that come and go.
struct PolicySettings {
  int64_t max_rows = 0;
  EvictionOrder eviction = EvictionOrder::kLru;
  bool evicts = true;  // otherwise the bound refuses new rows
  int64_t steps_per_epoch = 0;
  int64_t ttl_milliseconds = 0;
  std::string admission = "none";
  int64_t admission_threshold = 1;
  float admission_error_rate = 0.01f;
  int64_t admission_max_keys = 0;
  StatisticSet statistics;
  bool log_evicted = false;

  absl::Status Read(const Settings& settings, int64_t num_shards);
  std::string DebugString() const;
  bool operator==(const PolicySettings& other) const;

  // Makes what counts the keys that wait for a row; null where none does.
  absl::Status NewAdmission(Allocator* allocator, std::shared_ptr<Admission>* made) const;

  // The policy of one shard of so many. The bound is spread: the first shards have one row more.
  RowPolicy ForShard(int64_t shard, int64_t num_shards, std::shared_ptr<Admission> shared,
                     EvictionSink* sink) const;
};

// The time of a variable. Its steps are counted here and not by an optimizer, so that they go on
// whoever changes rows: a step ends with each op that does. Steps 1 to n are epoch 0, the next n
// are epoch 1, and so on; what SetEpoch says holds for the present step, and the rest follows. Any
// thread may call anything.
class StepClock {
 public:
  // The largest number of a step that anybody may set, from which the clock can go on for ever.
  static constexpr int64_t kMaxStep = int64_t{1} << 62;

  // `steps_per_epoch`: n; 0 where epochs do not end by themselves.
  explicit StepClock(int64_t steps_per_epoch) : steps_per_epoch_(steps_per_epoch) {}

  Moment Now() const { return At(step()); }
  // A step that is over; the first one if none is.
  Moment LastStep() const { return At(std::max<uint64_t>(step(), 2) - 1); }
  // Makes the present step one of its own for who changes rows: two who do at once have two.
  Moment BeginStep() { return At(step_.fetch_add(1, std::memory_order_relaxed)); }

  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  void SetStep(uint64_t step) { step_.store(step, std::memory_order_relaxed); }

  uint64_t epoch() const { return EpochOf(step()); }
  void SetEpoch(uint64_t epoch) {
    epochs_ahead_.store(static_cast<int64_t>(epoch) - EpochsBefore(step()),
                        std::memory_order_relaxed);
  }

  // The time stands at `milliseconds` since 1970 from now on; -1: it is the system's.
  void SetTime(int64_t milliseconds) { time_.store(milliseconds, std::memory_order_relaxed); }

 private:
  int64_t EpochsBefore(uint64_t step) const {
    return steps_per_epoch_ == 0 || step == 0 ? 0
                                              : static_cast<int64_t>(step - 1) / steps_per_epoch_;
  }
  uint64_t EpochOf(uint64_t step) const;
  Moment At(uint64_t step) const;

  const int64_t steps_per_epoch_;
  std::atomic<uint64_t> step_{1};
  std::atomic<int64_t> epochs_ahead_{0};  // of what the steps alone would give
  std::atomic<int64_t> time_{-1};
};

// What a saved table says about its policy, the vector `policy` of TfEmbedExport:
//
//     | format = 1 | the clock's step | bits of the statistics of a row | what admission counted
//     ... |
//
// Where epochs are among the statistics, the format is 2, and the clock's epoch stands behind them.
struct SavedPolicy {
  uint64_t step = 0;  // 0: nothing goes by it
  uint64_t epoch = 0;
  StatisticSet statistics;
  std::vector<int64_t> admission;  // none where nothing was counted

  std::vector<int64_t> Encode() const;
  // Reads what Encode gave. Whatever else the numbers are, they are refused.
  static absl::Status Decode(const int64_t* numbers, size_t count, SavedPolicy* saved);
  // Whether a table with these settings can go on counting from `admission`.
  bool CountsFor(const PolicySettings& policy) const;
};

// Rows that left, until somebody asks for them; and for a table of strings, the keys whose strings
// may go as well. What was a string is kept as a string, since dictionaries forget what no row
// needs.
class EvictionLog final : public EvictionSink {
 public:
  // What left, as a table has it. If keys or values are strings, they stand in place of numbers.
  struct Rows {
    explicit Rows(Allocator* allocator) : keys(allocator), weights(allocator) {}
    size_t size = 0;
    Buffer<int64_t> keys;  // the first `size` are taken
    Buffer<char> weights;
    std::vector<std::string> key_strings;
    std::vector<std::string> value_strings;
  };

  // `keeps_rows`: whether anybody will ask. The table outlives this.
  EvictionLog(const TableResource* table, const TableOptions& options, bool keeps_rows);

  bool keeps_rows() const { return keeps_rows_; }
  Status Evict(const WholeRows& rows, const RuleSlots& rule) override;
  size_t size() const;

  // Calls `take(rows)` and forgets the rows if that succeeds.
  template <typename Take>
  absl::Status Drain(const Take& take) {
    std::lock_guard<OrderedMutex> lock(mutex_);
    absl::Status status = take(rows_);
    if (status.ok()) rows_ = Rows(allocator_);
    return status;
  }

  // Calls `take(keys, count)` for the keys of strings that left since the last time.
  template <typename Take>
  void TakeStringKeys(const Take& take) {
    std::vector<int64_t> keys;
    {
      std::lock_guard<OrderedMutex> lock(mutex_);
      keys.swap(string_keys_);
    }
    take(keys.data(), keys.size());  // it looks them up in tables, whose locks come before the log
  }

 private:
  void KeepNumbers(size_t count, const int64_t* keys, const char* weights);
  Status MakeRoom(size_t count);

  const TableResource* const table_;
  Allocator* const allocator_;
  const size_t row_bytes_;
  const bool keeps_rows_;
  mutable OrderedMutex mutex_{LockRank::kLog};
  Rows rows_;
  std::vector<int64_t> string_keys_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_POLICY_H_
