// SPDX-License-Identifier: Apache-2.0
// The file of one shard in a save in progress: rows of a table, converted to the file format.
#ifndef TF_EMBED_CC_CORE_SAVES_SHARD_FILE_H_
#define TF_EMBED_CC_CORE_SAVES_SHARD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/core/files/row_file.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/core/saves/pending_save.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// The header shared by all files of a table, without the shard number. REQUIRES: no concurrent
// writes.
Status HeaderOf(Table* table, RowFileHeader* header);
// Whether files of a save may link to other files.
bool CanLink(const Table& table, const PendingSave& save);
// The row types and dim of a table, for a manifest.
RowManifest KindOf(const Table& table);

class ShardFile final : public FileLinker {
 public:
  // REQUIRES: `table` and `save` outlive this object.
  ShardFile(Table* table, PendingSave* save, size_t block_bytes)
      : table_(*table), save_(save), block_bytes_(block_bytes) {}

  // Call order: Begin, then the appends, then Finish. `header` comes from HeaderOf. Only the first
  // shard's file has the policy.
  Status Begin(const RowFileHeader& header, size_t shard);
  // Number of rows in a block.
  size_t rows_of_block() const { return rows_of_block_; }
  // Appends rows. Modifies the statistics in `rows`, because files keep only usage statistics.
  Status Append(WholeRows* rows);
  Status AppendLeft(const int64_t* keys, size_t count);
  // Appends all linkable rows of the shard. REQUIRES: the header has links.
  Status AppendLinks(const ExecContext& context, Store* shard, LinkedRows* rows);
  bool Link(const std::string& path, uint64_t bytes, uint32_t checksum, uint32_t* number) override {
    return save_->LinkFile(path, bytes, checksum, number);
  }
  Status Finish();

 private:
  Status AppendLinked(LinkedRows* rows);

  Table& table_;
  PendingSave* const save_;
  const size_t block_bytes_;
  size_t rows_of_block_ = 1;
  std::optional<RowFileWriter> writer_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SHARD_FILE_H_
