// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rows/whole_rows.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

constexpr size_t kRows = 6, kWeightBytes = 3, kSlotBytes = 2, kStatistics = 2;

void Fill(WholeRows* rows) {
  ASSERT_TRUE(rows->Resize(kRows, kWeightBytes, kSlotBytes, kStatistics).ok());
  std::iota(rows->keys.data(), rows->keys.data() + kRows, 10);
  std::iota(rows->weights.data(), rows->weights.data() + kRows * kWeightBytes, char{0});
  std::iota(rows->slots.data(), rows->slots.data() + kRows * kSlotBytes, char{50});
  std::iota(rows->statistics.data(), rows->statistics.data() + kRows * kStatistics, 100u);
  rows->size = kRows;
}

TEST(WholeRows, KeepLeavesTheRowsAtSomePlaces) {
  for (const std::vector<uint32_t>& places :
       {std::vector<uint32_t>{}, {0}, {5}, {1, 3}, {0, 1, 4}, {2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}) {
    WholeRows rows(HostAllocator());
    Fill(&rows);
    rows.Keep(places.data(), places.size(), kWeightBytes, kSlotBytes, kStatistics);
    ASSERT_EQ(places.size(), rows.size);
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t from = places[i];
      EXPECT_EQ(static_cast<int64_t>(10 + from), rows.keys[i]);
      for (size_t k = 0; k < kWeightBytes; ++k) {
        EXPECT_EQ(static_cast<char>(from * kWeightBytes + k), rows.weights[i * kWeightBytes + k]);
      }
      for (size_t k = 0; k < kSlotBytes; ++k) {
        EXPECT_EQ(static_cast<char>(50 + from * kSlotBytes + k), rows.slots[i * kSlotBytes + k]);
      }
      for (size_t k = 0; k < kStatistics; ++k) {
        EXPECT_EQ(100 + from * kStatistics + k, rows.statistics[i * kStatistics + k]);
      }
    }
  }
}

}  // namespace
}  // namespace tf_embed
