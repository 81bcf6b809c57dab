// SPDX-License-Identifier: Apache-2.0
// The contract of every Store for slots of external rules. Slots are found and assigned with the
// weights, and refused if the store has got another rule since then.
#include <cmath>
#include <limits>

#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 2;

class StoreSlots : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.name = "users";
    options.dim = kDim;
    store = GetParam().create(options);
    ASSERT_NE(nullptr, store);
  }

  Status Assign(const Batch& batch, const std::vector<float>& weights,
                const std::vector<float>& slots, const RuleSlots& rule) {
    return store->InsertOrAssign(serial, batch, weights.data(), {&rule, slots.data()});
  }
  std::vector<float> Slots(const Batch& batch, const RuleSlots& rule) const {
    std::vector<float> weights(batch.places * kDim), slots(batch.places * rule.slots_per_row());
    const Status status =
        store->Find(serial, batch, DefaultRows(), weights.data(), nullptr, {&rule, slots.data()});
    EXPECT_TRUE(status.ok()) << status.message();
    return slots;
  }

  const ExecContext serial = ExecContext::Serial();
  const RuleSlots rule = ExternalSlots(77, {{2, 0.5}, {1, -1.0}});
  std::unique_ptr<Store> store;
};

TEST_P(StoreSlots, FindGivesTheSlotsThatWereAssigned) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1, 2}, {1, 1, 2, 2}, {10, 11, 12, 20, 21, 22}, rule).ok());
  EXPECT_EQ((std::vector<float>{20, 21, 22, 10, 11, 12}), Slots({2, 1}, rule));
}

TEST_P(StoreSlots, AbsentKeysHaveInitialSlotsAndAreNotInserted) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  EXPECT_EQ((std::vector<float>{0.5, 0.5, -1.0}), Slots({9}, rule));
  EXPECT_EQ(0u, store->size());
}

TEST_P(StoreSlots, RowsThatComeWithoutSlotsHaveInitialOnes) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  const float row[] = {3, 4};
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{5}, row, {}).ok());
  EXPECT_EQ((std::vector<float>{0.5, 0.5, -1.0}), Slots({5}, rule));
}

TEST_P(StoreSlots, TheLastOfEqualKeysIsAssignedWithItsSlots) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1, 1}, {1, 1, 2, 2}, {10, 11, 12, 20, 21, 22}, rule).ok());
  EXPECT_EQ((std::vector<float>{20, 21, 22}), Slots({1}, rule));
}

TEST_P(StoreSlots, ANewRuleGivesInitialSlotsAndKeepsWeights) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1}, {6, 7}, {10, 11, 12}, rule).ok());
  // Another optimizer; the same with other widths; the same widths in other groups.
  for (const RuleSlots& other :
       {ExternalSlots(78, {{2, 0.25}, {1, 4.0}}), ExternalSlots(77, {{1, 0.25}, {2, 4.0}}),
        ExternalSlots(77, {{3, 0.25}}), ExternalSlots(77, {}), FusedSlots(RuleKind::kAdam, kDim)}) {
    ASSERT_TRUE(store->maintenance()->SetRule(other).ok());
    EXPECT_TRUE(SameRuleAndInitialValues(other, store->rule()));
    std::vector<float> initial(other.slots_per_row());
    FillInitialSlots(other, initial.data());
    EXPECT_EQ(initial, Slots({1}, other));
    float weights[2];
    ASSERT_TRUE(store->Find(serial, Batch{1}, DefaultRows(), weights, nullptr, {}).ok());
    EXPECT_EQ(6, weights[0]);
    EXPECT_EQ(7, weights[1]);
  }
}

TEST_P(StoreSlots, TheSameRuleWithOtherInitialValuesKeepsSlots) {
  const RuleSlots later = ExternalSlots(77, {{2, 8.0}, {1, 9.0}});
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1}, {6, 7}, {10, 11, 12}, rule).ok());
  ASSERT_TRUE(store->maintenance()->SetRule(later).ok());
  EXPECT_EQ((std::vector<float>{10, 11, 12, 8, 8, 9}), Slots({1, 2}, later));
  EXPECT_EQ((std::vector<float>{10, 11, 12, 8, 8, 9}), Slots({1, 2}, rule));
}

TEST_P(StoreSlots, AnotherRuleThanTheStoresIsRefusedByNameAndNothingIsDone) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1}, {6, 7}, {10, 11, 12}, rule).ok());
  for (const RuleSlots& other :
       {ExternalSlots(78, {{2, 0.5}, {1, -1.0}}), ExternalSlots(77, {{3, 0.5}}), RuleSlots(),
        FusedSlots(RuleKind::kMomentum, kDim)}) {
    std::vector<float> weights(4, 99.0f), slots(12, 99.0f);
    const Status found = store->Find(serial, Batch{1, 2}, DefaultRows(), weights.data(), nullptr,
                                     {&other, slots.data()});
    EXPECT_EQ(StatusCode::kFailedPrecondition, found.code());
    EXPECT_NE(std::string::npos, found.message().find("'users'")) << found.message();
    EXPECT_EQ(std::vector<float>(4, 99.0f), weights);
    const Status assigned = Assign({1, 2}, weights, slots, other);
    EXPECT_EQ(StatusCode::kFailedPrecondition, assigned.code());
    EXPECT_NE(std::string::npos, assigned.message().find("'users'")) << assigned.message();
    EXPECT_EQ(1u, store->size());
    EXPECT_EQ((std::vector<float>{10, 11, 12}), Slots({1}, rule));
  }
}

TEST_P(StoreSlots, AnExternalRuleIsNotApplied) {
  Rule step;
  step.slots = rule;
  const float gradient[] = {1, 1};
  const Status status = store->Apply(serial, Batch{1}, gradient, DataType::kFloat, step);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_EQ("Table 'users' can't run an external rule: find and assign its slots.",
            status.message());
  EXPECT_EQ(0u, store->size());
  EXPECT_EQ(RuleKind::kNone, store->rule().kind);
}

TEST_P(StoreSlots, InitialValuesMayBeAnyNumber) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const RuleSlots odd = ExternalSlots(1, {{1, kNan}, {1, -kInfinity}, {1, -0.0}, {1, 0.1}});
  ASSERT_TRUE(store->maintenance()->SetRule(odd).ok());
  ASSERT_TRUE(store->maintenance()->SetRule(odd).ok());
  const std::vector<float> slots = Slots({1}, odd);
  EXPECT_TRUE(std::isnan(slots[0]));
  EXPECT_EQ(-std::numeric_limits<float>::infinity(), slots[1]);
  EXPECT_TRUE(slots[2] == 0.0f && std::signbit(slots[2]));
  EXPECT_EQ(0.1f, slots[3]);
  EXPECT_TRUE(SameRuleAndInitialValues(odd, store->rule()));
}

TEST_P(StoreSlots, ClearAndShrinkKeepTheRule) {
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(Assign({1}, {6, 7}, {10, 11, 12}, rule).ok());
  ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
  EXPECT_EQ((std::vector<float>{10, 11, 12}), Slots({1}, rule));
  ASSERT_TRUE(store->Clear().ok());
  EXPECT_TRUE(SameRuleAndInitialValues(rule, store->rule()));
  EXPECT_EQ((std::vector<float>{0.5, 0.5, -1.0}), Slots({1}, rule));
}

TEST_P(StoreSlots, AsManyGroupsAsARuleMayHave) {
  RuleSlots many = ExternalSlots(3, {});
  for (size_t i = 0; i < RuleSlots::kMaxGroups; ++i) many.AddGroup(i + 1, static_cast<double>(i));
  ASSERT_TRUE(store->maintenance()->SetRule(many).ok());
  const std::vector<float> slots = Slots({1}, many);
  ASSERT_EQ(136u, slots.size());
  EXPECT_EQ(0.0f, slots.front());
  EXPECT_EQ(15.0f, slots.back());
  EXPECT_EQ(14.0f, slots[119]);
}

TEST_P(StoreSlots, EveryTypeDimAndWidthAgreesWithTheOracle) {
  ForEachType([&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (size_t dim : {1, 3, 16, 65}) {
      for (uint32_t width : {1u, 2u, 7u, 64u}) {
        SCOPED_TRACE("dim " + std::to_string(dim) + ", width " + std::to_string(width));
        CheckedStore<T> both(GetParam(), dim);
        const auto some = [&] {
          return Scattered(RandomKeys(300, 0, 300, &both.random), &both.random);
        };
        both.FindSlots(some());
        both.SetRule(ExternalSlots(width, {{width, 0.5}, {3, -2.0}}));
        both.FindSlots(some());
        both.InsertOrAssign(some(), true);
        both.FindSlots(some(), DefaultRows::Kind::kOneEach);
        both.InsertOrAssign(some(), false);
        both.Accum(some());
        both.Erase(some());
        both.FindSlots(some(), DefaultRows::Kind::kOneForAll);
        both.ExpectSame();
        if (testing::Test::HasFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreSlots, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
