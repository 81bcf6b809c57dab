// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/turn_queue.h"

#include <atomic>
#include <cstdint>
#include <vector>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

TEST(TurnQueue, GrantsAFreeTurnAtOnce) {
  TurnQueue queue;
  int waiter, grants = 0;
  queue.Enter(&waiter, [&] { ++grants; });
  EXPECT_EQ(1, grants);
  EXPECT_FALSE(queue.Cancel(&waiter));
  queue.Leave();
  queue.Enter(&waiter, [&] { ++grants; });
  EXPECT_EQ(2, grants);
}

TEST(TurnQueue, GrantsInTheOrderOfRequests) {
  TurnQueue queue;
  std::vector<int> waiters(4), order;
  for (int i = 0; i < 4; ++i) {
    queue.Enter(&waiters[i], [&order, i] { order.push_back(i); });
  }
  EXPECT_EQ(std::vector<int>({0}), order);
  for (int i = 0; i < 3; ++i) queue.Leave();
  EXPECT_EQ(std::vector<int>({0, 1, 2, 3}), order);
}

TEST(TurnQueue, PassesOverACancelledRequest) {
  TurnQueue queue;
  std::vector<int> waiters(3), order;
  for (int i = 0; i < 3; ++i) {
    queue.Enter(&waiters[i], [&order, i] { order.push_back(i); });
  }
  EXPECT_TRUE(queue.Cancel(&waiters[1]));
  EXPECT_FALSE(queue.Cancel(&waiters[1]));
  queue.Leave();
  EXPECT_EQ(std::vector<int>({0, 2}), order);
  queue.Leave();
  queue.Enter(&waiters[1], [&order] { order.push_back(1); });
  EXPECT_EQ(std::vector<int>({0, 2, 1}), order);
}

TEST(TurnQueue, LetsARequestGiveTheTurnBackWhileItIsGranted) {
  TurnQueue queue;
  std::vector<int> waiters(100);
  int grants = 0;
  queue.Enter(&queue, [] {});
  for (int& waiter : waiters) {
    queue.Enter(&waiter, [&] {
      ++grants;
      queue.Leave();
    });
  }
  EXPECT_EQ(0, grants);
  queue.Leave();
  EXPECT_EQ(100, grants);
}

// Each request is granted once or cancelled once, and only one request has the turn at a time.
TEST(TurnQueue, LetsOneInAtATimeBesideCancellations) {
  TurnQueue queue;
  int64_t count = 0;  // not atomic: guarded by the turn
  std::atomic<int64_t> cancelled{0};
  InThreads(4, [&](size_t thread) {
    for (int i = 0; i < 2000; ++i) {
      std::atomic<bool> over{false};
      queue.Enter(&over, [&] {
        ++count;
        queue.Leave();
        over = true;
      });
      if (thread % 2 == 1 && queue.Cancel(&over)) {
        ++cancelled;
      } else {
        while (!over) std::this_thread::yield();
      }
    }
  });
  EXPECT_EQ(8000, count + cancelled);
}

}  // namespace
}  // namespace tf_embed
