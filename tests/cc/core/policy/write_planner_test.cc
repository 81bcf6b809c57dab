// SPDX-License-Identifier: Apache-2.0
// A WritePlanner without a store: rows are statistics in a map.
#include "cc/core/policy/write_planner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "cc/core/base/hash.h"
#include "gtest/gtest.h"

namespace tf_embed {
namespace {

class MapRows final : public PlannedRows {
 public:
  explicit MapRows(const RowPolicy& policy) : policy_(policy) {}

  size_t size() const override { return rows.size(); }
  void Prefetch(uint64_t) const override {}
  Status Find(int64_t key, uint64_t, RowStatistics::Word** words) const override {
    if (lookups_fail) return Status::Unavailable("The device is gone.");
    const auto found = rows.find(key);
    *words = found == rows.end() ? nullptr : found->second.get();
    return Status();
  }
  Status CollectRanks(const ExecContext&, EvictionOrder order, size_t one_in, const Rank& low,
                      const Rank& high, RankList* ranks, size_t* below) const override {
    ++passes;
    for (const auto& [key, words] : rows) {
      const uint64_t hash = HashKey(key);
      if (hash % one_in != 0) continue;
      const Rank rank = RankOf(order, RowStatistics(policy_.statistics, words.get()), hash);
      if (rank < low) {
        ++*below;
      } else if (rank < high || high == kHighestRank) {
        TF_EMBED_RETURN_IF_ERROR(ranks->Append(rank));
      }
    }
    return Status();
  }
  Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override {
    absent_keys = num_absent;
    for (const auto& [key, words] : rows) {
      if (!policy_.Expired(RowStatistics(policy_.statistics, words.get()), now)) continue;
      TF_EMBED_RETURN_IF_ERROR(expired->Append(Rank(0, HashKey(key))));
    }
    return Status();
  }
  Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
    if (count > 0 && fails) return Status::Unavailable("The sink is full.");
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(1u, rows.erase(keys[i])) << keys[i];
      removed.push_back(keys[i]);
    }
    *counter += count;
    return Status();
  }

  void Insert(int64_t key, const Moment& now) {
    auto words = std::make_unique<RowStatistics::Word[]>(StatisticSet::kMax);
    RowStatistics(policy_.statistics, words.get()).Begin(now);
    rows[key] = std::move(words);
  }

  std::map<int64_t, std::unique_ptr<RowStatistics::Word[]>> rows;
  std::vector<int64_t> removed;
  bool fails = false;
  bool lookups_fail = false;
  size_t absent_keys = 0;
  mutable int passes = 0;

 private:
  const RowPolicy& policy_;
};

// Host memory, with a count of the bytes in use.
class CountingAllocator final : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    in_use += bytes;
    return HostAllocator()->Allocate(bytes);
  }
  void Deallocate(void* memory, size_t bytes) override {
    in_use -= bytes;
    HostAllocator()->Deallocate(memory, bytes);
  }

  size_t in_use = 0;
};

class WritePlannerTest : public testing::Test {
 protected:
  void Begin(RowPolicy policy) {
    policy_ = policy.WithNeeds();
    rows_ = std::make_unique<MapRows>(policy_);
    planner_ = std::make_unique<WritePlanner>(policy_, &allocator_, rows_.get());
    context_.now = {1, 1000};
  }

  // An apply that inserts all of its keys.
  Status Write(const std::vector<int64_t>& keys, Admits admits = Admits::kCounted,
               const std::vector<int64_t>& scores = {}) {
    KeyBatch batch{keys.data(), keys.size(), nullptr};
    if (!scores.empty()) batch.scores = scores.data();
    rows_->removed.clear();
    const auto survey = [&](WritePlan* plan) {
      std::set<int64_t> seen;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (!seen.insert(keys[i]).second) continue;
        if (plan->scores.size() > 0) plan->scores[i] = RowStatistics::ScoreBits(scores[i]);
        const auto found = rows_->rows.find(keys[i]);
        RowStatistics::Word* const words =
            found == rows_->rows.end() ? nullptr : found->second.get();
        if (words == nullptr) {
          plan->decisions[i] = Decision::kAbsent;
          continue;
        }
        RowStatistics row(policy_.statistics, words);
        if (policy_.Expired(row, context_.now)) {
          plan->decisions[i] = Decision::kExpired;
        } else {
          row.Use(context_.now);
        }
      }
      return Status();
    };
    const auto write = [&](const WritePlan& plan) {
      if (write_fails_) return Status::Unavailable("The write failed.");
      for (size_t i = 0; i < keys.size(); ++i) {
        if (plan.decisions[i] != Decision::kInsert) continue;
        rows_->Insert(keys[i], context_.now);
        if (scores.empty()) continue;
        RowStatistics(policy_.statistics, rows_->rows.at(keys[i]).get())
            .Set(Statistic::kScore, RowStatistics::ScoreBits(scores[i]));
      }
      return Status();
    };
    Status status = planner_->Run(context_, batch, admits, survey, write);
    ++context_.now.step;
    context_.now.milliseconds += 10;
    return status;
  }

  std::set<int64_t> Keys() const {
    std::set<int64_t> keys;
    for (const auto& row : rows_->rows) keys.insert(row.first);
    return keys;
  }

  CountingAllocator allocator_;
  RowPolicy policy_;
  std::unique_ptr<MapRows> rows_;
  std::unique_ptr<WritePlanner> planner_;
  ExecContext context_ = ExecContext::Serial();
  bool write_fails_ = false;
};

RowPolicy Bounded(size_t max_rows, EvictionOrder order = EvictionOrder::kLru) {
  RowPolicy policy;
  policy.max_rows = max_rows;
  policy.eviction = order;
  return policy;
}

TEST_F(WritePlannerTest, KeysComeWhileThereIsRoom) {
  Begin(Bounded(4));
  ASSERT_TRUE(Write({1, 2, 2, 3}).ok());
  EXPECT_EQ((std::set<int64_t>{1, 2, 3}), Keys());
  EXPECT_EQ(3u, planner_->counters().admitted);
  EXPECT_EQ(0, rows_->passes);
}

TEST_F(WritePlannerTest, TheLeastRecentlyUsedRowsLeave) {
  Begin(Bounded(4));
  ASSERT_TRUE(Write({1, 2}).ok());
  ASSERT_TRUE(Write({3, 4}).ok());
  ASSERT_TRUE(Write({1}).ok());
  ASSERT_TRUE(Write({5}).ok());
  EXPECT_EQ((std::vector<int64_t>{2}), rows_->removed);
  EXPECT_EQ(1u, planner_->counters().evicted);
}

TEST_F(WritePlannerTest, RowsOfTheBatchStayAndItsLastKeysAreRefused) {
  Begin(Bounded(3));
  ASSERT_TRUE(Write({1, 2, 3}).ok());
  ASSERT_TRUE(Write({1, 2, 10, 11, 12}).ok());
  EXPECT_EQ((std::set<int64_t>{1, 2, 10}), Keys());
  EXPECT_EQ(2u, planner_->counters().refused);
}

TEST_F(WritePlannerTest, ExpiredRowsLeaveAndThoseOfTheBatchComeAnew) {
  RowPolicy policy;
  policy.ttl_milliseconds = 15;
  Begin(policy);
  ASSERT_TRUE(Write({1, 2, 3}).ok());
  ASSERT_TRUE(Write({2}).ok());
  ASSERT_TRUE(Write({1}).ok());
  EXPECT_EQ((std::set<int64_t>{1, 2}), Keys());
  EXPECT_EQ((std::vector<int64_t>{1, 3}), rows_->removed);
  EXPECT_EQ(2u, planner_->counters().expired);
  EXPECT_EQ(1u, rows_->absent_keys);
}

TEST_F(WritePlannerTest, AdmissionCountsOncePerBatchAndPeeksForNothing) {
  RowPolicy policy;
  policy.admission = Admission::NewCounter(HostAllocator(), 2, 0);
  Begin(policy);
  ASSERT_TRUE(Write({7, 7}).ok());
  EXPECT_EQ(1u, planner_->counters().held_back);
  ASSERT_TRUE(Write({8}, Admits::kPeeked).ok());
  EXPECT_EQ(1u, planner_->counters().held_back);
  ASSERT_TRUE(Write({9}, Admits::kAll).ok());
  EXPECT_EQ((std::set<int64_t>{9}), Keys());
  ASSERT_TRUE(Write({7}).ok());
  EXPECT_EQ((std::set<int64_t>{7, 9}), Keys());
}

TEST_F(WritePlannerTest, ARowLeavesForNoLowerScore) {
  Begin(Bounded(3, EvictionOrder::kScore));
  ASSERT_TRUE(Write({1, 2, 3}, Admits::kCounted, {10, 20, 30}).ok());
  ASSERT_TRUE(Write({4, 5}, Admits::kCounted, {5, 25}).ok());
  EXPECT_EQ((std::set<int64_t>{2, 3, 5}), Keys());
  EXPECT_EQ(1u, planner_->counters().refused);
}

// Scores may be lowered, so the keys of each batch with scores are queued again.
TEST_F(WritePlannerTest, WritesWithScoresTakeNoMoreAndMoreMemory) {
  constexpr int64_t kMax = 3000;
  Begin(Bounded(kMax, EvictionOrder::kScore));
  std::vector<int64_t> keys(kMax);
  std::iota(keys.begin(), keys.end(), 0);
  ASSERT_TRUE(Write(keys, Admits::kCounted, std::vector<int64_t>(kMax, 0)).ok());
  const std::vector<int64_t> low(kMax, -1);
  for (const bool refuses : {false, true}) {
    for (int64_t step = 0; step < 300; ++step) {
      if (step == 0 || refuses) {
        ASSERT_TRUE(Write({kMax + step}, Admits::kCounted, {-1}).ok());
      }
      ASSERT_TRUE(Write(keys, Admits::kCounted, low).ok());
    }
    EXPECT_LE(allocator_.in_use, 16u * kMax * sizeof(Rank));
  }
  EXPECT_EQ(size_t{kMax}, rows_->size());
  EXPECT_EQ(301u, planner_->counters().refused);
  EXPECT_LT(rows_->passes, 600) << "not a pass for each batch";
}

TEST_F(WritePlannerTest, AFailureOfTheSinkIsTheWrites) {
  Begin(Bounded(2));
  ASSERT_TRUE(Write({1, 2}).ok());
  rows_->fails = true;
  EXPECT_EQ(StatusCode::kUnavailable, Write({3}).code());
  EXPECT_EQ((std::set<int64_t>{1, 2}), Keys());
  rows_->fails = false;
  ASSERT_TRUE(Write({3, 4}).ok());
  EXPECT_EQ((std::set<int64_t>{3, 4}), Keys());
}

// A failed lookup must not be taken for a row that left. Otherwise the write would go on without
// room.
TEST_F(WritePlannerTest, AFailureOfALookupIsTheWrites) {
  Begin(Bounded(2));
  ASSERT_TRUE(Write({1, 2}).ok());
  context_.now = {2, 2000};
  rows_->lookups_fail = true;
  EXPECT_EQ(StatusCode::kUnavailable, Write({3}).code());
  EXPECT_EQ((std::set<int64_t>{1, 2}), Keys());
  EXPECT_EQ(0u, planner_->counters().refused);
  rows_->lookups_fail = false;
  ASSERT_TRUE(Write({3, 4}).ok());
  EXPECT_EQ((std::set<int64_t>{3, 4}), Keys());
}

RowPolicy Refusing(size_t max_rows) {
  RowPolicy policy = Bounded(max_rows);
  policy.evicts = false;
  return policy;
}

TEST_F(WritePlannerTest, ARefusingBoundKeepsNothingBesideRows) {
  EXPECT_EQ(0u, Refusing(3).WithNeeds().statistics.size());
}

TEST_F(WritePlannerTest, ARefusingBoundTakesTheFirstKeysAndNoRowLeaves) {
  Begin(Refusing(3));
  ASSERT_TRUE(Write({1, 2}).ok());
  ASSERT_TRUE(Write({4, 2, 3, 4, 3, 5}).ok());
  EXPECT_EQ((std::set<int64_t>{1, 2, 4}), Keys());
  EXPECT_EQ(2u, planner_->counters().refused) << "once for each key";
  ASSERT_TRUE(Write({3}, Admits::kPeeked).ok());
  EXPECT_EQ(2u, planner_->counters().refused) << "the apply that follows counts it";
  ASSERT_TRUE(Write({3, 1}, Admits::kAll).ok());
  EXPECT_EQ(3u, planner_->counters().refused);
  EXPECT_EQ(3u, planner_->counters().admitted);
  EXPECT_EQ(0u, planner_->counters().evicted);
  EXPECT_EQ(0, rows_->passes);
  ASSERT_EQ(1u, rows_->rows.erase(1));
  ASSERT_TRUE(Write({3, 5}).ok());
  EXPECT_EQ((std::set<int64_t>{2, 3, 4}), Keys());
}

// The queue of victims stays empty.
TEST_F(WritePlannerTest, ARefusingBoundTakesNoMemory) {
  Begin(Refusing(1000));
  for (int64_t step = 0; step < 30; ++step) {
    std::vector<int64_t> keys(100);
    std::iota(keys.begin(), keys.end(), 100 * step);
    ASSERT_TRUE(Write(keys, Admits::kCounted, keys).ok());
  }
  EXPECT_EQ(1000u, rows_->size());
  EXPECT_EQ(2000u, planner_->counters().refused);
  EXPECT_EQ(0u, allocator_.in_use);
}

TEST_F(WritePlannerTest, ExpiredRowsMakeRoomInARefusingBound) {
  RowPolicy policy = Refusing(2);
  policy.ttl_milliseconds = 15;
  Begin(policy);
  ASSERT_TRUE(Write({1, 2}).ok());
  ASSERT_TRUE(Write({2, 3}).ok());
  ASSERT_TRUE(Write({3, 4}).ok());  // 1 has expired
  EXPECT_EQ((std::set<int64_t>{2, 3}), Keys());
  EXPECT_EQ(2u, planner_->counters().refused);
  EXPECT_EQ(1u, planner_->counters().expired);
}

TEST_F(WritePlannerTest, AnAdmittedKeyWithoutRoomComesOnceThereIsSome) {
  RowPolicy policy = Refusing(1);
  policy.admission = Admission::NewCounter(HostAllocator(), 2, 0);
  Begin(policy);
  ASSERT_TRUE(Write({1, 2}).ok());
  ASSERT_TRUE(Write({1, 2}).ok());
  EXPECT_EQ((std::set<int64_t>{1}), Keys());
  EXPECT_EQ(2u, planner_->counters().held_back);
  EXPECT_EQ(1u, planner_->counters().refused);
  ASSERT_EQ(1u, rows_->rows.erase(1));
  ASSERT_TRUE(Write({2}).ok());
  EXPECT_EQ((std::set<int64_t>{2}), Keys());
}

// For random rows and batches, the victims equal the lowest rows of a sort of all ranks.
TEST_F(WritePlannerTest, TheLowestOfAllLeaveInEveryOrder) {
  for (const EvictionOrder order :
       {EvictionOrder::kLru, EvictionOrder::kLfu, EvictionOrder::kTtl, EvictionOrder::kEpochLru}) {
    constexpr size_t kMax = 3000;
    Begin(Bounded(kMax, order));
    std::mt19937_64 random(static_cast<uint64_t>(order));
    for (int step = 0; step < 120; ++step) {
      std::vector<int64_t> keys;
      for (int i = 0; i < 200; ++i) keys.push_back(static_cast<int64_t>(random() % 6000));
      std::set<int64_t> coming;
      std::map<Rank, int64_t> present;
      for (const int64_t key : keys) {
        if (rows_->rows.count(key) == 0) coming.insert(key);
      }
      const std::set<int64_t> used(keys.begin(), keys.end());
      for (const auto& [key, words] : rows_->rows) {
        if (used.count(key) > 0) continue;
        const RowStatistics row(policy_.statistics, words.get());
        present[RankOf(order, row, HashKey(key))] = key;
      }
      const size_t size = rows_->size() + coming.size();
      std::set<int64_t> expected;
      for (const auto& [rank, key] : present) {
        if (expected.size() + kMax >= size) break;
        expected.insert(key);
      }
      // A failed write leaves rows that are not in the queue.
      write_fails_ = step % 17 == 16;
      EXPECT_EQ(!write_fails_, Write(keys).ok());
      ASSERT_EQ(expected, std::set<int64_t>(rows_->removed.begin(), rows_->removed.end()))
          << "step " << step;
      if (write_fails_) continue;
      ASSERT_EQ(std::min(size, kMax), rows_->size());
    }
    EXPECT_LT(rows_->passes, 120) << "not a pass for each batch";
  }
}

}  // namespace
}  // namespace tf_embed
