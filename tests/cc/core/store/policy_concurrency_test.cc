// SPDX-License-Identifier: Apache-2.0
// Rows leave by a policy while other verbs write, remove and use rows.
#include <atomic>
#include <set>

#include "cc/core/table/restrict.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

class PolicyConcurrency : public testing::TestWithParam<StoreKind> {};

// Runs each body in its own thread until the first body has run `rounds` times.
template <typename First, typename... Others>
void Beside(int rounds, const First& first, const Others&... others) {
  const std::function<void()> all[] = {others...};
  std::atomic<bool> stop{false};
  InThreads(1 + sizeof...(others), [&](size_t thread) {
    if (thread > 0) {
      while (!stop) all[thread - 1]();
      return;
    }
    for (int round = 0; round < rounds; ++round) first();
    stop = true;
  });
}

TEST_P(PolicyConcurrency, RestrictEndsBesideClearAndUpserts) {
  Subject subject(GetParam(), AllStatistics());
  Store* const store = subject.store.get();
  const Batch keys = KeysFrom(0, 3000);
  Beside(
      100,
      [&] {
        size_t removed;
        ASSERT_TRUE(
            RestrictRows(subject.context, &store, 1, EvictionOrder::kLfu, 100, &removed).ok());
      },
      [&] { subject.Upsert(keys); }, [&] { ASSERT_TRUE(store->Clear().ok()); });
}

TEST_P(PolicyConcurrency, RestrictBesideErasuresTakesNoRowThatHasToStay) {
  Subject subject(GetParam(), AllStatistics());
  Store* const store = subject.store.get();
  const Batch precious = KeysFrom(0, 500);
  const Batch junk = KeysFrom(1000, 5000);
  for (int step = 0; step < 10; ++step) {
    subject.Upsert(precious);
    subject.NextStep();
  }
  Beside(
      100,
      [&] {
        size_t removed;
        ASSERT_TRUE(
            RestrictRows(subject.context, &store, 1, EvictionOrder::kLfu, 1000, &removed).ok());
        bool exists[500];
        ASSERT_TRUE(store->Contains(subject.context, precious, exists).ok());
        ASSERT_EQ(500, std::count(exists, exists + 500, true));
      },
      [&] {
        subject.Upsert(junk);
        ASSERT_TRUE(store->Erase(subject.context, junk).ok());
      });
}

TEST_P(PolicyConcurrency, RestrictLeavesNoMoreThanItReservesBesideReadersThatUseRows) {
  Subject subject(GetParam(), AllStatistics());
  Store* const store = subject.store.get();
  const Batch keys = KeysFrom(0, 3000);
  std::atomic<uint64_t> step{2};
  Beside(
      50,
      [&] {
        subject.Upsert(keys);
        size_t removed;
        ASSERT_TRUE(
            RestrictRows(subject.context, &store, 1, EvictionOrder::kLru, 1000, &removed).ok());
        ASSERT_EQ(2000u, removed);
        ASSERT_EQ(1000u, store->size());
      },
      [&] {
        ExecContext training = subject.context;
        training.training = true;
        training.now.step = ++step;
        float rows[100 * kDim];
        ASSERT_TRUE(store
                        ->Find(training, Batch(KeysFrom(step * 37 % 2900, 100)), DefaultRows(),
                               rows, nullptr, {})
                        .ok());
      });
}

// A row may be in the queue of victims twice, and a reader may raise its rank in between.
TEST_P(PolicyConcurrency, ARowLeavesOnceBesideReadersThatRaiseItsRank) {
  for (const EvictionOrder order : {EvictionOrder::kLfu, EvictionOrder::kLru}) {
    Subject subject(GetParam(), Bounded(500, order));
    Store* const store = subject.store.get();
    std::atomic<uint64_t> step{1};
    Random random[3] = {Random(1), Random(2), Random(3)};
    const auto at_next_step = [&] {
      ExecContext context = subject.context;
      context.now.step = ++step;
      return context;
    };
    Beside(
        1000,
        [&] {
          const Batch keys = RandomKeys(200, 0, 1000, &random[0]);
          const std::vector<float> rows(keys.size() * kDim, 2.0f);
          ASSERT_TRUE(store->InsertOrAssign(at_next_step(), keys, rows.data(), {}).ok());
          ASSERT_LE(store->size(), 500u);
        },
        [&] {
          ExecContext training = at_next_step();
          training.training = true;
          float rows[20 * kDim];
          ASSERT_TRUE(store
                          ->Find(training, Batch(RandomKeys(20, 0, 1000, &random[1])),
                                 DefaultRows(), rows, nullptr, {})
                          .ok());
        },
        [&] {
          ASSERT_TRUE(
              store->Erase(at_next_step(), Batch(RandomKeys(40, 0, 1000, &random[2]))).ok());
        });
    const StoreStats stats = store->Stats();
    EXPECT_EQ(subject.Keys().size(), stats.rows);
    EXPECT_LE(stats.rows, 500u);
  }
}

TEST_P(PolicyConcurrency, ARefusingBoundHoldsAtEachMomentBesideWritersAndErasures) {
  Subject subject(GetParam(), Refusing(500));
  Store* const store = subject.store.get();
  Random random[3] = {Random(1), Random(2), Random(3)};
  const auto write = [&](Random* from) {
    const Batch keys = RandomKeys(200, 0, 1000, from);
    const std::vector<float> rows(keys.size() * kDim, 2.0f);
    ASSERT_TRUE(store->InsertOrAssign(subject.context, keys, rows.data(), {}).ok());
    ASSERT_LE(store->size(), 500u);
  };
  Beside(
      500, [&] { write(&random[0]); }, [&] { write(&random[1]); },
      [&] {
        ASSERT_TRUE(store->Erase(subject.context, Batch(RandomKeys(40, 0, 1000, &random[2]))).ok());
      });
  // If erasures kept up with the writers, no row was refused so far.
  for (int turn = 0; turn < 10; ++turn) write(&random[0]);
  const StoreStats stats = store->Stats();
  EXPECT_EQ(subject.Keys().size(), stats.rows);
  EXPECT_LE(stats.rows, 500u);
  EXPECT_GE(stats.admitted, stats.rows);
  EXPECT_GT(stats.refused, 0u);
  EXPECT_EQ(0u, stats.evicted);
}

INSTANTIATE_TEST_SUITE_P(Stores, PolicyConcurrency, testing::ValuesIn(AllStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
