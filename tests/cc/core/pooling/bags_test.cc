// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/bags.h"

#include <cmath>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// The positions of the keys of each bag, in their order.
std::vector<std::vector<size_t>> PositionsOf(const Bags& bags) {
  std::vector<std::vector<size_t>> positions(bags.size());
  for (size_t bag = 0; bag < bags.size(); ++bag) {
    for (size_t place = bags.begin(bag); place < bags.begin(bag + 1); ++place) {
      positions[bag].push_back(bags.Position(place));
    }
  }
  return positions;
}

using Positions = std::vector<std::vector<size_t>>;

void ExpectNumbers(Bags* bags) {
  ASSERT_TRUE(bags->Number().ok());
  const Positions positions = PositionsOf(*bags);
  size_t keys = 0;
  for (size_t bag = 0; bag < positions.size(); ++bag) {
    for (size_t position : positions[bag]) EXPECT_EQ(bag, bags->numbers()[position]);
    keys += positions[bag].size();
  }
  EXPECT_EQ(bags->num_keys(), keys);
}

TEST(Bags, LinesHoldOneKeyAfterTheOther) {
  Bags bags(HostAllocator());
  bags.OfLines(3, 2);
  EXPECT_EQ((Positions{{0, 1}, {2, 3}, {4, 5}}), PositionsOf(bags));
  ExpectNumbers(&bags);
  Bags empty(HostAllocator());
  empty.OfLines(2, 0);
  EXPECT_EQ((Positions{{}, {}}), PositionsOf(empty));
  ExpectNumbers(&empty);
}

TEST(Bags, SplitsOfBothTypesHoldWhatIsBetween) {
  const std::vector<int64_t> wide = {0, 0, 3, 3, 4, 4};
  const std::vector<int32_t> narrow(wide.begin(), wide.end());
  Bags bags(HostAllocator());
  Bags others(HostAllocator());
  ASSERT_TRUE(bags.OfSplits(wide.data(), wide.size(), 4).ok());
  ASSERT_TRUE(others.OfSplits(narrow.data(), narrow.size(), 4).ok());
  EXPECT_EQ((Positions{{}, {0, 1, 2}, {}, {3}, {}}), PositionsOf(bags));
  EXPECT_EQ(PositionsOf(bags), PositionsOf(others));
  ExpectNumbers(&bags);
  ExpectNumbers(&others);
}

TEST(Bags, SplitsThatAreNoneAreRefused) {
  for (const std::vector<int64_t>& splits : std::vector<std::vector<int64_t>>{
           {}, {0}, {1, 4}, {0, 3}, {0, 5}, {0, 3, 2, 4}, {-1, 4}, {0, -2, 4}}) {
    Bags bags(HostAllocator());
    EXPECT_EQ(StatusCode::kInvalidArgument, bags.OfSplits(splits.data(), splits.size(), 4).code());
  }
}

TEST(Bags, SparseKeysBelongToTheirLinesInAnyOrder) {
  const int64_t shape[] = {2, 2, 5};
  const std::vector<int64_t> sorted = {0, 1, 0, 0, 1, 4, 1, 1, 2};
  Bags bags(HostAllocator());
  ASSERT_TRUE(bags.OfIndices(sorted.data(), 3, shape, 3).ok());
  EXPECT_TRUE(bags.in_order());
  EXPECT_EQ((Positions{{}, {0, 1}, {}, {2}}), PositionsOf(bags));
  ExpectNumbers(&bags);
  const std::vector<int64_t> mixed = {1, 1, 2, 0, 1, 4, 1, 1, 0, 0, 0, 0};
  Bags others(HostAllocator());
  ASSERT_TRUE(others.OfIndices(mixed.data(), 4, shape, 3).ok());
  EXPECT_FALSE(others.in_order());
  EXPECT_EQ((Positions{{3}, {1}, {}, {0, 2}}), PositionsOf(others));
  ExpectNumbers(&others);
}

TEST(Bags, AShapeWithAZeroHasTheBagsOfItsFirstAxes) {
  const int64_t no_keys[] = {3, 2, 0};
  Bags bags(HostAllocator());
  ASSERT_TRUE(bags.OfIndices(nullptr, 0, no_keys, 3).ok());
  EXPECT_EQ(Positions(6), PositionsOf(bags));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 2, 5}, {3, 0, 5}}) {
    Bags none(HostAllocator());
    ASSERT_TRUE(none.OfIndices(nullptr, 0, shape.data(), 3).ok());
    EXPECT_EQ(0u, none.size());
  }
}

TEST(Bags, SparseKeysOutsideOfTheirShapeAreRefused) {
  const int64_t shape[] = {2, 3};
  for (const std::vector<int64_t>& index : std::vector<std::vector<int64_t>>{
           {2, 0}, {0, 3}, {-1, 0}, {0, -1}, {INT64_MAX, 0}, {INT64_MIN, 0}}) {
    Bags bags(HostAllocator());
    EXPECT_EQ(StatusCode::kInvalidArgument, bags.OfIndices(index.data(), 1, shape, 2).code());
  }
  const int64_t index[] = {0, 0, 0};
  for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{
           {int64_t{1} << 40, 1, 1}, {int64_t{1} << 31, int64_t{1} << 31, 1}, {-1, 1, 1}}) {
    Bags bags(HostAllocator());
    EXPECT_EQ(StatusCode::kInvalidArgument, bags.OfIndices(index, 1, wrong.data(), 3).code());
  }
  Bags scalar(HostAllocator());
  EXPECT_EQ(StatusCode::kInvalidArgument, scalar.OfIndices(nullptr, 0, nullptr, 0).code());
}

TEST(Bags, EachAllocationMayFail) {
  const int64_t shape[] = {2, 2};
  const int64_t indices[] = {1, 0, 0, 1};
  const int32_t splits[] = {0, 2};
  for (int64_t count = 0; count < 3; ++count) {
    FailingAllocator allocator;
    allocator.FailAfter(count);
    Bags bags(&allocator);
    EXPECT_EQ(StatusCode::kResourceExhausted, bags.OfIndices(indices, 2, shape, 2).code());
  }
  FailingAllocator allocator;
  allocator.FailAfter(0);
  Bags bags(&allocator);
  EXPECT_EQ(StatusCode::kResourceExhausted, bags.OfSplits(splits, 2, 2).code());
  ASSERT_TRUE(bags.OfSplits(splits, 2, 2).ok());
  allocator.FailAfter(0);
  EXPECT_EQ(StatusCode::kResourceExhausted, bags.Number().code());
}

TEST(DivisorOf, IsThatOfTheCombiner) {
  const std::vector<int64_t> keys = {5, 0, 5, 7};
  const std::vector<float> weights = {0.5f, 100.0f, 2.0f, -1.0f};
  const int64_t padding = 0;
  Bags bags(HostAllocator());
  bags.OfLines(1, 4);
  const auto divisor = [&](Combiner combiner, bool weighted, bool padded) {
    const Pooling pooling{combiner, weighted ? weights.data() : nullptr,
                          padded ? &padding : nullptr};
    return DivisorOf<float>(bags, pooling, keys.data(), 0);
  };
  EXPECT_EQ(1.0f, divisor(Combiner::kSum, true, true));
  EXPECT_EQ(4.0f, divisor(Combiner::kMean, false, false));
  EXPECT_EQ(3.0f, divisor(Combiner::kMean, false, true));
  EXPECT_EQ(1.5f, divisor(Combiner::kMean, true, true));
  EXPECT_EQ(101.5f, divisor(Combiner::kMean, true, false));
  EXPECT_EQ(2.0f, divisor(Combiner::kSqrtn, false, false));
  EXPECT_EQ(std::sqrt(5.25f), divisor(Combiner::kSqrtn, true, true));
}

}  // namespace
}  // namespace tf_embed
