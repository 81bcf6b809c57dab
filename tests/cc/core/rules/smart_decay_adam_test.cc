// SPDX-License-Identifier: Apache-2.0
// SmartDecayAdamRule against Adam on a dense weight. Its gradient is zero in the steps that skip
// the row.
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "cc/core/loops/table_loops.h"
#include "tests/cc/support/reference_store.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 37;  // packs of each width and a remainder
constexpr int64_t kBase = SmartDecayAdamRule::kBase;

struct Betas {
  double beta_1, beta_2, epsilon;
};
// The moves of a weight shrink with the first three, and can grow with the others.
const std::vector<Betas> kBetas = {
    {0.9, 0.999, 1e-7}, {0.5, 0.99, 1e-3}, {0.0, 0.9, 1e-7}, {0.99, 0.95, 1e-3}, {0.9, 0.5, 1e-2}};

template <typename T>
struct Row {
  std::vector<T> weights, slots;
};

Rule RuleAt(const Betas& betas, int64_t step, size_t dim = kDim) {
  return Rule::Of<SmartDecayAdamRule>(dim, {betas.beta_1, betas.beta_2, betas.epsilon}, 0.05, step);
}

template <typename T>
Row<T> NewRow(Random* random, size_t dim = kDim) {
  return {RandomValues<T>(dim, random), std::vector<T>(2 * dim + 2)};
}

template <typename T>
void StepBy(InstructionSet set, const Rule& rule, const std::vector<T>& gradient, Row<T>* row) {
  const RuleConstants<T> constants(rule);
  LoopsOf(set).StepOf<T>(rule)(constants, gradient.size(), gradient.data(), row->weights.data(),
                               row->slots.data());
}

// A step of Adam in double, on a row with slots m and v.
void DenseStep(const Betas& betas, int64_t step, const std::vector<double>& gradient,
               Row<double>* row) {
  const size_t dim = gradient.size();
  const double t = static_cast<double>(step);
  const double alpha = 0.05 * std::sqrt(1.0 - std::pow(Nearest<float>(betas.beta_2), t)) /
                       (1.0 - std::pow(Nearest<float>(betas.beta_1), t));
  for (size_t i = 0; i < dim; ++i) {
    double& m = row->slots[i];
    double& v = row->slots[dim + i];
    m = betas.beta_1 * m + (1.0 - betas.beta_1) * gradient[i];
    v = betas.beta_2 * v + (1.0 - betas.beta_2) * gradient[i] * gradient[i];
    row->weights[i] -= alpha * m / (std::sqrt(v) + betas.epsilon);
  }
}

template <typename T>
void ExpectNear(const std::vector<double>& wanted, const std::vector<T>& found, size_t count,
                double tolerance) {
  for (size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(wanted[i], static_cast<double>(found[i]),
                tolerance * std::max(1.0, std::abs(wanted[i])))
        << "at " << i;
  }
}

// Trains a row in some steps, and a dense weight in every step.
template <typename T>
void CheckBesideDense(const Betas& betas, const std::set<int64_t>& steps, double tolerance) {
  Random random(7);
  Row<T> row = NewRow<T>(&random);
  Row<double> dense;
  dense.weights.assign(row.weights.begin(), row.weights.end());
  dense.slots.assign(2 * kDim, 0.0);
  for (int64_t step = *steps.begin(); step <= *steps.rbegin(); ++step) {
    if (steps.count(step) == 0) {
      DenseStep(betas, step, std::vector<double>(kDim), &dense);
      continue;
    }
    const std::vector<T> gradient = RandomValues<T>(kDim, &random);
    DenseStep(betas, step, {gradient.begin(), gradient.end()}, &dense);
    StepBy(InstructionSet::kPlain, RuleAt(betas, step), gradient, &row);
    ExpectNear(dense.weights, row.weights, kDim, tolerance);
    ExpectNear(dense.slots, row.slots, 2 * kDim, tolerance);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SmartDecayAdam, ARowEqualsADenseWeight) {
  for (const Betas& betas : kBetas) {
    SCOPED_TRACE("betas " + std::to_string(betas.beta_1) + " " + std::to_string(betas.beta_2));
    for (const std::set<int64_t>& steps :
         {std::set<int64_t>{1, 2, 3}, {1, 3, 4, 9}, {1, 30, 31, 100}, {5, 6, 700}, {2, 20000}}) {
      // Moves that grow are large, and so are their rounding errors.
      const bool grow = betas.beta_1 * betas.beta_1 > betas.beta_2;
      CheckBesideDense<float>(betas, steps, grow ? 1e-4 : 1e-5);
      // The bias correction takes the betas as floats.
      CheckBesideDense<double>(betas, steps, 1e-11);
    }
  }
}

TEST(SmartDecayAdam, MissedStepsMakeADifference) {
  Random random(7);
  for (const Betas& betas : kBetas) {
    if (betas.beta_1 == 0.0) continue;
    Row<float> smart = NewRow<float>(&random);
    Row<float> plain = smart;
    for (const int64_t step : {1, 10}) {
      const std::vector<float> gradient = RandomValues<float>(kDim, &random);
      StepBy(InstructionSet::kPlain, RuleAt(betas, step), gradient, &smart);
      Rule adam =
          Rule::Of<AdamRule<false>>(kDim, {betas.beta_1, betas.beta_2, betas.epsilon}, 0.05, step);
      StepBy(InstructionSet::kPlain, adam, gradient, &plain);
      for (size_t i = 0; i < kDim; ++i) {
        EXPECT_EQ(step == 1, smart.weights[i] == plain.weights[i]) << "at " << i;
      }
    }
  }
}

template <typename T>
void CheckAllSets(const Betas& betas, int64_t first, int64_t second, size_t dim, Random* random) {
  const Row<T> begin = NewRow<T>(random, dim);
  const std::vector<T> gradient = RandomValues<T>(dim, random);
  Row<T> wanted = begin;
  for (const int64_t step : {first, second}) {
    ReferenceStep(RuleAt(betas, step, dim), gradient, &wanted.weights, &wanted.slots);
  }
  for (const InstructionSet set : InstructionSetsHere()) {
    Row<T> row = begin;
    StepBy(set, RuleAt(betas, first, dim), gradient, &row);
    StepBy(set, RuleAt(betas, second, dim), gradient, &row);
    ExpectSameBits(wanted.weights, row.weights, NameOf(set));
    ExpectSameBits(wanted.slots, row.slots, NameOf(set));
  }
}

TEST(SmartDecayAdam, AllInstructionSetsHaveTheBitsOfTheReference) {
  Random random(3);
  for (const Betas& betas : kBetas) {
    for (const size_t dim : {1, 3, 8, 17, 32, 65}) {
      for (const int64_t missed : {0, 1, 15, 16, 17, 300, 100000}) {
        CheckAllSets<float>(betas, 2, 3 + missed, dim, &random);
        CheckAllSets<double>(betas, 2, 3 + missed, dim, &random);
      }
    }
  }
}

TEST(SmartDecayAdam, TheLastStepIsExactBeyondTheWholeNumbersOfAFloat) {
  Random random(5);
  const Betas betas = kBetas[0];
  for (const int64_t last :
       {kBase - 1, kBase, kBase + 1, 3 * kBase + 12345, kBase * kBase / 2 + 7}) {
    for (const int64_t missed : {0, 1, 5}) {
      // After many steps, alpha is the learning rate, so only the distance between two steps
      // matters.
      Row<float> row = NewRow<float>(&random);
      Row<float> other = row;
      const std::vector<float> gradient = RandomValues<float>(kDim, &random);
      StepBy(InstructionSet::kPlain, RuleAt(betas, last), gradient, &row);
      EXPECT_EQ(static_cast<float>(last / kBase), row.slots[2 * kDim]);
      EXPECT_EQ(static_cast<float>(last % kBase), row.slots[2 * kDim + 1]);
      StepBy(InstructionSet::kPlain, RuleAt(betas, last + 1 + missed), gradient, &row);
      StepBy(InstructionSet::kPlain, RuleAt(betas, 1000000), gradient, &other);
      StepBy(InstructionSet::kPlain, RuleAt(betas, 1000001 + missed), gradient, &other);
      ExpectSameBits(other.weights, row.weights, "weights");
    }
  }
}

TEST(SmartDecayAdam, AStepThatComesAgainOrBeforeReplaysNothing) {
  Random random(5);
  for (const int64_t step : {1, 9, 10, 11}) {
    Row<float> row = NewRow<float>(&random);
    const std::vector<float> gradient = RandomValues<float>(kDim, &random);
    StepBy(InstructionSet::kPlain, RuleAt(kBetas[0], 10), gradient, &row);
    Row<float> plain = row;
    StepBy(InstructionSet::kPlain, RuleAt(kBetas[0], step), gradient, &row);
    StepBy(InstructionSet::kPlain, Rule::Of<AdamRule<false>>(kDim, {0.9, 0.999, 1e-7}, 0.05, step),
           gradient, &plain);
    ExpectSameBits(plain.weights, row.weights, "weights");
    EXPECT_EQ(static_cast<float>(step), row.slots[2 * kDim + 1]);
  }
}

TEST(SmartDecayAdam, AnyNumbersInSlotsAreTaken) {
  const float infinite = std::numeric_limits<float>::infinity();
  Random random(5);
  for (const float high :
       {0.0f, -1.0f, 0.5f, 16777215.0f, 16777216.0f, 1e30f, infinite, std::nanf("")}) {
    for (const float low : {0.0f, -1.0f, 3.5f, 16777215.0f, 1e30f, infinite, std::nanf("")}) {
      for (const float moment : {0.0f, 1.0f, -1.0f, 1e-45f, 1e38f, infinite, std::nanf("")}) {
        for (const Betas& betas : kBetas) {
          Row<float> row = NewRow<float>(&random);
          row.slots.assign(2 * kDim, moment);
          row.slots.push_back(high);
          row.slots.push_back(low);
          StepBy(InstructionSet::kPlain, RuleAt(betas, int64_t{1} << 40),
                 std::vector<float>(kDim, 1.0f), &row);
          EXPECT_EQ(65536.0f, row.slots[2 * kDim]);
          EXPECT_EQ(0.0f, row.slots[2 * kDim + 1]);
        }
      }
    }
  }
}

TEST(SmartDecayAdam, BetasOutOfRangeEnd) {
  Random random(5);
  for (const double beta_1 : {1.0, 2.0, -2.0, std::nan("")}) {
    for (const double beta_2 : {0.999, 1.0, 2.0, -2.0, std::nan("")}) {
      Row<float> row = NewRow<float>(&random);
      const std::vector<float> gradient(kDim, 1.0f);
      StepBy(InstructionSet::kPlain, RuleAt({beta_1, beta_2, 0.0}, 1), gradient, &row);
      StepBy(InstructionSet::kPlain, RuleAt({beta_1, beta_2, 0.0}, int64_t{1} << 62), gradient,
             &row);
    }
  }
}

}  // namespace
}  // namespace tf_embed
