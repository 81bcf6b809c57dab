// SPDX-License-Identifier: Apache-2.0
// The file of a shard in a save under way: rows as a table gives them, in the form of files.
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

// What a table's files have in common: everything but the number of the shard. Nobody writes
// meanwhile.
absl::Status HeaderOf(TableResource* table, RowFileHeader* header);
// Leaves the slots out of files: rows are saved as if the table had no rule.
void LeaveSlotsOut(RowFileHeader* header);
// Whether files of a save may link others.
bool CanLink(const TableResource& table, const PendingSave& save);
// What a table is, as a manifest says it.
RowManifest KindOf(const TableResource& table);

class ShardFile final : public FileLinker {
 public:
  // All outlive it.
  ShardFile(TableResource* table, PendingSave* save, size_t block_bytes)
      : table_(*table), save_(save), block_bytes_(block_bytes) {}

  // In this order. `header`: HeaderOf's; the first shard's file has the numbers of the policy.
  absl::Status Begin(const RowFileHeader& header, size_t shard);
  // How many rows a block takes.
  size_t rows_of_block() const { return rows_of_block_; }
  // Changes the statistics in `rows`: files have those of use.
  absl::Status Append(WholeRows* rows);
  absl::Status AppendLeft(const int64_t* keys, size_t count);
  // Appends all rows of the shard that can be linked. REQUIRES: the header says that it has links.
  absl::Status AppendLinks(const ExecContext& context, Table* shard, LinkedRows* rows);
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
