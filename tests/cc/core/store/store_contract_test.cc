// SPDX-License-Identifier: Apache-2.0
// The contract of every Store: by example, against the oracle, and by random sequences of verbs.
#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {
namespace {

using Defaults = DefaultRows::Kind;

// A float store of dim 2 with simple helpers, for tests by example.
class StoreContract : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.dim = 2;
    options.initializer = UniformInitializer();
    store = GetParam().create(options);
    ASSERT_NE(nullptr, store);
  }

  static std::vector<float> InitialRow(int64_t key, const RowInitializer& initializer) {
    std::vector<float> row(2);
    InitializeWeights(initializer, key, 2, row.data());
    return row;
  }
  static std::vector<float> InitialRow(int64_t key) {
    return InitialRow(key, UniformInitializer());
  }

  std::vector<float> Row(int64_t key, bool* exists = nullptr) const {
    std::vector<float> row(2);
    bool found;
    EXPECT_TRUE(store->Find(serial, Batch{key}, DefaultRows(), row.data(), &found, {}).ok());
    if (exists != nullptr) *exists = found;
    return row;
  }
  bool Has(int64_t key) const {
    bool exists;
    Row(key, &exists);
    return exists;
  }
  void Put(const Batch& batch, const std::vector<float>& weights) {
    ASSERT_TRUE(store->InsertOrAssign(serial, batch, weights.data(), {}).ok());
  }
  // The slots of all rows, by key.
  std::map<int64_t, std::vector<float>> Slots() const {
    const size_t count = store->rule().slots_per_row();
    std::map<int64_t, std::vector<float>> slots;
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      EXPECT_TRUE(store->maintenance()->ExportBatch(100, &cursor, &rows).ok());
      const float* const values = reinterpret_cast<const float*>(rows.slots.data());
      for (size_t i = 0; i < rows.size; ++i) {
        slots[rows.keys[i]].assign(values + i * count, values + (i + 1) * count);
      }
    }
    return slots;
  }

  const ExecContext serial = ExecContext::Serial();
  std::unique_ptr<Store> store;
};

TEST_P(StoreContract, NewStoreIsEmptyAndHasNoRule) {
  EXPECT_EQ(0u, store->size());
  EXPECT_EQ(RuleKind::kNone, store->rule().kind);
  EXPECT_EQ(2u, store->options().dim);
  EXPECT_EQ(7u, store->initializer().seed);
}

TEST_P(StoreContract, FindOfAbsentKeyGivesItsInitialRowAndInsertsNothing) {
  EXPECT_EQ(InitialRow(5), Row(5));
  EXPECT_FALSE(Has(5));
  EXPECT_EQ(0u, store->size());
}

TEST_P(StoreContract, FindTakesDefaultsOfTheCaller) {
  const float one[] = {1, 2};
  const float each[] = {1, 2, 3, 4};
  std::vector<float> found(4);
  const Batch batch{8, 9};
  ASSERT_TRUE(
      store->Find(serial, batch, {Defaults::kOneForAll, one}, found.data(), nullptr, {}).ok());
  EXPECT_EQ((std::vector<float>{1, 2, 1, 2}), found);
  ASSERT_TRUE(
      store->Find(serial, batch, {Defaults::kOneEach, each}, found.data(), nullptr, {}).ok());
  EXPECT_EQ((std::vector<float>{1, 2, 3, 4}), found);
}

TEST_P(StoreContract, FindOrInsertSaysWhoWasThereBefore) {
  Put({1}, {10, 11});
  bool exists[4] = {true, false, true, true};
  float rows[8];
  const Batch batch{2, 1, 2, 3};
  ASSERT_TRUE(store->FindOrInsert(serial, batch, DefaultRows(), rows, exists).ok());
  EXPECT_FALSE(exists[0]);
  EXPECT_TRUE(exists[1]);
  EXPECT_FALSE(exists[2]) << "the second place of a key that was absent before the batch";
  EXPECT_FALSE(exists[3]);
  EXPECT_EQ(3u, store->size());
  EXPECT_EQ(InitialRow(2), Row(2));
  EXPECT_EQ(10, rows[2]);
}

TEST_P(StoreContract, FindOrInsertWithoutExistsInsertsAllTheSame) {
  float rows[4];
  ASSERT_TRUE(store->FindOrInsert(serial, Batch{2, 3}, DefaultRows(), rows, nullptr).ok());
  EXPECT_TRUE(Has(2) && Has(3));
}

TEST_P(StoreContract, FindOrInsertTakesTheFirstDefaultOfEqualKeys) {
  const float each[] = {1, 2, 3, 4};
  float rows[4];
  bool exists[2];
  ASSERT_TRUE(
      store->FindOrInsert(serial, Batch{7, 7}, {Defaults::kOneEach, each}, rows, exists).ok());
  EXPECT_EQ((std::vector<float>{1, 2}), Row(7));
  EXPECT_EQ((std::vector<float>{1, 2, 1, 2}), std::vector<float>(rows, rows + 4));
}

TEST_P(StoreContract, InsertOrAssignTakesTheLastOfEqualKeys) {
  Put({4, 5, 4}, {1, 1, 2, 2, 3, 3});
  EXPECT_EQ((std::vector<float>{3, 3}), Row(4));
  EXPECT_EQ((std::vector<float>{2, 2}), Row(5));
  EXPECT_EQ(2u, store->size());
}

TEST_P(StoreContract, InsertOrAssignKeepsSlotsUnlessTheyAreGiven) {
  const RuleSlots rule = FusedSlots(RuleKind::kMomentum, 2, 0.5);
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  const float slots[] = {8, 9};
  Put({1}, {0, 0});
  EXPECT_EQ((std::vector<float>{0.5, 0.5}), Slots()[1]);
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{1}, slots, {&rule, slots}).ok());
  EXPECT_EQ((std::vector<float>{8, 9}), Slots()[1]);
  Put({1}, {3, 4});
  EXPECT_EQ((std::vector<float>{8, 9}), Slots()[1]);
  EXPECT_EQ((std::vector<float>{3, 4}), Row(1));
}

TEST_P(StoreContract, AccumHasFourCases) {
  Put({1, 2}, {10, 10, 20, 20});
  const float zeros[8] = {}, values[] = {1, 2, 1, 2, 1, 2, 1, 2};
  const bool exists[] = {true, false, true, false};
  ASSERT_TRUE(store->Accum(serial, Batch{1, 2, 3, 4}, zeros, values, exists).ok());
  EXPECT_EQ((std::vector<float>{11, 12}), Row(1)) << "present and known so: added";
  EXPECT_EQ((std::vector<float>{20, 20}), Row(2)) << "present, thought absent: left";
  EXPECT_FALSE(Has(3)) << "absent, thought present: left out";
  EXPECT_EQ((std::vector<float>{1, 2}), Row(4)) << "absent and known so: inserted";
}

TEST_P(StoreContract, AccumAddsEachOfEqualKeysButInsertsOnlyTheFirst) {
  Put({1}, {10, 10});
  const float zeros[8] = {}, values[] = {1, 1, 2, 2, 3, 3, 4, 4};
  const bool exists[] = {true, true, false, false};
  ASSERT_TRUE(store->Accum(serial, Batch{1, 1, 2, 2}, zeros, values, exists).ok());
  EXPECT_EQ((std::vector<float>{13, 13}), Row(1));
  EXPECT_EQ((std::vector<float>{3, 3}), Row(2));
}

TEST_P(StoreContract, AccumSeesWhatItInsertedEarlierInTheBatch) {
  const float zeros[6] = {}, values[] = {1, 1, 2, 2, 4, 4};
  const bool exists[] = {true, false, true};
  ASSERT_TRUE(store->Accum(serial, Batch{1, 1, 1}, zeros, values, exists).ok());
  EXPECT_EQ((std::vector<float>{6, 6}), Row(1));
}

TEST_P(StoreContract, ApplySumsGradientsOfEqualKeysBeforeTheRule) {
  const Rule rule = Rule::Of<AdagradRule>(2, {0.0, 0.0}, 1.0);
  Put({1}, {0, 0});
  const float gradients[] = {1, 2, 2, 2};
  ASSERT_TRUE(store->Apply(serial, Batch{1, 1}, gradients, DataType::kFloat, rule).ok());
  EXPECT_EQ((std::vector<float>{9, 16}), Slots()[1]);  // (1 + 2)^2, (2 + 2)^2
  EXPECT_EQ((std::vector<float>{-1, -1}), Row(1));
}

TEST_P(StoreContract, ApplyInsertsAbsentKeysWithTheirInitialRows) {
  Rule rule = MakeRule(RuleKind::kSgd, 2);
  rule.learning_rate = 1.0;
  const float gradients[] = {1, 2};
  ASSERT_TRUE(store->Apply(serial, Batch{6}, gradients, DataType::kFloat, rule).ok());
  EXPECT_EQ((std::vector<float>{InitialRow(6)[0] - 1, InitialRow(6)[1] - 2}), Row(6));
}

TEST_P(StoreContract, ApplyOfAnotherRuleReplacesSlotsAndKeepsWeights) {
  const float zeros[] = {0, 0, 0, 0};
  Put({1, 2}, {1, 2, 3, 4});
  ASSERT_TRUE(
      store->Apply(serial, Batch{1}, zeros, DataType::kFloat, MakeRule(RuleKind::kAdam, 2)).ok());
  EXPECT_EQ(4u, Slots()[2].size());
  ASSERT_TRUE(
      store->Apply(serial, Batch{1}, zeros, DataType::kFloat, MakeRule(RuleKind::kAdagrad, 2, 0.5))
          .ok());
  EXPECT_EQ(RuleKind::kAdagrad, store->rule().kind);
  EXPECT_EQ((std::vector<float>{0.5, 0.5}), Slots()[1]);
  EXPECT_EQ((std::vector<float>{0.5, 0.5}), Slots()[2]);
  EXPECT_EQ((std::vector<float>{1, 2}), Row(1));
  EXPECT_EQ((std::vector<float>{3, 4}), Row(2));
}

TEST_P(StoreContract, SetRuleOfTheSameKindKeepsSlots) {
  const float slots[] = {8, 9};
  const RuleSlots rule = FusedSlots(RuleKind::kAdagrad, 2, 0.1);
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{1}, slots, {&rule, slots}).ok());
  ASSERT_TRUE(store->maintenance()->SetRule(FusedSlots(RuleKind::kAdagrad, 2, 0.25)).ok());
  Put({2}, {0, 0});
  EXPECT_EQ((std::vector<float>{8, 9}), Slots()[1]);
  EXPECT_EQ((std::vector<float>{0.25, 0.25}), Slots()[2]) << "new rows take the new value";
}

TEST_P(StoreContract, EraseRemovesKeysAndLetsThemComeBackFresh) {
  Put({1, 2, 3}, {1, 1, 2, 2, 3, 3});
  ASSERT_TRUE(store->Erase(serial, Batch{2, 2, 77}).ok());
  EXPECT_EQ(2u, store->size());
  EXPECT_FALSE(Has(2));
  EXPECT_EQ(InitialRow(2), Row(2));
  Put({2}, {5, 5});
  EXPECT_EQ((std::vector<float>{5, 5}), Row(2));
  EXPECT_EQ((std::vector<float>{3, 3}), Row(3));
}

TEST_P(StoreContract, ClearRemovesAllKeysAndKeepsRuleAndInitializer) {
  ASSERT_TRUE(store->maintenance()->SetRule(FusedSlots(RuleKind::kAdam, 2)).ok());
  Put({1, 2}, {1, 1, 2, 2});
  ASSERT_TRUE(store->Clear().ok());
  EXPECT_EQ(0u, store->size());
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(InitialRow(1), Row(1));
  EXPECT_EQ(RuleKind::kAdam, store->rule().kind);
  Put({1}, {4, 4});
  EXPECT_EQ(1u, store->size());
}

TEST_P(StoreContract, ApplyRefusesIntegerWeights) {
  StoreOptions options;
  options.name = "counts";
  options.value_type = DataType::kInt32;
  const auto counts = GetParam().create(options);
  const int32_t gradient = 1;
  const Status status =
      counts->Apply(serial, Batch{1}, &gradient, DataType::kInt32, MakeRule(RuleKind::kSgd, 1));
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("counts"));
  EXPECT_EQ(0u, counts->size());
}

TEST_P(StoreContract, IntegersWrapAround) {
  StoreOptions options;
  options.value_type = DataType::kInt8;
  const auto bytes = GetParam().create(options);
  const int8_t value = 100, minus = -128, zero = 0;
  const bool exists = true;
  ASSERT_TRUE(bytes->InsertOrAssign(serial, Batch{1}, &value, {}).ok());
  ASSERT_TRUE(bytes->Accum(serial, Batch{1}, &zero, &value, &exists).ok());
  int8_t found;
  ASSERT_TRUE(bytes->Find(serial, Batch{1}, DefaultRows(), &found, nullptr, {}).ok());
  EXPECT_EQ(static_cast<int8_t>(200), found);
  ASSERT_TRUE(bytes->Accum(serial, Batch{1}, &minus, &value, &exists).ok());
  ASSERT_TRUE(bytes->Find(serial, Batch{1}, DefaultRows(), &found, nullptr, {}).ok());
  EXPECT_EQ(static_cast<int8_t>(200 + 228), found);
}

TEST_P(StoreContract, BoolsAreKeptAndNeverAdded) {
  StoreOptions options;
  options.name = "flags";
  options.value_type = DataType::kBool;
  options.dim = 3;
  options.initializer.a = 1.0;
  const auto flags = GetParam().create(options);
  const bool rows[2][3] = {{true, false, true}, {false, false, true}};
  bool found[3][3], exists[3];
  ASSERT_TRUE(flags->InsertOrAssign(serial, Batch{5, 6}, rows, {}).ok());
  ASSERT_TRUE(flags->FindOrInsert(serial, Batch{5, 6, 7}, DefaultRows(), found, exists).ok());
  EXPECT_EQ(0, std::memcmp(rows, found, sizeof(rows)));
  EXPECT_TRUE(found[2][0] && found[2][1] && found[2][2] && exists[0] && !exists[2]);
  const Status status = flags->Accum(serial, Batch{5, 8}, found, rows, exists);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'flags' has bool weights"));
  EXPECT_EQ(3u, flags->size());
}

TEST_P(StoreContract, NewEmptyIsEmptyAndTakesItsOwnInitializer) {
  Put({1}, {1, 1});
  const std::unique_ptr<Store> fresh = store->maintenance()->NewEmpty(1000, UniformInitializer(99));
  ASSERT_NE(nullptr, fresh);
  EXPECT_EQ(0u, fresh->size());
  EXPECT_EQ(2u, fresh->options().dim);
  EXPECT_EQ(99u, fresh->initializer().seed);
}

TEST_P(StoreContract, TakeContentReplacesEverythingAtOnce) {
  Put({1, 2}, {1, 1, 2, 2});
  const std::unique_ptr<Store> fresh = store->maintenance()->NewEmpty(0, UniformInitializer(99));
  ASSERT_TRUE(fresh->maintenance()->SetRule(FusedSlots(RuleKind::kMomentum, 2, 0.5)).ok());
  const float row[] = {3, 3};
  ASSERT_TRUE(fresh->InsertOrAssign(serial, Batch{3}, row, {}).ok());
  ASSERT_TRUE(store->maintenance()->TakeContent(fresh.get()).ok());
  EXPECT_EQ(1u, store->size());
  EXPECT_FALSE(Has(1));
  EXPECT_EQ((std::vector<float>{3, 3}), Row(3));
  EXPECT_EQ(RuleKind::kMomentum, store->rule().kind);
  EXPECT_EQ((std::vector<float>{0.5, 0.5}), Slots()[3]);
  EXPECT_EQ(InitialRow(1, UniformInitializer(99)), Row(1));
  ASSERT_TRUE(store->Clear().ok());
  EXPECT_EQ(99u, store->initializer().seed) << "Clear keeps what was taken over";
}

TEST_P(StoreContract, EmptyBatchesDoNothing) {
  CheckedStore<float> both(GetParam(), 3);
  const Batch none(std::vector<int64_t>{});
  for (int round = 0; round < 2; ++round) {
    both.Find(none);
    both.FindOrInsert(none);
    both.InsertOrAssign(none);
    both.Accum(none);
    both.Apply(none, MakeRule(RuleKind::kAdam, 3));
    both.Erase(none);
    ASSERT_TRUE(both.store->Find(serial, KeyBatch(), DefaultRows(), nullptr, nullptr, {}).ok());
    ASSERT_TRUE(both.store->FindOrInsert(serial, KeyBatch(), DefaultRows(), nullptr, nullptr).ok());
    both.ExpectSame();
    both.InsertOrAssign({1, 2, 3});
  }
}

TEST_P(StoreContract, ExportOfAnyBatchSizeGivesEachKeyOnce) {
  CheckedStore<float> both(GetParam(), 5);
  both.ExpectSame();
  both.SetRule(FusedSlots(RuleKind::kRowwiseAdagrad, 5, 0.5));
  both.InsertOrAssign(KeysFrom(-5000, 10000), true);
  for (size_t max_rows : {0, 1, 7, 100, 9999, 10000, 1 << 20}) both.ExpectSame(max_rows);
  both.ExpectSame(SIZE_MAX);
}

// ---- Against the oracle ----

// All verbs, on a few hundred keys.
template <typename T>
void RunAllVerbs(CheckedStore<T>* both, size_t keys, const Rule& rule) {
  const auto some = [&] {
    return Scattered(RandomKeys(keys, 0, static_cast<int64_t>(keys), &both->random), &both->random);
  };
  both->FindOrInsert(some());
  both->Find(some());
  both->InsertOrAssign(some());
  if (IsFloating(TypeOf<T>())) {
    for (int64_t step = 1; step <= 3; ++step) {
      Rule now = rule;
      now.step = step;
      now.learning_rate = rule.learning_rate / static_cast<double>(step);
      both->Apply(some(), now);
    }
  }
  both->InsertOrAssign(some(), true);
  both->Accum(some());
  both->ExpectSame();
  both->Erase(some());
  both->Find(some(), Defaults::kOneEach);
  both->FindOrInsert(some(), Defaults::kOneForAll);
  both->Shrink();
  both->FindOrInsert(some(), Defaults::kOneEach);
  both->ExpectSame();
}

TEST_P(StoreContract, EveryTypeAndDimAgreesWithTheOracle) {
  ForEachType([&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (size_t dim : {1, 2, 3, 5, 16, 17, 64, 100, 101, 1000, 4096}) {
      SCOPED_TRACE("dim " + std::to_string(dim));
      CheckedStore<T> both(GetParam(), dim, dim < 64 ? Threads(2) : ExecContext::Serial());
      RunAllVerbs(&both, dim < 1000 ? 200 : 20, MakeRule(RuleKind::kAdam, dim));
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(StoreContract, EveryRuleAgreesWithTheOracle) {
  for (size_t dim : Sizes({1, 7, 32})) {
    for (const Rule& rule : AllRules(dim)) {
      SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule.slots.kind)));
      CheckedStore<float> floats(GetParam(), dim);
      RunAllVerbs(&floats, 300, rule);
      CheckedStore<double> doubles(GetParam(), dim);
      RunAllVerbs(&doubles, 300, rule);
      CheckedStore<Half> halves(GetParam(), dim);
      RunAllVerbs(&halves, 300, rule);
      CheckedStore<BFloat16> narrow(GetParam(), dim);
      RunAllVerbs(&narrow, 300, rule);
    }
  }
}

TEST_P(StoreContract, NarrowWeightsTakeFloatGradients) {
  const auto check = [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (const Rule& rule : AllRules(7)) {
      SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule.slots.kind)));
      CheckedStore<T> both(GetParam(), 7);
      for (int step = 0; step < 3; ++step) {
        both.ApplyFloats(Scattered(RandomKeys(300, 0, 100, &both.random), &both.random), rule);
        both.Apply(RandomKeys(300, 0, 100, &both.random), rule);
      }
      both.ExpectSame();
    }
  };
  check(TypeTag<Half>());
  check(TypeTag<BFloat16>());
}

TEST_P(StoreContract, GradientsBeginAnywhereAndHaveFactors) {
  const auto check = [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (size_t dim : {1, 7, 64, 100}) {
      CheckedStore<T> both(GetParam(), dim);
      for (bool scaled : {false, true, false, true}) {
        const Batch batch = RandomKeys(500, 0, 60, &both.random);
        both.ApplyShared(batch, MakeRule(RuleKind::kAdam, dim), scaled);
      }
      both.ExpectSame();
    }
  };
  check(TypeTag<float>()), check(TypeTag<double>()), check(TypeTag<Half>());
}

TEST_P(StoreContract, ApplyRefusesGradientsOfAnotherType) {
  constexpr DataType kTypes[] = {DataType::kFloat, DataType::kHalf, DataType::kBFloat16,
                                 DataType::kDouble, DataType::kInt32};
  const double gradient[] = {0.0, 0.0};
  for (DataType value_type : {DataType::kFloat, DataType::kHalf, DataType::kDouble}) {
    StoreOptions options;
    options.name = "items";
    options.value_type = value_type;
    options.dim = 2;
    for (DataType type : kTypes) {
      const auto items = GetParam().create(options);
      const bool fits =
          type == value_type || (value_type == DataType::kHalf && type == DataType::kFloat);
      const Status status =
          items->Apply(serial, Batch{1}, gradient, type, MakeRule(RuleKind::kAdam, 2));
      EXPECT_EQ(fits ? StatusCode::kOk : StatusCode::kInvalidArgument, status.code());
      EXPECT_EQ(fits, status.message().find("'items'") == std::string::npos);
      EXPECT_EQ(fits ? 1u : 0u, items->size());
    }
  }
}

TEST_P(StoreContract, EveryChangeOfRuleKeepsWeights) {
  CheckedStore<float> both(GetParam(), 3);
  both.InsertOrAssign(KeysFrom(0, 2000));
  for (const Rule& first : AllRules(3)) {
    for (const Rule& second : AllRules(3)) {
      both.SetRule(first.slots);
      both.Erase(RandomKeys(50, 0, 2000, &both.random));
      both.Apply(RandomKeys(20, 0, 2500, &both.random), first);
      both.Apply(RandomKeys(20, 0, 2500, &both.random), second);
    }
    both.ExpectSame();
  }
}

TEST_P(StoreContract, EveryKeyIsLegal) {
  CheckedStore<float> both(GetParam(), 3);
  both.Find(ExtremeKeys());
  for (int64_t key : ExtremeKeys()) both.FindOrInsert({key});
  both.ExpectSame();
  both.Apply(ExtremeKeys(), MakeRule(RuleKind::kAdam, 3));
  both.ExpectSame();
  for (int64_t key : ExtremeKeys()) {
    both.Erase({key});
    both.Find(ExtremeKeys());
  }
  EXPECT_EQ(0u, both.store->size());
  both.InsertOrAssign(ExtremeKeys());
  both.ExpectSame();
}

TEST_P(StoreContract, LargeBatchesOfManyPartsAgreeWithTheOracle) {
  for (size_t size : Sizes({4097, 40000, 4096, 8193, 270000})) {
    SCOPED_TRACE("batch " + std::to_string(size));
    CheckedStore<float> both(GetParam(), 2, Threads(3));
    const int64_t keys = static_cast<int64_t>(size / 2);
    const auto some = [&] { return Batch(RandomKeys(size, -keys, keys, &both.random)); };
    both.FindOrInsert(Scattered(some(), &both.random), Defaults::kOneEach);
    both.InsertOrAssign(some());
    both.Apply(Scattered(some(), &both.random), MakeRule(RuleKind::kAdagrad, 2, 0.1));
    both.Accum(some());
    both.Erase(RandomKeys(size / 2, -keys, keys, &both.random));
    both.Find(some());
    both.ExpectSame(10000);
  }
}

TEST_P(StoreContract, AnyNumberOfThreadsGivesTheSameBits) {
  const auto run = [&](const ExecContext& context) {
    CheckedStore<float> both(GetParam(), 9, context, 42);
    for (int64_t step = 1; step <= 4; ++step) {
      Rule rule = MakeRule(RuleKind::kAdam, 9);
      rule.step = step;
      // Few keys, each repeated many times, so the sums depend on their order.
      both.Apply(RandomKeys(30000, 0, 500, &both.random), rule);
      both.Apply(RandomKeys(20000, 0, 1 << 20, &both.random), rule);
    }
    both.ExpectSame();
    return std::move(both.oracle.rows);
  };
  // All equal the same oracle, so they equal each other.
  const auto rows = run(ExecContext::Serial());
  for (size_t threads : {1, 2, 5}) EXPECT_EQ(rows.size(), run(Threads(threads)).size());
}

TEST_P(StoreContract, GrowsFromNothingToManyKeysAndBack) {
  for (size_t init_size : {0, 300000}) {
    SCOPED_TRACE("init_size " + std::to_string(init_size));
    CheckedStore<float> both(GetParam(), 1, Threads(2), 1, UniformInitializer(), init_size);
    for (int64_t first = 0; first < 300000; first += 10000) {
      const Batch batch = KeysFrom(first * 1000003, 10000, 1000003);
      both.InsertOrAssign(batch);
      both.Find(batch);
    }
    both.ExpectSame(50000);
    both.Erase(KeysFrom(0, 290000, 1000003));
    both.Shrink();
    both.ExpectSame();
    both.Find(KeysFrom(0, 300000, 1000003));
  }
}

TEST_P(StoreContract, RandomSequencesOfVerbsAgreeWithTheOracle) {
  for (uint64_t seed : Seeds(40)) {
    SCOPED_TRACE("TF_EMBED_TEST_SEED=" + std::to_string(seed));
    const size_t dim = 1 + seed % 9;
    const std::vector<Rule> rules = AllRules(dim);
    CheckedStore<float> both(GetParam(), dim, Threads(1 + seed % 3), seed, UniformInitializer(seed),
                             seed % 2 * 500);
    Random& random = both.random;
    const int64_t range = int64_t{1} << (3 + seed % 10);
    Rule rule = rules[random() % rules.size()];
    for (int step = 1; step <= 80 && !HasFailure(); ++step) {
      Batch batch = RandomKeys(random() % 200, -range, range, &random);
      for (int64_t& key : batch.keys) key *= int64_t{1} << seed % 4 * 16;
      if (random() % 2 == 0) batch = Scattered(batch, &random);
      const auto defaults = static_cast<Defaults>(random() % 3);
      switch (random() % 20) {
        case 0:
          both.SetRule(random() % 2 == 0 ? rules[random() % rules.size()].slots
                                         : ExternalSlots(random() % 2, {{1, 0.5}, {5, -1.0}}));
          break;
        case 1:
          both.Shrink();
          break;
        case 2:
          if (random() % 4 == 0) both.Clear();
          break;
        case 3:
          rule = rules[random() % rules.size()];
          break;
        case 4:
          both.ExpectSame(random() % 300);
          break;
        case 5:
        case 6:
          both.Find(batch, defaults);
          break;
        case 7:
          both.FindSlots(batch, defaults);
          break;
        case 8:
        case 9:
        case 10:
          both.FindOrInsert(batch, defaults);
          break;
        case 11:
        case 12:
          both.InsertOrAssign(batch, random() % 2 == 0);
          break;
        case 13:
        case 14:
          both.Accum(batch);
          break;
        case 15:
        case 16:
        case 17:
          rule.step = step;
          both.Apply(batch, rule);
          break;
        default:
          both.Erase(batch);
      }
    }
    both.ExpectSame();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
