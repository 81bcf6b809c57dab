// SPDX-License-Identifier: Apache-2.0
// A fair shared/exclusive lock: later readers can't starve a waiting writer, because all threads
// first pass a turnstile, which a waiting writer holds.
#ifndef TF_EMBED_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_
#define TF_EMBED_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_

#include <mutex>
#include <shared_mutex>

#include "cc/core/base/lock_order.h"
#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

class TF_EMBED_MUTEX FairSharedMutex {
 public:
  explicit FairSharedMutex(LockRank rank, uint64_t number = 0) : place_(rank, number) {}

  void lock_shared() TF_EMBED_LOCKS_SHARED {
    place_.CheckWait();
    {
      std::lock_guard<std::mutex> pass(turnstile_);
      inside_.lock_shared();
    }
    place_.Taken();
  }
  // Also fails if another thread is about to enter.
  bool try_lock_shared() TF_EMBED_LOCKS_SHARED_IF_TRUE {
    std::unique_lock<std::mutex> pass(turnstile_, std::try_to_lock);
    if (!pass.owns_lock() || !inside_.try_lock_shared()) return false;
    place_.Taken();
    return true;
  }
  void unlock_shared() TF_EMBED_UNLOCKS_SHARED {
    place_.GivenBack();
    inside_.unlock_shared();
  }

  void lock() TF_EMBED_LOCKS {
    place_.CheckWait();
    {
      std::lock_guard<std::mutex> hold(turnstile_);
      inside_.lock();
    }
    place_.Taken();
  }
  bool try_lock() TF_EMBED_LOCKS_IF_TRUE {
    std::unique_lock<std::mutex> hold(turnstile_, std::try_to_lock);
    if (!hold.owns_lock() || !inside_.try_lock()) return false;
    place_.Taken();
    return true;
  }
  void unlock() TF_EMBED_UNLOCKS {
    place_.GivenBack();
    inside_.unlock();
  }

 private:
  std::mutex turnstile_;
  std::shared_mutex inside_;
  LockPlace place_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_
