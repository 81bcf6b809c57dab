// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_set.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

TEST(KeySet, HasJustItsKeys) {
  std::mt19937_64 random(3);
  for (const size_t count : {0, 1, 7, 8, 1000, 100000}) {
    KeySet set;
    std::set<int64_t> expected;
    while (expected.size() < count) {
      // Some keys are close together, and some are repeated.
      const int64_t key = static_cast<int64_t>(random() % 2 == 0 ? random() : random() % 5000);
      std::vector<int64_t> some = {key, key};
      ASSERT_TRUE(set.Add(some.data(), some.size()).ok());
      expected.insert(key);
    }
    ASSERT_TRUE(set.Build().ok());
    EXPECT_EQ(count, set.size());
    for (const int64_t key : expected) ASSERT_TRUE(set.Has(key));
    for (int64_t key = -3000; key < 3000; ++key) {
      ASSERT_EQ(expected.count(key) > 0, set.Has(key));
    }
    for (size_t i = 0; i < 1000; ++i) ASSERT_FALSE(set.Has(static_cast<int64_t>(random())));
  }
}

TEST(KeySet, HasTheFirstAndTheLastKey) {
  KeySet set;
  const int64_t keys[] = {INT64_MAX, INT64_MIN, 0};
  ASSERT_TRUE(set.Add(keys, 3).ok());
  ASSERT_TRUE(set.Build().ok());
  for (const int64_t key : keys) EXPECT_TRUE(set.Has(key));
  EXPECT_FALSE(set.Has(1));
}

}  // namespace
}  // namespace tf_embed
