// SPDX-License-Identifier: Apache-2.0
// Admission and eviction of a variable's rows, as set by its handle op. The variable's shards share
// a clock and a log of evicted rows.
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
#include "cc/core/store/store.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

class SettingsText;
class TableResource;

// Reads the attribute `name` of an op, an eviction order.
absl::Status ReadEvictionOrder(tensorflow::OpKernelConstruction* construction, const char* name,
                               EvictionOrder* order);

// The admission and eviction settings of a table.
struct PolicySettings {
  int64_t max_rows = 0;          // over all shards; 0: no bound
  std::string eviction = "lru";  // an eviction order, or "none": a full table refuses new rows
  int64_t steps_per_epoch = 0;   // 0: SetClock alone sets the epoch
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

  void Read(SettingsText* text);
  // Fails if a field is out of range.
  absl::Status Check(int64_t num_shards) const;
  std::string DebugString() const;
  friend bool operator==(const PolicySettings& a, const PolicySettings& b) {
    return a.DebugString() == b.DebugString();
  }

  // Makes the admission filter; null if rows need no admission.
  absl::Status NewAdmission(Allocator* allocator, std::shared_ptr<Admission>* made) const;

  // The policy of one shard. The row bound is divided; the first shards take the remainder.
  RowPolicy ForShard(int64_t shard, int64_t num_shards, std::shared_ptr<Admission> shared,
                     EvictionSink* sink) const;
};

// The clock of a variable. Each op that changes rows ends a step, so steps advance without an
// optimizer. Steps 1 to n are epoch 0, the next n are epoch 1, and so on. SetEpoch renumbers the
// present epoch, and later epochs follow from it. Thread-safe.
class StepClock {
 public:
  // The largest step that a caller may set. It leaves the clock room that no run can exhaust.
  static constexpr int64_t kMaxStep = int64_t{1} << 62;

  // `steps_per_epoch`: n; 0 if epochs never end by themselves.
  explicit StepClock(int64_t steps_per_epoch) : steps_per_epoch_(steps_per_epoch) {}

  Moment Now() const { return At(step()); }
  // The last finished step, or the first step if none has finished.
  Moment LastStep() const { return At(std::max<uint64_t>(step(), 2) - 1); }
  // Ends the present step and returns it. Concurrent writers get distinct steps.
  Moment BeginStep() { return At(step_.fetch_add(1, std::memory_order_relaxed)); }

  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  void SetStep(uint64_t step) { step_.store(step, std::memory_order_relaxed); }

  uint64_t epoch() const { return EpochOf(step()); }
  void SetEpoch(uint64_t epoch) {
    epochs_ahead_.store(static_cast<int64_t>(epoch) - EpochsBefore(step()),
                        std::memory_order_relaxed);
  }

  // Fixes the time at `milliseconds` since 1970; -1 returns to the system time.
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
  std::atomic<int64_t> epochs_ahead_{0};  // relative to the step count alone
  std::atomic<int64_t> time_{-1};
};

// The policy of a saved table, the vector `policy` of TfEmbedExport:
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
  static absl::Status Decode(const int64_t* numbers, size_t count, SavedPolicy* saved);
  // Whether a table with these settings can continue counting from `admission`.
  bool CountsFor(const PolicySettings& policy) const;
};

// Evicted rows, kept until they are drained. For a table of strings it also has the keys whose
// strings may be removed. Rows keep the strings themselves, because dictionaries drop strings that
// no row uses.
class EvictionLog final : public EvictionSink {
 public:
  // Evicted rows as the table has them. String keys or values replace the numbers.
  struct Rows {
    explicit Rows(Allocator* allocator) : keys(allocator), weights(allocator) {}
    size_t size = 0;
    Buffer<int64_t> keys;  // the first `size` are used
    Buffer<char> weights;
    std::vector<std::string> key_strings;
    std::vector<std::string> value_strings;
  };

  // `keeps_rows`: whether rows can be drained. REQUIRES: the table outlives this object.
  EvictionLog(const TableResource* table, const StoreOptions& options, bool keeps_rows);

  bool keeps_rows() const { return keeps_rows_; }
  Status Evict(const WholeRows& rows, const RuleSlots& rule) override;
  size_t size() const;

  // Calls `take(rows)`, and drops the rows if it succeeds.
  template <typename Take>
  absl::Status Drain(const Take& take) {
    std::lock_guard<OrderedMutex> lock(mutex_);
    absl::Status status = take(rows_);
    if (status.ok()) rows_ = Rows(allocator_);
    return status;
  }

  // Calls `take(keys, count)` for the string keys evicted since the last call.
  template <typename Take>
  void TakeStringKeys(const Take& take) {
    std::vector<int64_t> keys;
    {
      std::lock_guard<OrderedMutex> lock(mutex_);
      keys.swap(string_keys_);
    }
    // Outside the lock: `take` looks keys up in tables, whose locks rank before the log's.
    take(keys.data(), keys.size());
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
