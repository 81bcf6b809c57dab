// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/rule_slots.h"

#include <cmath>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// Three groups that differ in every field.
RuleSlots Three() {
  RuleSlots rule;
  rule.kind = RuleKind::kExternal;
  rule.id = 7;
  rule.AddGroup(4, 0.5);
  rule.AddGroup(2, -1.0, SlotType::kHalf);
  rule.AddGroup(1, 3.0, SlotType::kBFloat16);
  return rule;
}

TEST(RuleSlots, EachGroupsWidthCounts) {
  for (size_t group = 0; group < 3; ++group) {
    RuleSlots other = Three();
    ++other.groups[group].width;
    EXPECT_FALSE(SameRule(Three(), other)) << group;
    EXPECT_FALSE(SameSlotTypes(Three(), other)) << group;
    EXPECT_FALSE(SameRuleAndInitialValues(Three(), other)) << group;
  }
}

TEST(RuleSlots, EachGroupsTypeCountsIfRowsAreCompared) {
  for (size_t group = 0; group < 3; ++group) {
    RuleSlots other = Three();
    SlotType& type = other.groups[group].type;
    type = type == SlotType::kCompute ? SlotType::kHalf : SlotType::kCompute;
    EXPECT_TRUE(SameRule(Three(), other)) << group;
    EXPECT_FALSE(SameSlotTypes(Three(), other)) << group;
    EXPECT_FALSE(SameRuleAndInitialValues(Three(), other)) << group;
  }
}

TEST(RuleSlots, EachGroupsInitialValueCountsToTheLastBit) {
  for (size_t group = 0; group < 3; ++group) {
    RuleSlots other = Three();
    other.groups[group].initial_value = std::nextafter(other.groups[group].initial_value, 9.0);
    EXPECT_TRUE(SameSlotTypes(Three(), other)) << group;
    EXPECT_FALSE(SameRuleAndInitialValues(Three(), other)) << group;
  }
  RuleSlots zero, negative;
  zero.AddGroup(1, 0.0);
  negative.AddGroup(1, -0.0);
  EXPECT_FALSE(SameRuleAndInitialValues(zero, negative));
  EXPECT_TRUE(SameRuleAndInitialValues(Three(), Three()));
}

TEST(RuleSlots, KindIdAndNumberOfGroupsCount) {
  RuleSlots other = Three();
  other.kind = RuleKind::kAdam;
  EXPECT_FALSE(SameRule(Three(), other));
  other = Three();
  ++other.id;
  EXPECT_FALSE(SameRule(Three(), other));
  other = Three();
  other.AddGroup(1, 0.0);
  EXPECT_FALSE(SameRule(Three(), other));
  EXPECT_TRUE(SameRule(Three(), Three()));
}

TEST(RuleSlots, OneNarrowGroupMakesThemNarrow) {
  for (size_t group = 0; group < 3; ++group) {
    RuleSlots rule = Three();
    for (size_t i = 0; i < 3; ++i) rule.groups[i].type = SlotType::kCompute;
    EXPECT_FALSE(rule.has_narrow_slots());
    rule.groups[group].type = SlotType::kHalf;
    EXPECT_TRUE(rule.has_narrow_slots()) << group;
  }
}

TEST(RuleSlots, ARowHasTheInitialValuesOfAllGroups) {
  const RuleSlots rule = Three();
  ASSERT_EQ(7u, rule.slots_per_row());
  std::vector<float> slots(8, 99.0f);
  FillInitialSlots(rule, slots.data());
  EXPECT_EQ((std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, -1.0f, -1.0f, 3.0f, 99.0f}), slots);
}

}  // namespace
}  // namespace tf_embed
