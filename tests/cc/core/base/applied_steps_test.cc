// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/applied_steps.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// Applies a step if it arrives for the first time.
bool Apply(AppliedSteps* steps, int64_t step, int64_t ended) {
  AppliedSteps::Arrival arrival(steps, step, ended);
  if (arrival.is_first()) arrival.End();
  return arrival.is_first();
}

// Lets a step fail. Returns whether it arrived for the first time.
bool Fail(AppliedSteps* steps, int64_t step, int64_t ended) {
  return AppliedSteps::Arrival(steps, step, ended).is_first();
}

TEST(AppliedSteps, TakesEachStepOnce) {
  AppliedSteps steps;
  EXPECT_TRUE(Apply(&steps, 5, 0));
  EXPECT_FALSE(Apply(&steps, 5, 0));
  EXPECT_TRUE(Apply(&steps, 4, 0));
  EXPECT_FALSE(Apply(&steps, -3, -10));  // below the earlier end, 0
  EXPECT_EQ(2u, steps.size());
}

TEST(AppliedSteps, TakesAStepThatFailedAgain) {
  AppliedSteps steps;
  EXPECT_TRUE(Fail(&steps, 5, 0));
  EXPECT_EQ(0u, steps.size());
  EXPECT_TRUE(Apply(&steps, 5, 0));
  EXPECT_FALSE(Fail(&steps, 5, 0));
  EXPECT_FALSE(Apply(&steps, 5, 0));
}

// The second of two concurrent arrivals waits until the first has ended. If the first failed, the
// second applies the step.
TEST(AppliedSteps, TheSecondOfTwoWaitsForTheFirst) {
  for (const bool fails : {false, true}) {
    AppliedSteps steps;
    std::atomic<bool> has_answer{false};
    bool is_first = false;
    std::thread second;
    {
      AppliedSteps::Arrival first(&steps, 5, 0);
      ASSERT_TRUE(first.is_first());
      second = std::thread([&] {
        is_first = Apply(&steps, 5, 0);
        has_answer = true;
      });
      EXPECT_TRUE(Apply(&steps, 6, 0));  // other steps do not wait
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(has_answer);
      if (!fails) first.End();
    }
    second.join();
    EXPECT_EQ(fails, is_first);
    EXPECT_FALSE(Apply(&steps, 5, 0));
  }
}

TEST(AppliedSteps, AStepThatIsOverIsWaitedForNoMore) {
  AppliedSteps steps;
  bool is_first = true;
  std::thread second;
  {
    AppliedSteps::Arrival first(&steps, 5, 0);
    second = std::thread([&] { is_first = Apply(&steps, 5, 0); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(Apply(&steps, 7, 6));
    second.join();
    first.End();
  }
  EXPECT_FALSE(is_first);
  EXPECT_EQ(1u, steps.size());
}

TEST(AppliedSteps, ForgetsStepsThatAreOver) {
  AppliedSteps steps;
  for (int64_t step = 0; step < 1000; ++step) {
    EXPECT_TRUE(Apply(&steps, step, step - 7));
    EXPECT_LE(steps.size(), 8u);
  }
  EXPECT_FALSE(Apply(&steps, 10, 0));   // applied, and over
  EXPECT_FALSE(Apply(&steps, 999, 0));  // an earlier end changes nothing
  EXPECT_FALSE(Apply(&steps, 1000, 2000));
  EXPECT_EQ(0u, steps.size());
}

TEST(AppliedSteps, TheFirstStepThatIsNotOverIsApplied) {
  AppliedSteps steps;
  EXPECT_TRUE(Apply(&steps, 5, 5));
  EXPECT_FALSE(Apply(&steps, 6, 7));
  EXPECT_TRUE(Apply(&steps, 7, 0));  // 7 was the end in an earlier report
}

TEST(AppliedSteps, TakesEachStepOnceOfManyThreads) {
  AppliedSteps steps;
  std::atomic<int64_t> firsts{0};
  InThreads(4, [&](size_t number) {
    for (int64_t step = 0; step < 5000; ++step) {
      // Some attempts of each step fail.
      if (step % 4 == static_cast<int64_t>(number)) Fail(&steps, step, 0);
      if (Apply(&steps, step, 0)) ++firsts;
    }
  });
  EXPECT_EQ(5000, firsts);
}

}  // namespace
}  // namespace tf_embed
