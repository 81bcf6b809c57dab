// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/save_rows.h"

#include <memory>
#include <mutex>
#include <utility>

#include "cc/core/saves/pending_save.h"
#include "cc/core/saves/shard_file.h"
#include "cc/core/table/paused_tables.h"

namespace tf_embed {
namespace {

// Begins the export of a table. If the table is shared, reads the first rows, from which HeaderOf
// learns the rule: another process may have changed it.
Status Begin(Table* table, ExportCursor* cursor, WholeRows* rows) {
  if (!table->is_shared()) return Status();
  return table->store(0)->maintenance()->ExportBatch(1, cursor, rows);
}

// Blocks writers until it returns. They then run while the disk flushes.
Status WriteRows(Table* table, const SaveForm& form, PendingSave* save) {
  StringScope string_scope(table, KeyUse::kRead);
  PausedTables paused(table->allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(*table));
  WholeRows rows(table->allocator());
  ExportCursor begun;
  TF_EMBED_RETURN_IF_ERROR(Begin(table, &begun, &rows));
  RowFileHeader header;
  TF_EMBED_RETURN_IF_ERROR(HeaderOf(table, &header));
  header.has_links = form.links && form.with_slots && CanLink(*table, *save);
  if (!form.with_slots) header.meta.rule = RuleSlots();
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Store* const shard = table->store(number);
    ShardFile file(table, save, form.block_bytes);
    TF_EMBED_RETURN_IF_ERROR(file.Begin(header, number));
    LinkedRows linked(table->allocator());
    if (header.has_links) {
      const ExecContext context = ExecContext::Serial().Holding(Held::kPaused);
      TF_EMBED_RETURN_IF_ERROR(file.AppendLinks(context, shard, &linked));
    }
    ExportCursor cursor = std::exchange(begun, ExportCursor());
    // Rows in linked files are skipped here.
    cursor.linked = &linked;
    if (table->is_shared()) TF_EMBED_RETURN_IF_ERROR(file.Append(&rows));
    while (!cursor.done) {
      TF_EMBED_RETURN_IF_ERROR(
          shard->maintenance()->ExportBatch(file.rows_of_block(), &cursor, &rows));
      TF_EMBED_RETURN_IF_ERROR(file.Append(&rows));
    }
    TF_EMBED_RETURN_IF_ERROR(file.Finish());
  }
  return Status();
}

// Takes over the admission counts of all processes that saved. Validates all of them before it
// changes the table.
Status TakeCounts(const SavedRows& rows, Table* table, std::vector<int64_t>* waiting) {
  if (table->admission() == nullptr) return Status();
  const PolicySettings& settings = table->policy();
  std::shared_ptr<Admission> all;
  for (const auto& file : rows.files()) {
    const std::vector<int64_t>& counts = file->policy.admission;
    // The newest save of a chain has the counts of the older saves too.
    if (!file->newer.empty() || !file->policy.CountsFor(settings)) continue;
    std::shared_ptr<Admission> one;
    TF_EMBED_RETURN_IF_ERROR(settings.NewAdmission(table->allocator(), &one));
    // Loads into a separate admission, so that a damaged file leaves the table's unchanged.
    TF_EMBED_RETURN_IF_ERROR(file->Damaged(one->Load(counts.data(), counts.size())));
    if (all == nullptr) {
      all.swap(one);
    } else {
      const Status merged = all->Merge(*one);
      if (!merged.ok()) {
        return Status::Of(merged.code(), "'" + file->source->name() + "': " + merged.message());
      }
    }
  }
  if (all == nullptr) return Status();
  std::vector<int64_t> numbers;
  // The merged counts go through their saved form, which Load takes over as a whole or not at
  // all.
  TF_EMBED_RETURN_IF_ERROR(all->Save(&numbers));
  TF_EMBED_RETURN_IF_ERROR(table->admission()->Load(numbers.data(), numbers.size()));
  // Dictionary numbers mean nothing to callers.
  if (!table->has_string_keys()) Admission::SavedKeys(numbers, waiting);
  return Status();
}

// Takes over the seed and the waiting keys of the saved table. REQUIRES: the table is empty.
Status TakeOrigin(const SavedRows& rows, Table* table, std::vector<int64_t>* waiting) {
  const SavedRows::File& first = *rows.files().front();
  if (!first.has_origin()) return Status();
  TF_EMBED_RETURN_IF_ERROR(TakeCounts(rows, table, waiting));
  return table->SetOrigin(first.reader.header().meta);
}

}  // namespace

Status SaveRows(Table* table, SavePlace place, const SaveForm& form) {
  TF_EMBED_RETURN_IF_ERROR(table->CheckMaintenance());
  // Serialize saves: concurrent saves would remove each other's partial files.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  PendingSave save(std::move(place), KindOf(*table));
  TF_EMBED_RETURN_IF_ERROR(save.Begin());
  TF_EMBED_RETURN_IF_ERROR(WriteRows(table, form, &save));
  // Writers run again: WriteRows has returned, and only the flush remains.
  return save.Commit();
}

Status PrepareForRows(const SavedRows& rows, Table* table, std::vector<int64_t>* waiting) {
  const SavedRows::File* slots;
  TF_EMBED_RETURN_IF_ERROR(rows.FindSlots(&slots));
  const RuleSlots rule = slots == nullptr ? RuleSlots() : slots->reader.header().meta.rule;
  // Checked before anything changes, and again by the change of rule.
  if (slots != nullptr && table->RowsOfOtherRule(rule) > 0) {
    return Status::FailedPrecondition(
        "'" + table->name() + "' can't load '" + slots->source->name() +
        "': its rows have slots of another optimizer than those in the file. Clear it first.");
  }
  {
    // No row may be added between the check of the size and the change of seed: it would have
    // been drawn with the old seed.
    PausedTables paused(table->allocator());
    TF_EMBED_RETURN_IF_ERROR(paused.Take(*table));
    if (table->size() == 0) TF_EMBED_RETURN_IF_ERROR(TakeOrigin(rows, table, waiting));
  }
  if (slots != nullptr && !table->HasRule(rule)) {
    TF_EMBED_RETURN_IF_ERROR(table->SetRule(rule));
  }
  rows.SetClockOf(table);
  return Status();
}

Status LoadBlock(const ExecContext& context, const SavedRows& rows, size_t number,
                 const RowBlock& block, const int32_t* owners, Table* table) {
  const SavedRows::File& file = rows.FileOf(number);
  const RowFileHeader& header = file.reader.header();
  SavedBatch batch;
  batch.keys.keys = block.keys;
  batch.keys.size = block.size;
  batch.keys.owners = owners;
  batch.keys.unsigned_keys = header.key_type == StoredType::kUint64 || header.has_string_keys();
  batch.weights = block.weights;
  if (rows.HasSlots(file)) batch.slots = {&header.meta.rule, block.slots};
  batch.statistics = header.statistics;
  batch.words = block.statistics;
  // The table may exceed its bound until the statistics decide which rows leave. The save mutex
  // keeps saves and exports away meanwhile.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  StringScope strings(table, KeyUse::kWrite);
  Buffer<int64_t> key_numbers(table->allocator());
  Buffer<int64_t> value_numbers(table->allocator());
  if (header.has_string_keys()) {
    TF_EMBED_RETURN_IF_ERROR(strings.Keys(context, block.key_strings, &key_numbers));
    batch.keys.keys = key_numbers.data();
  }
  if (header.has_string_values()) {
    TF_EMBED_RETURN_IF_ERROR(strings.InternValues(context, block.value_strings, &value_numbers));
    batch.weights = value_numbers.data();
  }
  return table->LoadRows(context, batch);
}

}  // namespace tf_embed
