// SPDX-License-Identifier: Apache-2.0
// The first failure of work that runs in many threads.
#ifndef TF_EMBED_CC_CORE_BASE_FIRST_FAILURE_H_
#define TF_EMBED_CC_CORE_BASE_FIRST_FAILURE_H_

#include <atomic>
#include <mutex>
#include <utility>

#include "cc/core/base/status.h"
#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

class FirstFailure {
 public:
  // Thread-safe, as is failed().
  void Note(Status status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    failed_.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Moves the failure out, once all threads are done: a copy would need memory.
  Status Take() TF_EMBED_LOCKS_UNCHECKED { return std::move(status_); }

 private:
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Status status_ TF_EMBED_GUARDED_BY(mutex_);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_FIRST_FAILURE_H_
