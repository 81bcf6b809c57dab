// SPDX-License-Identifier: Apache-2.0
// Rows that are inserted and removed by a store's policy, against a simulation of the same policy.
#include <algorithm>
#include <map>
#include <set>

#include "cc/core/policy/rank_list.h"
#include "cc/core/table/restrict.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class StorePolicy : public testing::TestWithParam<StoreKind> {};

TEST_P(StorePolicy, UsesAreCountedOnceAStep) {
  Subject subject(GetParam(), AllStatistics());
  subject.Apply({7, 7, 8});
  EXPECT_EQ((std::vector<uint64_t>{1, 1000, 1, RowStatistics::ScoreBits(0), 0}),
            subject.StatisticsOf(7));
  subject.Apply({7});
  EXPECT_EQ(1u, subject.StatisticsOf(7)[2]) << "the same step";
  subject.NextStep();
  subject.Find({7, 7, 7}, true);
  subject.Apply({7, 7});
  EXPECT_EQ((std::vector<uint64_t>{2, 1010, 2, RowStatistics::ScoreBits(0), 0}),
            subject.StatisticsOf(7));
  subject.NextStep();
  subject.Upsert({7, 7});
  EXPECT_EQ(3u, subject.StatisticsOf(7)[2]);
  EXPECT_EQ((std::vector<uint64_t>{1, 1000, 1, RowStatistics::ScoreBits(0), 0}),
            subject.StatisticsOf(8));
}

TEST_P(StorePolicy, AccumIsAUse) {
  Subject subject(GetParam(), AllStatistics());
  subject.Upsert({7});
  subject.NextStep();
  const float zeros[2 * kDim] = {};
  const bool exists[] = {true, false};
  ASSERT_TRUE(subject.store->Accum(subject.context, Batch{7, 8}, zeros, zeros, exists).ok());
  EXPECT_EQ(2u, subject.StatisticsOf(7)[0]);
  EXPECT_EQ(2u, subject.StatisticsOf(7)[2]);
  EXPECT_EQ(1u, subject.StatisticsOf(8)[2]);
}

TEST_P(StorePolicy, OtherLooksLeaveNoTrace) {
  Subject subject(GetParam(), AllStatistics());
  subject.Apply({7});
  const auto before = subject.StatisticsOf(7);
  subject.NextStep();
  subject.Find({7}, false);
  subject.Rows();
  EXPECT_EQ(before, subject.StatisticsOf(7));
}

TEST_P(StorePolicy, StatisticsStayThroughGrowthShrinkAndChangeOfRule) {
  Subject subject(GetParam(), AllStatistics());
  std::map<int64_t, std::vector<uint64_t>> expected;
  for (int64_t step = 0; step < 40; ++step) {
    subject.Upsert(KeysFrom(step * 100, 150));
    subject.NextStep();
  }
  for (int64_t key = 0; key < 4050; ++key) expected[key] = subject.StatisticsOf(key);
  EXPECT_EQ(2u, expected[100][2]);
  EXPECT_EQ(1u, expected[0][2]);
  ASSERT_TRUE(subject.store->maintenance()->SetRule(FusedSlots(RuleKind::kAdam, kDim)).ok());
  ASSERT_TRUE(subject.store->maintenance()->Shrink(subject.context).ok());
  for (const auto& [key, words] : expected) ASSERT_EQ(words, subject.StatisticsOf(key)) << key;
}

TEST_P(StorePolicy, AssignStatisticsSetsThoseThatTheStoreHas) {
  RowPolicy policy;
  policy.statistics = StatisticSet().With(Statistic::kCount).With(Statistic::kScore);
  Subject subject(GetParam(), policy);  // and the last step, which counts need
  subject.Upsert({7});
  const uint64_t words[] = {5, 6};
  const StatisticSet set = StatisticSet().With(Statistic::kLastTime).With(Statistic::kCount);
  ASSERT_TRUE(
      subject.store->eviction()->AssignStatistics(subject.context, Batch{8}, set, words).ok());
  ASSERT_TRUE(
      subject.store->eviction()->AssignStatistics(subject.context, Batch{7}, set, words).ok());
  EXPECT_EQ((std::vector<uint64_t>{1, 6, RowStatistics::ScoreBits(0)}), subject.StatisticsOf(7));
  EXPECT_FALSE(subject.Has(8));
}

// Random steps of writes, lookups, removals and scores.
void ExpectLikeSimulation(const StoreKind& kind, EvictionOrder order, size_t max_rows,
                          size_t most_keys, uint64_t seed, size_t threads) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", order " +
               std::to_string(static_cast<int>(order)) + ", max_rows " + std::to_string(max_rows));
  Random random(seed);
  Subject subject(kind, Bounded(max_rows, order), Threads(threads));
  Simulation simulation(kind, max_rows, order);
  size_t refused = 0;
  for (int step = 0; step < 120; ++step) {
    const auto skewed = [&] {  // a drifting window with frequent low numbers
      const uint64_t span = 1 + random() % (3 * max_rows);
      return static_cast<int64_t>(random() % span) + step * static_cast<int64_t>(max_rows) / 40;
    };
    std::vector<int64_t> keys(random() % most_keys);
    for (int64_t& key : keys) key = skewed();
    if (random() % 3 == 0) {
      subject.Find(keys, true);
      for (const int64_t key : keys) {
        const auto row = simulation.rows.find(key);
        if (row != simulation.rows.end()) Simulation::Use(&row->second, subject.context.now);
      }
    }
    refused += simulation.Write(keys, subject.context.now);
    if (random() % 2 == 0) {
      subject.Apply(keys);
    } else {
      subject.Upsert(keys);
    }
    ASSERT_EQ(simulation.Keys(), subject.Keys()) << "step " << step;
    ASSERT_EQ(refused, subject.store->Stats().refused);
    if (random() % 5 == 0 && !keys.empty()) {
      keys.resize(1 + keys.size() / 4);
      ASSERT_TRUE(subject.store->Erase(subject.context, Batch(keys)).ok());
      for (const int64_t key : keys) simulation.rows.erase(key);
    }
    if (order == EvictionOrder::kScore) {
      std::vector<int64_t> scored(max_rows / 3);
      std::vector<uint64_t> bits(scored.size());
      for (size_t i = 0; i < scored.size(); ++i) {
        scored[i] = skewed();
        const int64_t score = static_cast<int64_t>(random() % 200) - 100;
        bits[i] = RowStatistics::ScoreBits(score);
        const auto row = simulation.rows.find(scored[i]);
        if (row != simulation.rows.end()) row->second.score = score;
      }
      ASSERT_TRUE(subject.store->eviction()
                      ->AssignStatistics(subject.context, Batch(scored),
                                         StatisticSet().With(Statistic::kScore), bits.data())
                      .ok());
    }
    if (random() % 10 == 0) {
      ASSERT_TRUE(subject.store->maintenance()->Shrink(subject.context).ok());
    }
    subject.NextStep(random() % 2);
    // An epoch is 12 steps. Sometimes the clock is set back, but no row's epoch decreases.
    subject.context.now.epoch = static_cast<uint64_t>(step) / 12 - (step > 24 ? random() % 3 : 0);
  }
  EXPECT_GT(subject.store->Stats().evicted, 0u);
}

TEST_P(StorePolicy, ABoundedStoreHoldsWhatTheSimulationHolds) {
  for (const uint64_t seed : Seeds(3)) {
    for (const EvictionOrder order : kAllOrders) {
      ExpectLikeSimulation(GetParam(), order, 100, 60, seed, 2);
      ExpectLikeSimulation(GetParam(), order, 100, 150, seed, 2);  // some batches exceed the bound
    }
  }
}

TEST_P(StorePolicy, ManyVictimsComeInTheRightOrder) {
  // There are so many rows that victims are found by a sample, a few at a time.
  for (const EvictionOrder order :
       {EvictionOrder::kLru, EvictionOrder::kLfu, EvictionOrder::kEpochLfu}) {
    ExpectLikeSimulation(GetParam(), order, 9000, 900, 5, 3);
  }
}

TEST_P(StorePolicy, RowsInUseMayBeTheLowestOfAll) {
  // All scores are 0, so hashes decide, and each batch has many of the lowest rows.
  constexpr size_t kRows = 20000;
  Subject subject(GetParam(), Bounded(kRows, EvictionOrder::kScore));
  Simulation simulation(GetParam(), kRows, EvictionOrder::kScore);
  std::vector<int64_t> low = KeysFrom(0, kRows);
  std::sort(low.begin(), low.end(), [](int64_t a, int64_t b) { return HashKey(a) < HashKey(b); });
  low.resize(kRows / 2);
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<int64_t> keys = step == 0 ? KeysFrom(0, kRows) : low;
    for (int64_t i = 0; step > 0 && i < 6000; ++i) keys.push_back(step * 100000 + i);
    simulation.Write(keys, subject.context.now);
    subject.Apply(keys);
    ASSERT_TRUE(simulation.Keys() == subject.Keys()) << "step " << step;
    subject.NextStep();
  }
}

TEST_P(StorePolicy, RowsOfTheBatchInFlightStayAndTheRestIsRefusedInOrder) {
  Subject subject(GetParam(), Bounded(4, EvictionOrder::kLru));
  subject.Apply({1, 2, 3, 4});
  subject.NextStep();
  subject.Apply({10, 2, 11, 12, 10, 13});
  EXPECT_EQ((std::set<int64_t>{2, 10, 11, 12}), subject.Keys());
  const StoreStats stats = subject.store->Stats();
  EXPECT_EQ(1u, stats.refused);
  EXPECT_EQ(3u, stats.evicted);
  EXPECT_EQ(7u, stats.admitted);
}

TEST_P(StorePolicy, ARefusingBoundHoldsTheFirstKeysThatCame) {
  for (const uint64_t seed : Seeds(3)) {
    Random random(seed);
    constexpr size_t kMax = 200;
    Subject subject(GetParam(), Refusing(kMax));
    EXPECT_EQ(0u, subject.store->options().policy.statistics.size());
    std::set<int64_t> rows;
    uint64_t refused = 0, admitted = 0;
    for (int step = 0; step < 40; ++step) {
      const std::vector<int64_t> keys = RandomKeys(60, 0, 500, &random);
      if (step % 7 == 6) {  // makes room again
        const std::vector<int64_t> some(keys.begin(), keys.begin() + 30);
        ASSERT_TRUE(subject.store->Erase(subject.context, Batch(some)).ok());
        for (const int64_t key : some) rows.erase(key);
      }
      std::set<int64_t> seen;
      for (const int64_t key : keys) {
        if (!seen.insert(key).second || rows.count(key) > 0) continue;
        if (rows.size() < kMax) {
          rows.insert(key);
          ++admitted;
        } else {
          ++refused;
        }
      }
      if (step % 3 == 2) {
        subject.Apply(keys);
      } else {
        subject.Upsert(keys);
      }
      subject.Find(keys, true);
      subject.NextStep();
      ASSERT_TRUE(rows == subject.Keys()) << "step " << step;
      const StoreStats stats = subject.store->Stats();
      ASSERT_EQ(refused, stats.refused) << "step " << step;
      ASSERT_EQ(admitted, stats.admitted) << "step " << step;
      ASSERT_EQ(0u, stats.evicted);
    }
    EXPECT_GT(refused, 100u);
  }
}

TEST_P(StorePolicy, ARefusedKeyHasItsInitialRowAndLosesItsGradient) {
  Subject subject(GetParam(), Refusing(2));
  Subject free(GetParam(), RowPolicy());
  subject.Upsert({1, 2});
  subject.Apply({3, 1, 3});
  free.Upsert({1, 2});
  free.Apply({1});
  EXPECT_EQ(free.Rows(), subject.Rows());
  EXPECT_EQ(free.Slots(), subject.Slots());
  EXPECT_EQ(1u, subject.store->Stats().refused);
  const auto row_of = [](Subject* from, int64_t key) {
    std::vector<float> row(kDim);
    Subject::ExpectOk(
        from->store->FindOrInsert(from->context, Batch{key}, DefaultRows(), row.data(), nullptr));
    return row;
  };
  const std::vector<float> initial = row_of(&free, 3);
  EXPECT_EQ(initial, row_of(&subject, 3));
  EXPECT_EQ(2u, subject.store->Stats().refused);
  EXPECT_EQ(2u, subject.store->size());
}

TEST_P(StorePolicy, AnEvictedKeyComesBackWithFreshSlots) {
  Subject subject(GetParam(), Bounded(2, EvictionOrder::kLru));
  subject.Apply({1});
  const auto fresh = subject.Slots()[1];
  const auto fresh_row = subject.Rows()[1];
  subject.NextStep();
  subject.Apply({1});
  EXPECT_NE(fresh, subject.Slots()[1]);
  subject.NextStep();
  subject.Apply({2, 3});
  ASSERT_FALSE(subject.Has(1));
  subject.NextStep();
  subject.Apply({1});
  EXPECT_EQ(fresh, subject.Slots()[1]);
  EXPECT_EQ(fresh_row, subject.Rows()[1]);
}

TEST_P(StorePolicy, ExpiredRowsAreAbsentInTrainingAndStayForOthers) {
  RowPolicy policy;
  policy.ttl_milliseconds = 100;
  Subject subject(GetParam(), policy);
  subject.Apply({1});
  const auto first_slots = subject.Slots()[1];
  subject.NextStep(60);
  subject.Apply({1});
  const auto trained = subject.Rows()[1];
  subject.NextStep(100);
  std::vector<float> row(kDim), initial(kDim);
  InitializeWeights(UniformInitializer(), 1, kDim, initial.data());
  bool exists;
  ASSERT_TRUE(
      subject.store->Find(subject.context, Batch{1}, DefaultRows(), row.data(), &exists, {}).ok());
  EXPECT_EQ(trained, row);
  subject.context.training = true;
  ASSERT_TRUE(
      subject.store->Find(subject.context, Batch{1}, DefaultRows(), row.data(), &exists, {}).ok());
  EXPECT_FALSE(exists);
  EXPECT_EQ(initial, row);
  subject.context.training = false;
  subject.Apply({1});
  EXPECT_EQ(first_slots, subject.Slots()[1]) << "it starts anew";
  EXPECT_EQ(1u, subject.store->Stats().expired);
}

TEST_P(StorePolicy, AccumTakesAnExpiredRowForAbsent) {
  RowPolicy policy;
  policy.ttl_milliseconds = 100;
  Subject subject(GetParam(), policy);
  subject.Upsert({1, 2});
  subject.NextStep(100);
  const float zeros[2 * kDim] = {};
  const float ones[2 * kDim] = {1, 1, 1, 1, 1, 1, 1, 1};
  const bool exists[] = {true, false};
  ASSERT_TRUE(subject.store->Accum(subject.context, Batch{1, 2}, zeros, ones, exists).ok());
  EXPECT_EQ((std::set<int64_t>{2}), subject.Keys());
  EXPECT_EQ((std::vector<float>{1, 1, 1, 1}), subject.Rows()[2]);
}

TEST_P(StorePolicy, InsertsTakeOutWhatHasExpiredElsewhere) {
  RowPolicy policy;
  policy.ttl_milliseconds = 100;
  Subject subject(GetParam(), policy);
  size_t most = 0;
  for (int64_t step = 0; step < 300; ++step) {  // a stream of distinct keys
    subject.Apply(KeysFrom(step * 200, 200));
    most = std::max(most, subject.store->size());
    subject.NextStep(10);
  }
  EXPECT_LE(most, 2 * 10 * 200 + 400u) << "twice what is not expired";
  EXPECT_EQ(300u * 200, subject.store->size() + subject.store->Stats().expired);
  subject.NextStep(100);
  size_t removed = 0;
  const size_t size = subject.store->size();
  ASSERT_TRUE(subject.store->eviction()->EvictExpired(subject.context, &removed).ok());
  EXPECT_EQ(size, removed);
  EXPECT_EQ(0u, subject.store->size());
}

TEST_P(StorePolicy, RestrictLeavesTheHighestRowsExactly) {
  for (const size_t shards : Sizes({1, 3, 7})) {
    for (const size_t rows : Sizes({20, 3000, 40000})) {
      for (const EvictionOrder order : kAllOrders) {
        SCOPED_TRACE(std::to_string(shards) + " shards, " + std::to_string(rows) + " rows");
        std::vector<std::unique_ptr<Subject>> subjects;
        std::vector<Store*> stores;
        for (size_t i = 0; i < shards; ++i) {
          subjects.push_back(std::make_unique<Subject>(GetParam(), AllStatistics()));
          stores.push_back(subjects.back()->store.get());
        }
        Random random(rows);
        std::map<int64_t, Simulation::Row> expected;
        for (uint64_t step = 1; step <= 5; ++step) {
          std::vector<std::vector<int64_t>> of_shard(shards);
          for (size_t i = 0; i < rows / 2; ++i) {
            const int64_t key = static_cast<int64_t>(random() % rows);
            of_shard[static_cast<size_t>(key) % shards].push_back(key);
          }
          for (size_t i = 0; i < shards; ++i) {
            const Moment now = subjects[i]->context.now;
            subjects[i]->Apply(of_shard[i]);
            for (const int64_t key : of_shard[i]) {
              const auto [row, is_new] = expected.try_emplace(key, Simulation::Fresh(now));
              if (!is_new) Simulation::Use(&row->second, now);
            }
            subjects[i]->NextStep();
            subjects[i]->context.now.epoch = step / 2;
          }
        }
        const size_t reserved = expected.size() / 3;
        const Simulation simulation(0, order);
        std::vector<std::pair<Simulation::Rank, int64_t>> ranked;
        for (const auto& row : expected) ranked.push_back({simulation.RankOf(row), row.first});
        std::sort(ranked.begin(), ranked.end());
        std::set<int64_t> highest, left;
        for (size_t i = ranked.size() - reserved; i < ranked.size(); ++i) {
          highest.insert(ranked[i].second);
        }
        size_t removed;
        ASSERT_TRUE(
            RestrictRows(subjects[0]->context, stores.data(), shards, order, reserved, &removed)
                .ok());
        EXPECT_EQ(expected.size() - reserved, removed);
        for (const auto& subject : subjects) left.merge(subject->Keys());
        EXPECT_TRUE(highest == left);
        ASSERT_TRUE(
            RestrictRows(subjects[0]->context, stores.data(), shards, order, 0, &removed).ok());
        EXPECT_EQ(reserved, removed);
      }
    }
  }
}

TEST_P(StorePolicy, RestrictTakesExpiredRowsFirst) {
  RowPolicy policy = AllStatistics();
  policy.ttl_milliseconds = 100;
  Subject subject(GetParam(), policy);
  subject.Apply(KeysFrom(0, 100));
  subject.NextStep(99);
  subject.Apply(KeysFrom(100, 50));
  subject.NextStep(2);
  Store* const store = subject.store.get();
  size_t removed;
  ASSERT_TRUE(RestrictRows(subject.context, &store, 1, EvictionOrder::kLfu, 1000, &removed).ok());
  EXPECT_EQ(100u, removed);
  EXPECT_EQ(50u, store->size());
}

TEST_P(StorePolicy, FindsStayShortHoweverManyKeysComeAndGo) {
  if (GetParam().has_tiers) GTEST_SKIP() << "what is counted is the cache's index";
  Subject subject(GetParam(), Bounded(5000, EvictionOrder::kLru));
  for (int64_t step = 0; step < 400; ++step) {
    subject.Upsert(KeysFrom(step * 1000, 1000));
    subject.NextStep();
  }
  const StoreStats stats = subject.store->Stats();
  EXPECT_EQ(5000u, stats.rows);
  ASSERT_GT(stats.probed_keys, 1000u);
  EXPECT_LT(static_cast<double>(stats.probed_buckets) / static_cast<double>(stats.probed_keys),
            1.3);
  EXPECT_LT(stats.index_bytes, 5000 * 64u) << "and the index stays as large as its rows need";
}

TEST_P(StorePolicy, ReadersAndWritersMeetInABoundedStore) {
  if (!GetParam().takes_threads) GTEST_SKIP() << "one thread at a time may call it";
  Subject subject(GetParam(), Bounded(500, EvictionOrder::kLfu), ExecContext::Serial());
  Store* const store = subject.store.get();
  const Rule rule = MakeRule(RuleKind::kMomentum, kDim);
  std::atomic<uint64_t> step{2};
  std::atomic<int> writing{2};
  InThreads(4, [&](size_t thread) {
    Random random(thread);
    ExecContext context = ExecContext::Serial();
    std::vector<float> rows(100 * kDim, 0.5f);
    if (thread < 2) {
      for (int i = 0; i < 100; ++i) {
        context.now = {step.fetch_add(1), 1000};
        const Batch batch(RandomKeys(100, 0, 2000, &random));
        EXPECT_TRUE(store->Apply(context, batch, rows.data(), DataType::kFloat, rule).ok());
      }
      --writing;
      return;
    }
    while (writing.load() > 0) {
      context.now = {step.load(), 1000};
      context.training = thread == 2;
      const Batch batch(RandomKeys(100, 0, 2000, &random));
      EXPECT_TRUE(store->Find(context, batch, DefaultRows(), rows.data(), nullptr, {}).ok());
      if (thread == 3) store->Stats();
    }
  });
  EXPECT_LE(subject.Keys().size(), 500u);
  EXPECT_EQ(store->size(), subject.Keys().size());
}

TEST_P(StorePolicy, ClearForgetsWhoWasInLine) {
  Subject subject(GetParam(), Bounded(10, EvictionOrder::kLru));
  subject.Apply(KeysFrom(0, 10));
  subject.NextStep();
  subject.Apply(KeysFrom(10, 5));
  ASSERT_TRUE(subject.store->Clear().ok());
  subject.NextStep();
  subject.Apply(KeysFrom(100, 10));
  subject.NextStep();
  subject.Apply(KeysFrom(200, 4));
  EXPECT_EQ(10u, subject.store->size());
  EXPECT_TRUE(subject.Has(203));
}

TEST_P(StorePolicy, StatsTellWhatAStoreIsMadeOf) {
  if (GetParam().has_tiers) GTEST_SKIP() << "what is counted is the cache's memory";
  Subject subject(GetParam(), RowPolicy());
  subject.Upsert(KeysFrom(0, 10000));
  subject.Find(KeysFrom(9990, 30), false);
  const StoreStats stats = subject.store->Stats();
  EXPECT_EQ(10000u, stats.rows);
  EXPECT_EQ(10000u * kDim * 4, stats.payload_bytes);
  EXPECT_GT(stats.index_bytes, 10000u * 12);
  EXPECT_GE(stats.index_places, 10000u);
  EXPECT_EQ(10u, stats.hits);
  EXPECT_EQ(20u, stats.misses);
  EXPECT_GE(stats.probed_buckets, stats.probed_keys);
}

INSTANTIATE_TEST_SUITE_P(Stores, StorePolicy, testing::ValuesIn(ContractStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
