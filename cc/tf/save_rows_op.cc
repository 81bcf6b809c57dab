// SPDX-License-Identifier: Apache-2.0
// SaveRows: a variable's rows go to files, of one moment, and replace those of an earlier save.
#include <mutex>
#include <utility>

#include "cc/tf/on_gpu.h"
#include "cc/tf/pending_save.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/shard_file.h"
#include "cc/tf/string_key_scope.h"
#include "cc/tf/table_op.h"
#include "cc/tf/whole_table.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Writers wait until this is over, and go on while disks take in what was written.
absl::Status WriteRows(TableResource* table, size_t block_bytes, bool links, PendingSave* save) {
  StringKeyScope string_scope(table, KeyUse::kRead);
  PausedTables paused(table->allocator());
  TF_RETURN_IF_ERROR(PauseWriters(*table, &paused));
  RowFileHeader header;
  TF_RETURN_IF_ERROR(HeaderOf(table, &header));
  header.has_links = links && CanLink(*table, *save);
  WholeRows rows(table->allocator());
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Table* const shard = table->shard(number);
    ShardFile file(table, save, block_bytes);
    TF_RETURN_IF_ERROR(file.Begin(header, number));
    LinkedRows linked(table->allocator());
    if (header.has_links) {
      const ExecContext context = ExecContext::Serial().Holding(Held::kPaused);
      TF_RETURN_IF_ERROR(file.AppendLinks(context, shard, &linked));
    }
    for (ExportCursor cursor{0, false, &linked}; !cursor.done;) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(shard->maintenance()->ExportBatch(file.rows_of_block(), &cursor, &rows)));
      TF_RETURN_IF_ERROR(file.Append(&rows));
    }
    TF_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

absl::Status Save(TableResource* table, SavePlace place, size_t block_bytes, bool links) {
  TF_RETURN_IF_ERROR(table->CheckMaintenance());
  // One after the other, or one would remove what the other has half written.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  PendingSave save(std::move(place), KindOf(*table));
  TF_RETURN_IF_ERROR(save.Begin());
  TF_RETURN_IF_ERROR(WriteRows(table, block_bytes, links, &save));
  return save.Commit();
}

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("links", &links_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    return Save(table, std::move(place), static_cast<size_t>(buffer_bytes_), links_);
  }

  SaveAttributes attributes_;
  int64_t buffer_bytes_ = 0;
  bool links_ = false;
};

class SaveRowsPartOp : public TableOp {
 public:
  explicit SaveRowsPartOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
    TF_RETURN_IF_ERROR(ReadPart(context, 3, &place));
    return Save(table, std::move(place), static_cast<size_t>(buffer_bytes_), /*links=*/false);
  }

  int64_t buffer_bytes_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRows").Device(tf::DEVICE_CPU), SaveRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRowsPart").Device(tf::DEVICE_CPU), SaveRowsPartOp);

const OnGpu<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});
const OnGpu<SaveRowsPartOp> save_rows_part("TfEmbedSaveRowsPart", {"table", "folder", "file_name",
                                                                   "save", "rank", "processes"});

}  // namespace
}  // namespace tf_embed
