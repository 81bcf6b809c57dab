// SPDX-License-Identifier: Apache-2.0
// Locks of several tables, held by one caller.
#include "cc/core/table/table_locks.h"

#include <memory>

#include "cc/core/pooling/bags.h"
#include "cc/core/pooling/pooled_find.h"
#include "tests/cc/support/test_tables.h"

namespace tf_embed {
namespace {

class TableGatesTest : public testing::TestWithParam<TableKind> {
 protected:
  static constexpr size_t kTables = 3;
  void SetUp() override {
    for (auto& table : tables_) table = GetParam().create(TableOptions());
  }
  // In an order that is not that of their making, and one of them twice.
  std::vector<const Table*> Mixed() const {
    return {tables_[2].get(), tables_[0].get(), tables_[1].get(), tables_[0].get()};
  }

  const ExecContext serial_ = ExecContext::Serial();
  std::unique_ptr<Table> tables_[kTables];
};

TEST_P(TableGatesTest, EachTableIsHeldOnceInTheOrderOfAll) {
  const std::vector<const Table*> mixed = Mixed();
  for (const Held held : {Held::kContent, Held::kWriting, Held::kPaused}) {
    HeldTables tables(HostAllocator());
    ASSERT_TRUE(tables.Take(mixed.data(), mixed.size(), held).ok());
    ASSERT_EQ(kTables, tables.size());
    for (size_t i = 0; i < kTables; ++i) EXPECT_EQ(tables_[i].get(), tables[i]);
  }
  for (auto& table : tables_) EXPECT_TRUE(table->Clear().ok()) << "all locks are given back";
}

TEST_P(TableGatesTest, CallersInAnyOrderDoNotWaitForEachOther) {
  const std::vector<const Table*> mixed = Mixed();
  const std::vector<const Table*> turned(mixed.rbegin(), mixed.rend());
  InThreads(5, [&](size_t thread) {
    for (int round = 0; round < 300; ++round) {
      const Held kinds[] = {Held::kContent, Held::kWriting, Held::kPaused, Held::kWriting};
      if (thread == 4) {
        ASSERT_TRUE(tables_[round % kTables]->Clear().ok());
        continue;
      }
      const std::vector<const Table*>& some = thread % 2 == 0 ? mixed : turned;
      HeldTables tables(HostAllocator());
      ASSERT_TRUE(tables.Take(some.data(), some.size(), kinds[thread]).ok());
    }
  });
}

TEST_P(TableGatesTest, WritesOfACallerThatHoldsTheTablesGoThrough) {
  const std::vector<const Table*> mixed = Mixed();
  const Batch keys = KeysFrom(0, 100);
  const std::vector<float> ones(keys.size(), 1.0f);
  Rule rule = MakeRule(RuleKind::kSgd, 1);
  for (auto& table : tables_) ASSERT_TRUE(table->maintenance()->SetRule(rule.slots).ok());
  {
    HeldTables tables(HostAllocator());
    ASSERT_TRUE(tables.Take(mixed.data(), mixed.size(), Held::kWriting).ok());
    const ExecContext holding = serial_.Holding(Held::kWriting);
    for (auto& table : tables_) {
      ASSERT_TRUE(table->Apply(holding, keys, ones.data(), DataType::kFloat, rule).ok());
      ASSERT_TRUE(table->FinishStep(holding, rule).ok());
    }
  }
  for (auto& table : tables_) EXPECT_EQ(keys.size(), table->size());
}

TEST_P(TableGatesTest, AHeldTableKeepsItsRule) {
  const Table* const tables[] = {tables_[0].get()};
  ASSERT_TRUE(tables_[0]->maintenance()->SetRule(FusedSlots(RuleKind::kAdam, 1)).ok());
  if (tables_[0]->locks().writes == TableLocks::Writes::kAlone) return;  // no others are inside
  HeldTables held(HostAllocator());
  ASSERT_TRUE(held.Take(tables, 1, Held::kWriting).ok());
  const float gradient = 1.0f;
  EXPECT_EQ(StatusCode::kFailedPrecondition,
            tables_[0]
                ->Apply(serial_.Holding(Held::kWriting), Batch{1}, &gradient, DataType::kFloat,
                        MakeRule(RuleKind::kMomentum, 1))
                .code());
}

// A pooled find whose pieces waited for a lock kept the threads of the pool from the verb that was
// inside, which the one that waited to be alone waited for.
TEST_P(TableGatesTest, PooledFindsGoOnBesideWritesAndClears) {
  PoolOfThreads pool(2);
  Table* const table = tables_[0].get();
  const Batch keys = KeysFrom(0, 6000);
  const std::vector<float> ones(keys.size(), 1.0f);
  InThreads(4, [&](size_t thread) {
    const ExecContext context = pool.Context();
    Bags bags(HostAllocator());
    bags.OfLines(keys.size() / 10, 10);
    std::vector<float> pooled(bags.size());
    const Table* const shards[] = {table};
    PooledFind find;
    find.keys = {keys.keys.data(), nullptr, false, shards, 1};
    find.bags = &bags;
    find.pooled = pooled.data();
    find.stride = 1;
    for (int round = 0; round < 200; ++round) {
      if (thread == 0) {
        ASSERT_TRUE(table->Clear().ok());
      } else if (thread == 1) {
        ASSERT_TRUE(table->InsertOrAssign(context, keys, ones.data(), {}).ok());
      } else {
        ASSERT_TRUE(FindPooled(context, &find, 1).ok());
        for (float sum : pooled) ASSERT_TRUE(sum >= 0.0f && sum <= 10.0f);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Tables, TableGatesTest, testing::ValuesIn(AllTables()), NameOfTable);

}  // namespace
}  // namespace tf_embed
