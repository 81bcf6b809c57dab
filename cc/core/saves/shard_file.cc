// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/shard_file.h"

#include <algorithm>

namespace tf_embed {
namespace {

// Looks up the strings of dictionary numbers.
struct NumberedStrings {
  const StringKeys* dictionary;
  const int64_t* numbers;

  StringBatch Batch(size_t size) const {
    return {this, size, [](const void* self, size_t i) {
              const NumberedStrings& strings = *static_cast<const NumberedStrings*>(self);
              return strings.dictionary->StringOf(strings.numbers[i]);
            }};
  }
};

}  // namespace

Status HeaderOf(Table* table, RowFileHeader* header) {
  const RowManifest kind = KindOf(*table);
  SavedPolicy policy;
  TF_EMBED_RETURN_IF_ERROR(table->GetMeta(/*with_slots=*/true, &header->meta));
  TF_EMBED_RETURN_IF_ERROR(table->GetPolicy(&policy));
  header->key_type = kind.key_type;
  header->value_type = kind.value_type;
  header->num_shards = static_cast<uint32_t>(table->num_shards());
  header->statistics = policy.statistics;
  header->policy = policy.Encode();
  return Status();
}

bool CanLink(const Table& table, const PendingSave& save) {
  return table.store(0)->tiers() != nullptr && save.can_link() && !table.has_string_keys() &&
         !table.has_string_values();
}

RowManifest KindOf(const Table& table) {
  RowManifest kind;
  kind.key_type = table.stored_key_type();
  kind.value_type = table.stored_value_type();
  kind.dim = table.dim();
  return kind;
}

Status ShardFile::Begin(const RowFileHeader& header, size_t shard) {
  RowFileHeader own = header;
  own.save = save_->number();
  // The state that shards share goes in the first shard's file only.
  if (shard > 0) own.policy.clear();
  FileSink* sink;
  TF_EMBED_RETURN_IF_ERROR(save_->NewFile(header.num_shards, &sink));
  own.shard = save_->ShardOf(shard, header.num_shards);
  own.num_shards = save_->NumShards(header.num_shards);
  writer_.emplace(sink, table_.allocator(), block_bytes_);
  const size_t row_bytes =
      sizeof(int64_t) + own.weight_bytes() + own.slot_bytes() + own.statistics_bytes();
  rows_of_block_ = std::max<size_t>(1, block_bytes_ / row_bytes);
  return writer_->Begin(own);
}

Status ShardFile::Append(WholeRows* whole) {
  // The change word is of this process's snapshots and means nothing in a file.
  whole->KeepStatistics(table_.statistics().size(), table_.statistics().OfUse().size());
  RowsToWrite rows;
  rows.size = whole->size;
  rows.keys = whole->keys.data();
  rows.weights = whole->weights.data();
  rows.slots = whole->slots.data();
  rows.statistics = whole->statistics.data();
  const NumberedStrings key_strings{table_.key_strings(), rows.keys};
  const NumberedStrings value_strings{table_.value_strings(),
                                      reinterpret_cast<const int64_t*>(rows.weights)};
  rows.key_strings = key_strings.Batch(rows.size);
  rows.value_strings = value_strings.Batch(rows.size * table_.dim());
  TF_EMBED_RETURN_IF_ERROR(writer_->Append(rows));
  // By this number another thread shows the progress of a save.
  table_.AddRowsSaved(rows.size);
  return Status();
}

Status ShardFile::AppendLeft(const int64_t* keys, size_t count) {
  return writer_->AppendLeft(keys, count);
}

Status ShardFile::AppendLinked(LinkedRows* rows) {
  KeepStatistics(rows->size, table_.statistics().size(), table_.statistics().OfUse().size(),
                 rows->statistics.data());
  TF_EMBED_RETURN_IF_ERROR(writer_->AppendLinked(*rows));
  table_.AddRowsSaved(rows->size);
  return Status();
}

Status ShardFile::AppendLinks(const ExecContext& context, Store* shard, LinkedRows* rows) {
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(shard->maintenance()->ExportLinks(context, this, &cursor, rows));
    TF_EMBED_RETURN_IF_ERROR(AppendLinked(rows));
  }
  return Status();
}

Status ShardFile::Finish() {
  TF_EMBED_RETURN_IF_ERROR(writer_->Finish());
  save_->EndFile(*writer_);
  return Status();
}

}  // namespace tf_embed
