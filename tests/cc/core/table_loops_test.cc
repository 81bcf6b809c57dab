// All instruction sets compute the same bits, in every loop, at every length.
#include "cc/core/table_loops.h"

#include "tests/cc/core/reference_table.h"

namespace tf_embed {
namespace {

const std::vector<size_t> kDims = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130};

Rule RuleOf(RuleKind kind, size_t dim) {
  Rule rule = MakeRule(kind, dim, 0.1);
  rule.epsilon = 1e-5;
  rule.beta_2 = 0.99;
  rule.l1 = 0.01;
  rule.l2 = 0.02;
  rule.l2_shrinkage = 0.03;
  rule.beta = 0.1;
  rule.step = 3;
  return rule;
}

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
}

TEST(TableLoops, StepsAreTheSameBits) {
  Random random(1);
  for (int kind = 0; kind < static_cast<int>(RuleKind::kExternal); ++kind) {
    for (const size_t dim : kDims) {
      Rule rule = RuleOf(static_cast<RuleKind>(kind), dim);
      CheckSteps<float>(rule, dim, &random);
      CheckSteps<double>(rule, dim, &random);
      rule.nesterov = true;
      rule.weight_decay = 0.1;
      rule.learning_rate_power = -0.3;
      CheckSteps<float>(rule, dim, &random);
      CheckSteps<double>(rule, dim, &random);
    }
  }
}

// The squares of row-wise Adagrad are added up in an order of their own.
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
