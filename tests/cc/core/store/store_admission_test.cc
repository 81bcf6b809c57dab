// SPDX-License-Identifier: Apache-2.0
// The keys that an admission gives rows, and reports of the rows that leave.
#include <map>
#include <set>

#include "cc/core/table/restrict.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class StoreAdmission : public testing::TestWithParam<StoreKind> {};

TEST_P(StoreAdmission, TheSinkLearnsOfEachEvictedRow) {
  Log log;
  RowPolicy policy = Bounded(50, EvictionOrder::kLru);
  policy.sink = &log;
  Subject subject(GetParam(), policy);
  std::map<int64_t, std::vector<float>> shadow;
  Random random(3);
  for (int step = 0; step < 200; ++step) {
    const std::vector<int64_t> keys = RandomKeys(1 + random() % 30, 0, 200, &random);
    subject.Apply(keys);
    const auto rows = subject.Rows();
    for (const auto& [key, row] : log.evicted) {
      ASSERT_EQ(1u, shadow.count(key)) << "evicted, but was not there";
      ASSERT_EQ(shadow[key], row);
      shadow.erase(key);
    }
    log.evicted.clear();
    for (const auto& [key, row] : shadow) ASSERT_EQ(1u, rows.count(key)) << "lost without a word";
    shadow = rows;
    subject.NextStep();
  }
}

TEST_P(StoreAdmission, WhereTheSinkFailsNothingLeaves) {
  Log log;
  RowPolicy policy = Bounded(3, EvictionOrder::kLru);
  policy.sink = &log;
  Subject subject(GetParam(), policy);
  subject.Apply({1, 2, 3});
  subject.NextStep();
  log.fails = true;
  EXPECT_EQ(StatusCode::kResourceExhausted, subject.TryApply({4}).code());
  EXPECT_EQ((std::set<int64_t>{1, 2, 3}), subject.Keys());
  log.fails = false;
  subject.Apply({4});
  EXPECT_EQ(3u, subject.Keys().size());
  EXPECT_EQ(1u, log.evicted.size());
}

TEST_P(StoreAdmission, TheSinkLearnsOfExpiredRowsAndOfThoseThatARestrictionTakes) {
  Log log;
  RowPolicy policy = AllStatistics();
  policy.ttl_milliseconds = 100;
  policy.sink = &log;
  Subject subject(GetParam(), policy);
  Store* const store = subject.store.get();
  std::map<int64_t, std::vector<float>> shadow;
  const auto expect_logged = [&](const char* when) {
    const auto rows = subject.Rows();
    for (const auto& [key, row] : log.evicted) {
      ASSERT_EQ(1u, shadow.count(key)) << when;
      ASSERT_EQ(shadow[key], row) << when;
      shadow.erase(key);
    }
    log.evicted.clear();
    ASSERT_TRUE(rows == shadow) << when;
  };
  for (int64_t step = 0; step < 60; ++step) {
    subject.Apply(KeysFrom(step * 80, 100));  // some keys are repeated, others are not
    for (const auto& [key, row] : subject.Rows()) shadow[key] = row;
    if (step % 20 == 5) {
      size_t removed = 0;
      ASSERT_TRUE(
          RestrictRows(subject.context, &store, 1, EvictionOrder::kLru, 300, &removed).ok());
    }
    if (step % 20 == 15) {
      size_t removed = 0;
      ASSERT_TRUE(store->eviction()->EvictExpired(subject.context, &removed).ok());
    }
    expect_logged(("step " + std::to_string(step)).c_str());
    if (HasFatalFailure()) return;
    subject.NextStep(10);
  }
  EXPECT_GT(store->Stats().expired, 1000u);
}

TEST_P(StoreAdmission, ACounterAdmitsAtTheNthApply) {
  RowPolicy policy;
  policy.admission = Admission::NewCounter(HostAllocator(), 3, 0);
  Subject subject(GetParam(), policy);
  std::map<int64_t, int> applies;
  Random random(1);
  size_t held_back = 0;
  for (int step = 0; step < 50; ++step) {
    const std::vector<int64_t> keys = RandomKeys(40, 0, 300, &random);
    for (const int64_t key : std::set<int64_t>(keys.begin(), keys.end())) {
      held_back += ++applies[key] < 3 ? 1 : 0;
    }
    subject.Find(keys, true);
    subject.Apply(keys);
    std::set<int64_t> expected;
    for (const auto& [key, count] : applies) {
      if (count >= 3) expected.insert(key);
    }
    ASSERT_EQ(expected, subject.Keys());
    subject.NextStep();
  }
  EXPECT_EQ(held_back, subject.store->Stats().held_back);
  EXPECT_EQ(subject.store->size(), subject.store->Stats().admitted);
  subject.Upsert({1000});
  EXPECT_TRUE(subject.Has(1000)) << "an upsert needs no admission";
}

TEST_P(StoreAdmission, AnAdmissionLetsInWhatItLetsIntoAStoreOnTheHost) {
  const auto policies = [](int kind) {
    RowPolicy policy;
    policy.admission = kind < 2 ? Admission::NewCounter(HostAllocator(), 3, kind == 0 ? 0 : 60)
                                : Admission::NewBloom(HostAllocator(), 2, 0.1, kind == 2 ? 0 : 60);
    return policy;
  };
  for (int kind = 0; kind < 4; ++kind) {
    Subject ours(GetParam(), policies(kind)), host(HostStores().back(), policies(kind));
    Random random(static_cast<uint64_t>(kind));
    for (int step = 0; step < 60; ++step) {
      const Batch applied = Scattered(RandomKeys(1 + random() % 60, 0, 400, &random), &random);
      const Batch upserted = RandomKeys(random() % 4, 0, 400, &random);
      const Batch erased = RandomKeys(random() % 9, 0, 400, &random);
      for (Subject* const subject : {&ours, &host}) {
        subject->context.training = true;
        std::vector<float> rows(upserted.size() * kDim);
        Subject::ExpectOk(subject->store->FindOrInsert(subject->context, upserted, DefaultRows(),
                                                       rows.data(), nullptr));
        const std::vector<float> gradients(applied.places * kDim, 1.0f);
        Subject::ExpectOk(subject->store->Apply(subject->context, applied, gradients.data(),
                                                DataType::kFloat,
                                                MakeRule(RuleKind::kMomentum, kDim)));
        subject->context.training = step % 3 == 0;
        subject->Upsert(upserted);
        Subject::ExpectOk(subject->store->Erase(subject->context, erased));
        subject->NextStep();
      }
      ASSERT_EQ(host.Rows(), ours.Rows()) << "kind " << kind << ", step " << step;
    }
    EXPECT_EQ(host.store->Stats().held_back, ours.store->Stats().held_back);
    std::vector<int64_t> wanted, counted;
    Subject::ExpectOk(host.store->options().policy.admission->Save(&wanted));
    Subject::ExpectOk(ours.store->options().policy.admission->Save(&counted));
    EXPECT_EQ(wanted, counted);
  }
}

TEST_P(StoreAdmission, AKeyThatIsRefusedNeedsNoNewAdmission) {
  RowPolicy policy = Bounded(2, EvictionOrder::kLru);
  policy.admission = Admission::NewCounter(HostAllocator(), 3, 0);
  Subject subject(GetParam(), policy);
  for (int step = 0; step < 3; ++step) {
    subject.Apply({1, 2, 3});
    subject.NextStep();
  }
  EXPECT_EQ((std::set<int64_t>{1, 2}), subject.Keys());
  EXPECT_EQ(1u, subject.store->Stats().refused);
  subject.Apply({3});
  EXPECT_TRUE(subject.Has(3));
  EXPECT_EQ(6u, subject.store->Stats().held_back);
}

TEST_P(StoreAdmission, ARowThatComesByHandEndsTheWaiting) {
  RowPolicy policy;
  policy.admission = Admission::NewCounter(HostAllocator(), 3, 0);
  Subject subject(GetParam(), policy);
  for (int step = 0; step < 2; ++step) {
    subject.Apply({1});
    subject.NextStep();
  }
  subject.Upsert({1});
  ASSERT_TRUE(subject.store->Erase(subject.context, Batch{1}).ok());
  subject.NextStep();
  subject.Apply({1});
  EXPECT_FALSE(subject.Has(1));
}

TEST_P(StoreAdmission, FindOrInsertInTrainingInsertsWhatAnApplyWould) {
  RowPolicy policy;
  policy.admission = Admission::NewCounter(HostAllocator(), 2, 0);
  Subject subject(GetParam(), policy);
  subject.Apply({1});
  subject.context.training = true;
  float rows[2 * kDim];
  bool exists[2];
  for (int again = 0; again < 3; ++again) {
    ASSERT_TRUE(
        subject.store->FindOrInsert(subject.context, Batch{1, 2}, DefaultRows(), rows, exists)
            .ok());
  }
  EXPECT_EQ((std::set<int64_t>{1}), subject.Keys());
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreAdmission, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
