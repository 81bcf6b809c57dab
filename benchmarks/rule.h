// The optimizers of the benchmarks of the core.
#ifndef TF_EMBED_BENCHMARKS_RULE_H_
#define TF_EMBED_BENCHMARKS_RULE_H_

#include "cc/core/rules/optimizer_rule.h"

namespace tf_embed {

// A fused rule with the usual numbers.
inline Rule RuleOf(RuleKind kind, size_t dim) {
  Rule rule;
  rule.slots = FusedSlots(kind, dim, 0.1);
  rule.learning_rate = 0.01;
  rule.epsilon = 1e-7;
  rule.beta_1 = 0.9;
  rule.beta_2 = 0.999;
  return rule;
}

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_RULE_H_
