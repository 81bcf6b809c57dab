// Reads the attributes by which ops name a rule.
#ifndef TF_EMBED_CC_KERNELS_RULE_ATTRIBUTES_H_
#define TF_EMBED_CC_KERNELS_RULE_ATTRIBUTES_H_

#include "cc/core/rule_slots.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Reads `rule`.
absl::Status ReadRuleKind(tensorflow::OpKernelConstruction* construction, RuleKind* kind);

// Reads `rule_id`, `slot_widths` and `slot_initial_values`.
absl::Status ReadExternalRule(tensorflow::OpKernelConstruction* construction, RuleSlots* rule);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_KERNELS_RULE_ATTRIBUTES_H_
