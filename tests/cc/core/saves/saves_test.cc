// SPDX-License-Identifier: Apache-2.0
// Saves of tables, without TensorFlow, in folders whose every call can fail.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "cc/core/saves/fold.h"
#include "cc/core/saves/pending_save.h"
#include "cc/core/saves/publication.h"
#include "cc/core/saves/save_rows.h"
#include "cc/core/saves/snapshot.h"
#include "cc/stores/host/host_store.h"
#include "tests/cc/support/memory_folder.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 2;
constexpr SaveForm kForm{/*block_bytes=*/256, /*with_slots=*/true, /*links=*/false};

using Rows = std::map<int64_t, std::vector<float>>;

std::shared_ptr<Table> NewTable(size_t num_shards, bool tracks_changes = false) {
  TableOptions options;
  options.num_shards = num_shards;
  options.shard.dim = kDim;
  if (tracks_changes) {
    options.policy.statistics = StatisticSet().With(Statistic::kChange).bits();
  }
  auto table = std::make_shared<Table>(options);
  const Status status = table->MakeShards([](size_t, const StoreOptions& shard, Shard* made) {
    made->store = HostStore::Create(shard);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return table;
}

TableKeys KeysOf(const std::vector<int64_t>& keys) {
  TableKeys batch;
  batch.keys = keys.data();
  batch.size = keys.size();
  return batch;
}

// Sets the rows of keys from `begin` to below `end`.
void Upsert(Table* table, int64_t begin, int64_t end, float value) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  const std::vector<float> rows(keys.size() * kDim, value);
  ASSERT_TRUE(table->InsertOrAssign(ExecContext::Serial(), KeysOf(keys), rows.data()).ok());
}

// One step of Adam with equal gradients, which gives the rows slots.
void Train(Table* table, int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  const Gradients of{gradients.data(), DataType::kFloat, nullptr, nullptr};
  ASSERT_TRUE(
      table->Apply(ExecContext::Serial(), KeysOf(keys), of, MakeRule(RuleKind::kAdam, kDim)).ok());
}

// Weights and slots.
Rows RowsOf(const Table& table) {
  Rows all;
  const size_t slots = table.store(0)->rule().slots_per_row();
  EXPECT_TRUE(table
                  .ForEachBlock(100,
                                [&](const WholeRows* rows) {
                                  const auto* weight =
                                      reinterpret_cast<const float*>(rows->weights.data());
                                  const auto* slot =
                                      reinterpret_cast<const float*>(rows->slots.data());
                                  for (size_t i = 0; i < rows->size; ++i) {
                                    std::vector<float>& row = all[rows->keys[i]];
                                    row.assign(weight + i * kDim, weight + (i + 1) * kDim);
                                    row.insert(row.end(), slot + i * slots, slot + (i + 1) * slots);
                                  }
                                  return Status();
                                })
                  .ok());
  return all;
}

SavePlace PlaceIn(MemoryDisk* disk, const std::string& folder) {
  SavePlace place;
  place.folder = std::make_unique<MemoryFolder>(disk, "/saves/" + folder);
  place.file_name = "items";
  return place;
}

Status Load(MemoryDisk* disk, const std::string& folder, Table* table) {
  std::shared_ptr<SavedRows> rows;
  std::vector<int64_t> waiting;
  TF_EMBED_RETURN_IF_ERROR(SavedRows::Open(PlaceIn(disk, folder), /*whole=*/true, *table, &rows));
  TF_EMBED_RETURN_IF_ERROR(PrepareForRows(*rows, table, &waiting));
  for (size_t block = 0; block < rows->num_blocks(); ++block) {
    std::shared_ptr<const RowBlock> read;
    TF_EMBED_RETURN_IF_ERROR(rows->ReadBlock(block, &read));
    TF_EMBED_RETURN_IF_ERROR(LoadBlock(ExecContext::Serial(), *rows, block, *read, nullptr, table));
  }
  return Status();
}

Rows Loaded(MemoryDisk* disk, const std::string& folder, size_t num_shards) {
  const auto table = NewTable(num_shards);
  const Status status = Load(disk, folder, table.get());
  EXPECT_TRUE(status.ok()) << status.message();
  return RowsOf(*table);
}

TEST(Saves, RowsComeBackOverAnyNumberOfShards) {
  MemoryDisk disk;
  const auto table = NewTable(3);
  Upsert(table.get(), -40, 60, 1.5f);
  Train(table.get(), 0, 30);
  ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok());
  EXPECT_EQ(100u, table->rows_saved());
  for (const size_t num_shards : {1, 2, 3, 5}) {
    EXPECT_EQ(RowsOf(*table), Loaded(&disk, "a", num_shards));
  }
  SaveForm without_slots = kForm;
  without_slots.with_slots = false;
  ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "b"), without_slots).ok());
  EXPECT_EQ(kDim, Loaded(&disk, "b", 2).at(7).size());
}

TEST(Saves, AFailureAtAnyCallLeavesOneWholeSave) {
  bool has_failed = true;
  for (uint64_t call = 1; has_failed; ++call) {
    MemoryDisk disk;
    const auto table = NewTable(2);
    Upsert(table.get(), 0, 20, 1.0f);
    ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok());
    const Rows before = RowsOf(*table);
    Upsert(table.get(), 10, 30, 2.0f);
    disk.fails = disk.calls + call;
    has_failed = !SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok();
    disk.fails = 0;
    const Rows found = Loaded(&disk, "a", 1);
    const Rows after = RowsOf(*table);
    EXPECT_TRUE(found == after || (has_failed && found == before)) << "call " << call;
    // The next save removes the files of the failed save.
    ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok());
    EXPECT_EQ(3u, disk.files.size()) << "call " << call;  // two shards and the manifest
  }
}

TEST(Saves, AnyDamagedByteIsFound) {
  MemoryDisk disk;
  const auto table = NewTable(1);
  Upsert(table.get(), 0, 5, 1.0f);
  ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok());
  for (auto& [path, bytes] : disk.files) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(bytes[i] ^ 4);
      const auto other = NewTable(1);
      EXPECT_FALSE(Load(&disk, "a", other.get()).ok()) << path << ", byte " << i;
      EXPECT_EQ(0u, other->size());
      bytes[i] = static_cast<char>(bytes[i] ^ 4);
    }
  }
}

TEST(Saves, ASnapshotHasItsMomentAndTheNextItsChanges) {
  MemoryDisk disk;
  const auto table = NewTable(2, /*tracks_changes=*/true);
  Upsert(table.get(), 0, 50, 1.0f);
  uint64_t first_save = 0;
  const Rows first = RowsOf(*table);
  {
    Snapshot snapshot;
    ASSERT_TRUE(snapshot.Begin({table}, {0}).ok());
    Upsert(table.get(), 40, 60, 2.0f);  // after the moment
    ASSERT_TRUE(snapshot.Write(0, PlaceIn(&disk, "first"), "", kForm, &first_save).ok());
    EXPECT_FALSE(snapshot.Write(0, PlaceIn(&disk, "again"), "", kForm, &first_save).ok());
  }
  EXPECT_EQ(first, Loaded(&disk, "first", 3));

  const std::vector<int64_t> erased = {3, 45};
  ASSERT_TRUE(table->Erase(ExecContext::Serial(), KeysOf(erased)).ok());
  Snapshot changes;
  uint64_t save = 0;
  ASSERT_TRUE(changes.Begin({table}, {first_save}).ok());
  ASSERT_TRUE(changes.Write(0, PlaceIn(&disk, "second"), "first", kForm, &save).ok());
  const Rows second = RowsOf(*table);
  EXPECT_EQ(second, Loaded(&disk, "second", 1));

  // Folded, the changes no longer need the first snapshot.
  uint64_t folded = 0;
  ASSERT_TRUE(FoldSaves(PlaceIn(&disk, "second"), PlaceIn(&disk, "folded"), 256, &folded).ok());
  EXPECT_EQ(save, folded);
  const auto in_first = [](const auto& file) { return file.first.rfind("/saves/first/", 0) == 0; };
  for (auto file = disk.files.begin(); file != disk.files.end();) {
    file = in_first(*file) ? disk.files.erase(file) : std::next(file);
  }
  EXPECT_EQ(second, Loaded(&disk, "folded", 2));
  const auto other = NewTable(1);
  EXPECT_EQ(StatusCode::kDataLoss, Load(&disk, "second", other.get()).code());
}

TEST(Saves, ASnapshotOfSeveralTablesTakesEachOnceAndWantsTrackedTables) {
  Snapshot untracked, repeated, both;
  const auto table = NewTable(1, /*tracks_changes=*/true);
  EXPECT_EQ(StatusCode::kFailedPrecondition, untracked.Begin({NewTable(1)}, {0}).code());
  EXPECT_EQ(StatusCode::kInvalidArgument, repeated.Begin({table, table}, {0, 0}).code());
  EXPECT_TRUE(both.Begin({table, NewTable(2, true)}, {0, 0}).ok());
}

TEST(Saves, AFollowerRemovesTheKeysThatAreNotPublished) {
  MemoryDisk disk;
  const auto table = NewTable(2);
  Upsert(table.get(), 0, 10, 1.0f);
  ASSERT_TRUE(SaveRows(table.get(), PlaceIn(&disk, "a"), kForm).ok());
  const auto follower = NewTable(3);
  Upsert(follower.get(), 8, 13, 5.0f);
  std::shared_ptr<SavedRows> rows;
  ASSERT_TRUE(SavedRows::OpenAlone(PlaceIn(&disk, "a"), *follower, &rows).ok());
  std::vector<int64_t> left;
  StringScope strings(follower.get(), KeyUse::kRead);
  ASSERT_TRUE(KeysToRemove(ExecContext::Serial(), rows.get(), *follower, &strings, &left).ok());
  std::sort(left.begin(), left.end());
  EXPECT_EQ((std::vector<int64_t>{10, 11, 12}), left);
}

TEST(Saves, PartsOfSeveralProcessesAreJoined) {
  MemoryDisk disk;
  Rows all;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto table = NewTable(2);
    Upsert(table.get(), rank * 100, rank * 100 + 20, static_cast<float>(rank));
    for (const auto& row : RowsOf(*table)) all.insert(row);
    SavePlace part = PlaceIn(&disk, "a");
    part.rank = rank;
    part.processes = 2;
    part.joint_save = 77;
    ASSERT_TRUE(SaveRows(table.get(), std::move(part), kForm).ok());
  }
  SavePlace place = PlaceIn(&disk, "a");
  place.processes = 2;
  uint64_t save = 0;
  ASSERT_TRUE(JoinSaves(place, &save).ok());
  EXPECT_EQ(77u, save);
  EXPECT_EQ(all, Loaded(&disk, "a", 1));
}

}  // namespace
}  // namespace tf_embed
