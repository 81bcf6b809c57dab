// SPDX-License-Identifier: Apache-2.0
// The clock of a table. Each verb that changes rows ends a step, so steps advance without an
// optimizer. Steps 1 to n are epoch 0, the next n are epoch 1, and so on. SetEpoch renumbers the
// present epoch, and later epochs follow from it. Thread-safe.
#ifndef TF_EMBED_CC_CORE_TABLE_STEP_CLOCK_H_
#define TF_EMBED_CC_CORE_TABLE_STEP_CLOCK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cc/core/base/exec_context.h"

namespace tf_embed {

class StepClock {
 public:
  // The largest step that a caller may set. It leaves the clock room that no run can exhaust.
  static constexpr int64_t kMaxStep = int64_t{1} << 62;

  // `steps_per_epoch`: n; 0 if epochs never end by themselves.
  explicit StepClock(int64_t steps_per_epoch) : steps_per_epoch_(steps_per_epoch) {}

  Moment Now() const { return At(step()); }
  // The last finished step, or the first step if none has finished.
  Moment LastStep() const { return At(std::max<uint64_t>(step(), 2) - 1); }
  // Ends the present step and returns it. Concurrent writers get distinct steps. Readers of the
  // clock see the step as finished at once, even if its verb fails.
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

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_STEP_CLOCK_H_
