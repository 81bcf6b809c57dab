// SPDX-License-Identifier: Apache-2.0
// Stores with slots of float16 and bfloat16 in their rows. They equal a store that computes with
// wide slots and rounds them to the nearest after each step and assignment.
#include <cmath>
#include <string>

#include "tests/cc/support/checked_store.h"

namespace tf_embed {
namespace {

constexpr SlotType kWide = SlotType::kCompute;
constexpr SlotType kHalf = SlotType::kHalf;
constexpr SlotType kBFloat16 = SlotType::kBFloat16;

// A rule with groups of the given types, in turn.
Rule NarrowRule(RuleKind kind, size_t dim, const std::vector<SlotType>& types) {
  Rule rule = MakeRule(kind, dim, kind == RuleKind::kAdagrad ? 0.1 : 0.0);
  SetHyper(&rule, {{"decay_mode", static_cast<double>(DecayMode::kNone)}});
  for (uint32_t i = 0; i < rule.slots.num_groups; ++i) {
    rule.slots.groups[i].type = types[i % types.size()];
  }
  return rule;
}

class StoreNarrowSlots : public testing::TestWithParam<StoreKind> {};

const std::vector<SlotType> kTypes[] = {
    {kBFloat16}, {kHalf}, {kBFloat16, kWide}, {kHalf, kBFloat16, kWide}};

TEST_P(StoreNarrowSlots, StepsOfEveryRuleRoundSlotsOnceAtTheirEnd) {
  ForEachType([&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (!std::is_integral_v<T>) {
      for (int kind = static_cast<int>(RuleKind::kMomentum); kind < kRuleKinds; ++kind) {
        if (static_cast<RuleKind>(kind) == RuleKind::kExternal) continue;
        for (const auto& types : kTypes) {
          const size_t dim = kind == static_cast<int>(RuleKind::kEmaRowwiseAdagrad) ? 6 : 5;
          SCOPED_TRACE("rule " + std::to_string(kind));
          CheckedStore<T> both(GetParam(), dim);
          Rule rule = NarrowRule(static_cast<RuleKind>(kind), dim, types);
          for (rule.step = 1; rule.step < 4; ++rule.step) {
            const Batch batch = Scattered(RandomKeys(200, 0, 90, &both.random), &both.random);
            both.Apply(batch, rule);
            if (TypeOf<T>() == DataType::kBFloat16) both.ApplyFloats(batch, rule);
            both.FindSlots(batch);
          }
          both.ExpectSame();
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  });
}

TEST_P(StoreNarrowSlots, EveryVerbAgreesWithTheOracle) {
  ForEachType([&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (const size_t dim : {1, 3, 16, 65}) {
      SCOPED_TRACE("dim " + std::to_string(dim));
      CheckedStore<T> both(GetParam(), dim);
      const auto some = [&] {
        return Scattered(RandomKeys(300, 0, 300, &both.random), &both.random);
      };
      const uint32_t width = static_cast<uint32_t>(dim);
      both.SetRule(ExternalSlots(
          7, {{width, 0.1, kBFloat16}, {3, -2.1, kHalf}, {1, 1e-9, kHalf}, {1, 0.3, kWide}}));
      both.FindSlots(some());
      both.InsertOrAssign(some(), true);
      both.FindSlots(some(), DefaultRows::Kind::kOneEach);
      both.InsertOrAssign(some(), false);
      both.FindOrInsert(some());
      both.Accum(some());
      both.Erase(some());
      both.Shrink();
      both.FindSlots(some(), DefaultRows::Kind::kOneForAll);
      both.ExpectSame(50);
      both.Clear();
      both.FindOrInsert(some());
      both.ExpectSame();
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(StoreNarrowSlots, OtherTypesOfTheSameRuleKeepSlots) {
  CheckedStore<float> both(GetParam(), 3);
  const Batch batch(KeysFrom(0, 500));
  const RuleSlots wide = FusedSlots(RuleKind::kAdam, 3);
  both.SetRule(wide);
  both.InsertOrAssign(batch, true);
  both.Erase(Batch(KeysFrom(100, 50)));
  both.SetRule(Stored(wide, {kHalf, kWide}));
  both.ExpectSame();
  both.InsertOrAssign(Batch(KeysFrom(400, 200)), true);
  both.SetRule(Stored(wide, {kWide, kBFloat16}));
  both.ExpectSame();
  both.SetRule(wide);
  both.ExpectSame();
  // A step also has types. It converts the slots before it computes.
  Rule step = MakeRule(RuleKind::kAdam, 3);
  step.slots = Stored(wide, {kBFloat16, kHalf});
  both.Apply(batch, step);
  both.ExpectSame();
  both.SetRule(Stored(FusedSlots(RuleKind::kAdagrad, 3, 0.1), {kHalf}));
  both.ExpectSame();
}

TEST_P(StoreNarrowSlots, RowsTakeLessMemory) {
  constexpr size_t kDim = 32;
  StoreOptions options;
  options.dim = kDim;
  const auto bytes_per_row = [&](std::initializer_list<SlotType> types) {
    const auto store = GetParam().create(options);
    const Batch batch(KeysFrom(0, 1000));
    const std::vector<float> gradients(batch.size() * kDim, 1.0f);
    Rule rule = MakeRule(RuleKind::kPartialRowwiseAdam, kDim);
    rule.slots = Stored(rule.slots, types);
    EXPECT_TRUE(
        store->Apply(ExecContext::Serial(), batch, gradients.data(), DataType::kFloat, rule).ok());
    return store->Stats().payload_bytes / batch.size();
  };
  EXPECT_EQ(4 * kDim + 4 * kDim + 4, bytes_per_row({kWide, kWide}));
  EXPECT_EQ(4 * kDim + 2 * kDim + 8, bytes_per_row({kBFloat16, kWide}));
  EXPECT_EQ(4 * kDim + 2 * kDim + 8, bytes_per_row({kBFloat16, kHalf}));
}

TEST_P(StoreNarrowSlots, PassesOverAllRowsRoundToo) {
  constexpr size_t kDim = 5;
  for (const SlotType type : {kHalf, kBFloat16}) {
    CheckedStore<float> both(GetParam(), kDim);
    const auto round = [&](float x) {
      return type == kHalf ? Half::FromFloat(x).ToFloat() : BFloat16::FromFloat(x).ToFloat();
    };
    Rule rule = MakeRule(RuleKind::kEnsembleRowwiseAdagrad, kDim, std::nan(""));
    rule.slots = Stored(rule.slots, {type, kWide});
    ChangeHyper<EnsembleRowwiseAdagradRule>(&rule, [](auto& hyper) {
      hyper.average_every = 1;
      hyper.swap_every = 2;
      hyper.average_coefficient = 0.75;
    });
    const Batch all(KeysFrom(-100, 300));
    both.InsertOrAssign(all);
    const std::vector<float> zeros(all.size() * kDim);
    const auto read = [&](std::vector<float>* weights, std::vector<float>* slots) {
      weights->resize(all.size() * kDim);
      slots->resize(all.size() * (kDim + 1));
      ASSERT_TRUE(both.store
                      ->Find(ExecContext::Serial(), all, DefaultRows(), weights->data(), nullptr,
                             {&rule.slots, slots->data()})
                      .ok());
    };
    std::vector<float> w, s, next_w, next_s;
    for (rule.step = 1; rule.step < 6; ++rule.step) {
      ASSERT_TRUE(both.store->Apply(both.context, all, zeros.data(), DataType::kFloat, rule).ok());
      read(&w, &s);
      if (rule.step == 1) {
        for (size_t i = 0; i < w.size(); ++i) {
          ASSERT_EQ(round(w[i]), s[i / kDim * (kDim + 1) + i % kDim]) << "the first average";
        }
      }
      ASSERT_TRUE(both.store->UpdateAllRows(both.context, rule).ok());
      read(&next_w, &next_s);
      for (size_t i = 0; i < w.size(); ++i) {
        const size_t place = i / kDim * (kDim + 1) + i % kDim;
        const float z = s[place] + 0.25f * (w[i] - s[place]);
        ASSERT_EQ(round(z), next_s[place]);
        ASSERT_EQ((rule.step + 1) % 2 == 0 ? z : w[i], next_w[i]);
      }
    }
  }
}

TEST_P(StoreNarrowSlots, TheLargestSlotIsFoundInEachGroup) {
  const auto store = [&] {
    StoreOptions options;
    options.dim = 3;
    return GetParam().create(options);
  }();
  const RuleSlots rule = Stored(FusedSlots(RuleKind::kAdamAmsgrad, 3), {kBFloat16, kWide, kHalf});
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  const std::vector<float> weights(6);
  const std::vector<float> slots = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1};
  const ExecContext serial = ExecContext::Serial();
  ASSERT_TRUE(
      store->InsertOrAssign(serial, Batch{5, 6}, weights.data(), {&rule, slots.data()}).ok());
  for (size_t slot = 0; slot < 9; ++slot) {
    EXPECT_EQ(std::max(slots[slot], slots[9 + slot]), LargestSlot(*store, serial, rule, slot));
  }
  EXPECT_EQ(0.0, LargestSlot(*store, serial, rule, 9));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreNarrowSlots, testing::ValuesIn(HostStores()), NameOfStore);

TEST(DeviceStore, RefusesNarrowSlotsByName) {
  StoreOptions options;
  options.name = "users";
  options.dim = 2;
  std::unique_ptr<Store> store;
  ASSERT_TRUE(NewEmulatedDeviceStore(options, DeviceOptions(), &store).ok());
  Rule rule = MakeRule(RuleKind::kAdagrad, 2);
  rule.slots = Stored(rule.slots, {kHalf});
  const float gradient[] = {1, 2};
  for (const Status& status :
       {store->maintenance()->SetRule(rule.slots),
        store->Apply(ExecContext::Serial(), Batch{5}, gradient, DataType::kFloat, rule)}) {
    EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
    EXPECT_NE(std::string::npos, status.message().find("'users'")) << status.message();
  }
  EXPECT_EQ(0u, store->size());
  EXPECT_EQ(RuleKind::kNone, store->rule().kind);
}

}  // namespace
}  // namespace tf_embed
