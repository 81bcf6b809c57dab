// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/table.h"

#include <random>
#include <string>
#include <thread>
#include <utility>

#include "cc/core/table/held_tables.h"
#include "cc/core/table/paused_tables.h"
#include "cc/stores/host/host_store.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 3;
constexpr size_t kBatch = 40;

TableOptions Options(size_t num_shards) {
  TableOptions options;
  options.num_shards = num_shards;
  options.shard.dim = kDim;
  options.shard.initializer.kind = InitializerKind::kUniform;
  options.shard.initializer.a = -1.0;
  options.shard.initializer.b = 1.0;
  return options;
}

std::unique_ptr<Table> NewTable(const TableOptions& options) {
  auto table = std::make_unique<Table>(options);
  const Status status = table->MakeShards([](size_t, const StoreOptions& shard, Shard* made) {
    made->store = HostStore::Create(shard);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return table;
}

struct Batch {
  std::vector<int64_t> keys;
  std::vector<float> rows;
  std::vector<float> other_rows;

  explicit Batch(std::mt19937_64* random) {
    for (size_t i = 0; i < kBatch; ++i) keys.push_back(static_cast<int64_t>((*random)() % 61) - 30);
    for (size_t i = 0; i < kBatch * kDim; ++i) {
      rows.push_back(static_cast<float>((*random)() % 100) / 16.0f);
      other_rows.push_back(static_cast<float>((*random)() % 100) / 16.0f);
    }
  }
  TableKeys table_keys() const {
    TableKeys batch;
    batch.keys = keys.data();
    batch.size = keys.size();
    return batch;
  }
};

struct Found {
  std::vector<float> rows = std::vector<float>(kBatch * kDim);
  bool exists[kBatch] = {};

  bool operator==(const Found& other) const {
    return rows == other.rows && std::equal(exists, exists + kBatch, other.exists);
  }
};

Found FindIn(const Table& table, const Batch& batch,
             const ExecContext& exec = ExecContext::Serial()) {
  Found found;
  EXPECT_TRUE(
      table.Find(exec, batch.table_keys(), DefaultRows(), found.rows.data(), found.exists).ok());
  return found;
}

Status Train(const ExecContext& exec, RuleKind kind, const Batch& batch, Table* table) {
  const Gradients gradients{batch.rows.data(), DataType::kFloat, nullptr, nullptr};
  return table->Apply(exec, batch.table_keys(), gradients, MakeRule(kind, kDim));
}

// One random verb. The same generator gives the same verb of each table.
Status RunVerb(std::mt19937_64* random, Table* table) {
  const ExecContext exec = ExecContext::Serial();
  const Batch batch(random);
  const TableKeys keys = batch.table_keys();
  const uint64_t verb = (*random)() % 5;
  Found found;
  switch (verb) {
    case 0:
      return table->FindOrInsert(exec, keys, DefaultRows(), found.rows.data(), found.exists);
    case 1:
      return table->InsertOrAssign(exec, keys, batch.rows.data());
    case 2:
      found = FindIn(*table, batch);
      return table->Accum(exec, keys, found.rows.data(), batch.rows.data(), found.exists);
    case 3:
      return Train(exec, (*random)() % 2 == 0 ? RuleKind::kAdam : RuleKind::kAdagrad, batch, table);
    default:
      return table->Erase(exec, keys);
  }
}

// The oracle is a table of one shard, which is a store.
TEST(Table, RowsDoNotDependOnTheNumberOfShards) {
  for (const size_t num_shards : {2, 3, 8}) {
    const auto one = NewTable(Options(1));
    const auto many = NewTable(Options(num_shards));
    for (uint64_t seed = 0; seed < 200; ++seed) {
      std::mt19937_64 random(seed), same(seed);
      const Status status = RunVerb(&random, one.get());
      ASSERT_EQ(status.message(), RunVerb(&same, many.get()).message());
      const Batch batch(&random);
      ASSERT_TRUE(FindIn(*one, batch) == FindIn(*many, batch)) << "seed " << seed;
      ASSERT_EQ(one->size(), many->size());
      ASSERT_EQ(one->clock()->step(), many->clock()->step());
    }
  }
}

TEST(Table, VerbsThatChangeRowsCountSteps) {
  const auto table = NewTable(Options(2));
  std::mt19937_64 random(1);
  const Batch batch(&random);
  const ExecContext exec = ExecContext::Serial();
  Found found = FindIn(*table, batch);
  ASSERT_TRUE(
      table->FindOrInsert(exec, batch.table_keys(), DefaultRows(), found.rows.data(), found.exists)
          .ok());
  EXPECT_EQ(1u, table->clock()->step());
  ASSERT_TRUE(table->InsertOrAssign(exec, batch.table_keys(), batch.rows.data()).ok());
  EXPECT_EQ(2u, table->clock()->step());
}

TEST(Table, OwnersChooseTheShard) {
  const auto table = NewTable(Options(2));
  const int64_t keys[] = {10, 11, 12};
  const int32_t owners[] = {1, 0, 1};
  const float rows[3 * kDim] = {};
  TableKeys batch;
  batch.keys = keys;
  batch.size = 3;
  batch.owners = owners;
  ASSERT_TRUE(table->InsertOrAssign(ExecContext::Serial(), batch, rows).ok());
  EXPECT_EQ(1u, table->store(0)->size());
  EXPECT_EQ(2u, table->store(1)->size());

  const int32_t wrong[] = {1, 2, 1};
  batch.owners = wrong;
  const Status status = table->Erase(ExecContext::Serial(), batch);
  EXPECT_EQ("The partitioner must give a shard in [0, 2). Received: 2 for key 11.",
            status.message());
  EXPECT_EQ(3u, table->size());
}

TEST(Table, RefusedOwnersLeaveTheRule) {
  const auto table = NewTable(Options(2));
  const RuleSlots adam = FusedSlots(RuleKind::kAdam, kDim);
  const int64_t key = 5;
  const int32_t owner = 2;
  TableKeys batch;
  batch.keys = &key;
  batch.size = 1;
  batch.owners = &owner;
  std::vector<float> row(kDim), slots(adam.slots_per_row());
  bool exists;
  EXPECT_FALSE(table
                   ->FindSlots(ExecContext::Serial(), batch, DefaultRows(), adam, row.data(),
                               slots.data(), &exists)
                   .ok());
  EXPECT_FALSE(table
                   ->InsertOrAssign(ExecContext::Serial(), batch, row.data(), {&adam, slots.data()},
                                    /*sets_rule=*/true)
                   .ok());
  EXPECT_TRUE(table->HasRule(RuleSlots()));
}

TEST(Table, AssignedSlotsOfAnotherRuleChangeNoShard) {
  const auto table = NewTable(Options(3));
  std::mt19937_64 random(2);
  const Batch batch(&random);
  const RuleSlots adam = FusedSlots(RuleKind::kAdam, kDim);
  const RuleSlots adagrad = FusedSlots(RuleKind::kAdagrad, kDim);
  ASSERT_TRUE(table->SetRule(adam).ok());
  // As a step may leave it that is between two shards.
  ASSERT_TRUE(table->store(2)->maintenance()->SetRule(adagrad).ok());
  EXPECT_FALSE(table->HasRule(adam));
  const std::vector<float> slots(kBatch * adam.slots_per_row());
  const Status status = table->InsertOrAssign(ExecContext::Serial(), batch.table_keys(),
                                              batch.rows.data(), {&adam, slots.data()});
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_EQ(0u, table->size());
}

TEST(Table, AnImportOfARepeatedKeyChangesNothing) {
  const auto table = NewTable(Options(2));
  std::mt19937_64 random(3);
  const Batch batch(&random);
  ASSERT_TRUE(
      table->InsertOrAssign(ExecContext::Serial(), batch.table_keys(), batch.rows.data()).ok());
  const Found before = FindIn(*table, batch);
  TableContent content;
  ASSERT_TRUE(table->GetMeta(/*with_slots=*/true, &content.meta).ok());
  const int64_t keys[] = {7, 8, 7};
  const float rows[3 * kDim] = {};
  content.keys.keys = keys;
  content.keys.size = 3;
  content.weights = rows;
  const Status status = table->Import(ExecContext::Serial(), &content);
  EXPECT_EQ(StatusCode::kDataLoss, status.code()) << status.message();
  EXPECT_TRUE(before == FindIn(*table, batch));

  content.keys.size = 2;
  ASSERT_TRUE(table->Import(ExecContext::Serial(), &content).ok());
  EXPECT_EQ(2u, table->size());
}

TEST(Table, LoadedRowsGoWhereTheirOwnersSay) {
  const auto table = NewTable(Options(2));
  const int64_t keys[] = {4, 5, 6};
  const int32_t owners[] = {1, SavedBatch::kLeftOut, SavedBatch::kTablesChoice};
  const float rows[3 * kDim] = {};
  SavedBatch batch;
  batch.keys.keys = keys;
  batch.keys.size = 3;
  batch.keys.owners = owners;
  batch.weights = rows;
  ASSERT_TRUE(table->LoadRows(ExecContext::Serial(), batch).ok());
  EXPECT_EQ(1u, table->store(0)->size());
  EXPECT_EQ(1u, table->store(1)->size());

  const int32_t wrong[] = {0, 2, 0};  // 2 is the part of the rows that are left out
  batch.keys.owners = wrong;
  EXPECT_EQ(StatusCode::kInvalidArgument, table->LoadRows(ExecContext::Serial(), batch).code());
}

TEST(Table, StringsOfEvictedRowsLeaveTheDictionary) {
  TableOptions options = Options(2);
  options.key_type = StoredType::kString;
  options.policy.max_rows = 10;
  options.policy.log_evicted = true;
  const auto table = NewTable(options);
  const ExecContext exec = ExecContext::Serial();
  for (int round = 0; round < 20; ++round) {
    const std::string strings[] = {"a" + std::to_string(round), "b" + std::to_string(round)};
    const StringBatch batch{strings, 2, [](const void* all, size_t i) {
                              return std::string_view(static_cast<const std::string*>(all)[i]);
                            }};
    const float rows[2 * kDim] = {};
    Buffer<int64_t> numbers(HostAllocator());
    StringScope scope(table.get(), KeyUse::kWrite);
    ASSERT_TRUE(scope.Keys(exec, batch, &numbers).ok());
    TableKeys keys;
    keys.keys = numbers.data();
    keys.size = 2;
    keys.unsigned_keys = true;
    ASSERT_TRUE(table->InsertOrAssign(exec, keys, rows).ok());
  }
  EXPECT_LE(table->size(), 10u);
  EXPECT_EQ(table->size(), table->key_strings()->size());
  // The log has the strings of the others.
  const size_t left = 40 - table->size();
  ASSERT_TRUE(table->evicted()
                  ->Drain([&](const EvictionLog::Rows& rows) {
                    EXPECT_EQ(left, rows.size);
                    EXPECT_EQ(rows.size, rows.key_strings.size());
                    EXPECT_EQ('0', rows.key_strings.front().back());
                    return Status();
                  })
                  .ok());
  EXPECT_EQ(0u, table->evicted()->size());
}

TEST(Table, NoWriterIsPausedBetweenTwoShards) {
  const auto table = NewTable(Options(4));
  const auto other = NewTable(Options(2));
  std::mt19937_64 random(4);
  const Batch batch(&random);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    // All rows of a batch get the same number, over all shards.
    for (float number = 1.0f; !stop; ++number) {
      const std::vector<float> rows(kBatch * kDim, number);
      EXPECT_TRUE(
          table->InsertOrAssign(ExecContext::Serial(), batch.table_keys(), rows.data()).ok());
    }
  });
  while (table->size() == 0) std::this_thread::yield();
  for (int round = 0; round < 300; ++round) {
    PausedTables paused(HostAllocator());
    ASSERT_TRUE(paused.Take(std::vector<const Table*>{other.get(), table.get()}).ok());
    const Found found = FindIn(*table, batch);
    ASSERT_EQ(std::vector<float>(kBatch * kDim, found.rows[0]), found.rows);
  }
  stop = true;
  writer.join();
}

// A build that checks locks ends here if work in the threads of a pool waits for a table's.
TEST(Table, AHeldTableDoesInAPoolWhatAnotherDoes) {
  TableOptions options = Options(3);
  options.policy.max_rows = 24;
  options.policy.eviction = "lfu";
  const auto table = NewTable(options);
  const auto held = NewTable(options);
  const auto other = NewTable(Options(1));
  const ExecContext exec = ExecContext::Serial();
  const ExecContext writing = exec.InSerial().Holding(Held::kWriting);
  ExecContext training = exec;
  training.training = true;
  std::mt19937_64 random(5);
  const Batch first(&random);
  ASSERT_TRUE(Train(exec, RuleKind::kAdam, first, held.get()).ok());
  ASSERT_TRUE(Train(exec, RuleKind::kAdam, first, table.get()).ok());
  const auto in_pool = [&](Held what, const ExecContext::Work& work) {
    HeldTables holding(HostAllocator());
    ASSERT_TRUE(holding.Take({held.get(), other.get(), held.get()}, what).ok());
    exec.parallel_for(1, 1, std::cref(work));
  };
  for (int step = 0; step < 20; ++step) {
    const Batch batch(&random);
    const Found found = FindIn(*table, batch, training);
    in_pool(Held::kUsing, [&](size_t, size_t) {
      EXPECT_TRUE(found == FindIn(*held, batch, training.InSerial().Holding(Held::kUsing)));
    });
    ASSERT_TRUE(Train(exec, RuleKind::kAdam, batch, table.get()).ok());
    in_pool(Held::kWriting, [&](size_t, size_t) {
      EXPECT_TRUE(Train(writing, RuleKind::kAdam, batch, held.get()).ok());
    });
    EXPECT_TRUE(FindIn(*table, batch) == FindIn(*held, batch));
    EXPECT_EQ(table->size(), held->size());
  }
  in_pool(Held::kWriting, [&](size_t, size_t) {
    EXPECT_EQ(StatusCode::kFailedPrecondition,
              Train(writing, RuleKind::kAdagrad, first, held.get()).code());
  });
}

}  // namespace
}  // namespace tf_embed
