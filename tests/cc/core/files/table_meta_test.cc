// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/table_meta.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

TableMeta Example() {
  TableMeta meta;
  meta.seed = ~uint64_t{0};
  meta.table_id = uint64_t{1} << 63;
  meta.rule.kind = RuleKind::kExternal;
  meta.rule.id = ~uint64_t{0} - 1;
  meta.rule.AddGroup(12, 0.1);
  meta.rule.AddGroup(1, std::numeric_limits<double>::quiet_NaN());
  meta.value_type = DataType::kBFloat16;
  meta.dim = 12;
  return meta;
}

std::vector<int64_t> Encoded(const TableMeta& meta) {
  std::vector<int64_t> numbers(TableMeta::kMaxNumbers);
  meta.Encode(numbers.data());
  numbers.resize(meta.count());
  return numbers;
}

Status Decode(const std::vector<int64_t>& numbers, TableMeta* meta) {
  return TableMeta::Decode(numbers.data(), numbers.size(), meta);
}

Status DecodeWith(const TableMeta& meta, size_t place, int64_t number) {
  std::vector<int64_t> numbers = Encoded(meta);
  numbers[place] = number;
  TableMeta unused;
  return Decode(numbers, &unused);
}

TEST(TableMeta, SurvivesTheRoundTrip) {
  TableMeta meta;
  ASSERT_TRUE(Decode(Encoded(Example()), &meta).ok());
  EXPECT_EQ(~uint64_t{0}, meta.seed);
  EXPECT_EQ(uint64_t{1} << 63, meta.table_id);
  EXPECT_TRUE(SameRuleAndInitialValues(Example().rule, meta.rule));
  EXPECT_EQ(DataType::kBFloat16, meta.value_type);
  EXPECT_EQ(12u, meta.dim);
}

TEST(TableMeta, EveryFusedRuleSurvivesTheRoundTrip) {
  for (int kind = 0; kind < kRuleKinds; ++kind) {
    TableMeta meta, decoded;
    meta.dim = 5;
    meta.rule = FusedSlots(static_cast<RuleKind>(kind), 5, 0.25);
    ASSERT_TRUE(Decode(Encoded(meta), &decoded).ok()) << kind;
    EXPECT_TRUE(SameRuleAndInitialValues(meta.rule, decoded.rule)) << kind;
  }
}

TEST(TableMeta, TypesOfSlotsStandAboveTheirWidths) {
  TableMeta meta = Example(), decoded;
  meta.rule.groups[0].type = SlotType::kBFloat16;
  const std::vector<int64_t> numbers = Encoded(meta);
  EXPECT_EQ((int64_t{2} << 32) + 12, numbers[9]);
  EXPECT_EQ(1, numbers[11]);
  ASSERT_TRUE(Decode(numbers, &decoded).ok());
  EXPECT_TRUE(SameSlotTypes(meta.rule, decoded.rule));
  EXPECT_FALSE(SameSlotTypes(Example().rule, decoded.rule));
  EXPECT_TRUE(SameRule(Example().rule, decoded.rule));
}

TEST(TableMeta, NoBitOfAnInitialValueIsLost) {
  for (uint64_t bits :
       {0x7ff8000000000001u, 0xfff0000000000000u, 0x8000000000000000u, uint64_t{1}}) {
    TableMeta meta = Example(), decoded;
    std::memcpy(&meta.rule.groups[1].initial_value, &bits, sizeof(bits));
    ASSERT_TRUE(Decode(Encoded(meta), &decoded).ok());
    EXPECT_EQ(0, std::memcmp(&decoded.rule.groups[1].initial_value, &bits, sizeof(bits)));
  }
}

TEST(TableMeta, FormatIsWrittenDown) {
  const std::vector<int64_t> expected = {
      2, -1, INT64_MIN, 12, -2, 2, 12, 13, 2, 12, 0x3fb999999999999a, 1, 0x7ff8000000000000};
  EXPECT_EQ(expected, Encoded(Example()));
}

TEST(TableMeta, RefusesWhatItDoesNotKnow) {
  const struct {
    size_t place;
    int64_t number;
  } wrong[] = {{0, 0},
               {0, 1},
               {0, 3},
               {3, -1},
               {3, kRuleKinds},
               {3, 1000},
               {3, 5},
               {5, -1},
               {5, 8},
               {5, 258},
               {6, 0},
               {6, -5},
               {6, int64_t{1} << 31},
               {7, 12},
               {7, 0},
               {7, -13},
               {8, -1},
               {8, 0},
               {8, 1},
               {8, 3},
               {8, INT64_MIN},
               {9, 0},
               {9, -12},
               {9, 13},
               {9, int64_t{1} << 32},
               {9, (int64_t{3} << 32) + 12},
               {9, (int64_t{1} << 31) + 12},
               {9, -(int64_t{1} << 32) + 12},
               {11, 0},
               {11, int64_t{1} << 62}};
  for (const auto& [place, number] : wrong) {
    const Status status = DecodeWith(Example(), place, number);
    EXPECT_EQ(StatusCode::kInvalidArgument, status.code()) << place << ": " << number;
    EXPECT_NE(std::string::npos, status.message().find("damaged")) << status.message();
    EXPECT_NE(std::string::npos, status.message().find("Received")) << status.message();
  }
}

TEST(TableMeta, RefusesSlotsThatARuleDoesNotHave) {
  TableMeta adam;
  adam.dim = 4;
  adam.rule = FusedSlots(RuleKind::kAdam, 4);
  EXPECT_TRUE(DecodeWith(adam, 6, 4).ok());
  EXPECT_FALSE(DecodeWith(adam, 6, 5).ok()) << "another dim";
  EXPECT_FALSE(DecodeWith(adam, 4, 1).ok()) << "an id of a rule that has none";
  EXPECT_FALSE(DecodeWith(adam, 3, static_cast<int64_t>(RuleKind::kAdamAmsgrad)).ok());
  EXPECT_FALSE(DecodeWith(adam, 3, static_cast<int64_t>(RuleKind::kSgd)).ok());
}

TEST(TableMeta, RefusesAnotherCountOfNumbers) {
  TableMeta meta;
  meta.dim = 99;
  EXPECT_FALSE(TableMeta::Decode(nullptr, 0, &meta).ok());
  std::vector<int64_t> numbers = Encoded(Example());
  while (!numbers.empty()) {
    numbers.pop_back();
    EXPECT_EQ(StatusCode::kInvalidArgument, Decode(numbers, &meta).code()) << numbers.size();
  }
  numbers = Encoded(Example());
  numbers.push_back(0);
  EXPECT_FALSE(Decode(numbers, &meta).ok());
  numbers.push_back(0);
  EXPECT_FALSE(Decode(numbers, &meta).ok());
  EXPECT_EQ(99u, meta.dim) << "a refused vector changes nothing";
}

}  // namespace
}  // namespace tf_embed
