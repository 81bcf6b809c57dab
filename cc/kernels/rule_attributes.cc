#include "cc/kernels/rule_attributes.h"

#include <cstdint>
#include <string>
#include <vector>

#include "cc/kernels/table_resource.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

struct RuleName {
  const char* name;
  RuleKind kind;
};
constexpr RuleName kRuleNames[] = {
    {"sgd", RuleKind::kSgd},
    {"momentum", RuleKind::kMomentum},
    {"adagrad", RuleKind::kAdagrad},
    {"rowwise_adagrad", RuleKind::kRowwiseAdagrad},
    {"adam", RuleKind::kAdam},
    {"adam_amsgrad", RuleKind::kAdamAmsgrad},
    {"rmsprop", RuleKind::kRmsprop},
    {"rmsprop_momentum", RuleKind::kRmspropMomentum},
    {"rmsprop_centered", RuleKind::kRmspropCentered},
    {"rmsprop_centered_momentum", RuleKind::kRmspropCenteredMomentum},
    {"ftrl", RuleKind::kFtrl},
    {"external", RuleKind::kExternal},
};

}  // namespace

absl::Status ReadRuleKind(tf::OpKernelConstruction* construction, RuleKind* kind) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("rule", &name));
  for (const RuleName& known : kRuleNames) {
    if (name == known.name) {
      *kind = known.kind;
      return absl::OkStatus();
    }
  }
  return InvalidArgumentError("`rule` must be a known rule. Received: ", name, ".");
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
  if (widths.size() > RuleSlots::kMostGroups || widths.size() != initial_values.size()) {
    return InvalidArgumentError("`slot_widths` must be at most ", RuleSlots::kMostGroups,
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
