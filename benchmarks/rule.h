// SPDX-License-Identifier: Apache-2.0
// The optimizers of the benchmarks of the core.
#ifndef TF_EMBED_BENCHMARKS_RULE_H_
#define TF_EMBED_BENCHMARKS_RULE_H_

#include "cc/core/rules/rule_list.h"

namespace tf_embed {

// A fused rule with the usual numbers.
inline Rule RuleOf(RuleKind kind, size_t dim) {
  constexpr double kRate = 0.01;
  switch (kind) {
    case RuleKind::kAdagrad:
      return Rule::Of<AdagradRule>(dim, {0.1, 1e-7}, kRate);
    case RuleKind::kRowwiseAdagrad:
      return Rule::Of<RowwiseAdagradRule>(dim, {0.1, 1e-7, 0.0, 0.0, 0.0}, kRate);
    case RuleKind::kAdam:
      return Rule::Of<AdamRule<false>>(dim, {0.9, 0.999, 1e-7}, kRate);
    default:
      return Rule::Of<SgdRule>(dim, {}, kRate);
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_RULE_H_
