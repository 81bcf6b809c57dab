// SPDX-License-Identifier: Apache-2.0
// All instruction sets compute the same bits, in every loop, at every length.
#include "cc/core/loops/table_loops.h"

#include "tests/cc/support/reference_store.h"

namespace tf_embed {
namespace {

const std::vector<size_t> kDims = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130};

Rule RuleOf(RuleKind kind, size_t dim) {
  Rule rule = MakeRule(kind, dim, 0.1);
  SetHyper(&rule, {{"epsilon", 1e-5},
                   {"beta_2", 0.99},
                   {"l1", 0.01},
                   {"l2", 0.02},
                   {"l2_shrinkage", 0.03},
                   {"beta", 0.1}});
  rule.step = 3;
  return rule;
}

// Checks that all instruction sets and the reference give the same bits.
template <typename T>
void CheckSteps(const Rule& rule, size_t dim, Random* random) {
  const RuleConstants<T> constants(rule);
  const std::vector<T> gradient = RandomValues<T>(dim, random);
  const std::vector<T> weights = RandomValues<T>(dim, random);
  std::vector<T> slots(rule.slots.slots_per_row());
  for (T& slot : slots) slot = static_cast<T>(0.01 * static_cast<double>((*random)() % 100));
  std::vector<T> first_weights, first_slots;
  for (const InstructionSet set : InstructionSetsHere()) {
    std::vector<T> w = weights, s = slots;
    LoopsOf(set).StepOf<T>(rule)(constants, dim, gradient.data(), w.data(), s.data());
    if (set == InstructionSet::kPlain) {
      first_weights = w;
      first_slots = s;
      EXPECT_EQ(w == weights, rule.slots.kind == RuleKind::kNone && rule.weight_decay == 0.0);
    }
    ExpectSameBits(first_weights, w, NameOf(set));
    ExpectSameBits(first_slots, s, NameOf(set));
  }
  std::vector<T> w = weights, s = slots;
  ReferenceStep(rule, gradient, &w, &s);
  ExpectSameBits(w, first_weights, "the reference");
  ExpectSameBits(s, first_slots, "the reference");
}

TEST(TableLoops, StepsAreTheSameBits) {
  Random random(1);
  for (int kind = 0; kind < kRuleKinds; ++kind) {
    if (static_cast<RuleKind>(kind) == RuleKind::kExternal) continue;
    for (const size_t dim : kDims) {
      Rule rule = RuleOf(static_cast<RuleKind>(kind), dim);
      CheckSteps<float>(rule, dim, &random);
      CheckSteps<double>(rule, dim, &random);
      SetHyper(&rule, {{"nesterov", 1.0}, {"learning_rate_power", -0.3}});
      rule.weight_decay = kind < static_cast<int>(RuleKind::kExternal) ? 0.1 : 0.0;
      CheckSteps<float>(rule, dim, &random);
      CheckSteps<double>(rule, dim, &random);
    }
  }
}

TEST(TableLoops, StepsOfRowRulesAreTheSameBitsInAllModes) {
  Random random(2);
  for (const size_t dim : kDims) {
    std::vector<Rule> rules = RowRules(dim);
    for (const Rule& rule : CountingRules(dim)) rules.push_back(rule);
    for (Rule& rule : rules) {
      for (const int64_t step : {1, 2, 77}) {
        rule.step = step;
        CheckSteps<float>(rule, dim, &random);
        CheckSteps<double>(rule, dim, &random);
      }
    }
  }
}

template <typename T>
void CheckZeroRows(const Rule& rule, size_t dim) {
  const RuleConstants<T> constants(rule);
  for (const T number : {T(0), T(0.5)}) {
    std::vector<T> gradient(dim, number), weights(dim, T(0)), slots(rule.slots.slots_per_row());
    FillInitialSlots(rule.slots, slots.data());
    for (const InstructionSet set : InstructionSetsHere()) {
      LoopsOf(set).StepOf<T>(rule)(constants, dim, gradient.data(), weights.data(), slots.data());
      for (const T weight : weights) {
        EXPECT_TRUE(std::isfinite(weight));
        EXPECT_EQ(number == T(0), weight == T(0)) << static_cast<int>(rule.slots.kind);
      }
      for (const T slot : slots) EXPECT_TRUE(std::isfinite(slot));
    }
  }
}

// Nothing is divided by a norm of 0, and rows of zeros become nonzero.
TEST(TableLoops, RowRulesTrainRowsOfZeros) {
  for (const size_t dim : {1, 6, 20}) {
    std::vector<Rule> rules = RowRules(dim);
    for (const Rule& rule : CountingRules(dim)) rules.push_back(rule);
    for (Rule& rule : rules) {
      if (static_cast<DecayMode>(HyperOf(rule, "decay_mode")) == DecayMode::kCowClip) {
        // The gradient is clipped to 0.
        ChangeHyper<RowwiseAdagradCounterRule>(&rule, [](auto& hyper) { hyper.lower_bound = 0.0; });
        const RuleConstants<float> constants(rule);
        std::vector<float> g(dim, 0.0f), w(dim, 0.0f), s(rule.slots.slots_per_row());
        LoopsOf(BestInstructionSet())
            .StepOf<float>(rule)(constants, dim, g.data(), w.data(), s.data());
        EXPECT_EQ(0.0f, w[0]);
        continue;
      }
      CheckZeroRows<float>(rule, dim);
      CheckZeroRows<double>(rule, dim);
    }
  }
}

// There is no gradient and no decay, so the step's divisor, a norm, is 0.
TEST(TableLoops, LarsLeavesRowsWithoutAGradientAlone) {
  constexpr size_t kDim = 6;
  LarsRule::Hyper hyper{};
  hyper.momentum = 0.9;
  hyper.eta = 0.001;
  const Rule rule = Rule::Of<LarsRule>(kDim, hyper, 0.05);
  const RuleConstants<float> constants(rule);
  const std::vector<float> gradient(kDim, 0.0f), ones(kDim, 1.0f);
  std::vector<float> weights = ones, slots(rule.slots.slots_per_row());
  LoopsOf(BestInstructionSet())
      .StepOf<float>(rule)(constants, kDim, gradient.data(), weights.data(), slots.data());
  EXPECT_EQ(ones, weights);
}

TEST(TableLoops, PassesAreTheSameBitsAndAreDueAtTheirSteps) {
  Random random(4);
  for (const size_t dim : kDims) {
    EnsembleRowwiseAdagradRule::Hyper hyper{};
    hyper.initial_average = std::nan("");
    hyper.average_every = 2;
    hyper.swap_every = 3;
    hyper.average_start = 4;
    hyper.average_coefficient = 0.25;
    Rule rule = Rule::Of<EnsembleRowwiseAdagradRule>(dim, hyper, 0.05);
    std::vector<double> weights = RandomValues<double>(dim, &random);
    std::vector<double> slots(rule.slots.slots_per_row());
    FillInitialSlots(rule.slots, slots.data());
    for (rule.step = 1; rule.step < 13; ++rule.step) {
      hyper.keeps_average = rule.step < 8 ? 1.0 : 0.0;
      rule.Set(hyper);
      const int64_t next = rule.step + 1;
      std::vector<double> w = weights, z = slots;
      for (size_t i = 0; i < dim && (next % 2 == 0 || next % 3 == 0); ++i) {
        if (std::isnan(z[i])) z[i] = w[i];
        if (next % 2 == 0) z[i] += (next <= 4 ? 1.0 : 0.75) * (w[i] - z[i]);
        if (next % 3 == 0) w[i] = z[i];
        if (next % 2 == 0 && hyper.keeps_average == 0.0) z[i] = 0.0;
      }
      const RuleConstants<double> constants(rule);
      std::vector<double> after, left;
      for (const InstructionSet set : InstructionSetsHere()) {
        const auto pass = LoopsOf(set).PassOf<double>(rule);
        EXPECT_EQ(next % 2 != 0 && next % 3 != 0, pass == nullptr) << next;
        after = weights;
        left = slots;
        if (pass != nullptr) pass(constants, dim, nullptr, after.data(), left.data());
        ExpectSameBits(w, after, NameOf(set));
        ExpectSameBits(z, left, NameOf(set));
      }
      weights = after;
      slots = left;
      for (double& weight : weights) weight += 0.5;
    }
  }
}

TEST(TableLoops, TheSecondHalfFollowsTheFirst) {
  Random random(5);
  for (const size_t dim : {2, 6, 16, 34, 64}) {
    EmaRowwiseAdagradRule::Hyper hyper{};
    hyper.average_every = 2;
    hyper.average_start = 5;
    hyper.average_coefficient = 0.25;
    Rule rule = Rule::Of<EmaRowwiseAdagradRule>(dim, hyper, 0.05);
    const std::vector<float> weights = RandomValues<float>(dim, &random);
    for (rule.step = 1; rule.step < 9; ++rule.step) {
      for (const InstructionSet set : InstructionSetsHere()) {
        const auto pass = LoopsOf(set).PassOf<float>(rule);
        EXPECT_EQ(rule.step == 5 || rule.step == 7, pass != nullptr);
        if (pass == nullptr) continue;
        std::vector<float> expected = weights, found = weights;
        for (size_t i = 0; i < dim / 2; ++i) {
          expected[dim / 2 + i] += 0.25f * (weights[i] - weights[dim / 2 + i]);
        }
        pass(RuleConstants<float>(rule), dim, nullptr, found.data(), nullptr);
        ExpectSameBits(expected, found, NameOf(set));
      }
    }
  }
}

// Row-wise Adagrad adds squares in another order, so results differ in rounding.
TEST(TableLoops, RowwiseAdagradTakesTheMeanOfTheSquares) {
  for (const size_t dim : kDims) {
    const Rule rule = RuleOf(RuleKind::kRowwiseAdagrad, dim);
    const RuleConstants<double> constants(rule);
    std::vector<double> gradient(dim), weights(dim, 1.0);
    double squares = 0.0, s = 0.25;
    for (size_t i = 0; i < dim; ++i) {
      gradient[i] = 0.5 + static_cast<double>(i);
      squares += gradient[i] * gradient[i];
    }
    LoopsOf(BestInstructionSet())
        .StepOf<double>(rule)(constants, dim, gradient.data(), weights.data(), &s);
    const double expected = 0.25 + squares / static_cast<double>(dim);
    EXPECT_NEAR(expected, s, 1e-12 * expected);
    for (size_t i = 0; i < dim; ++i) {
      EXPECT_NEAR(1.0 - 0.05 * gradient[i] / (std::sqrt(expected) + 1e-5), weights[i], 1e-12);
    }
  }
}

TEST(TableLoops, InitialRowsAreTheSameBitsAsLaneByLane) {
  for (const InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kTruncatedNormal}) {
    for (const size_t dim : kDims) {
      const uint64_t state = InitialState(7, 8, static_cast<int64_t>(dim));
      std::vector<float> expected(dim);
      for (size_t i = 0; i < dim; ++i) {
        expected[i] = static_cast<float>(RandomLane(kind, -0.25, 0.5, state, i));
      }
      for (const InstructionSet set : InstructionSetsHere()) {
        std::vector<float> row(dim);
        LoopsOf(set).initialize(kind, -0.25, 0.5, state, dim, row.data());
        ExpectSameBits(expected, row, NameOf(set));
      }
    }
  }
}

template <typename T>
void CheckDifferences(size_t dim, Random* random) {
  constexpr size_t kRows = 9;
  const std::vector<T> from = RandomValues<T>(kRows * dim, random);
  const std::vector<T> to = RandomValues<T>(kRows * dim, random);
  const std::vector<T> weights = RandomValues<T>(dim, random);
  const uint32_t positions[] = {8, 0, 3, 3, 5, 1, 7};
  const bool chosen[kRows] = {true, true, false, true, true, false, true, true, true};
  std::vector<T> expected = weights;
  for (const uint32_t position : positions) {
    for (size_t i = 0; chosen[position] && i < dim; ++i) {
      expected[i] += to[position * dim + i] - from[position * dim + i];
    }
  }
  for (const InstructionSet set : InstructionSetsHere()) {
    std::vector<T> sum = weights;
    LoopsOf(set).AddDifferences<T>()(from.data(), to.data(), chosen, positions, 7, dim, sum.data());
    ExpectSameBits(expected, sum, NameOf(set));
  }
}

TEST(TableLoops, DifferencesAreRoundedBeforeTheyAreAdded) {
  Random random(3);
  for (const size_t dim : kDims) {
    CheckDifferences<float>(dim, &random);
    CheckDifferences<double>(dim, &random);
  }
}

TEST(TableLoops, RowsAreCopiedWholeAndNoFurther) {
  for (const InstructionSet set : InstructionSetsHere()) {
    for (size_t bytes = 1; bytes < 300; ++bytes) {
      const size_t words = RowLayout::RoundUp(bytes, 8);
      alignas(16) char row[320];
      std::memset(row, 0x55, sizeof(row));
      std::string from(bytes, '\0'), to(bytes + 1, '\x77');
      for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(i + 1);
      LoopsOf(set).store_row(from.data(), bytes, row);
      for (size_t i = bytes; i < words; ++i) EXPECT_EQ(0, row[i]);
      EXPECT_EQ(0x55, row[words]);
      LoopsOf(set).load_row(row, bytes, &to[0]);
      EXPECT_EQ(from + '\x77', to) << NameOf(set) << " " << bytes;
    }
  }
}

}  // namespace
}  // namespace tf_embed
