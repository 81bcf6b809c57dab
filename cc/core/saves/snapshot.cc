// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/snapshot.h"

#include <new>
#include <utility>

#include "cc/core/saves/pending_save.h"
#include "cc/core/table/paused_tables.h"

namespace tf_embed {

Status CheckTracked(const Table& table) {
  TF_EMBED_RETURN_IF_ERROR(table.CheckMaintenance());
  if (table.store(0)->maintenance()->changes() != nullptr) return Status();
  return Status::FailedPrecondition("Table '" + table.name() + "' does not keep track of changes.");
}

Status NoteLoaded(Table* table, uint64_t save) {
  if (!CheckTracked(*table).ok()) return Status();
  PausedTables paused(table->allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(*table));
  for (size_t number = 0; number < table->num_shards(); ++number) {
    table->store(number)->maintenance()->changes()->NoteLoaded(save);
  }
  return Status();
}

Status DropSnapshot(Table* table, uint64_t save) {
  if (!CheckTracked(*table).ok()) return Status();
  for (size_t number = 0; number < table->num_shards(); ++number) {
    table->store(number)->maintenance()->changes()->Drop(save);
  }
  return Status();
}

Snapshot::~Snapshot() {
  // Also after a failed Begin: `begun` counts the shards of each table with a snapshot to end.
  for (const One& one : tables_) End(one, 0);
}

Status Snapshot::Begin(std::vector<std::shared_ptr<Table>> tables,
                       const std::vector<uint64_t>& since) {
  std::vector<const Table*> all;
  for (size_t i = 0; i < tables.size(); ++i) {
    TF_EMBED_RETURN_IF_ERROR(CheckTracked(*tables[i]));
    for (size_t k = 0; k < i; ++k) {
      if (tables[k].get() == tables[i].get()) {
        return Status::InvalidArgument("`tables` must be distinct. Received: '" +
                                       tables[i]->name() + "' twice.");
      }
    }
    all.push_back(tables[i].get());
  }
  PausedTables paused(HostAllocator());
  // All tables are paused together, so they share the moment. Writers go on as soon as this
  // returns.
  TF_EMBED_RETURN_IF_ERROR(paused.Take(std::move(all)));
  for (size_t i = 0; i < tables.size(); ++i) {
    One one;
    TF_EMBED_RETURN_IF_ERROR(HeaderOf(tables[i].get(), &one.header));
    one.header.has_changes = since[i] != 0;
    one.since = since[i];
    one.table = std::move(tables[i]);
    const size_t num_shards = one.table->num_shards();
    tables_.push_back(std::move(one));
    for (size_t number = 0; number < num_shards; ++number) {
      TF_EMBED_RETURN_IF_ERROR(ChangesOf(tables_.back(), number)->Begin(since[i]));
      // After each shard, so that a failure of the next shard ends exactly the begun snapshots.
      ++tables_.back().begun;
    }
  }
  return Status();
}

Status Snapshot::Write(int64_t number, SavePlace place, std::string since_name,
                       const SaveForm& form, uint64_t* save) {
  One* one;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number < 0 || number >= static_cast<int64_t>(tables_.size()) ||
        tables_[static_cast<size_t>(number)].written) {
      return Status::InvalidArgument(
          "`number` must be that of a table that is not written yet, of " +
          std::to_string(tables_.size()) + ". Received: " + std::to_string(number) + ".");
    }
    one = &tables_[static_cast<size_t>(number)];
    if (one->since != 0 && !RowManifest::IsFolderName(since_name)) {
      return Status::InvalidArgument("`since_name` must be the name of a folder. Received: '" +
                                     since_name + "'.");
    }
    // Before the write: a second caller is refused at once and does not wait for the disk.
    one->written = true;
  }
  // Outside of the mutex, so that several tables are written at once.
  Status status;
  try {
    status = WriteOne(*one, std::move(place), std::move(since_name), form, save);
  } catch (const std::bad_alloc&) {  // ends the table's snapshot, so that it can have another
    status = Status::ResourceExhausted(
        [&] { return "No memory to write table '" + one->table->name() + "'."; });
  }
  End(*one, status.ok() ? *save : 0);
  one->begun = 0;
  return status;
}

ChangeLog* Snapshot::ChangesOf(const One& one, size_t shard) {
  return one.table->store(shard)->maintenance()->changes();
}

void Snapshot::End(const One& one, uint64_t save) {
  for (size_t number = 0; number < one.begun; ++number) ChangesOf(one, number)->End(save);
}

Status Snapshot::WriteOne(const One& one, SavePlace place, std::string since_name,
                          const SaveForm& form, uint64_t* number) {
  Table* const table = one.table.get();
  // Keeps clears and imports out.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  RowManifest kind = KindOf(*table);
  kind.since = one.since;
  kind.since_name = std::move(since_name);
  PendingSave save(std::move(place), kind);
  RowFileHeader header = one.header;
  header.has_links = form.with_slots && CanLink(*table, save);
  if (!form.with_slots) header.meta.rule = RuleSlots();
  TF_EMBED_RETURN_IF_ERROR(save.Begin());
  for (size_t shard = 0; shard < table->num_shards(); ++shard) {
    ShardFile file(table, &save, form.block_bytes);
    TF_EMBED_RETURN_IF_ERROR(file.Begin(header, shard));
    LinkedRows linked(table->allocator());
    if (header.has_links) {
      TF_EMBED_RETURN_IF_ERROR(
          file.AppendLinks(ExecContext::Serial(), table->store(shard), &linked));
    }
    TF_EMBED_RETURN_IF_ERROR(WriteShard(one, shard, &file));
    TF_EMBED_RETURN_IF_ERROR(file.Finish());
  }
  *number = save.number();
  return save.Commit();
}

Status Snapshot::WriteShard(const One& one, size_t number, ShardFile* file) {
  const Store* const shard = one.table->store(number);
  ChangeLog* const changes = ChangesOf(one, number);
  Allocator* const allocator = one.table->allocator();
  WholeRows rows(allocator);
  const auto write_given = [&] {
    // A writer that is about to change a row hands over the old version, if the scan has not
    // reached it.
    while (changes->TakeGiven(&rows)) TF_EMBED_RETURN_IF_ERROR(file->Append(&rows));
    return changes->Check();
  };
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(one.table->store(number)->maintenance()->ExportSnapshot(
        ExecContext::Serial(), file->rows_of_block(), &cursor, &rows));
    TF_EMBED_RETURN_IF_ERROR(file->Append(&rows));
    // After each block, so that rows that were handed over do not pile up in memory.
    TF_EMBED_RETURN_IF_ERROR(write_given());
  }
  {
    // The scan is done. This pause waits until writers hand over the rows that they have
    // captured.
    HeldStores paused(allocator);
    TF_EMBED_RETURN_IF_ERROR(paused.Take(&shard, 1, Held::kPaused));
  }
  TF_EMBED_RETURN_IF_ERROR(write_given());
  Buffer<int64_t> left(allocator);
  size_t count;
  TF_EMBED_RETURN_IF_ERROR(changes->KeysThatLeft(&left, &count));
  return file->AppendLeft(left.data(), count);
}

}  // namespace tf_embed
