#include "cc/tf/rule_attributes.h"

#include <cstdint>
#include <string>
#include <vector>

#include "cc/tf/op_inputs.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// What ops say of a rule: its name, and its hyper-parameters in the order of their vector, behind
// the learning rate and Keras's weight decay, which all have.
struct RuleEntry {
  static constexpr size_t kMostHyper = 16;

  const char* name;
  RuleKind kind;
  double Rule::*hyper[kMostHyper + 1];  // null behind the last
};
constexpr RuleEntry kRules[] = {
    {"sgd", RuleKind::kSgd, {}},
    {"momentum", RuleKind::kMomentum, {&Rule::momentum, &Rule::nesterov}},
    {"adagrad", RuleKind::kAdagrad, {&Rule::initial_slot, &Rule::epsilon}},
    {"adam", RuleKind::kAdam, {&Rule::beta_1, &Rule::beta_2, &Rule::epsilon}},
    {"adam_amsgrad", RuleKind::kAdamAmsgrad, {&Rule::beta_1, &Rule::beta_2, &Rule::epsilon}},
    {"rmsprop", RuleKind::kRmsprop, {&Rule::rho, &Rule::momentum, &Rule::epsilon}},
    {"rmsprop_momentum", RuleKind::kRmspropMomentum, {&Rule::rho, &Rule::momentum, &Rule::epsilon}},
    {"rmsprop_centered", RuleKind::kRmspropCentered, {&Rule::rho, &Rule::momentum, &Rule::epsilon}},
    {"rmsprop_centered_momentum",
     RuleKind::kRmspropCenteredMomentum,
     {&Rule::rho, &Rule::momentum, &Rule::epsilon}},
    {"ftrl",
     RuleKind::kFtrl,
     {&Rule::initial_slot, &Rule::learning_rate_power, &Rule::l1, &Rule::l2, &Rule::l2_shrinkage,
      &Rule::beta}},
    {"external", RuleKind::kExternal, {}},
    {"exact_adagrad", RuleKind::kExactAdagrad, {&Rule::epsilon}},
    {"rowwise_adagrad",
     RuleKind::kRowwiseAdagrad,
     {&Rule::initial_slot, &Rule::epsilon, &Rule::decay, &Rule::decay_mode, &Rule::max_norm}},
    {"rowwise_adagrad_global",
     RuleKind::kRowwiseAdagradGlobal,
     {&Rule::epsilon, &Rule::decay, &Rule::decay_mode, &Rule::max_norm, &Rule::start_step,
      &Rule::lower_bound}},
    {"rowwise_adagrad_counter",
     RuleKind::kRowwiseAdagradCounter,
     {&Rule::epsilon, &Rule::decay, &Rule::decay_mode, &Rule::max_norm, &Rule::counter_decay_mode,
      &Rule::counter_half_life, &Rule::adjustment_step, &Rule::adjustment_bound,
      &Rule::counter_rate_mode, &Rule::tail_threshold, &Rule::max_counter, &Rule::norm_coefficient,
      &Rule::lower_bound}},
    {"ensemble_rowwise_adagrad",
     RuleKind::kEnsembleRowwiseAdagrad,
     {&Rule::epsilon, &Rule::decay, &Rule::decay_mode, &Rule::max_norm, &Rule::initial_slot,
      &Rule::average_every, &Rule::swap_every, &Rule::average_start, &Rule::average_coefficient,
      &Rule::keeps_average}},
    {"ema_rowwise_adagrad",
     RuleKind::kEmaRowwiseAdagrad,
     {&Rule::epsilon, &Rule::decay, &Rule::decay_mode, &Rule::max_norm, &Rule::average_every,
      &Rule::average_start, &Rule::average_coefficient}},
    {"row_adam", RuleKind::kRowAdam, {&Rule::epsilon, &Rule::decay, &Rule::beta_1, &Rule::beta_2}},
    {"row_adam_counter",
     RuleKind::kRowAdamCounter,
     {&Rule::epsilon, &Rule::decay, &Rule::beta_1, &Rule::beta_2}},
    {"partial_rowwise_adam",
     RuleKind::kPartialRowwiseAdam,
     {&Rule::epsilon, &Rule::decay, &Rule::beta_1, &Rule::beta_2}},
    {"lamb", RuleKind::kLamb, {&Rule::epsilon, &Rule::decay, &Rule::beta_1, &Rule::beta_2}},
    {"partial_rowwise_lamb",
     RuleKind::kPartialRowwiseLamb,
     {&Rule::epsilon, &Rule::decay, &Rule::beta_1, &Rule::beta_2}},
    {"lars", RuleKind::kLars, {&Rule::momentum, &Rule::decay, &Rule::eta}},
};

}  // namespace

absl::Status ReadRuleKind(tf::OpKernelConstruction* construction, RuleKind* kind) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("rule", &name));
  for (const RuleEntry& known : kRules) {
    if (name == known.name) {
      *kind = known.kind;
      return absl::OkStatus();
    }
  }
  return InvalidArgumentError("`rule` must be a known rule. Received: ", name, ".");
}

absl::Status ReadSlotTypes(tf::OpKernelConstruction* construction, RuleKind kind,
                           std::vector<SlotType>* types) {
  tf::DataTypeVector given;
  TF_RETURN_IF_ERROR(construction->GetAttr("slot_types", &given));
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
  const RuleEntry* entry = kRules;
  while (entry->kind != kind) ++entry;
  int64_t wanted = 2;
  while (entry->hyper[wanted - 2] != nullptr) ++wanted;
  TF_RETURN_IF_ERROR(CheckRank(hyper, "hyper", 1));
  if (hyper.NumElements() != wanted) {
    return InvalidArgumentError("`hyper` of the rule '", entry->name, "' must have ", wanted,
                                " numbers. Received: ", hyper.NumElements(), ".");
  }
  // Those of one table among many may begin anywhere.
  const double* const numbers = hyper.unaligned_flat<double>().data();
  rule->learning_rate = numbers[0];
  rule->weight_decay = numbers[1];
  for (int64_t i = 2; i < wanted; ++i) rule->*entry->hyper[i - 2] = numbers[i];
  rule->slots = FusedSlots(kind, dim, rule->initial_slot);
  return absl::OkStatus();
}

absl::Status ReadStep(const tf::Tensor& step, Rule* rule) {
  TF_RETURN_IF_ERROR(ReadScalar(step, "step", &rule->step));
  if (rule->step < 1) {
    return InvalidArgumentError("`step` must be at least 1. Received: ", rule->step, ".");
  }
  if (rule->step <= StepClock::kMostStep) return absl::OkStatus();
  return InvalidArgumentError("`step` must be at most ", StepClock::kMostStep,
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
