// SPDX-License-Identifier: Apache-2.0
// The file of one shard in a save in progress: rows of a table, converted to the file format.
#ifndef TF_EMBED_CC_TF_SHARD_FILE_H_
#define TF_EMBED_CC_TF_SHARD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/core/files/row_file.h"
#include "cc/core/rows/whole_rows.h"
#include "cc/tf/pending_save.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

// The header shared by all files of a table, without the shard number. REQUIRES: no concurrent
// writes.
absl::Status HeaderOf(TableResource* table, RowFileHeader* header);
// Omits slots from files, as if the table had no rule.
void LeaveSlotsOut(RowFileHeader* header);
// Whether files of a save may link to other files.
bool CanLink(const TableResource& table, const PendingSave& save);
// The row types and dim of a table, for a manifest.
RowManifest KindOf(const TableResource& table);

class ShardFile final : public FileLinker {
 public:
  // REQUIRES: `table` and `save` outlive this object.
  ShardFile(TableResource* table, PendingSave* save, size_t block_bytes)
      : table_(*table), save_(save), block_bytes_(block_bytes) {}

  // Call order: Begin, then the appends, then Finish. `header` comes from HeaderOf. Only the first
  // shard's file has the policy.
  absl::Status Begin(const RowFileHeader& header, size_t shard);
  // Number of rows in a block.
  size_t rows_of_block() const { return rows_of_block_; }
  // Appends rows. Modifies the statistics in `rows`, because files keep only usage statistics.
  absl::Status Append(WholeRows* rows);
  absl::Status AppendLeft(const int64_t* keys, size_t count);
  // Appends all linkable rows of the shard. REQUIRES: the header has links.
  absl::Status AppendLinks(const ExecContext& context, Store* shard, LinkedRows* rows);
  bool Link(const std::string& path, uint64_t bytes, uint32_t checksum, uint32_t* number) override {
    return save_->LinkFile(path, bytes, checksum, number);
  }
  absl::Status Finish();

 private:
  absl::Status AppendLinked(LinkedRows* rows);

  TableResource& table_;
  PendingSave* const save_;
  const size_t block_bytes_;
  size_t rows_of_block_ = 1;
  std::optional<RowFileWriter> writer_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SHARD_FILE_H_
