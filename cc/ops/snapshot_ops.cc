// SPDX-License-Identifier: Apache-2.0
// Ops of snapshots: several tables, saved at one moment while other threads change them.
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

absl::Status AllScalars(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfEmbedBeginSnapshot")
    .Input("tables: num_tables * resource")
    .Input("since: int64")
    .Output("snapshot: variant")
    .Attr("num_tables: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1), 1, &unused));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Begins a snapshot of several tables at one moment.

Changes after this op are not in the snapshot. TfEmbedWriteSnapshot writes it. A table that does not
track changes is FailedPrecondition; a repeated one is InvalidArgument.

tables: Handles of the tables, each once.
since: [num_tables]; the number of an earlier save, to write the changes since then; 0 for all rows.
snapshot: Scalar; the snapshot. If it is dropped, the tables that were not written are given up.
)doc");

REGISTER_OP("TfEmbedWriteSnapshot")
    .Input("snapshot: variant")
    .Input("number: int64")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("since_name: string")
    .Output("save: int64")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Writes one table of a snapshot to files, as TfEmbedSaveRows does. Other threads may change the table.
Arguments without a description are as there.

number: Scalar; the index of the table, from 0. Each is written once.
since_name: Scalar; the name of the sibling folder with the save that these are changes of.
save: Scalar; the number of this save.
)doc");

REGISTER_OP("TfEmbedWriteSnapshotPart")
    .Input("snapshot: variant")
    .Input("number: int64")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("since_name: string")
    .Input("save: int64")
    .Input("rank: int64")
    .Input("processes: int64")
    .Output("written: int64")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Writes one table of a snapshot as one part of a save of several processes.

As TfEmbedWriteSnapshot, with the inputs of TfEmbedSaveRowsPart. TfEmbedJoinRows makes one save of
the parts.

written: Scalar; the number of the save.
)doc");

REGISTER_OP("TfEmbedJoinRows")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("processes: int64")
    .Output("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Makes one save of the parts that processes have written.

The files of rows stay as they are; the save has the shards of all parts. A missing part is
NotFound; parts of different saves are FailedPrecondition.

folder: Scalar; the folder of the parts.
file_name: Scalar; the common beginning of their file names.
processes: Scalar; the number of parts.
save: Scalar; the number of the save.
)doc");

REGISTER_OP("TfEmbedNoteSnapshot")
    .Input("table: resource")
    .Input("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Declares that a table has exactly the rows of a save, so that a snapshot can have the changes since.

Has no effect on a table that does not track changes.

save: Scalar; the number of the save.
)doc");

REGISTER_OP("TfEmbedDropSnapshot")
    .Input("table: resource")
    .Input("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Declares that no later snapshot will have the changes since a save.

The table then forgets the removed keys that no other known save needs. Has no effect on a table
that does not know the save.

save: Scalar; the number of the save.
)doc");

REGISTER_OP("TfEmbedFoldRows")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("to_folder: string")
    .Input("to_file_name: string")
    .Output("save: int64")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Writes a save of changes, and all saves that it builds on, as one save of all rows.

The new save keeps the number of the save of changes, because it shows the same moment: a table that
knows the changes since one of them knows those since the other.

folder: Scalar; the folder of the save of changes.
file_name: Scalar; the common beginning of its file names.
to_folder: Scalar; the folder of the new save.
to_file_name: Scalar; the common beginning of its file names, another one in the same folder.
save: Scalar; the number of the new save.
buffer_bytes: As in TfEmbedSaveRows.
)doc");

REGISTER_OP("TfEmbedPutFile")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("text: string")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Writes a small file to a folder and replaces one of that name, atomically on a file system that can.

The file, and the names of earlier files in the folder, then survive a crash of the machine.

folder: Scalar; the folder. It is created.
file_name: Scalar; a name without folders.
text: Scalar; the content.
)doc");

}  // namespace tf_embed
