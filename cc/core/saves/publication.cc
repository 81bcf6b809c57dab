// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/publication.h"

#include <algorithm>
#include <memory>

#include "cc/core/batch/key_set.h"
#include "cc/core/table/paused_tables.h"

namespace tf_embed {
namespace {

constexpr size_t kRowsAtOnce = size_t{1} << 14;

// The removed keys of an incremental save. A key that was removed and returned has a row in it.
Status KeysThatLeft(const SavedRows& rows, std::vector<int64_t>* left) {
  KeySet present;
  RowBlock block(HostAllocator());
  for (const auto& file : rows.files()) {
    const RowFileReader& reader = file->reader;
    for (size_t number = 0; number < reader.num_blocks(); ++number) {
      TF_EMBED_RETURN_IF_ERROR(reader.ReadBlock(number, &block));
      if (reader.HasLeft(number)) {
        left->insert(left->end(), block.keys, block.keys + block.size);
      } else {
        TF_EMBED_RETURN_IF_ERROR(present.Add(block.keys, block.size));
      }
    }
  }
  TF_EMBED_RETURN_IF_ERROR(present.Build());
  // A key may have left more than once.
  std::sort(left->begin(), left->end());
  left->erase(std::unique(left->begin(), left->end()), left->end());
  const auto is_back = [&](int64_t key) { return present.Has(key); };
  left->erase(std::remove_if(left->begin(), left->end(), is_back), left->end());
  return Status();
}

// The keys of the table that are missing from a full save.
Status KeysNotIn(const ExecContext& exec, SavedRows* rows, const Table& table, StringScope* strings,
                 std::vector<int64_t>* left) {
  if (table.size() == 0) return Status();
  KeySet saved;
  Buffer<int64_t> numbers(table.allocator());
  for (size_t number = 0; number < rows->num_blocks(); ++number) {
    std::shared_ptr<const RowBlock> block;
    TF_EMBED_RETURN_IF_ERROR(rows->ReadBlock(number, &block));
    const int64_t* keys = block->keys;
    if (keys == nullptr) {
      // An absent string is mapped to the key that it would be assigned, which no row has.
      TF_EMBED_RETURN_IF_ERROR(strings->Keys(exec, block->key_strings, &numbers));
      keys = numbers.data();
    }
    TF_EMBED_RETURN_IF_ERROR(saved.Add(keys, block->size));
  }
  // Writers are paused only for the scan below, and not while files are read.
  TF_EMBED_RETURN_IF_ERROR(saved.Build());
  PausedTables paused(table.allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(table));
  return table.ForEachBlock(kRowsAtOnce, [&](const WholeRows* present) {
    for (size_t i = 0; i < present->size; ++i) {
      if (!saved.Has(present->keys[i])) left->push_back(present->keys[i]);
    }
    return Status();
  });
}

// Absent keys now get the initial rows of the saved table.
Status TakeSeed(const SavedRows& rows, Table* table) {
  const SavedRows::File& first = *rows.files().front();
  if (!first.has_origin()) return Status();
  PausedTables paused(table->allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(*table));
  return table->SetOrigin(first.reader.header().meta);
}

}  // namespace

Status KeysToRemove(const ExecContext& context, SavedRows* rows, const Table& table,
                    StringScope* strings, std::vector<int64_t>* left) {
  if (rows->files().front()->reader.header().has_changes) return KeysThatLeft(*rows, left);
  return KeysNotIn(context, rows, table, strings, left);
}

Status TakePublishedState(const SavedRows& rows, Table* table) {
  TF_EMBED_RETURN_IF_ERROR(TakeSeed(rows, table));
  rows.SetClockOf(table);
  return Status();
}

}  // namespace tf_embed
