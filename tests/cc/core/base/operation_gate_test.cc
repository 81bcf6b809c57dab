#include "cc/core/base/operation_gate.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "tests/cc/support/test_tables.h"

namespace tf_embed {
namespace {

TEST(OperationGate, LetsManyInAtOnce) {
  OperationGate gate(LockRank::kTexts);
  std::atomic<int> inside{0};
  InThreads(3, [&](size_t) {
    std::shared_lock<OperationGate> lock(gate);
    ++inside;
    while (inside < 3) std::this_thread::yield();  // each waits inside for all others
  });
  EXPECT_EQ(3, inside);
}

TEST(OperationGate, LetsOneInAlone) {
  OperationGate gate(LockRank::kTexts);
  int64_t count = 0;  // not atomic: the gate is what guards it
  std::atomic<int> inside{0};
  InThreads(4, [&](size_t thread) {
    for (int i = 0; i < 2000; ++i) {
      if (thread % 2 == 0) {
        std::unique_lock<OperationGate> lock(gate);
        ++count;
        EXPECT_EQ(0, inside);
      } else {
        std::shared_lock<OperationGate> lock(gate);
        ++inside;
        EXPECT_GE(count, 0);
        --inside;
      }
    }
  });
  EXPECT_EQ(4000, count);
}

// With a plain reader-preferring lock the lone one would wait as long as others come.
TEST(OperationGate, ALoneWaiterIsNotOvertakenForEver) {
  OperationGate gate(LockRank::kTexts);
  std::atomic<bool> stop{false};
  InThreads(4, [&](size_t thread) {
    if (thread > 0) {
      while (!stop) {
        std::shared_lock<OperationGate> lock(gate);
        std::this_thread::yield();
      }
    } else {
      for (int i = 0; i < 200; ++i) std::unique_lock<OperationGate> lock(gate);
      stop = true;
    }
  });
}

TEST(OperationGate, TryLockGivesUpWhileOthersAreInside) {
  OperationGate gate(LockRank::kTexts);
  gate.lock_shared();
  EXPECT_FALSE(gate.try_lock());
  gate.unlock_shared();
  EXPECT_TRUE(gate.try_lock());
  InThreads(1, [&](size_t) { EXPECT_FALSE(gate.try_lock()); });
  gate.unlock();
  EXPECT_TRUE(gate.try_lock());
  gate.unlock();
}

}  // namespace
}  // namespace tf_embed
