// SPDX-License-Identifier: Apache-2.0
// Batches with the hint of distinct keys, true or false, on a single lane and on many.
#include "tests/cc/support/lockstep_store.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class DistinctKeys : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (lockstep && !HasLockstep()) GTEST_SKIP() << "sanitizers do not know the stacks of lanes";
    const auto create = [this](const StoreOptions& options) {
      std::unique_ptr<Store> store;
      (void)(lockstep ? NewLockstepStore(options, DeviceOptions(), &store)
                      : NewEmulatedDeviceStore(options, DeviceOptions(), &store));
      return store;
    };
    const StoreKind kind{"DeviceStore", create, true, true, true};
    const ExecContext context = lockstep ? ExecContext::Serial() : Threads(3);
    distinct = std::make_unique<Subject>(kind, AllStatistics(), context);
    plain = std::make_unique<Subject>(kind, AllStatistics(), context);
  }
  KeyBatch AsDistinct(const Batch& batch) const {
    KeyBatch keys = batch;
    keys.distinct = true;
    return keys;
  }
  // Runs a verb on both stores, and compares.
  template <typename Verb>
  void OnBoth(const Batch& batch, const Verb& verb) {
    Subject::ExpectOk(verb(distinct.get(), AsDistinct(batch)));
    Subject::ExpectOk(verb(plain.get(), batch));
    ASSERT_EQ(plain->store->size(), distinct->store->size());
    ASSERT_TRUE(plain->Rows() == distinct->Rows());
    ASSERT_TRUE(plain->Slots() == distinct->Slots());
    for (const int64_t key : batch.keys) {
      ASSERT_EQ(plain->StatisticsOf(key), distinct->StatisticsOf(key));
    }
    distinct->NextStep();
    plain->NextStep();
  }

  const bool lockstep = GetParam();
  std::unique_ptr<Subject> distinct;
  std::unique_ptr<Subject> plain;
};

TEST_P(DistinctKeys, EveryVerbDoesWhatItDoesUntold) {
  Random random(1);
  for (int round = 0; round < 3; ++round) {
    const auto some = [&] {
      std::vector<int64_t> keys = KeysFrom(0, 300);
      std::shuffle(keys.begin(), keys.end(), random);
      keys.resize(100);
      return Scattered(Batch(keys), &random);
    };
    const std::vector<float> rows = RandomValues<float>(200 * kDim, &random);
    const std::vector<float> others = RandomValues<float>(200 * kDim, &random);
    bool exists[200];
    for (bool& flag : exists) flag = random() % 2 == 0;
    OnBoth(some(), [&](Subject* subject, const KeyBatch& batch) {
      return subject->store->InsertOrAssign(subject->context, batch, rows.data(), {});
    });
    OnBoth(some(), [&](Subject* subject, const KeyBatch& batch) {
      return subject->store->Apply(subject->context, batch, rows.data(), DataType::kFloat,
                                   MakeRule(RuleKind::kAdam, kDim));
    });
    OnBoth(some(), [&](Subject* subject, const KeyBatch& batch) {
      return subject->store->Accum(subject->context, batch, rows.data(), others.data(), exists);
    });
    OnBoth(some(), [&](Subject* subject, const KeyBatch& batch) {
      std::vector<float> found(200 * kDim);
      return subject->store->FindOrInsert(subject->context, batch, DefaultRows(), found.data(),
                                          exists);
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(DistinctKeys, WherePlacesAreOfOneKeyEachIsDealtWithByItself) {
  Random random(2);
  const Batch batch = RandomKeys(400, 0, 90, &random);
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  const std::vector<float> zeros(batch.size() * kDim), gradients(batch.size() * kDim, -1.0f);
  // Each absent key gets a single row, and all steps change it.
  DefaultRows defaults{DefaultRows::Kind::kOneForAll, zeros.data()};
  std::vector<float> found(batch.size() * kDim);
  ASSERT_TRUE(
      distinct->store
          ->FindOrInsert(distinct->context, AsDistinct(batch), defaults, found.data(), nullptr)
          .ok());
  EXPECT_EQ(zeros, found);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(
        distinct->store
            ->Apply(distinct->context, AsDistinct(batch), gradients.data(), DataType::kFloat, rule)
            .ok());
  }
  std::map<int64_t, std::vector<float>> expected;
  for (const int64_t key : batch.keys) {
    std::vector<float>& row = expected.try_emplace(key, kDim, 0.0f).first->second;
    for (float& weight : row) weight += 2.0f;
  }
  EXPECT_TRUE(expected == distinct->Rows());
  EXPECT_EQ(expected.size(), distinct->store->size());
  EXPECT_EQ(expected.size(), distinct->store->Stats().admitted);
}

TEST_P(DistinctKeys, OfRowsOfOneKeyOneWins) {
  const Batch batch(std::vector<int64_t>(64, 7));
  const std::vector<float> rows(batch.size() * kDim, 3.0f);
  ASSERT_TRUE(
      distinct->store->InsertOrAssign(distinct->context, AsDistinct(batch), rows.data(), {}).ok());
  EXPECT_EQ((std::map<int64_t, std::vector<float>>{{7, std::vector<float>(kDim, 3.0f)}}),
            distinct->Rows());
  ASSERT_TRUE(distinct->store->Erase(distinct->context, AsDistinct(batch)).ok());
  EXPECT_EQ(0u, distinct->store->size());
}

INSTANTIATE_TEST_SUITE_P(Lanes, DistinctKeys, testing::Bool());

}  // namespace
}  // namespace tf_embed
