// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/applied_steps.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// Applies a step, if it is the first.
bool Apply(AppliedSteps* steps, int64_t step, int64_t ended) {
  AppliedSteps::Arrival arrival(steps, step, ended);
  if (arrival.is_first()) arrival.End();
  return arrival.is_first();
}

// Has a step fail, and says whether it was the first.
bool Fail(AppliedSteps* steps, int64_t step, int64_t ended) {
  return AppliedSteps::Arrival(steps, step, ended).is_first();
}

TEST(AppliedSteps, TakesEachStepOnce) {
  AppliedSteps steps;
  EXPECT_TRUE(Apply(&steps, 5, 0));
  EXPECT_FALSE(Apply(&steps, 5, 0));
  EXPECT_TRUE(Apply(&steps, 4, 0));
  EXPECT_FALSE(Apply(&steps, -3, -10));  // below the 0 that was said before
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

// The second of two arrivals at once has no answer before the first has ended; and if that fails,
// it applies the step itself.
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
      EXPECT_TRUE(Apply(&steps, 6, 0));  // others do not wait
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
  EXPECT_FALSE(Apply(&steps, 10, 0));   // it was applied and is over
  EXPECT_FALSE(Apply(&steps, 999, 0));  // steps that others reported as over stay over
  EXPECT_FALSE(Apply(&steps, 1000, 2000));
  EXPECT_EQ(0u, steps.size());
}

TEST(AppliedSteps, TheFirstStepThatIsNotOverIsApplied) {
  AppliedSteps steps;
  EXPECT_TRUE(Apply(&steps, 5, 5));
  EXPECT_FALSE(Apply(&steps, 6, 7));
  EXPECT_TRUE(Apply(&steps, 7, 0));  // 7 was said to be the end before
}

TEST(AppliedSteps, TakesEachStepOnceOfManyThreads) {
  AppliedSteps steps;
  std::atomic<int64_t> firsts{0};
  InThreads(4, [&](size_t number) {
    for (int64_t step = 0; step < 5000; ++step) {
      // Of each step some attempts fail.
      if (step % 4 == static_cast<int64_t>(number)) Fail(&steps, step, 0);
      if (Apply(&steps, step, 0)) ++firsts;
    }
  });
  EXPECT_EQ(5000, firsts);
}

}  // namespace
}  // namespace tf_embed
