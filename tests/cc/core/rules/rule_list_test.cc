// SPDX-License-Identifier: Apache-2.0
// The list of rules: numbers and names that files and models depend on, and everything made from
// them.
#include "cc/core/rules/rule_list.h"

#include <map>
#include <string>

#include "cc/core/rules/rule_names.h"
#include "gtest/gtest.h"

namespace tf_embed {
namespace {

TEST(RuleList, NumbersAndNamesOfRulesStay) {
  const std::map<int, std::string> expected = {{1, "sgd"},
                                               {2, "momentum"},
                                               {3, "adagrad"},
                                               {4, "rowwise_adagrad"},
                                               {5, "adam"},
                                               {6, "adam_amsgrad"},
                                               {7, "rmsprop"},
                                               {8, "rmsprop_momentum"},
                                               {9, "rmsprop_centered"},
                                               {10, "rmsprop_centered_momentum"},
                                               {11, "ftrl"},
                                               {13, "exact_adagrad"},
                                               {14, "rowwise_adagrad_global"},
                                               {15, "rowwise_adagrad_counter"},
                                               {16, "ensemble_rowwise_adagrad"},
                                               {17, "ema_rowwise_adagrad"},
                                               {18, "row_adam"},
                                               {19, "row_adam_counter"},
                                               {20, "partial_rowwise_adam"},
                                               {21, "lamb"},
                                               {22, "partial_rowwise_lamb"},
                                               {23, "lars"},
                                               {24, "smart_decay_adam"}};
  std::map<int, std::string> found;
  for (const RuleFacts& rule : kRules) found[static_cast<int>(rule.kind)] = rule.name;
  for (const auto& [number, name] : expected) EXPECT_EQ(name, found[number]);
  EXPECT_EQ(0, static_cast<int>(RuleKind::kNone));
  EXPECT_EQ(12, static_cast<int>(RuleKind::kExternal));
  EXPECT_EQ(kRuleKinds, found.rbegin()->first + 1);
}

TEST(RuleList, HyperParametersAreFoundByName) {
  const std::vector<std::string_view> names = HyperNames(FactsOf(RuleKind::kFtrl));
  const std::vector<std::string_view> expected = {"initial_accumulator_value",
                                                  "learning_rate_power",
                                                  "l1",
                                                  "l2",
                                                  "l2_shrinkage",
                                                  "beta",
                                                  "decay"};
  EXPECT_EQ(expected, names);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(static_cast<int>(i), FindHyper(RuleKind::kFtrl, names[i]));
  }
  for (const char* name : {"", "l", "l3", "l1, l2", "epsilon"}) {
    EXPECT_EQ(-1, FindHyper(RuleKind::kFtrl, name));
  }
  EXPECT_EQ(-1, FindHyper(RuleKind::kSgd, ""));
  EXPECT_EQ(-1, FindHyper(RuleKind::kNone, "l1"));
  EXPECT_TRUE(HyperNames(FactsOf(RuleKind::kSgd)).empty());
  for (const RuleFacts& rule : kRules) EXPECT_EQ(rule.num_hyper, HyperNames(rule).size());
}

TEST(RuleList, ARuleOfAUnitHasItsNumbersAndSlots) {
  const Rule rule = Rule::Of<EnsembleRowwiseAdagradRule>(
      6, {1e-7, 0.0, 0.0, 0.0, 0.5, 2.0, 3.0, 4.0, 0.25, 1.0}, 0.125, 7);
  EXPECT_EQ(RuleKind::kEnsembleRowwiseAdagrad, rule.slots.kind);
  ASSERT_EQ(2u, rule.slots.num_groups);
  EXPECT_EQ(6u, rule.slots.groups[0].width);
  EXPECT_EQ(0.5, rule.slots.groups[0].initial_value);
  EXPECT_EQ(1u, rule.slots.groups[1].width);
  EXPECT_EQ(0.0, rule.slots.groups[1].initial_value);
  EXPECT_EQ(0.125, rule.learning_rate);
  EXPECT_EQ(7, rule.step);
  EXPECT_EQ(3.0, rule.Get<EnsembleRowwiseAdagradRule::Hyper>().swap_every);
  EXPECT_EQ(0.25, rule.hyper[FindHyper(rule.slots.kind, "average_coefficient")]);
}

TEST(RuleList, AttributesAndDocumentsHaveAllRules) {
  const std::string names = QuotedRuleNames();
  EXPECT_EQ(0u, names.find("'sgd', 'momentum', "));
  const std::string lines = HyperOfRules();
  EXPECT_EQ(0u, lines.find("  sgd: [learning_rate, weight_decay].\n"));
  for (const RuleFacts& rule : kRules) {
    EXPECT_NE(std::string::npos, names.find("'" + std::string(rule.name) + "'"));
    EXPECT_NE(std::string::npos, lines.find("  " + std::string(rule.name) + ": ["));
  }
}

}  // namespace
}  // namespace tf_embed
