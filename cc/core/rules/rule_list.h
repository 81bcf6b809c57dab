// SPDX-License-Identifier: Apache-2.0
// The list of the rules that run in a table. Everything that depends on the rule is made from it:
// numbers in checkpoints, names in ops and Python, slots, hyper-parameters, and the dispatch of
// steps.
#ifndef TF_EMBED_CC_CORE_RULES_RULE_LIST_H_
#define TF_EMBED_CC_CORE_RULES_RULE_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cc/core/base/data_type.h"
#include "cc/core/rules/keras_rules.h"
#include "cc/core/rules/optimizer_rule.h"
#include "cc/core/rules/row_adam_rules.h"
#include "cc/core/rules/rowwise_adagrad_rules.h"
#include "cc/core/rules/rule_slots.h"
#include "cc/core/rules/rule_unit.h"
#include "cc/core/rules/smart_decay_adam_rule.h"

// RULE(enumerator, number in checkpoints, name in ops, unit): one line for each rule. Never reuse a
// number.
#define TF_EMBED_RULES(RULE)                                                                \
  RULE(kSgd, 1, "sgd", SgdRule)                                                             \
  RULE(kMomentum, 2, "momentum", MomentumRule)                                              \
  RULE(kAdagrad, 3, "adagrad", AdagradRule)                                                 \
  RULE(kAdam, 5, "adam", AdamRule<false>)                                                   \
  RULE(kAdamAmsgrad, 6, "adam_amsgrad", AdamRule<true>)                                     \
  RULE(kRmsprop, 7, "rmsprop", RmspropRule<false, false>)                                   \
  RULE(kRmspropMomentum, 8, "rmsprop_momentum", RmspropRule<true, false>)                   \
  RULE(kRmspropCentered, 9, "rmsprop_centered", RmspropRule<false, true>)                   \
  RULE(kRmspropCenteredMomentum, 10, "rmsprop_centered_momentum", RmspropRule<true, true>)  \
  RULE(kFtrl, 11, "ftrl", FtrlRule)                                                         \
  RULE(kExactAdagrad, 13, "exact_adagrad", ExactAdagradRule)                                \
  RULE(kRowwiseAdagrad, 4, "rowwise_adagrad", RowwiseAdagradRule)                           \
  RULE(kRowwiseAdagradGlobal, 14, "rowwise_adagrad_global", RowwiseAdagradGlobalRule)       \
  RULE(kRowwiseAdagradCounter, 15, "rowwise_adagrad_counter", RowwiseAdagradCounterRule)    \
  RULE(kEnsembleRowwiseAdagrad, 16, "ensemble_rowwise_adagrad", EnsembleRowwiseAdagradRule) \
  RULE(kEmaRowwiseAdagrad, 17, "ema_rowwise_adagrad", EmaRowwiseAdagradRule)                \
  RULE(kRowAdam, 18, "row_adam", RowAdamRule<false, false, false>)                          \
  RULE(kRowAdamCounter, 19, "row_adam_counter", RowAdamRule<false, true, false>)            \
  RULE(kPartialRowwiseAdam, 20, "partial_rowwise_adam", RowAdamRule<true, false, false>)    \
  RULE(kLamb, 21, "lamb", RowAdamRule<false, false, true>)                                  \
  RULE(kPartialRowwiseLamb, 22, "partial_rowwise_lamb", RowAdamRule<true, false, true>)     \
  RULE(kLars, 23, "lars", LarsRule)                                                         \
  RULE(kSmartDecayAdam, 24, "smart_decay_adam", SmartDecayAdamRule)

namespace tf_embed {

enum class RuleKind : uint8_t {
  kNone = 0,
  kExternal = 12,  // runs outside of the table
#define TF_EMBED_RULE(enumerator, number, name, ...) enumerator = number,
  TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
};

// All numbers are below kRuleKinds.
inline constexpr int kRuleKinds = std::max({0, 12,
#define TF_EMBED_RULE(enumerator, number, name, ...) number,
                                            TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
                                  }) +
                                  1;

// Calls use(TypeTag<unit of the rule>()).
template <typename Use>
TF_EMBED_INLINE auto DispatchUnit(RuleKind kind, const Use& use) {
  switch (kind) {
    case RuleKind::kNone:
    case RuleKind::kExternal:
      break;
#define TF_EMBED_RULE(enumerator, number, name, ...) \
  case RuleKind::enumerator:                         \
    return use(TypeTag<__VA_ARGS__>());
      TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
  }
  return use(TypeTag<NoRule>());
}

// The facts about a rule for code that does not know its unit.
struct RuleFacts {
  RuleKind kind = RuleKind::kNone;
  std::string_view name;
  std::string_view hyper_names;  // joined by ", "
  size_t num_hyper = 0;
  size_t wide_slots = 0;  // for each weight
  size_t row_slots = 0;   // for each row, after these
  bool needs_even_dim = false;
  double (*initial_slot)(const Rule& rule) = nullptr;
};

template <class Unit>
double InitialSlotOf(const Rule& rule) {
  return Unit::InitialSlot(rule.Get<typename Unit::Hyper>());
}

template <class Unit>
constexpr RuleFacts FactsOfUnit(RuleKind kind, std::string_view name) {
  constexpr std::string_view kNames = Unit::kHyperNames;
  constexpr size_t kNumHyper = NumHyper<typename Unit::Hyper>();
  size_t num_names = kNames.empty() ? 0 : 1;
  for (const char letter : kNames) num_names += letter == ',' ? 1 : 0;
  return {kind,
          name,
          kNames,
          num_names == kNumHyper ? kNumHyper : throw "a name for each hyper-parameter",
          Unit::kIdleGroups + Unit::kGroups,
          Unit::kRowSlots,
          Unit::kNeedsEvenDim,
          InitialSlotOf<Unit>};
}

inline constexpr RuleFacts kRules[] = {
#define TF_EMBED_RULE(enumerator, number, name, ...) \
  FactsOfUnit<__VA_ARGS__>(RuleKind::enumerator, name),
    TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
};
inline constexpr RuleFacts kNoFusedRule = {};

inline const RuleFacts& FactsOf(RuleKind kind) {
  for (const RuleFacts& rule : kRules) {
    if (rule.kind == kind) return rule;
  }
  return kNoFusedRule;
}

// The names of a rule's hyper-parameters, in their order.
inline std::vector<std::string_view> HyperNames(const RuleFacts& rule) {
  std::vector<std::string_view> names;
  for (std::string_view rest = rule.hyper_names; !rest.empty();) {
    const size_t end = std::min(rest.find(", "), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

// The index of a hyper-parameter in Rule::hyper; -1 if the rule does not have it.
inline int FindHyper(RuleKind kind, std::string_view name) {
  const std::string_view names = FactsOf(kind).hyper_names;
  int place = 0;
  for (size_t begin = 0; begin < names.size(); ++place) {
    const size_t end = std::min(names.find(", ", begin), names.size());
    if (names.substr(begin, end - begin) == name) return place;
    begin = end + 2;
  }
  return -1;
}

// The slots of a fused rule. The first group starts at `initial_value`, the others at 0.
inline RuleSlots FusedSlots(RuleKind kind, size_t dim, double initial_value = 0.0) {
  const RuleFacts& rule = FactsOf(kind);
  RuleSlots slots;
  slots.kind = kind;
  for (size_t i = 0; i < rule.wide_slots + rule.row_slots; ++i) {
    slots.AddGroup(i < rule.wide_slots ? dim : 1, i == 0 ? initial_value : 0.0);
  }
  return slots;
}

// Gives a rule of a known kind its slots, by its hyper-parameters.
inline void SetFusedSlots(size_t dim, Rule* rule) {
  const RuleKind kind = rule->slots.kind;
  const RuleFacts& facts = FactsOf(kind);
  const double initial = facts.initial_slot == nullptr ? 0.0 : facts.initial_slot(*rule);
  rule->slots = FusedSlots(kind, dim, initial);
}

template <class Unit>
constexpr RuleKind KindOf() {
#define TF_EMBED_RULE(enumerator, number, name, ...) \
  if (std::is_same_v<Unit, __VA_ARGS__>) return RuleKind::enumerator;
  TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
  return RuleKind::kNone;
}

template <class Unit>
Rule Rule::Of(size_t dim, const typename Unit::Hyper& hyper, double learning_rate, int64_t step) {
  static_assert(KindOf<Unit>() != RuleKind::kNone, "a unit of the list");
  Rule rule;
  rule.slots = FusedSlots(KindOf<Unit>(), dim, Unit::InitialSlot(hyper));
  rule.Set(hyper);
  rule.learning_rate = learning_rate;
  rule.step = step;
  return rule;
}

// For DispatchUnit. Not a lambda, because files of several instruction sets share it.
struct PassAfterRule {
  const Rule& rule;

  template <class Unit>
  TF_EMBED_INLINE AllRowsUpdate operator()(TypeTag<Unit>) const {
    return Unit::PassAfter(rule, rule.Get<typename Unit::Hyper>());
  }
};
TF_EMBED_INLINE AllRowsUpdate::AllRowsUpdate(const Rule& rule)
    : AllRowsUpdate(DispatchUnit(rule.slots.kind, PassAfterRule{rule})) {}

// The hyper-parameters of all rules and of this rule, as a row needs them, computed once a step.
template <typename T>
class RuleConstants {
 public:
  explicit RuleConstants(const Rule& rule)
      : kind(rule.slots.kind),
        decay_before(static_cast<T>(rule.weight_decay * rule.learning_rate)),
        pass(rule) {
    DispatchUnit(kind, [&](auto tag) {
      using Unit = typename decltype(tag)::Type;
      using Constants = typename Unit::template Constants<T>;
      static_assert(std::is_trivially_copyable_v<Constants>, "kernels take copies");
      const auto hyper = rule.Get<typename Unit::Hyper>();
      chosen_step = static_cast<uint8_t>(Unit::ChooseStep(hyper));
      new (of_rule_) Constants(rule, hyper);
    });
  }

  // REQUIRES: R is the rule's unit or one of its steps.
  template <class R>
  TF_EMBED_HOST_DEVICE TF_EMBED_INLINE const typename R::template Constants<T>& Of() const {
    const void* const bytes = of_rule_;
    return *static_cast<const typename R::template Constants<T>*>(bytes);
  }

  RuleKind kind;
  uint8_t chosen_step = 0;  // the number of the step in the unit's Steps
  T decay_before;           // weight_decay h
  AllRowsUpdate pass;

 private:
  static constexpr size_t kBytes = std::max({size_t{0},
#define TF_EMBED_RULE(enumerator, number, name, ...) \
  sizeof(typename __VA_ARGS__::template Constants<T>),
                                             TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
  });

  alignas(double) unsigned char of_rule_[kBytes];
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_RULE_LIST_H_
