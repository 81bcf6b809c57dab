// SPDX-License-Identifier: Apache-2.0
// SaveRows: a variable's rows go to files, of one moment, and replace those of an earlier save.
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/tf/on_gpu.h"
#include "cc/tf/pending_save.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/table_op.h"
#include "cc/tf/whole_table.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

RowManifest KindOf(const TableResource& table) {
  RowManifest kind;
  kind.key_type = StoredTypeOf(table.signature().key_dtype);
  kind.value_type = StoredTypeOf(table.signature().value_dtype);
  kind.dim = table.dim();
  return kind;
}

// The strings of numbers of a dictionary.
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

// One save, under way.
class RowSave {
 public:
  RowSave(SavePlace place, size_t block_bytes, TableResource* table)
      : kind_(KindOf(*table)),
        pending_(std::move(place), kind_),
        block_bytes_(block_bytes),
        table_(table) {}

  absl::Status Run() {
    TF_RETURN_IF_ERROR(pending_.Begin());
    TF_RETURN_IF_ERROR(WriteRows());
    return pending_.Commit();
  }

 private:
  // Writers wait until this is over, and go on while disks take in what was written.
  absl::Status WriteRows() {
    StringKeyScope string_scope(table_, KeyUse::kRead);
    HeldTables paused(table_->allocator());
    TF_RETURN_IF_ERROR(PauseWriters(*table_, &paused));
    SavedPolicy policy;
    RowFileHeader header;
    TF_RETURN_IF_ERROR(MetaOf(*table_, /*with_slots=*/true, &header.meta));
    TF_RETURN_IF_ERROR(PolicyOf(table_, &policy));
    header.key_type = kind_.key_type;
    header.value_type = kind_.value_type;
    header.num_shards = static_cast<uint32_t>(table_->num_shards());
    header.save = pending_.number();
    header.statistics = policy.statistics;
    for (size_t number = 0; number < table_->num_shards(); ++number) {
      header.shard = static_cast<uint32_t>(number);
      // What is the variable's and not a shard's stands in the first file.
      header.policy = number == 0 ? policy.Encode() : std::vector<int64_t>();
      TF_RETURN_IF_ERROR(WriteShard(*table_->shard(number), header));
    }
    return absl::OkStatus();
  }

  absl::Status WriteShard(const Table& shard, const RowFileHeader& header) {
    FileSink* sink;
    TF_RETURN_IF_ERROR(pending_.NewFile(header.num_shards, &sink));
    RowFileWriter writer(sink, table_->allocator(), block_bytes_);
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Begin(header)));
    const size_t row_bytes =
        sizeof(int64_t) + header.weight_bytes() + header.slot_bytes() + header.statistics_bytes();
    WholeRows exported(table_->allocator());
    for (ExportCursor cursor; !cursor.done;) {
      TF_RETURN_IF_ERROR(ToTensorFlow(shard.maintenance()->ExportBatch(
          std::max<size_t>(1, block_bytes_ / row_bytes), &cursor, &exported)));
      RowsToWrite rows;
      rows.size = exported.size;
      rows.keys = exported.keys.data();
      rows.weights = exported.weights.data();
      rows.slots = exported.slots.data();
      rows.statistics = exported.statistics.data();
      const NumberedStrings key_strings{table_->key_strings(), rows.keys};
      const NumberedStrings value_strings{table_->value_strings(),
                                          reinterpret_cast<const int64_t*>(rows.weights)};
      rows.key_strings = key_strings.Batch(rows.size);
      rows.value_strings = value_strings.Batch(rows.size * table_->dim());
      TF_RETURN_IF_ERROR(ToTensorFlow(writer.Append(rows)));
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Finish()));
    pending_.EndFile(writer);
    return absl::OkStatus();
  }

  const RowManifest kind_;
  PendingSave pending_;
  const size_t block_bytes_;
  TableResource* const table_;
};

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TF_RETURN_IF_ERROR(table->CheckMaintenance());
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    // One after the other, or one would remove what the other has half written.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    return RowSave(std::move(place), static_cast<size_t>(buffer_bytes_), table).Run();
  }

  SaveAttributes attributes_;
  int64_t buffer_bytes_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRows").Device(tf::DEVICE_CPU), SaveRowsOp);

const OnGpu<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});

}  // namespace
}  // namespace tf_embed
