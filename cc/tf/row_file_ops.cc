// SPDX-License-Identifier: Apache-2.0
// SaveRows writes a consistent snapshot of a variable's rows, and replaces the earlier save.
// RowsSaved is the number of rows that a running save has written, for its progress.
//
// OpenSavedRows finds and checks the files and prepares the table. SavedRowCounts returns the
// number of rows of each block. SavedKeys returns a block's keys, so that a process can select its
// own. LoadSavedRows inserts the rows.
#include <memory>
#include <utility>

#include "cc/core/saves/save_rows.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/save_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Reads the attributes of a save's form, except for links.
absl::Status ReadForm(tf::OpKernelConstruction* construction, SaveForm* form) {
  int64_t buffer_bytes;
  TF_RETURN_IF_ERROR(construction->GetAttr("buffer_bytes", &buffer_bytes));
  form->block_bytes = static_cast<size_t>(buffer_bytes);
  return construction->GetAttr("with_slots", &form->with_slots);
}

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, ReadForm(construction, &form_));
    OP_REQUIRES_OK(construction, construction->GetAttr("links", &form_.links));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    return ToTensorFlow(SaveRows(table, std::move(place), form_));
  }

  SaveAttributes attributes_;
  SaveForm form_;
};

class SaveRowsPartOp : public TableOp {
 public:
  explicit SaveRowsPartOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadForm(construction, &form_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
    TF_RETURN_IF_ERROR(ReadPart(context, 3, &place));
    return ToTensorFlow(SaveRows(table, std::move(place), form_));
  }

  SaveForm form_;
};

// Takes no lock, so that it does not wait for a save.
absl::Status RunRowsSaved(tf::OpKernelContext* context, TableResource* table) {
  return GiveScalar<int64_t>(context, 0, table->rows_saved());
}

const Kernels<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});
const Kernels<SaveRowsPartOp> save_rows_part("TfEmbedSaveRowsPart", {"table", "folder", "file_name",
                                                                     "save", "rank", "processes"});
const Kernels<TableFunction<RunRowsSaved>> rows_saved("TfEmbedRowsSaved", {"table", "rows"});

// Reads the inputs `rows` and `block` of an op. Checks the rows against this table, because they
// may have been opened for another.
absl::Status ReadFittingBlock(tf::OpKernelContext* context, int input, const TableResource& table,
                              SavedRows** rows, size_t* block) {
  TF_RETURN_IF_ERROR(ReadBlockInput(context, input, rows, block));
  return ToTensorFlow((*rows)->FileOf(*block).CheckFits(table));
}

class OpenSavedRowsOp : public TableOp {
 public:
  explicit OpenSavedRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("whole", &whole_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    std::shared_ptr<SavedRows> rows;
    tf::Tensor* waiting;
    std::vector<int64_t> waiting_keys;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    TF_RETURN_IF_ERROR(ToTensorFlow(SavedRows::Open(place, whole_, *table, &rows)));
    if (!with_slots_) rows->LeaveSlotsOut();
    if (output_type(3) != table->signature().key_dtype) {
      return InvalidArgumentError("`key_dtype` must be ",
                                  tf::DataTypeString(table->signature().key_dtype), ".");
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(PrepareForRows(*rows, table, &waiting_keys)));
    const int64_t num_waiting = static_cast<int64_t>(waiting_keys.size());
    TF_RETURN_IF_ERROR(context->allocate_output(3, {num_waiting}, &waiting));
    if (num_waiting > 0) NarrowKeys(waiting_keys.data(), waiting_keys.size(), 0, waiting);
    TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, 1, rows->num_blocks()));
    TF_RETURN_IF_ERROR(GiveScalar<bool>(context, 2, rows->by_key()));
    return GiveScalar<tf::Variant>(context, 0, VariantOf(std::move(rows)));
  }

  SaveAttributes attributes_;
  bool whole_ = false;
  bool with_slots_ = true;
};

absl::Status RunSavedRowCounts(tf::OpKernelContext* context, TableResource*) {
  SavedRows* saved;
  TF_RETURN_IF_ERROR(ReadRowsInput(context, 1, &saved));
  tf::Tensor* counts;
  const int64_t num_blocks = static_cast<int64_t>(saved->num_blocks());
  TF_RETURN_IF_ERROR(context->allocate_output(0, {num_blocks}, &counts));
  int64_t* const out = counts->flat<int64_t>().data();
  for (size_t block = 0; block < saved->num_blocks(); ++block) {
    out[block] = static_cast<int64_t>(saved->RowsIn(block));
  }
  return absl::OkStatus();
}

absl::Status RunSavedKeys(tf::OpKernelContext* context, TableResource* table) {
  SavedRows* saved;
  size_t number;
  std::shared_ptr<const RowBlock> block;
  tf::Tensor* keys;
  TF_RETURN_IF_ERROR(ReadFittingBlock(context, 1, *table, &saved, &number));
  TF_RETURN_IF_ERROR(ToTensorFlow(saved->ReadBlock(number, &block)));
  if (context->expected_output_dtype(0) != table->signature().key_dtype) {
    return InvalidArgumentError("`keys` must be ", tf::DataTypeString(table->signature().key_dtype),
                                ".");
  }
  TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(block->size)}, &keys));
  if (block->keys != nullptr) {
    NarrowKeys(block->keys, block->size, 0, keys);
    return absl::OkStatus();
  }
  tf::tstring* const out = keys->flat<tf::tstring>().data();
  for (size_t i = 0; i < block->size; ++i) {
    out[i].assign(block->key_strings[i].data(), block->key_strings[i].size());
  }
  return absl::OkStatus();
}

absl::Status RunForgetWaiting(tf::OpKernelContext* context, TableResource* table) {
  const tf::Tensor& keys = context->input(1);
  TF_RETURN_IF_ERROR(CheckRank(keys, "keys", 1));
  if (keys.dtype() != table->signature().key_dtype) {
    return InvalidArgumentError("`keys` must be ", tf::DataTypeString(table->signature().key_dtype),
                                ". Received: ", tf::DataTypeString(keys.dtype()), ".");
  }
  if (table->admission() == nullptr || table->has_string_keys()) return absl::OkStatus();
  Buffer<int64_t> widened(table->allocator());
  const int64_t* wide;
  TF_RETURN_IF_ERROR(WidenedKeys(keys, &widened, &wide));
  table->admission()->Forget(wide, static_cast<size_t>(keys.NumElements()));
  return absl::OkStatus();
}

absl::Status RunLoadSavedRows(tf::OpKernelContext* context, TableResource* table) {
  SavedRows* saved;
  size_t number;
  TF_RETURN_IF_ERROR(ReadFittingBlock(context, 1, *table, &saved, &number));
  std::shared_ptr<const RowBlock> block;
  TF_RETURN_IF_ERROR(ToTensorFlow(saved->ReadBlock(number, &block)));
  const tf::Tensor& owners = context->input(3);
  TF_RETURN_IF_ERROR(CheckRank(owners, "owners", 1));
  if (owners.NumElements() != 0 && owners.NumElements() != static_cast<int64_t>(block->size)) {
    return InvalidArgumentError("`owners` must have ", block->size,
                                " numbers. Received: ", owners.NumElements(), ".");
  }
  return ToTensorFlow(LoadBlock(ExecContextOf(context), *saved, number, *block,
                                owners.NumElements() == 0 ? nullptr : owners.flat<int32_t>().data(),
                                table));
}

const Kernels<OpenSavedRowsOp> open_saved_rows("TfEmbedOpenSavedRows",
                                               {"table", "folder", "file_name", "rows",
                                                "num_blocks", "by_key", "waiting"});
const Kernels<TableFunction<RunForgetWaiting>> forget_waiting("TfEmbedForgetWaiting",
                                                              {"table", "keys"});
const Kernels<TableFunction<RunSavedRowCounts>> saved_row_counts("TfEmbedSavedRowCounts",
                                                                 {"table", "rows", "counts"});
const Kernels<TableFunction<RunSavedKeys>> saved_keys("TfEmbedSavedKeys",
                                                      {"table", "rows", "block", "keys"});
const Kernels<TableFunction<RunLoadSavedRows>> load_saved_rows("TfEmbedLoadSavedRows",
                                                               {"table", "rows", "block",
                                                                "owners"});

}  // namespace

}  // namespace tf_embed
