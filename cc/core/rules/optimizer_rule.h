// SPDX-License-Identifier: Apache-2.0
// A rule of an optimizer for one step: its kind, its slots and its numbers.
//
// rule_unit.h says how a rule is declared, rule_list.h lists all rules.
#ifndef TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_
#define TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/base/platform.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

// The number of hyper-parameters in a struct of doubles.
template <class Hyper>
constexpr size_t NumHyper() {
  return std::is_empty_v<Hyper> ? 0 : sizeof(Hyper) / sizeof(double);
}

struct Rule {
  static constexpr size_t kMaxHyper = 16;

  RuleSlots slots;
  double learning_rate = 0.0;
  double weight_decay = 0.0;  // Keras's: w -= w weight_decay h, before any rule

  // The rule's hyper-parameters, in the order of its struct Hyper. All are doubles, because an op
  // takes them in one vector; a count or a choice is a whole number.
  double hyper[kMaxHyper] = {};

  int64_t step = 1;

  // Whether float16 and bfloat16 weights are rounded by noise; see stochastic_rounding.h.
  bool stochastic_rounding = false;

  // A rule of the type `Unit`, with the slots that its hyper-parameters give it; in rule_list.h.
  template <class Unit>
  static Rule Of(size_t dim, const typename Unit::Hyper& hyper, double learning_rate,
                 int64_t step = 1);

  // REQUIRES: Hyper belongs to the rule's unit.
  template <class Hyper>
  TF_EMBED_INLINE Hyper Get() const {
    CheckHyper<Hyper>();
    Hyper numbers{};
    if constexpr (NumHyper<Hyper>() > 0) std::memcpy(&numbers, hyper, sizeof(Hyper));
    return numbers;
  }
  template <class Hyper>
  TF_EMBED_INLINE void Set(const Hyper& numbers) {
    CheckHyper<Hyper>();
    if constexpr (NumHyper<Hyper>() > 0) std::memcpy(hyper, &numbers, sizeof(Hyper));
  }

 private:
  template <class Hyper>
  static constexpr void CheckHyper() {
    static_assert(std::is_aggregate_v<Hyper> && std::is_trivially_copyable_v<Hyper> &&
                      alignof(Hyper) <= alignof(double) && NumHyper<Hyper>() <= kMaxHyper,
                  "hyper-parameters are a few doubles");
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_
