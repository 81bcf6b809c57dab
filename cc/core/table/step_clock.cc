// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/step_clock.h"

#include <chrono>

namespace tf_embed {

Moment StepClock::At(uint64_t step) const {
  Moment now;
  now.step = step;
  now.epoch = EpochOf(now.step);
  const int64_t time = time_.load(std::memory_order_relaxed);
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  now.milliseconds = static_cast<uint64_t>(
      time >= 0 ? time : std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  return now;
}

uint64_t StepClock::EpochOf(uint64_t step) const {
  const int64_t epoch = EpochsBefore(step) + epochs_ahead_.load(std::memory_order_relaxed);
  return std::min(static_cast<uint64_t>(std::max<int64_t>(epoch, 0)), kMaxEpoch);
}

}  // namespace tf_embed
