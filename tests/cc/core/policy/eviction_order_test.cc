// SPDX-License-Identifier: Apache-2.0
// Ranks as priorities of 64 bits.
#include "cc/core/policy/eviction_order.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

TEST(Rank, APriorityKeepsTheOrderAndIsAsExactAsFits) {
  std::mt19937_64 random(1);
  std::vector<Rank> ranks = {Rank(), kHighestRank};
  for (int bits = 0; bits < 64; ++bits) {
    for (const uint64_t score :
         {uint64_t{1} << bits, (uint64_t{1} << bits) - 1, random() >> bits}) {
      for (const uint64_t hash : {uint64_t{0}, UINT64_MAX, random()}) {
        ranks.push_back(Rank(score, hash));
      }
    }
  }
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const uint64_t priority = ranks[i].Priority();
    EXPECT_NE(0u, priority);
    const Rank lowest = Rank::LowestOf(priority);
    EXPECT_FALSE(ranks[i] < lowest);
    EXPECT_EQ(priority, lowest.Priority());
    // Small scores are exact, with bits of the hash.
    if (ranks[i].score() >> 32 == 0) {
      EXPECT_EQ(ranks[i].score(), lowest.score());
    }
    if (i > 0) {
      EXPECT_GE(ranks[i - 1].Priority(), priority);
    }
  }
  EXPECT_TRUE(Rank() == Rank::LowestOf(UINT64_MAX));
}

}  // namespace
}  // namespace tf_embed
