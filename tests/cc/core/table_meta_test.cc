#include "cc/core/table_meta.h"

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

TableMeta Example() {
  TableMeta meta;
  meta.seed = ~uint64_t{0};
  meta.table_id = uint64_t{1} << 63;
  meta.rule = {RuleKind::kAdam, 0.1};
  meta.value_type = DataType::kBFloat16;
  meta.dim = 12;
  meta.slots_per_row = 24;
  return meta;
}

Status DecodeWith(size_t place, int64_t number, size_t count = TableMeta::kNumbers) {
  int64_t numbers[TableMeta::kNumbers];
  Example().Encode(numbers);
  numbers[place] = number;
  TableMeta meta;
  return TableMeta::Decode(numbers, count, &meta);
}

TEST(TableMeta, SurvivesTheRoundTrip) {
  int64_t numbers[TableMeta::kNumbers];
  Example().Encode(numbers);
  TableMeta meta;
  ASSERT_TRUE(TableMeta::Decode(numbers, TableMeta::kNumbers, &meta).ok());
  EXPECT_EQ(~uint64_t{0}, meta.seed);
  EXPECT_EQ(uint64_t{1} << 63, meta.table_id);
  EXPECT_EQ(RuleKind::kAdam, meta.rule.kind);
  EXPECT_EQ(0.1, meta.rule.initial_value);
  EXPECT_EQ(DataType::kBFloat16, meta.value_type);
  EXPECT_EQ(12u, meta.dim);
  EXPECT_EQ(24u, meta.slots_per_row);
}

TEST(TableMeta, FormatIsWrittenDown) {
  int64_t numbers[TableMeta::kNumbers];
  Example().Encode(numbers);
  const int64_t expected[] = {1, -1, INT64_MIN, 5, 0x3fb999999999999a, 2, 12, 24};
  for (size_t i = 0; i < TableMeta::kNumbers; ++i) EXPECT_EQ(expected[i], numbers[i]) << i;
}

TEST(TableMeta, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(DecodeWith(0, 1).ok());
  const struct {
    size_t place;
    int64_t number;
  } wrong[] = {{0, 0},  {0, 2},  {3, -1}, {3, kRuleKinds}, {3, 1000}, {5, -1},  {5, 7},  {6, 0},
               {6, -5}, {6, 13}, {7, 0},  {7, 25},         {3, 261},  {5, 258}, {7, -24}};
  for (const auto& [place, number] : wrong) {
    EXPECT_EQ(StatusCode::kInvalidArgument, DecodeWith(place, number).code())
        << place << ": " << number;
  }
}

TEST(TableMeta, RefusesAnotherCountOfNumbers) {
  TableMeta meta;
  EXPECT_EQ(StatusCode::kInvalidArgument, TableMeta::Decode(nullptr, 0, &meta).code());
  EXPECT_EQ(StatusCode::kInvalidArgument, DecodeWith(0, 1, 7).code());
  EXPECT_NE(std::string::npos, DecodeWith(0, 9).message().find("9"));
}

}  // namespace
}  // namespace tf_embed
