// SPDX-License-Identifier: Apache-2.0
// Snapshot ops. They run on the CPU, in eager execution.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/saves/fold.h"
#include "cc/core/saves/pending_save.h"
#include "cc/core/saves/snapshot.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/save_inputs.h"
#include "cc/tf/shared_variant.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// A snapshot, in the output of an op.
struct HeldSnapshot : Snapshot {
  static constexpr char kTypeName[] = "tf_embed::Snapshot";
};

using SnapshotVariant = SharedVariant<HeldSnapshot>;

// Gives back a reference to a table.
struct Unref {
  void operator()(TableResource* table) const { table->Unref(); }
};

absl::Status RunBeginSnapshot(tf::OpKernelContext* context) {
  const int num_tables = context->num_inputs() - 1;
  const tf::Tensor& since = context->input(num_tables);
  TF_RETURN_IF_ERROR(CheckRank(since, "since", 1));
  if (since.NumElements() != num_tables) {
    return InvalidArgumentError("`since` must have ", num_tables,
                                " numbers. Received: ", since.NumElements(), ".");
  }
  const auto numbers = since.vec<int64_t>();
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<uint64_t> saves;
  for (int i = 0; i < num_tables; ++i) {
    tf::core::RefCountPtr<TableResource> table;
    TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, i), &table));
    tables.push_back(std::shared_ptr<Table>(table.release(), Unref()));
    saves.push_back(static_cast<uint64_t>(numbers(i)));
  }
  auto snapshot = std::make_shared<HeldSnapshot>();
  TF_RETURN_IF_ERROR(ToTensorFlow(snapshot->Begin(std::move(tables), saves)));
  return GiveScalar<tf::Variant>(context, 0, SnapshotVariant(std::move(snapshot)));
}

// Writes a table, or this process's part of a table shared by several processes.
class WriteSnapshotOp : public StatusOp {
 public:
  explicit WriteSnapshotOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    Snapshot* const snapshot = SnapshotVariant::In(context->input(0));
    if (snapshot == nullptr) {
      return InvalidArgumentError("`snapshot` must be what TfEmbedBeginSnapshot gave.");
    }
    SavePlace place;
    int64_t number;
    tf::tstring since_name;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "number", &number));
    TF_RETURN_IF_ERROR(ReadPlace(context, 2, &place));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(4), "since_name", &since_name));
    if (context->num_inputs() > 5) TF_RETURN_IF_ERROR(ReadPart(context, 5, &place));
    uint64_t save = 0;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(snapshot->Write(number, std::move(place), std::string(since_name),
                                     {static_cast<size_t>(buffer_bytes_), with_slots_}, &save)));
    return GiveScalar<int64_t>(context, 0, save);
  }

  int64_t buffer_bytes_ = 0;
  bool with_slots_ = true;
};

absl::Status RunNoteSnapshot(tf::OpKernelContext* context, TableResource* table) {
  int64_t save;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "save", &save));
  return ToTensorFlow(NoteLoaded(table, static_cast<uint64_t>(save)));
}

absl::Status RunDropSnapshot(tf::OpKernelContext* context, TableResource* table) {
  int64_t save;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "save", &save));
  return ToTensorFlow(DropSnapshot(table, static_cast<uint64_t>(save)));
}

absl::Status RunJoinRows(tf::OpKernelContext* context) {
  SavePlace place;
  int64_t processes;
  uint64_t save = 0;
  TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "processes", &processes));
  if (processes < 1 || processes > SavePlace::kMaxParts) {
    return InvalidArgumentError("`processes` must be from 1 to ", SavePlace::kMaxParts,
                                ". Received: ", processes, ".");
  }
  place.processes = static_cast<uint32_t>(processes);
  TF_RETURN_IF_ERROR(ToTensorFlow(JoinSaves(place, &save)));
  return GiveScalar<int64_t>(context, 0, save);
}

class FoldRowsOp : public StatusOp {
 public:
  explicit FoldRowsOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    SavePlace from, to;
    uint64_t save;
    TF_RETURN_IF_ERROR(ReadPlace(context, 0, &from));
    TF_RETURN_IF_ERROR(ReadPlace(context, 2, &to));
    TF_RETURN_IF_ERROR(
        ToTensorFlow(FoldSaves(from, std::move(to), static_cast<size_t>(buffer_bytes_), &save)));
    return GiveScalar<int64_t>(context, 0, save);
  }

  int64_t buffer_bytes_ = 0;
};

absl::Status RunPutFile(tf::OpKernelContext* context) {
  SavePlace place;
  tf::tstring text;
  TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "text", &text));
  if (!RowManifest::IsFolderName(place.file_name)) {
    return InvalidArgumentError("`file_name` must be the name of a file. Received: '",
                                place.file_name, "'.");
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(place.folder->Create()));
  TF_RETURN_IF_ERROR(ToTensorFlow(place.folder->Sync()));
  return ToTensorFlow(place.folder->Replace(place.file_name, std::string(text)));
}

const Kernels<StatusFunction<RunBeginSnapshot>> begin_snapshot("TfEmbedBeginSnapshot");
const Kernels<WriteSnapshotOp> write_snapshot("TfEmbedWriteSnapshot");
const Kernels<WriteSnapshotOp> write_snapshot_part("TfEmbedWriteSnapshotPart");
const Kernels<StatusFunction<RunJoinRows>> join_rows("TfEmbedJoinRows");
const Kernels<TableFunction<RunNoteSnapshot>> note_snapshot("TfEmbedNoteSnapshot");
const Kernels<TableFunction<RunDropSnapshot>> drop_snapshot("TfEmbedDropSnapshot");
const Kernels<FoldRowsOp> fold_rows("TfEmbedFoldRows");
const Kernels<StatusFunction<RunPutFile>> put_file("TfEmbedPutFile");

}  // namespace
}  // namespace tf_embed
