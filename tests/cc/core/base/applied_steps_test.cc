// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/applied_steps.h"

#include <atomic>
#include <cstdint>

#include "tests/cc/support/test_tables.h"

namespace tf_embed {
namespace {

TEST(AppliedSteps, TakesEachStepOnce) {
  AppliedSteps steps;
  EXPECT_TRUE(steps.Begin(5, 0));
  EXPECT_FALSE(steps.Begin(5, 0));
  EXPECT_TRUE(steps.Begin(4, 0));
  EXPECT_FALSE(steps.Begin(-3, -10));  // below the 0 that was said before
  EXPECT_EQ(2u, steps.size());
}

TEST(AppliedSteps, TakesAWithdrawnStepAgain) {
  AppliedSteps steps;
  EXPECT_TRUE(steps.Begin(5, 0));
  steps.Withdraw(5);
  EXPECT_TRUE(steps.Begin(5, 0));
  steps.Withdraw(6);
  EXPECT_FALSE(steps.Begin(5, 0));
}

TEST(AppliedSteps, ForgetsStepsThatAreOver) {
  AppliedSteps steps;
  for (int64_t step = 0; step < 1000; ++step) {
    EXPECT_TRUE(steps.Begin(step, step - 7));
    EXPECT_LE(steps.size(), 8u);
  }
  EXPECT_FALSE(steps.Begin(10, 0));   // it was applied and is over
  EXPECT_FALSE(steps.Begin(999, 0));  // steps that others reported as over stay over
  EXPECT_FALSE(steps.Begin(1000, 2000));
  EXPECT_EQ(0u, steps.size());
}

TEST(AppliedSteps, TheFirstStepThatIsNotOverIsApplied) {
  AppliedSteps steps;
  EXPECT_TRUE(steps.Begin(5, 5));
  EXPECT_FALSE(steps.Begin(6, 7));
  EXPECT_TRUE(steps.Begin(7, 0));  // 7 was said to be the end before
}

TEST(AppliedSteps, TakesEachStepOnceOfManyThreads) {
  AppliedSteps steps;
  std::atomic<int64_t> firsts{0};
  InThreads(4, [&](size_t) {
    for (int64_t step = 0; step < 5000; ++step) {
      if (steps.Begin(step, 0)) ++firsts;
    }
  });
  EXPECT_EQ(5000, firsts);
}

}  // namespace
}  // namespace tf_embed
