// SPDX-License-Identifier: Apache-2.0
// Snapshots while other verbs run: all rows of a moment, each once, or the changes since a
// snapshot.
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "cc/core/store/change_log.h"
#include "cc/core/table/restrict.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

using Content = std::map<int64_t, std::vector<float>>;        // weights and slots
using Statistics = std::map<int64_t, std::vector<uint64_t>>;  // of use

std::vector<StoreKind> Kinds() {
  std::vector<StoreKind> kinds = ContractStores();
  kinds.push_back(TieredStores(64, "HostOverDisk", NewHostCache, NewHostOverDisk));
  return kinds;
}

RowPolicy Tracked(RowPolicy policy = RowPolicy()) {
  policy.statistics = policy.statistics.With(Statistic::kChange);
  return policy;
}

void AddRows(const Store& store, const WholeRows& rows, Content* content) {
  const size_t slots = store.rule().slots_per_row();
  const float* const weights = reinterpret_cast<const float*>(rows.weights.data());
  const float* const slot = reinterpret_cast<const float*>(rows.slots.data());
  for (size_t i = 0; i < rows.size; ++i) {
    std::vector<float> row(weights + i * kDim, weights + (i + 1) * kDim);
    row.insert(row.end(), slot + i * slots, slot + (i + 1) * slots);
    EXPECT_TRUE(content->emplace(rows.keys[i], row).second) << "twice: " << rows.keys[i];
  }
}

void AddStatistics(const Store& store, const WholeRows& rows, Statistics* statistics) {
  const StatisticSet set = store.options().policy.statistics;
  for (size_t i = 0; i < rows.size; ++i) {
    const uint64_t* const words = rows.statistics.data() + i * set.size();
    (*statistics)[rows.keys[i]].assign(words, words + set.OfUse().size());
  }
}

Content All(const Store& store, Statistics* statistics = nullptr) {
  Content content;
  WholeRows rows(HostAllocator());
  for (ExportCursor cursor; !cursor.done;) {
    Subject::ExpectOk(store.maintenance()->ExportBatch(500, &cursor, &rows));
    AddRows(store, rows, &content);
    if (statistics != nullptr) AddStatistics(store, rows, statistics);
  }
  return content;
}

void ExpectEqual(const Content& expected, const Content& received) {
  EXPECT_EQ(expected.size(), received.size());
  EXPECT_TRUE(expected == received);
}

// A snapshot that is being written.
class Snapshot {
 public:
  explicit Snapshot(Store* store, uint64_t since = 0) : store_(store), changes_(ChangesOf(store)) {
    HeldStores paused(HostAllocator());
    const Store* const stores[] = {store};
    Subject::ExpectOk(paused.Take(stores, 1, Held::kPaused));
    Subject::ExpectOk(changes_->Begin(since));
  }
  static ChangeLog* ChangesOf(Store* store) { return store->maintenance()->changes(); }

  // Returns false once it has passed all rows.
  bool Step(size_t max_rows) {
    if (cursor_.done) return false;
    WholeRows rows(HostAllocator());
    Subject::ExpectOk(
        store_->maintenance()->ExportSnapshot(ExecContext::Serial(), max_rows, &cursor_, &rows));
    Add(rows);
    return true;
  }
  void Finish(uint64_t save) {
    while (Step(64)) {
    }
    HeldStores paused(HostAllocator());
    const Store* const stores[] = {store_};
    Subject::ExpectOk(paused.Take(stores, 1, Held::kPaused));
    WholeRows rows(HostAllocator());
    while (changes_->TakeGiven(&rows)) Add(rows);
    Buffer<int64_t> left(HostAllocator());
    size_t count;
    Subject::ExpectOk(changes_->KeysThatLeft(&left, &count));
    left_.insert(left.data(), left.data() + count);
    changes_->End(save);
  }

  const Content& rows() const { return rows_; }
  const Statistics& statistics() const { return statistics_; }
  const std::set<int64_t>& left() const { return left_; }
  // The content of a store that had `base` and received these changes.
  Content Over(Content base) const {
    for (const int64_t key : left_) base.erase(key);
    for (const auto& [key, row] : rows_) base[key] = row;
    return base;
  }

 private:
  void Add(const WholeRows& rows) {
    AddRows(*store_, rows, &rows_);
    AddStatistics(*store_, rows, &statistics_);
  }

  Store* const store_;
  ChangeLog* const changes_;
  ExportCursor cursor_;
  Content rows_;
  Statistics statistics_;
  std::set<int64_t> left_;
};

class StoreSnapshots : public testing::TestWithParam<StoreKind> {};

// Runs a random verb on random keys.
void Change(Random* random, Subject* subject) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i < 16; ++i) keys.push_back(static_cast<int64_t>((*random)() % 300));
  const Batch batch(keys);
  subject->NextStep();
  switch ((*random)() % 6) {
    case 0:
      return subject->Upsert(batch);
    case 1:
      return Subject::ExpectOk(subject->store->Erase(subject->context, batch));
    case 2: {
      const std::vector<float> from(batch.size() * kDim, 1.0f), to(batch.size() * kDim, 1.5f);
      const std::vector<char> exists(batch.size(), 1);
      return Subject::ExpectOk(subject->store->Accum(subject->context, batch, from.data(),
                                                     to.data(),
                                                     reinterpret_cast<const bool*>(exists.data())));
    }
    case 3:
      return subject->Find(batch, true);
    default:
      return subject->Apply(batch);
  }
}

TEST_P(StoreSnapshots, HaveTheRowsOfTheirMomentEachOnce) {
  for (const uint64_t seed : Seeds(5)) {
    Random random(seed);
    Subject subject(GetParam(), Tracked());
    subject.Apply({0});  // from here on, rows have slots
    std::optional<Content> last;
    for (uint64_t save = 1; save < 12; ++save) {
      const size_t changes = random() % 20;
      for (size_t i = 0; i < changes; ++i) Change(&random, &subject);
      const Content expected = All(*subject.store);
      const bool whole = !last || random() % 4 == 0;
      Snapshot snapshot(subject.store.get(), whole ? 0 : save - 1);
      // Verbs and the snapshot take turns.
      const size_t steps = random() % 12;
      for (size_t i = 0; i < steps; ++i) {
        for (size_t k = random() % 3; k > 0; --k) Change(&random, &subject);
        snapshot.Step(1 + random() % 64);
      }
      snapshot.Finish(save);
      ExpectEqual(expected, whole ? snapshot.rows() : snapshot.Over(*last));
      last = expected;
    }
  }
}

TEST_P(StoreSnapshots, OfChangesHaveNoRowThatDidNotChange) {
  Subject subject(GetParam(), Tracked());
  subject.Apply(KeysFrom(0, 1000));
  Snapshot(subject.store.get()).Finish(1);
  subject.Find(KeysFrom(0, 1000), true);
  subject.Apply(KeysFrom(500, 10));
  Snapshot snapshot(subject.store.get(), 1);
  snapshot.Finish(2);
  EXPECT_EQ(10u, snapshot.rows().size());
  EXPECT_EQ(1u, snapshot.rows().count(505));
}

TEST_P(StoreSnapshots, SkipSnapshotsBetween) {
  Subject subject(GetParam(), Tracked());
  subject.Apply(KeysFrom(0, 100));
  const Content first = All(*subject.store);
  Snapshot(subject.store.get()).Finish(1);
  subject.Apply(KeysFrom(10, 5));
  Snapshot(subject.store.get(), 1).Finish(2);
  Subject::ExpectOk(subject.store->Erase(subject.context, Batch{11, 99}));
  subject.Apply(KeysFrom(20, 5));
  Snapshot snapshot(subject.store.get(), 1);
  snapshot.Finish(3);
  ExpectEqual(All(*subject.store), snapshot.Over(first));
  EXPECT_EQ(9u, snapshot.rows().size());
}

TEST_P(StoreSnapshots, OfAPolicysRowsThatLeave) {
  for (const EvictionOrder order : {EvictionOrder::kLru, EvictionOrder::kLfu}) {
    Random random(7);
    Subject subject(GetParam(), Tracked(Bounded(150, order)));
    Content last;
    for (uint64_t save = 1; save < 15; ++save) {
      for (size_t i = 0; i < 10; ++i) Change(&random, &subject);
      const Content expected = All(*subject.store);
      Snapshot snapshot(subject.store.get(), save - 1);
      for (size_t i = 0; i < 6; ++i) {
        Change(&random, &subject);
        snapshot.Step(10);
      }
      if (save % 4 == 0) {
        size_t removed = 0;
        Store* const store = subject.store.get();
        Subject::ExpectOk(RestrictRows(subject.context, &store, 1, order, 20, &removed));
        EXPECT_GT(removed, 0u);
      }
      snapshot.Finish(save);
      ExpectEqual(expected, snapshot.Over(last));
      last = expected;
    }
  }
}

// Uses random keys, mostly without a change, or sets their statistics.
void Use(Random* random, Subject* subject) {
  subject->NextStep();
  const Batch batch(RandomKeys(40, 0, 299, random));
  switch ((*random)() % 4) {
    case 0:
      return subject->Apply(batch);
    case 1: {
      const std::vector<uint64_t> words(batch.size(), (*random)() % 100);
      return Subject::ExpectOk(subject->store->eviction()->AssignStatistics(
          subject->context, batch, StatisticSet().With(Statistic::kLastStep), words.data()));
    }
    default:
      return subject->Find(batch, true);
  }
}

TEST_P(StoreSnapshots, HaveTheStatisticsOfTheirMoment) {
  RowPolicy expiring = AllStatistics();
  expiring.ttl_milliseconds = 100;
  for (const RowPolicy& policy :
       {AllStatistics(), expiring, Bounded(250, EvictionOrder::kLru),
        Bounded(250, EvictionOrder::kLfu), Bounded(250, EvictionOrder::kEpochLru)}) {
    for (const uint64_t seed : Seeds(5)) {
      Random random(seed);
      Subject subject(GetParam(), Tracked(policy));
      subject.Apply(KeysFrom(0, 300));
      for (uint64_t save = 1; save < 8; ++save) {
        for (size_t i = 0; i < 5; ++i) Use(&random, &subject);
        Statistics expected;
        All(*subject.store, &expected);
        const bool whole = save % 2 == 1;
        Snapshot snapshot(subject.store.get(), whole ? 0 : save - 1);
        for (size_t i = 0; i < 6; ++i) {
          Use(&random, &subject);
          snapshot.Step(10);
        }
        snapshot.Finish(save);
        if (whole) {
          EXPECT_EQ(expected.size(), snapshot.statistics().size());
        }
        for (const auto& [key, words] : snapshot.statistics()) {
          ASSERT_EQ(expected[key], words) << key << " of save " << save << " by seed " << seed;
        }
      }
    }
  }
}

TEST_P(StoreSnapshots, HaveWholeUsesWhileThreadsLookUp) {
  if (!GetParam().takes_threads) GTEST_SKIP() << "one thread at a time may call it";
  // Each lookup is a step that uses all rows once. With tiers, it notes some uses before the
  // others.
  const Batch batch(KeysFrom(0, 200));
  RowPolicy policy;
  policy.statistics = StatisticsOf(EvictionOrder::kLfu).With(Statistic::kLastStep);
  Subject subject(GetParam(), Tracked(policy));
  subject.Upsert(batch);
  Store* const store = subject.store.get();
  std::atomic<bool> stops{false};
  std::atomic<uint64_t> step{1};
  std::thread reader([&] {
    std::vector<float> rows(batch.size() * kDim);
    ExecContext context = ExecContext::Serial();
    context.training = true;
    for (; !stops; ++step) {
      context.now.step = step + 1;
      Subject::ExpectOk(store->Find(context, batch, DefaultRows(), rows.data(), nullptr, {}));
    }
  });
  for (uint64_t save = 1; save <= 30; ++save) {
    const uint64_t until = step + 3;
    while (step < until) std::this_thread::yield();
    Snapshot snapshot(store);
    while (snapshot.Step(20)) std::this_thread::yield();
    snapshot.Finish(save);
    ASSERT_EQ(batch.size(), snapshot.statistics().size());
    for (const auto& [key, words] : snapshot.statistics()) {
      ASSERT_EQ(words[0], words[1]) << "step and count of " << key << " in save " << save;
      if (GetParam().has_tiers) continue;
      ASSERT_EQ(snapshot.statistics().at(0), words) << key << " of save " << save;
    }
  }
  stops = true;
  reader.join();
}

TEST_P(StoreSnapshots, GoOnWhileTheStoreShrinks) {
  Subject subject(GetParam(), Tracked());
  subject.Apply(KeysFrom(0, 200));
  const Content expected = All(*subject.store);
  Snapshot snapshot(subject.store.get());
  snapshot.Step(50);
  Subject::ExpectOk(subject.store->maintenance()->Shrink(subject.context));
  subject.Apply(KeysFrom(100, 200));
  snapshot.Finish(1);
  ExpectEqual(expected, snapshot.rows());
}

TEST_P(StoreSnapshots, FailIfTheContentIsReplaced) {
  const auto failure_after = [](const auto& act) {
    Subject subject(GetParam(), Tracked());
    subject.Apply(KeysFrom(0, 200));
    Snapshot(subject.store.get()).Finish(1);
    ChangeLog* const changes = Snapshot::ChangesOf(subject.store.get());
    Snapshot snapshot(subject.store.get(), 1);
    act(&subject);
    const Status failure = changes->Check();
    EXPECT_EQ(StatusCode::kFailedPrecondition, failure.code());
    changes->End(0);
    EXPECT_EQ(StatusCode::kFailedPrecondition, changes->Begin(1).code()) << "it knows no changes";
    return failure.message();
  };
  EXPECT_EQ("Table 'table' was cleared while a snapshot of it was written.",
            failure_after([](Subject* subject) { Subject::ExpectOk(subject->store->Clear()); }));
  EXPECT_EQ("Table 'table' got the slots of another optimizer while a snapshot of it was written.",
            failure_after([](Subject* subject) {
              Subject::ExpectOk(
                  subject->store->maintenance()->SetRule(FusedSlots(RuleKind::kAdam, kDim)));
            }));
  EXPECT_EQ("Table 'table' took other rows over while a snapshot of it was written.",
            failure_after([](Subject* subject) {
              StoreMaintenance* const maintenance = subject->store->maintenance();
              const auto fresh = maintenance->NewEmpty(10, subject->store->initializer());
              Subject::ExpectOk(maintenance->TakeContent(fresh.get()));
            }));
}

TEST_P(StoreSnapshots, AreRefusedTwiceAtOnceAndAfterUnknownOnes) {
  Subject subject(GetParam(), Tracked());
  subject.Apply(KeysFrom(0, 20));
  ChangeLog* const changes = Snapshot::ChangesOf(subject.store.get());
  EXPECT_EQ("Table 'table' does not know what changed since that snapshot: save a whole one.",
            changes->Begin(1).message());
  Snapshot snapshot(subject.store.get());
  EXPECT_EQ("A snapshot of table 'table' is under way.", changes->Begin(0).message());
  snapshot.Finish(0);
  EXPECT_EQ(StatusCode::kFailedPrecondition, changes->Begin(0 + 1).code()) << "it came to nothing";
}

TEST_P(StoreSnapshots, GoOnFromALoadedOne) {
  Subject subject(GetParam(), Tracked());
  subject.Upsert(KeysFrom(0, 100));
  Snapshot::ChangesOf(subject.store.get())->NoteLoaded(77);
  subject.Upsert(KeysFrom(50, 3));
  Snapshot snapshot(subject.store.get(), 77);
  snapshot.Finish(78);
  EXPECT_EQ(3u, snapshot.rows().size());
}

TEST_P(StoreSnapshots, ForgetWhatIsDropped) {
  Subject subject(GetParam(), Tracked());
  ChangeLog* const changes = Snapshot::ChangesOf(subject.store.get());
  subject.Upsert(KeysFrom(0, 30));
  Snapshot(subject.store.get()).Finish(1);
  Subject::ExpectOk(subject.store->Erase(ExecContext::Serial(), Batch(KeysFrom(0, 3))));
  Snapshot second(subject.store.get(), 1);
  changes->Drop(1);  // a running snapshot still has to report the keys that left
  Subject::ExpectOk(subject.store->Erase(ExecContext::Serial(), Batch(KeysFrom(3, 2))));
  second.Finish(2);
  EXPECT_EQ(3u, second.left().size());
  EXPECT_EQ(StatusCode::kFailedPrecondition, changes->Begin(1).code());
  changes->Drop(1);
  Snapshot third(subject.store.get(), 2);
  third.Finish(3);
  EXPECT_EQ(2u, third.left().size());
  changes->Drop(2);
  changes->Drop(3);
  EXPECT_EQ(StatusCode::kFailedPrecondition, changes->Begin(3).code());
}

TEST_P(StoreSnapshots, RememberKeysThatLeftAsLongAsOthersNeedThem) {
  ChangeLog few("table", 10);
  ASSERT_TRUE(few.Begin(0).ok());
  few.End(1);
  for (uint64_t save = 2; save < 30; ++save) {
    few.NoteLeft(7);
    ASSERT_TRUE(few.Begin(save - 1).ok()) << save;
    few.End(save);
    few.Drop(save - 1);
  }
}

TEST_P(StoreSnapshots, ForgetKeysThatNoneCanAskForAnyMore) {
  for (const bool failed : {false, true}) {
    ChangeLog few("table", 4);
    ASSERT_TRUE(few.Begin(0).ok());
    if (!failed) few.End(1);
    for (int64_t key = 0; key < 4; ++key) few.NoteLeft(key);
    if (failed) {
      few.End(0);
    } else {
      few.Drop(1);
    }
    ASSERT_TRUE(few.Begin(0).ok());
    few.NoteLeft(9);
    few.End(2);
    EXPECT_TRUE(few.Begin(2).ok()) << failed;
  }
}

TEST_P(StoreSnapshots, WithoutMemoryFailAndTheStoreGoesOn) {
  Subject subject(GetParam(), Tracked());
  ChangeLog few("table", 10);
  for (int64_t key = 0; key < 5; ++key) few.NoteLeft(key);
  ASSERT_TRUE(few.Begin(0).ok());
  few.End(1);
  for (int64_t key = 0; key < 10; ++key) few.NoteLeft(key);
  ASSERT_TRUE(few.Begin(1).ok());
  few.End(2);
  few.NoteLeft(11);
  EXPECT_EQ(StatusCode::kFailedPrecondition, few.Begin(2).code()) << "too many keys left";
}

TEST_P(StoreSnapshots, OfOneMomentWhileThreadsWrite) {
  if (!GetParam().takes_threads) GTEST_SKIP() << "one thread at a time may call it";
  // A thread writes its keys in turn, with rising numbers. At any moment its keys hold the last
  // numbers, without a gap.
  constexpr int64_t kKeys = 150, kThreads = 2;
  Subject subject(GetParam(), Tracked());
  Store* const store = subject.store.get();
  std::atomic<bool> stops{false};
  std::atomic<int64_t> writes{0};
  const auto write = [&](int64_t thread) {
    for (int64_t number = 0; !stops; ++number, ++writes) {
      const std::vector<float> row(kDim, static_cast<float>(number));
      const Batch batch{thread * kKeys + number % kKeys};
      Subject::ExpectOk(store->InsertOrAssign(ExecContext::Serial(), batch, row.data(), {}));
    }
  };
  std::thread writers[kThreads] = {std::thread(write, 0), std::thread(write, 1)};
  Content last;
  for (uint64_t save = 1; save <= 30; ++save) {
    const int64_t until = writes + 100;
    while (writes < until) std::this_thread::yield();
    const bool whole = save % 5 == 1;
    Snapshot snapshot(store, whole ? 0 : save - 1);
    while (snapshot.Step(50)) std::this_thread::yield();
    snapshot.Finish(save);
    last = whole ? snapshot.rows() : snapshot.Over(last);
    for (int64_t thread = 0; thread < kThreads; ++thread) {
      int64_t newest = -1;
      for (auto row = last.lower_bound(thread * kKeys);
           row != last.lower_bound((thread + 1) * kKeys); ++row) {
        newest = std::max(newest, static_cast<int64_t>(row->second[0]));
      }
      for (int64_t number = std::max<int64_t>(0, newest - kKeys + 1); number <= newest; ++number) {
        const auto row = last.find(thread * kKeys + number % kKeys);
        ASSERT_NE(last.end(), row) << save;
        ASSERT_EQ(std::vector<float>(kDim, static_cast<float>(number)), row->second) << save;
      }
    }
  }
  stops = true;
  for (std::thread& writer : writers) writer.join();
}

TEST(SnapshotsOfScores, AScoreThatIsSetIsAChange) {
  for (const StoreKind& kind : Kinds()) {
    RowPolicy policy;
    policy.eviction = EvictionOrder::kScore;
    policy.statistics = StatisticsOf(policy.eviction).With(Statistic::kLastStep);
    Subject subject(kind, Tracked(policy));
    subject.Upsert({1, 2});
    subject.Upsert(KeysFrom(10, 500));  // if there are tiers, the first two move down
    Snapshot(subject.store.get()).Finish(1);
    const uint64_t words[] = {100, 100};
    const auto set = [&](Statistic statistic) {
      Subject::ExpectOk(subject.store->eviction()->AssignStatistics(
          subject.context, Batch{1, 9}, StatisticSet().With(statistic), words));
    };
    set(Statistic::kLastStep);
    Snapshot uses(subject.store.get(), 1);
    uses.Finish(2);
    EXPECT_EQ(0u, uses.rows().size()) << "a use is none";
    set(Statistic::kScore);
    Snapshot scores(subject.store.get(), 2);
    scores.Finish(3);
    EXPECT_EQ(1u, scores.rows().count(1));
    EXPECT_EQ(1u, scores.rows().size());
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreSnapshots, testing::ValuesIn(Kinds()), NameOfStore);

}  // namespace
}  // namespace tf_embed
