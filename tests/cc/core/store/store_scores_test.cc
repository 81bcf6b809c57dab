// SPDX-License-Identifier: Apache-2.0
// Scores given with rows, and scores that are epochs, against the same simulation as other
// policies.
#include <map>
#include <set>

#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class StoreScores : public testing::TestWithParam<StoreKind> {};

// A batch with a score for each place.
struct Scored {
  Batch batch;
  std::vector<int64_t> scores;

  operator KeyBatch() const {
    KeyBatch keys = batch;
    keys.scores = scores.data();
    return keys;
  }
};

int64_t ScoreOfRow(Subject* subject, int64_t key) {
  const std::vector<uint64_t> words = subject->StatisticsOf(key);
  const StatisticSet set = subject->store->options().policy.statistics;
  return RowStatistics::ScoreOf(words.at(set.IndexOf(Statistic::kScore)));
}

void Upsert(Subject* subject, const Scored& scored) {
  const std::vector<float> rows(scored.batch.places * kDim, 2.0f);
  Subject::ExpectOk(subject->store->InsertOrAssign(subject->context, scored, rows.data(), {}));
}

void Apply(Subject* subject, const Scored& scored) {
  const std::vector<float> gradients(scored.batch.places * kDim, 1.0f);
  Subject::ExpectOk(subject->store->Apply(subject->context, scored, gradients.data(),
                                          DataType::kFloat, MakeRule(RuleKind::kMomentum, kDim)));
}

TEST_P(StoreScores, EachWriteBringsThemAndOfEqualKeysTheLastWins) {
  for (const size_t max_rows : {size_t{0}, size_t{100}}) {  // without and with a plan
    RowPolicy policy = Bounded(max_rows, EvictionOrder::kScore);
    policy.statistics = policy.statistics.With(Statistic::kScore);
    Subject subject(GetParam(), policy);
    Upsert(&subject, {{7, 8, 7}, {-1, 2, -3}});
    EXPECT_EQ(-3, ScoreOfRow(&subject, 7));
    EXPECT_EQ(2, ScoreOfRow(&subject, 8));
    Apply(&subject, {{9, 7, 9}, {4, INT64_MIN, INT64_MAX}});
    EXPECT_EQ(INT64_MIN, ScoreOfRow(&subject, 7));
    EXPECT_EQ(INT64_MAX, ScoreOfRow(&subject, 9));
    const float zeros[2 * kDim] = {};
    const bool exists[] = {true, false};
    Subject::ExpectOk(
        subject.store->Accum(subject.context, Scored{{8, 10}, {5, 6}}, zeros, zeros, exists));
    EXPECT_EQ(5, ScoreOfRow(&subject, 8));
    EXPECT_EQ(6, ScoreOfRow(&subject, 10));
    std::vector<float> rows(2 * kDim);
    Subject::ExpectOk(subject.store->FindOrInsert(subject.context, Scored{{11, 8}, {12, 13}},
                                                  DefaultRows(), rows.data(), nullptr));
    EXPECT_EQ(12, ScoreOfRow(&subject, 11));
    EXPECT_EQ(5, ScoreOfRow(&subject, 8)) << "a row that was there is only looked at";
    subject.Upsert({7, 12});
    EXPECT_EQ(INT64_MIN, ScoreOfRow(&subject, 7)) << "a write without scores leaves them";
    EXPECT_EQ(0, ScoreOfRow(&subject, 12));
  }
}

TEST_P(StoreScores, ANewRowComesOnlyForOneOfNoHigherScore) {
  Subject subject(GetParam(), Bounded(3, EvictionOrder::kScore));
  Upsert(&subject, {{1, 2, 3}, {10, 20, 30}});
  subject.NextStep();
  Upsert(&subject, {{4, 5}, {9, 20}});  // 5 replaces 1; 4 is too low
  EXPECT_EQ((std::set<int64_t>{2, 3, 5}), subject.Keys());
  EXPECT_EQ(1u, subject.store->Stats().refused);
  subject.NextStep();
  Upsert(&subject, {{6, 7, 8}, {20, 20, 29}});  // 8 and 6 replace 2 and 5; 6 and 7 tie with them
  EXPECT_EQ((std::set<int64_t>{3, 6, 8}), subject.Keys());
  EXPECT_EQ(2u, subject.store->Stats().refused);
}

// Random steps that give each written key a score.
void ExpectLikeSimulation(const StoreKind& kind, size_t max_rows, size_t most_keys, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", max_rows " + std::to_string(max_rows));
  Random random(seed);
  Subject subject(kind, Bounded(max_rows, EvictionOrder::kScore), Threads(3));
  Simulation simulation(kind, max_rows, EvictionOrder::kScore);
  size_t refused = 0;
  for (int step = 0; step < 100; ++step) {
    Scored scored{RandomKeys(random() % most_keys, 0, static_cast<int64_t>(4 * max_rows), &random),
                  {}};
    if (random() % 2 == 0) scored.batch = Scattered(scored.batch, &random);
    scored.scores.resize(scored.batch.places);
    std::map<int64_t, int64_t> scores;
    for (size_t i = 0; i < scored.batch.size(); ++i) {
      const int64_t score = static_cast<int64_t>(random() % 100) + step / 4;
      scored.scores[scored.batch.Position(i)] = score;
      scores[scored.batch.keys[i]] = score;
    }
    refused += simulation.Write(scored.batch.keys, subject.context.now, scores);
    if (random() % 2 == 0) {
      Apply(&subject, scored);
    } else {
      Upsert(&subject, scored);
    }
    ASSERT_TRUE(simulation.Keys() == subject.Keys()) << "step " << step;
    ASSERT_EQ(refused, subject.store->Stats().refused) << "step " << step;
    for (const auto& [key, row] : simulation.rows) {
      if (key % 16 == 0) {
        ASSERT_EQ(row.score, ScoreOfRow(&subject, key));
      }
    }
    subject.NextStep();
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(subject.store->Stats().evicted, 0u);
}

TEST_P(StoreScores, ABoundedStoreKeepsTheHighestOfAll) {
  for (const uint64_t seed : Seeds(3)) {
    ExpectLikeSimulation(GetParam(), 100, 60, seed);
    ExpectLikeSimulation(GetParam(), 100, 250, seed);  // some batches exceed the bound
  }
  ExpectLikeSimulation(GetParam(), 9000, 1200, 5);  // victims are found by a sample
}

TEST(EpochScore, CountsSaturateAndStepsKeepTheirLowerBits) {
  RowStatistics::Word words[StatisticSet::kMax] = {};
  StatisticSet set = StatisticsOf(EvictionOrder::kEpochLru);
  set = set.With(StatisticsOf(EvictionOrder::kEpochLfu));
  RowStatistics row(set, words);
  const auto scores = [&](uint64_t epoch, uint64_t step, uint64_t count) {
    row.Set(Statistic::kEpoch, epoch);
    row.Set(Statistic::kLastStep, step);
    row.Set(Statistic::kCount, count);
    return std::pair(ShownScore(EvictionOrder::kEpochLru, row, 0),
                     ShownScore(EvictionOrder::kEpochLfu, row, 0));
  };
  constexpr int64_t kEpoch = int64_t{1} << 32;
  EXPECT_EQ((std::pair<int64_t, int64_t>(3 * kEpoch + 17, 3 * kEpoch + 5)), scores(3, 17, 5));
  const int64_t last = kEpoch - 1;
  EXPECT_EQ((std::pair(last, last)), scores(0, UINT32_MAX, UINT32_MAX));
  EXPECT_EQ((std::pair(kEpoch + last, kEpoch + last)), scores(1, UINT64_MAX, 1ull << 32));
  EXPECT_EQ((std::pair(kEpoch + 7, kEpoch + 1)), scores(1, (1ull << 40) + 7, 1));
  EXPECT_EQ((std::pair(INT64_MAX, INT64_MAX)), scores(UINT64_MAX, UINT64_MAX, UINT64_MAX));
}

TEST_P(StoreScores, AnEpochIsNeverSetBack) {
  RowPolicy policy;
  policy.statistics = StatisticSet().With(Statistic::kEpoch);
  Subject subject(GetParam(), policy);
  subject.context.now.epoch = 5;
  subject.Upsert({7});
  subject.context.now.epoch = 2;
  subject.Upsert({7, 8});
  EXPECT_EQ((std::vector<uint64_t>{5}), subject.StatisticsOf(7));
  EXPECT_EQ((std::vector<uint64_t>{2}), subject.StatisticsOf(8));
}

TEST_P(StoreScores, ReadersAndWritersMeetInAnEpoch) {
  if (!GetParam().takes_threads) GTEST_SKIP() << "one thread at a time may call it";
  RowPolicy policy = Bounded(500, EvictionOrder::kEpochLfu);
  policy.statistics = policy.statistics.With(Statistic::kScore);
  Subject subject(GetParam(), policy, ExecContext::Serial());
  Store* const store = subject.store.get();
  std::atomic<uint64_t> step{2};
  InThreads(4, [&](size_t thread) {
    Random random(thread);
    ExecContext context = ExecContext::Serial();
    context.training = true;
    std::vector<float> rows(100 * kDim, 0.5f);
    const std::vector<int64_t> scores(100, 3);
    for (int i = 0; i < 60; ++i) {
      context.now.step = step.fetch_add(1);
      context.now.epoch = context.now.step / 10;
      const Batch batch(RandomKeys(100, 0, 2000, &random));
      KeyBatch keys = batch;
      keys.scores = scores.data();
      const Status status =
          thread < 2 ? store->InsertOrAssign(context, keys, rows.data(), {})
                     : store->Find(context, keys, DefaultRows(), rows.data(), nullptr, {});
      EXPECT_TRUE(status.ok()) << status.message();
    }
  });
  EXPECT_EQ(500u, store->size());
  for (const int64_t key : subject.Keys()) ASSERT_EQ(3, ScoreOfRow(&subject, key));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreScores, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
