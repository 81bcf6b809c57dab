// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/rule_attributes.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "cc/tf/op_inputs.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status FindRuleKind(const std::string& name, RuleKind* kind) {
  if (name == "external") {
    *kind = RuleKind::kExternal;
    return absl::OkStatus();
  }
  for (const RuleFacts& known : kRules) {
    if (name == known.name) {
      *kind = known.kind;
      return absl::OkStatus();
    }
  }
  return InvalidArgumentError("`rule` must be a known rule. Received: ", name, ".");
}

absl::Status ReadRuleKind(tf::OpKernelConstruction* construction, RuleKind* kind) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("rule", &name));
  return FindRuleKind(name, kind);
}

absl::Status ReadSlotTypes(tf::OpKernelConstruction* construction, RuleKind kind,
                           std::vector<SlotType>* types) {
  tf::DataTypeVector given;
  TF_RETURN_IF_ERROR(construction->GetAttr("slot_types", &given));
  // The number of groups is the same for every dim, so any dim serves here.
  const size_t groups = FusedSlots(kind, 1).num_groups;
  if (!given.empty() && given.size() != groups) {
    return InvalidArgumentError("`slot_types` must be none, or one for each of ", groups,
                                " groups of slots. Received: ", given.size(), ".");
  }
  types->clear();
  for (const tf::DataType type : given) {
    types->push_back(type == tf::DT_HALF       ? SlotType::kHalf
                     : type == tf::DT_BFLOAT16 ? SlotType::kBFloat16
                                               : SlotType::kCompute);
  }
  return absl::OkStatus();
}

absl::Status ReadRule(RuleKind kind, size_t dim, const tf::Tensor& hyper, Rule* rule) {
  const RuleFacts& facts = FactsOf(kind);
  const auto wanted = static_cast<int64_t>(2 + facts.num_hyper);
  TF_RETURN_IF_ERROR(CheckRank(hyper, "hyper", 1));
  if (hyper.NumElements() != wanted) {
    return InvalidArgumentError("`hyper` of the rule '", facts.name, "' must have ", wanted,
                                " numbers. Received: ", hyper.NumElements(), ".");
  }
  // Unaligned: a row of several tables' hyper-parameters may start anywhere.
  const double* const numbers = hyper.unaligned_flat<double>().data();
  rule->learning_rate = numbers[0];
  rule->weight_decay = numbers[1];
  std::copy(numbers + 2, numbers + wanted, rule->hyper);
  rule->slots.kind = kind;
  SetFusedSlots(dim, rule);
  return absl::OkStatus();
}

absl::Status ReadStep(const tf::Tensor& step, Rule* rule) {
  TF_RETURN_IF_ERROR(ReadScalar(step, "step", &rule->step));
  if (rule->step < 1) {
    return InvalidArgumentError("`step` must be at least 1. Received: ", rule->step, ".");
  }
  if (rule->step <= StepClock::kMaxStep) return absl::OkStatus();
  return InvalidArgumentError("`step` must be at most ", StepClock::kMaxStep,
                              ". Received: ", rule->step, ".");
}

absl::Status ReadExternalRule(tf::OpKernelConstruction* construction, RuleSlots* rule) {
  int64_t id;
  std::vector<int64_t> widths;
  std::string text;
  std::vector<double> initial_values;
  TF_RETURN_IF_ERROR(construction->GetAttr("rule_id", &id));
  TF_RETURN_IF_ERROR(construction->GetAttr("slot_widths", &widths));
  TF_RETURN_IF_ERROR(construction->GetAttr("slot_initial_values", &text));
  TF_RETURN_IF_ERROR(ReadNumbers(text, "slot_initial_values", &initial_values));
  // AddGroup has an array of kMaxGroups and does not check.
  if (widths.size() > RuleSlots::kMaxGroups || widths.size() != initial_values.size()) {
    return InvalidArgumentError("`slot_widths` must be at most ", RuleSlots::kMaxGroups,
                                " numbers, with as many `slot_initial_values`. Received: ",
                                widths.size(), " and ", initial_values.size(), ".");
  }
  *rule = RuleSlots();
  rule->kind = RuleKind::kExternal;
  rule->id = static_cast<uint64_t>(id);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] < 1 || widths[i] > INT32_MAX) {
      return InvalidArgumentError("`slot_widths` must be from 1 to ", INT32_MAX,
                                  ". Received: ", widths[i], ".");
    }
    rule->AddGroup(static_cast<size_t>(widths[i]), initial_values[i]);
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
