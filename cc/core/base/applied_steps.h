// SPDX-License-Identifier: Apache-2.0
// The steps that were applied to a table, so that a step received twice is applied once. The sender
// numbers its steps, and resends a step if it does not know whether the step arrived.
//
// Any thread may call any method.
#ifndef TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_
#define TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>

#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

class AppliedSteps {
 public:
  // A step that has arrived. If it is destroyed before End(), the step failed and may arrive again.
  class Arrival {
   public:
    // Steps below `ended` are over, applied or not: none of them is applied any more, and their
    // records are dropped. If another thread is applying the step, waits until it ends or fails.
    // May throw std::bad_alloc; then nothing has changed.
    Arrival(AppliedSteps* steps, int64_t step, int64_t ended)
        : steps_(*steps), step_(step), is_first_(steps->Begin(step, ended)) {}
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    ~Arrival() {
      if (is_first_ && !has_ended_) steps_.Withdraw(step_);
    }

    // Whether this arrival applies the step.
    bool is_first() const { return is_first_; }
    // REQUIRES: is_first(). Records that the step was applied.
    void End() {
      steps_.End(step_);
      has_ended_ = true;
    }

   private:
    AppliedSteps& steps_;
    const int64_t step_;
    const bool is_first_;
    bool has_ended_ = false;
  };

  // The number of steps on record.
  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return applied_.size();
  }

 private:
  bool Begin(int64_t step, int64_t ended) TF_EMBED_LOCKS_UNCHECKED {  // by a unique_lock
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      const bool is_over = step < ended || step < ended_;
      const auto found = is_over ? applied_.end() : applied_.find(step);
      if (found != applied_.end() && !found->second) {
        changed_.wait(lock);
        continue;
      }
      const bool is_first = !is_over && found == applied_.end();
      if (is_first) applied_.emplace(step, false);
      if (ended > ended_) {
        ended_ = ended;
        applied_.erase(applied_.begin(), applied_.lower_bound(ended));
        changed_.notify_all();
      }
      return is_first;
    }
  }
  void End(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = applied_.find(step);
    if (found != applied_.end()) found->second = true;  // otherwise it is over
    changed_.notify_all();
  }
  void Withdraw(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    applied_.erase(step);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;  // no other lock is taken under it
  std::condition_variable changed_;
  int64_t ended_ TF_EMBED_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::min();
  // Whether it has ended; none below ended_.
  std::map<int64_t, bool> applied_ TF_EMBED_GUARDED_BY(mutex_);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_APPLIED_STEPS_H_
