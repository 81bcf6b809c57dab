// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/fair_shared_mutex.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

TEST(FairSharedMutex, LetsManyInAtOnce) {
  FairSharedMutex mutex(LockRank::kStrings);
  std::atomic<int> inside{0};
  InThreads(3, [&](size_t) {
    std::shared_lock<FairSharedMutex> lock(mutex);
    ++inside;
    while (inside < 3) std::this_thread::yield();  // each reader waits inside for the others
  });
  EXPECT_EQ(3, inside);
}

TEST(FairSharedMutex, LetsOneInAlone) {
  FairSharedMutex mutex(LockRank::kStrings);
  int64_t count = 0;  // not atomic: guarded by the mutex
  std::atomic<int> inside{0};
  InThreads(4, [&](size_t thread) {
    for (int i = 0; i < 2000; ++i) {
      if (thread % 2 == 0) {
        std::unique_lock<FairSharedMutex> lock(mutex);
        ++count;
        EXPECT_EQ(0, inside);
      } else {
        std::shared_lock<FairSharedMutex> lock(mutex);
        ++inside;
        EXPECT_GE(count, 0);
        --inside;
      }
    }
  });
  EXPECT_EQ(4000, count);
}

// With a lock that prefers readers, the writer would wait as long as new readers arrive.
TEST(FairSharedMutex, ALoneWaiterIsNotOvertakenForEver) {
  FairSharedMutex mutex(LockRank::kStrings);
  std::atomic<bool> stop{false};
  InThreads(4, [&](size_t thread) {
    if (thread > 0) {
      while (!stop) {
        std::shared_lock<FairSharedMutex> lock(mutex);
        std::this_thread::yield();
      }
    } else {
      for (int i = 0; i < 200; ++i) std::unique_lock<FairSharedMutex> lock(mutex);
      stop = true;
    }
  });
}

TEST(FairSharedMutex, TryLockGivesUpWhileOthersAreInside) {
  FairSharedMutex mutex(LockRank::kStrings);
  mutex.lock_shared();
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock_shared();
  EXPECT_TRUE(mutex.try_lock());
  InThreads(1, [&](size_t) { EXPECT_FALSE(mutex.try_lock()); });
  mutex.unlock();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

}  // namespace
}  // namespace tf_embed
