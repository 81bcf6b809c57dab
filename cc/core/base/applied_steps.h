// SPDX-License-Identifier: Apache-2.0
// The steps that were applied to a table, so that a step received twice is applied once. The sender
// numbers its steps, and resends a step if it does not know whether that arrived.
//
// Any thread may call any method.
#ifndef TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_
#define TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>

namespace tf_embed {

class AppliedSteps {
 public:
  // Whether `step` comes for the first time. It then counts as applied, unless it is withdrawn.
  // Steps below `ended` are over, whether they were applied or not: none of them is applied any
  // more, and nothing is kept of them. May throw std::bad_alloc; then nothing has changed.
  bool Begin(int64_t step, int64_t ended) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_first = step >= ended && step >= ended_ && applied_.insert(step).second;
    if (ended > ended_) {
      ended_ = ended;
      applied_.erase(applied_.begin(), applied_.lower_bound(ended));
    }
    return is_first;
  }

  // Takes back a step that failed, so that it may come again.
  void Withdraw(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    applied_.erase(step);
  }

  // The number of steps that it remembers.
  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return applied_.size();
  }

 private:
  mutable std::mutex mutex_;  // held for no other lock
  int64_t ended_ = std::numeric_limits<int64_t>::min();
  std::set<int64_t> applied_;  // none below ended_
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_
