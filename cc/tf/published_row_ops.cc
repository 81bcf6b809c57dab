// SPDX-License-Identifier: Apache-2.0
// Ops by which a table follows another table. OpenPublishedRows reads and checks files while
// lookups continue. BeginPublishedRows returns the keys to remove. LoadSavedRows then loads the
// rows.
//
// Concurrent lookups see the old or the new version of a row. A row that stays is never removed and
// inserted again.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/batch/key_set.h"
#include "cc/core/table/paused_tables.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

constexpr size_t kRowsAtOnce = size_t{1} << 14;

class OpenPublishedRowsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    int64_t save;
    std::shared_ptr<SavedRows> rows;
    tf::Tensor *variant, *num_blocks;
    TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "save", &save));
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &variant));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &num_blocks));
    TF_RETURN_IF_ERROR(SavedRows::OpenAlone(place, *table, &rows));
    for (const auto& file : rows->files()) {
      // The folder may have been replaced since it was announced, and the following changes would
      // not fit rows of another save.
      if (file->reader.header().save == static_cast<uint64_t>(save)) continue;
      return absl::DataLossError(
          absl::StrCat("'", file->source->name(), "' is of another save than was published."));
    }
    num_blocks->scalar<int64_t>()() = static_cast<int64_t>(rows->num_blocks());
    variant->scalar<tf::Variant>()() = SavedRowsVariant(std::move(rows));
    return absl::OkStatus();
  }
};

class BeginPublishedRowsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    try {
      return Begin(context, table);
    } catch (const std::bad_alloc&) {
      return ResourceExhaustedError("No memory for the keys that leave table '", table->name(),
                                    "'.");
    }
  }

  static absl::Status Begin(tf::OpKernelContext* context, TableResource* table) {
    SavedRows* const rows = SavedRowsVariant::In(context->input(1));
    if (rows == nullptr || rows->files().empty()) {
      return InvalidArgumentError("`rows` must be the open files of saved rows.");
    }
    if (context->expected_output_dtype(0) != table->signature().key_dtype) {
      return InvalidArgumentError("`keys` must be ",
                                  tf::DataTypeString(table->signature().key_dtype), ".");
    }
    for (const auto& file : rows->files()) TF_RETURN_IF_ERROR(file->CheckFits(*table));
    TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
    const ExecContext exec = ExecContextOf(context);
    // Keeps the dictionary numbers valid until the keys are converted back to strings.
    StringScope string_scope(table, KeyUse::kRead);
    std::vector<int64_t> left;
    if (rows->files().front()->reader.header().has_changes) {
      TF_RETURN_IF_ERROR(KeysThatLeft(*rows, &left));
    } else {
      TF_RETURN_IF_ERROR(KeysNotIn(exec, rows, *table, &string_scope, &left));
    }
    tf::Tensor* keys;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(left.size())}, &keys));
    WriteKeys(exec, *table, left.data(), left.size(), 0, keys);
    TF_RETURN_IF_ERROR(TakeSeed(*rows, table));
    rows->SetClockOf(table);
    return absl::OkStatus();
  }

  // The removed keys of an incremental save. A key that was removed and returned has a row in it.
  static absl::Status KeysThatLeft(const SavedRows& rows, std::vector<int64_t>* left) {
    KeySet present;
    RowBlock block(HostAllocator());
    for (const auto& file : rows.files()) {
      const RowFileReader& reader = file->reader;
      for (size_t number = 0; number < reader.num_blocks(); ++number) {
        TF_RETURN_IF_ERROR(ToTensorFlow(reader.ReadBlock(number, &block)));
        if (reader.HasLeft(number)) {
          left->insert(left->end(), block.keys, block.keys + block.size);
        } else {
          TF_RETURN_IF_ERROR(ToTensorFlow(present.Add(block.keys, block.size)));
        }
      }
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(present.Build()));
    // A key may have left more than once.
    std::sort(left->begin(), left->end());
    left->erase(std::unique(left->begin(), left->end()), left->end());
    const auto is_back = [&](int64_t key) { return present.Has(key); };
    left->erase(std::remove_if(left->begin(), left->end(), is_back), left->end());
    return absl::OkStatus();
  }

  // The keys of the table that are missing from a full save.
  static absl::Status KeysNotIn(const ExecContext& exec, SavedRows* rows,
                                const TableResource& table, StringScope* string_scope,
                                std::vector<int64_t>* left) {
    if (table.size() == 0) return absl::OkStatus();
    KeySet saved;
    Buffer<int64_t> numbers(table.allocator());
    for (size_t number = 0; number < rows->num_blocks(); ++number) {
      std::shared_ptr<const RowBlock> block;
      TF_RETURN_IF_ERROR(rows->ReadBlock(number, &block));
      const int64_t* keys = block->keys;
      if (keys == nullptr) {
        // An absent string is mapped to the key that it would be assigned, which no row has.
        TF_RETURN_IF_ERROR(ToTensorFlow(string_scope->Keys(exec, block->key_strings, &numbers)));
        keys = numbers.data();
      }
      TF_RETURN_IF_ERROR(ToTensorFlow(saved.Add(keys, block->size)));
    }
    // Writers are paused only for the scan below, and not while files are read.
    TF_RETURN_IF_ERROR(ToTensorFlow(saved.Build()));
    PausedTables paused(table.allocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(table)));
    return ToTensorFlow(table.ForEachBlock(kRowsAtOnce, [&](const WholeRows* present) {
      for (size_t i = 0; i < present->size; ++i) {
        if (!saved.Has(present->keys[i])) left->push_back(present->keys[i]);
      }
      return Status();
    }));
  }

  // Absent keys now get the initial rows of the saved table.
  static absl::Status TakeSeed(const SavedRows& rows, TableResource* table) {
    const SavedRows::File& first = *rows.files().front();
    if (!first.has_origin()) return absl::OkStatus();
    const TableMeta& meta = first.reader.header().meta;
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
    return ToTensorFlow(table->SetOrigin(meta.seed, meta.table_id));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedOpenPublishedRows").Device(tf::DEVICE_CPU),
                        OpenPublishedRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedBeginPublishedRows").Device(tf::DEVICE_CPU),
                        BeginPublishedRowsOp);

const OnGpu<OpenPublishedRowsOp> open_published_rows("TfEmbedOpenPublishedRows",
                                                     {"table", "folder", "file_name", "save",
                                                      "rows", "num_blocks"});
const OnGpu<BeginPublishedRowsOp> begin_published_rows("TfEmbedBeginPublishedRows",
                                                       {"table", "rows", "keys"});

}  // namespace
}  // namespace tf_embed
