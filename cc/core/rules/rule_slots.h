// SPDX-License-Identifier: Apache-2.0
// The state that a row keeps for the rule that trains its table: slots, in groups. A group is one
// variable of the rule, such as Adam's m; its slots have one initial value in a new row.
//
//     Adam of a table of dim 4, a row's slots:  | m m m m | v v v v |
//
// Groups with a slot for each weight precede groups with a single slot for a row.
//
// A fused rule's groups follow from its kind, the table's dim and the initial value of the first
// group: FusedSlots in rule_list.h. An external rule, which runs outside of the table on rows that
// it reads and writes back, declares its groups.
//
// Rules compute on slots of float, or of double with double weights, and all verbs of a table give
// and take slots of this type. The type of a group in the rows of a table (SlotType) may differ and
// changes no meaning: stored_slots.h.
#ifndef TF_EMBED_CC_CORE_RULES_RULE_SLOTS_H_
#define TF_EMBED_CC_CORE_RULES_RULE_SLOTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tf_embed {

// The rules; rule_list.h lists them.
enum class RuleKind : uint8_t;

// The type of a slot in a row. The numbers are part of the checkpoint format.
enum class SlotType : uint8_t { kCompute = 0, kHalf = 1, kBFloat16 = 2 };
inline constexpr SlotType kLastSlotType = SlotType::kBFloat16;

struct SlotGroup {
  uint32_t width = 0;
  // Any double. NaN has a meaning to the caller that runs an external rule; here it is a number
  // like any other.
  double initial_value = 0.0;
  SlotType type = SlotType::kCompute;
};

struct RuleSlots {
  static constexpr size_t kMaxGroups = 16;

  RuleKind kind{};  // kNone
  uint64_t id = 0;  // kExternal: which optimizer; otherwise 0
  uint32_t num_groups = 0;
  SlotGroup groups[kMaxGroups] = {};

  size_t slots_per_row() const {
    size_t sum = 0;
    for (uint32_t i = 0; i < num_groups; ++i) sum += groups[i].width;
    return sum;
  }
  bool has_narrow_slots() const {
    return std::any_of(groups, groups + num_groups,
                       [](const SlotGroup& group) { return group.type != SlotType::kCompute; });
  }
  void AddGroup(size_t width, double initial_value, SlotType type = SlotType::kCompute) {
    groups[num_groups++] = {static_cast<uint32_t>(width), initial_value, type};
  }
};

// Whether rows with the slots `one` can be read as rows with `other`. Initial values and types may
// differ; types are not visible outside of a table.
inline bool SameRule(const RuleSlots& one, const RuleSlots& other) {
  if (one.kind != other.kind || one.id != other.id || one.num_groups != other.num_groups) {
    return false;
  }
  for (uint32_t i = 0; i < one.num_groups; ++i) {
    if (one.groups[i].width != other.groups[i].width) return false;
  }
  return true;
}

// Whether the two also have the same bytes in rows.
inline bool SameSlotTypes(const RuleSlots& one, const RuleSlots& other) {
  if (!SameRule(one, other)) return false;
  for (uint32_t i = 0; i < one.num_groups; ++i) {
    if (one.groups[i].type != other.groups[i].type) return false;
  }
  return true;
}

// Whether new rows are also the same, to the last bit.
inline bool SameRuleAndInitialValues(const RuleSlots& one, const RuleSlots& other) {
  if (!SameSlotTypes(one, other)) return false;
  for (uint32_t i = 0; i < one.num_groups; ++i) {
    if (std::memcmp(&one.groups[i].initial_value, &other.groups[i].initial_value, sizeof(double)) !=
        0) {
      return false;
    }
  }
  return true;
}

// Writes the slots of a new row, rule.slots_per_row() values.
template <typename T>
void FillInitialSlots(const RuleSlots& rule, T* slots) {
  for (uint32_t i = 0; i < rule.num_groups; ++i) {
    const SlotGroup& group = rule.groups[i];
    slots = std::fill_n(slots, group.width, static_cast<T>(group.initial_value));
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_RULE_SLOTS_H_
