// SPDX-License-Identifier: Apache-2.0
// SaveRows: writes a consistent snapshot of a variable's rows, and replaces the earlier save.
// RowsSaved: the number of rows that a running save has written, for its progress.
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

// The requested content and format of a save.
struct Wanted {
  int64_t buffer_bytes = 0;
  bool with_slots = true;
  bool links = false;

  absl::Status Read(tf::OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(construction->GetAttr("buffer_bytes", &buffer_bytes));
    return construction->GetAttr("with_slots", &with_slots);
  }
};

// Begins the export of a table. If the table is shared, reads the first rows, which tell the rule
// of all rows to HeaderOf: another process may have changed it.
absl::Status Begin(TableResource* table, ExportCursor* cursor, WholeRows* rows) {
  if (!table->is_shared()) return absl::OkStatus();
  return ToTensorFlow(table->shard(0)->maintenance()->ExportBatch(1, cursor, rows));
}

// Blocks writers until it returns. They then run while the disk flushes.
absl::Status WriteRows(TableResource* table, const Wanted& wanted, PendingSave* save) {
  StringKeyScope string_scope(table, KeyUse::kRead);
  PausedTables paused(table->allocator());
  TF_RETURN_IF_ERROR(PauseWriters(*table, &paused));
  WholeRows rows(table->allocator());
  ExportCursor begun;
  TF_RETURN_IF_ERROR(Begin(table, &begun, &rows));
  RowFileHeader header;
  TF_RETURN_IF_ERROR(HeaderOf(table, &header));
  header.has_links = wanted.links && wanted.with_slots && CanLink(*table, *save);
  if (!wanted.with_slots) LeaveSlotsOut(&header);
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Table* const shard = table->shard(number);
    ShardFile file(table, save, static_cast<size_t>(wanted.buffer_bytes));
    TF_RETURN_IF_ERROR(file.Begin(header, number));
    LinkedRows linked(table->allocator());
    if (header.has_links) {
      const ExecContext context = ExecContext::Serial().Holding(Held::kPaused);
      TF_RETURN_IF_ERROR(file.AppendLinks(context, shard, &linked));
    }
    ExportCursor cursor = std::exchange(begun, ExportCursor());
    // Rows in linked files are skipped here.
    cursor.linked = &linked;
    if (table->is_shared()) TF_RETURN_IF_ERROR(file.Append(&rows));
    while (!cursor.done) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(shard->maintenance()->ExportBatch(file.rows_of_block(), &cursor, &rows)));
      TF_RETURN_IF_ERROR(file.Append(&rows));
    }
    TF_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

absl::Status Save(TableResource* table, SavePlace place, const Wanted& wanted) {
  TF_RETURN_IF_ERROR(table->CheckMaintenance());
  // Serialize saves: concurrent ones would remove each other's partial files.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  PendingSave save(std::move(place), KindOf(*table));
  TF_RETURN_IF_ERROR(save.Begin());
  TF_RETURN_IF_ERROR(WriteRows(table, wanted, &save));
  // Writers run again: WriteRows has returned, and only the flush remains.
  return save.Commit();
}

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, wanted_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("links", &wanted_.links));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    return Save(table, std::move(place), wanted_);
  }

  SaveAttributes attributes_;
  Wanted wanted_;
};

class SaveRowsPartOp : public TableOp {
 public:
  explicit SaveRowsPartOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, wanted_.Read(construction));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
    TF_RETURN_IF_ERROR(ReadPart(context, 3, &place));
    return Save(table, std::move(place), wanted_);
  }

  Wanted wanted_;
};

// Takes no lock, so that it does not wait for a save.
class RowsSavedOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    tf::Tensor* rows;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &rows));
    rows->scalar<int64_t>()() = static_cast<int64_t>(table->rows_saved());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRows").Device(tf::DEVICE_CPU), SaveRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRowsPart").Device(tf::DEVICE_CPU), SaveRowsPartOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedRowsSaved").Device(tf::DEVICE_CPU), RowsSavedOp);

const OnGpu<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});
const OnGpu<SaveRowsPartOp> save_rows_part("TfEmbedSaveRowsPart", {"table", "folder", "file_name",
                                                                   "save", "rank", "processes"});
const OnGpu<RowsSavedOp> rows_saved("TfEmbedRowsSaved", {"table", "rows"});

}  // namespace
}  // namespace tf_embed
