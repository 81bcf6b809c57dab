// SPDX-License-Identifier: Apache-2.0
// Ops of snapshots: several tables, saved at one moment while other threads change them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

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
Begins a snapshot of tables that keep track of changes. Its moment is that of this op: what changes
later is not in it. TfEmbedWriteSnapshot writes it.

tables: Each once.
since: For each table the number of an earlier save, to write what changed since then; 0: all rows.
snapshot: The snapshot. If it is dropped, what is not written by then is given up.
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
Writes one of the tables of a snapshot to files, as TfEmbedSaveRows does. Others may change the table.

number: Which of the tables, from 0. Each is written once.
folder: Where the files are put. It is made.
file_name: What the files are named after.
since_name: The name of the folder, beside this one, that has the save which these are changes of.
with_slots: Whether the optimizer slots of rows are written. Without them nothing is linked.
save: The number of this save.
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
Writes one of the tables of a snapshot as TfEmbedWriteSnapshot does, if several processes have a part
of its rows each. TfEmbedJoinRows makes one save of the parts.

save: The number that the save is to have, the same for all processes, other than 0.
rank: Which process this is, of `processes`.
written: The number of the save.
)doc");

REGISTER_OP("TfEmbedJoinRows")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("processes: int64")
    .Output("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Makes one save of the parts that processes have written: one of as many shards as all of them have. The
files of rows stay as they are.

folder: Where the parts are.
file_name: What their files are named after.
processes: How many there are.
save: The number of the save.
)doc");

REGISTER_OP("TfEmbedNoteSnapshot")
    .Input("table: resource")
    .Input("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Says that a table has just the rows of a save, so that snapshots can have what changed since then. Does
nothing for a table that does not keep track of changes.

save: The number of the save.
)doc");

REGISTER_OP("TfEmbedDropSnapshot")
    .Input("table: resource")
    .Input("save: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Says that no snapshot will have what changed since a save. Keys that left before all others that the
table knows are forgotten. Does nothing for a table that does not know it.

save: The number of the save.
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
Writes a save of changes and all that it is changes of as one save of all rows.

folder: Where the save of changes is.
file_name: What the files are named after.
to_folder: Where the new save is put.
to_file_name: What its files are named after.
save: The number of the new save.
)doc");

REGISTER_OP("TfEmbedPutFile")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("text: string")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Puts a small file in a folder, in place of one of that name, at once or not at all. It survives a crash
of the machine from then on, as do the names of files that were there before.
)doc");

}  // namespace tf_embed
