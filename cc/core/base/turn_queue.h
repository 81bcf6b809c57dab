// SPDX-License-Identifier: Apache-2.0
// A lock that is passed on in the order of the requests. Waiting blocks no thread: a waiter leaves
// a function, which is called when its turn begins.
//
// Any thread may call any method. The functions are called without the queue's mutex, in the thread
// that asks or in the thread that gives the turn back.
#ifndef TF_EMBED_CC_CORE_BASE_TURN_QUEUE_H_
#define TF_EMBED_CC_CORE_BASE_TURN_QUEUE_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

class TurnQueue {
 public:
  // Calls `granted` when the turn is free and all earlier waiters have had it. `waiter` names this
  // request, and no two waiting requests may have the same name. May throw std::bad_alloc; then
  // nothing is queued.
  void Enter(const void* waiter, std::function<void()> granted) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (taken_) {
        waiting_.push_back({waiter, std::move(granted)});
        return;
      }
      taken_ = true;
    }
    granted();
  }

  // Cancels a request. False if it is not waiting: its function was called or is about to be.
  bool Cancel(const void* waiter) {
    std::function<void()> dropped;  // destroyed without the mutex
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [waiter](const Request& one) { return one.waiter == waiter; });
    if (found == waiting_.end()) return false;
    dropped = std::move(found->granted);
    waiting_.erase(found);
    return true;
  }

  // Gives the turn back, to the first in the queue. REQUIRES: the caller has the turn.
  void Leave() {
    std::function<void()> granted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_.empty()) {
        taken_ = false;
        return;
      }
      granted = std::move(waiting_.front().granted);
      waiting_.pop_front();
    }
    granted();
  }

 private:
  struct Request {
    const void* waiter;
    std::function<void()> granted;
  };

  std::mutex mutex_;
  bool taken_ TF_EMBED_GUARDED_BY(mutex_) = false;
  std::deque<Request> waiting_ TF_EMBED_GUARDED_BY(mutex_);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_TURN_QUEUE_H_
