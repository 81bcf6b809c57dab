// SPDX-License-Identifier: Apache-2.0
// The contract of every Store for passes over all rows at the end of a step, and for the largest
// slot.
#include <cmath>
#include <thread>

#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {
namespace {

class StorePasses : public testing::TestWithParam<StoreKind> {
 protected:
  std::unique_ptr<Store> NewStore(DataType type, size_t dim) const {
    StoreOptions options;
    options.name = "users";
    options.value_type = type;
    options.dim = dim;
    options.initializer = UniformInitializer();
    return GetParam().create(options);
  }

  static Rule Averaging(size_t dim) {
    Rule rule = MakeRule(RuleKind::kEnsembleRowwiseAdagrad, dim, std::nan(""));
    ChangeHyper<EnsembleRowwiseAdagradRule>(&rule, [](auto& hyper) {
      hyper.average_every = 1;
      hyper.swap_every = 2;
      hyper.average_coefficient = 0.75;
    });
    return rule;
  }

  // The weights of all keys, in the compute type of rules.
  template <typename T>
  std::vector<typename Number<T>::Compute> Weights(const Store& store, const Batch& batch,
                                                   size_t dim) const {
    std::vector<T> narrow(batch.size() * dim);
    EXPECT_TRUE(store.Find(serial, batch, DefaultRows(), narrow.data(), nullptr, {}).ok());
    std::vector<typename Number<T>::Compute> wide;
    for (const T weight : narrow) wide.push_back(Number<T>::Load(weight));
    return wide;
  }

  // Averages are updated in every step, and written to the weights in some steps. Gradients touch a
  // few keys.
  template <typename T>
  void CheckAverages(const ExecContext& context) const {
    using Compute = typename Number<T>::Compute;
    constexpr size_t kDim = 5;
    const auto store = NewStore(TypeOf<T>(), kDim);
    const Batch all(KeysFrom(-100, 3000));
    const Batch touched{-100, 0, 7};
    const std::vector<T> zeros(all.size() * kDim), ones(touched.size() * kDim, Number<T>::Store(1));
    Rule rule = Averaging(kDim);
    ASSERT_TRUE(store->Apply(context, all, zeros.data(), TypeOf<T>(), rule).ok());
    std::vector<Compute> z = Weights<T>(*store, all, kDim);
    for (rule.step = 1; rule.step < 6; ++rule.step) {
      ASSERT_TRUE(store->Apply(context, touched, ones.data(), TypeOf<T>(), rule).ok());
      std::vector<Compute> w = Weights<T>(*store, all, kDim);
      ASSERT_TRUE(store->UpdateAllRows(context, rule).ok());
      for (size_t i = 0; i < w.size(); ++i) {
        z[i] += Compute(0.25) * (w[i] - z[i]);
        if ((rule.step + 1) % 2 == 0) w[i] = Number<T>::Load(Number<T>::Store(z[i]));
      }
      ASSERT_EQ(w, Weights<T>(*store, all, kDim)) << "step " << rule.step;
    }
  }

  const ExecContext serial = ExecContext::Serial();
};

TEST_P(StorePasses, AveragesAreOfAllRowsInAllTypes) {
  for (const ExecContext& context : {serial, Threads(3)}) {
    CheckAverages<float>(context);
    CheckAverages<double>(context);
    CheckAverages<Half>(context);
    CheckAverages<BFloat16>(context);
  }
}

TEST_P(StorePasses, RowsThatWereAssignedAreTheirFirstAverage) {
  const auto store = NewStore(DataType::kFloat, 2);
  const Rule rule = Averaging(2);
  ASSERT_TRUE(store->maintenance()->SetRule(rule.slots).ok());
  const float row[] = {3, 4};
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{5}, row, {}).ok());
  ASSERT_TRUE(store->UpdateAllRows(serial, rule).ok());
  EXPECT_EQ((std::vector<float>{3, 4}), Weights<float>(*store, Batch{5}, 2));
}

TEST_P(StorePasses, OtherRulesAndOtherStepsChangeNothing) {
  const auto store = NewStore(DataType::kFloat, 2);
  const float gradient[] = {1, 2};
  for (const RuleKind kind : {RuleKind::kAdam, RuleKind::kRowwiseAdagrad}) {
    const Rule rule = MakeRule(kind, 2);
    ASSERT_TRUE(store->Apply(serial, Batch{5}, gradient, DataType::kFloat, rule).ok());
    const std::vector<float> before = Weights<float>(*store, Batch{5}, 2);
    EXPECT_TRUE(store->UpdateAllRows(serial, rule).ok());
    EXPECT_EQ(before, Weights<float>(*store, Batch{5}, 2));
  }
  EXPECT_EQ(StatusCode::kFailedPrecondition, store->UpdateAllRows(serial, Averaging(2)).code());
}

TEST_P(StorePasses, AnOddRowHasNoHalves) {
  const auto store = NewStore(DataType::kFloat, 3);
  const float gradient[] = {1, 2, 3};
  const Status status = store->Apply(serial, Batch{5}, gradient, DataType::kFloat,
                                     MakeRule(RuleKind::kEmaRowwiseAdagrad, 3));
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'users' must have an even dim"));
  EXPECT_EQ(0u, store->size());
}

TEST_P(StorePasses, TheLargestCountIsThatOfTheKeyThatCameMostOften) {
  for (const DataType type : {DataType::kFloat, DataType::kDouble}) {
    const auto store = NewStore(type, 2);
    Rule rule = MakeRule(RuleKind::kRowwiseAdagradCounter, 2);
    ChangeHyper<RowwiseAdagradCounterRule>(&rule, [](auto& hyper) {
      hyper.decay_mode = static_cast<double>(DecayMode::kCounter);
      hyper.counter_half_life = -1.0;
    });
    EXPECT_EQ(0.0, LargestSlot(*store, serial, rule.slots, 2));
    const std::vector<double> gradients(2000);
    ASSERT_TRUE(store->Apply(serial, Batch(KeysFrom(0, 900)), gradients.data(), type, rule).ok());
    EXPECT_EQ(1.0, LargestSlot(*store, serial, rule.slots, 2));
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(store->Apply(serial, Batch{77}, gradients.data(), type, rule).ok());
    }
    EXPECT_EQ(5.0, LargestSlot(*store, Threads(2), rule.slots, 2));
    EXPECT_EQ(0.0, LargestSlot(*store, serial, rule.slots, 3));
    EXPECT_EQ(0.0, LargestSlot(*store, serial, FusedSlots(RuleKind::kAdam, 2), 0));
  }
}

// A row with equal weights keeps equal weights if all lanes of a gradient are equal.
TEST_P(StorePasses, PassesAndOtherVerbsGoTogether) {
  if (!GetParam().takes_threads) GTEST_SKIP() << "one thread at a time may call it";
  constexpr size_t kDim = 16;
  StoreOptions options;
  options.dim = kDim;
  const auto store = GetParam().create(options);
  const Batch all(KeysFrom(0, 500));
  const std::vector<float> gradients(all.size() * kDim, 0.5f);
  Rule rule = Averaging(kDim);
  ChangeHyper<EnsembleRowwiseAdagradRule>(&rule, [](auto& hyper) { hyper.swap_every = 1; });
  ASSERT_TRUE(store->Apply(serial, all, gradients.data(), DataType::kFloat, rule).ok());
  std::thread passes([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(store->UpdateAllRows(Threads(2), rule).ok());
  });
  std::thread largest([&] {
    for (int i = 0; i < 20; ++i) LargestSlot(*store, serial, rule.slots, kDim);
  });
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) {
      const Batch more(KeysFrom(500 + 50 * i, 50));
      EXPECT_TRUE(store->Apply(serial, all, gradients.data(), DataType::kFloat, rule).ok());
      EXPECT_TRUE(store->Apply(serial, more, gradients.data(), DataType::kFloat, rule).ok());
      EXPECT_TRUE(store->Erase(serial, more).ok());
    }
  });
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> weights = Weights<float>(*store, all, kDim);
    for (size_t j = 0; j < weights.size(); ++j) {
      ASSERT_EQ(weights[j / kDim * kDim], weights[j]) << "a torn row";
    }
  }
  for (std::thread* const thread : {&passes, &largest, &writer}) thread->join();
}

INSTANTIATE_TEST_SUITE_P(Stores, StorePasses, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
