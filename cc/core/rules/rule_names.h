// SPDX-License-Identifier: Apache-2.0
// Lists of the rules of rule_list.h, for the documentation of ops.
#ifndef TF_EMBED_CC_CORE_RULES_RULE_NAMES_H_
#define TF_EMBED_CC_CORE_RULES_RULE_NAMES_H_

#include <string>

#include "cc/core/rules/rule_list.h"

namespace tf_embed {

// 'sgd', 'momentum', ...: the values of an op's attribute `rule`.
inline std::string QuotedRuleNames() {
  std::string names;
  for (const RuleFacts& rule : kRules) {
    names += names.empty() ? "'" : ", '";
    names += rule.name;
    names += "'";
  }
  return names;
}

// A line for each rule: the elements of an op's input `hyper`.
inline std::string HyperOfRules() {
  std::string lines;
  for (const RuleFacts& rule : kRules) {
    lines += "  ";
    lines += rule.name;
    lines += ": [learning_rate, weight_decay";
    if (rule.num_hyper > 0) lines += ", ";
    lines += rule.hyper_names;
    lines += "].\n";
  }
  return lines;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_RULE_NAMES_H_
