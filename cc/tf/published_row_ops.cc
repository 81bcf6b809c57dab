// SPDX-License-Identifier: Apache-2.0
// Ops by which a table follows another table. OpenPublishedRows reads and checks files while
// lookups continue. BeginPublishedRows returns the keys to remove. LoadSavedRows then loads the
// rows.
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/saves/publication.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/save_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

absl::Status RunOpenPublishedRows(tf::OpKernelContext* context, TableResource* table) {
  SavePlace place;
  int64_t save;
  std::shared_ptr<SavedRows> rows;
  TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "save", &save));
  TF_RETURN_IF_ERROR(ToTensorFlow(SavedRows::OpenAlone(place, *table, &rows)));
  for (const auto& file : rows->files()) {
    // The folder may have been replaced since it was announced, and the following changes would
    // not fit rows of another save.
    if (file->reader.header().save == static_cast<uint64_t>(save)) continue;
    return absl::DataLossError(
        absl::StrCat("'", file->source->name(), "' is of another save than was published."));
  }
  TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, 1, rows->num_blocks()));
  return GiveScalar<tf::Variant>(context, 0, VariantOf(std::move(rows)));
}

absl::Status BeginPublication(tf::OpKernelContext* context, TableResource* table) {
  SavedRows* rows;
  TF_RETURN_IF_ERROR(ReadRowsInput(context, 1, &rows));
  if (context->expected_output_dtype(0) != table->signature().key_dtype) {
    return InvalidArgumentError("`keys` must be ", tf::DataTypeString(table->signature().key_dtype),
                                ".");
  }
  for (const auto& file : rows->files()) TF_RETURN_IF_ERROR(ToTensorFlow(file->CheckFits(*table)));
  TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
  const ExecContext exec = ExecContextOf(context);
  // Keeps the dictionary numbers valid until the keys are converted back to strings.
  StringScope string_scope(table, KeyUse::kRead);
  std::vector<int64_t> left;
  TF_RETURN_IF_ERROR(ToTensorFlow(KeysToRemove(exec, rows, *table, &string_scope, &left)));
  tf::Tensor* keys;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(left.size())}, &keys));
  WriteKeys(exec, *table, left.data(), left.size(), 0, keys);
  return ToTensorFlow(TakePublishedState(*rows, table));
}

absl::Status RunBeginPublishedRows(tf::OpKernelContext* context, TableResource* table) {
  try {
    return BeginPublication(context, table);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("No memory for the keys that leave table '", table->name(), "'.");
  }
}

const Kernels<TableFunction<RunOpenPublishedRows>> open_published_rows(
    "TfEmbedOpenPublishedRows", {"table", "folder", "file_name", "save", "rows", "num_blocks"});
const Kernels<TableFunction<RunBeginPublishedRows>> begin_published_rows(
    "TfEmbedBeginPublishedRows", {"table", "rows", "keys"});

}  // namespace
}  // namespace tf_embed
