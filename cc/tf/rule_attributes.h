// SPDX-License-Identifier: Apache-2.0
// Reads the attributes that name a rule, and the rule's hyper-parameters.
#ifndef TF_EMBED_CC_TF_RULE_ATTRIBUTES_H_
#define TF_EMBED_CC_TF_RULE_ATTRIBUTES_H_

#include <string>
#include <vector>

#include "cc/core/rules/optimizer_rule.h"
#include "cc/core/rules/rule_list.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// The kind of the rule of a name, which is the value of an op's attribute.
absl::Status FindRuleKind(const std::string& name, RuleKind* kind);

// Reads `rule`.
absl::Status ReadRuleKind(tensorflow::OpKernelConstruction* construction, RuleKind* kind);

// Reads `slot_types`: the stored type of each group of the rule's slots. If empty, slots are stored
// in the compute type.
absl::Status ReadSlotTypes(tensorflow::OpKernelConstruction* construction, RuleKind kind,
                           std::vector<SlotType>* types);

// Reads a rule, except its step, from `hyper`, the vector of TfEmbedApply. REQUIRES: `kind` comes
// from ReadRuleKind.
absl::Status ReadRule(RuleKind kind, size_t dim, const tensorflow::Tensor& hyper, Rule* rule);

// Reads the input `step` of a rule's op.
absl::Status ReadStep(const tensorflow::Tensor& step, Rule* rule);

// Reads `rule_id`, `slot_widths` and `slot_initial_values`.
absl::Status ReadExternalRule(tensorflow::OpKernelConstruction* construction, RuleSlots* rule);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_RULE_ATTRIBUTES_H_
