// SPDX-License-Identifier: Apache-2.0
// Ops that save rows to files and load them.
#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// Checks that the first `count` inputs are scalars.
absl::Status Scalars(InferenceContext* c, int count) {
  ShapeHandle unused;
  for (int i = 0; i < count; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  return absl::OkStatus();
}

absl::Status PlaceShape(InferenceContext* c) { return Scalars(c, 3); }

}  // namespace

REGISTER_OP("TfEmbedSaveRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Attr("folder_variable: string = ''")
    .Attr("rank: int = 0")
    .Attr("processes: int = 1")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .Attr("links: bool = false")
    .SetIsStateful()
    .SetShapeFn(PlaceShape)
    .Doc(R"doc(
Writes all rows to files, as they are at one moment. Writers wait until the rows are written, readers
do not. A save of the same name, rank and number of processes is replaced when the new one is whole.

folder: Where the files are put, a path of any file system that TensorFlow knows. It is made.
file_name: What the files are named after.
folder_variable: An environment variable; if it is set when the op runs, it is the folder.
rank: Which process this is, of `processes`. Each saves its own rows.
buffer_bytes: How long a block of rows in a file is, about.
with_slots: Whether the optimizer slots of rows are written. Without them nothing is linked.
links: Whether files of a table over disk are linked, where that is possible, instead of copied.
)doc");

REGISTER_OP("TfEmbedSaveRowsPart")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("save: int64")
    .Input("rank: int64")
    .Input("processes: int64")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return Scalars(c, 6); })
    .Doc(R"doc(
Writes all rows to files as TfEmbedSaveRows does, if several processes have a part of a table's rows
each. TfEmbedJoinRows makes one save of the parts.

save: The number that the save is to have, the same for all processes, other than 0.
rank: Which process this is, of `processes`.
with_slots: Whether the optimizer slots of rows are written.
)doc");

REGISTER_OP("TfEmbedRowsSaved")
    .Input("table: resource")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Scalar());
      return Scalars(c, 1);
    })
    .Doc(R"doc(
Counts the rows that saves of the table have written to files since it was made, also those of saves that
failed. It does not wait for a save that runs.

rows: The number of rows.
)doc");

REGISTER_OP("TfEmbedOpenSavedRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Output("rows: variant")
    .Output("num_blocks: int64")
    .Output("by_key: bool")
    .Output("waiting: key_dtype")
    .Attr("folder_variable: string = ''")
    .Attr("rank: int = 0")
    .Attr("processes: int = 1")
    .Attr("whole: bool = false")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(PlaceShape(c));
      for (int output = 0; output < 3; ++output) c->set_output(output, c->Scalar());
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds what TfEmbedSaveRows wrote, reads all of it and checks every byte. Then it makes the table ready
to take the rows. It gets the rule whose slots they have and, if it is without rows, the seed and the
counts of admission of all files. What is damaged or does not fit is refused before anything is changed.

whole: Whether all processes' rows are wanted, and not only this one's.
rows: The files, open.
num_blocks: How many blocks of rows they have.
by_key: Whether the rows were saved by another number of processes than `processes`, so that this one
  must pick its own by their keys.
waiting: The keys that wait for a row in the table since then. Filters and strings tell none.
)doc");

REGISTER_OP("TfEmbedSavedRowCounts")
    .Input("table: resource")
    .Input("rows: variant")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(Scalars(c, 2));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Counts the rows in each block of open files, also those that a newer save of a chain replaces.

counts: The number of rows in each block.
)doc");

REGISTER_OP("TfEmbedForgetWaiting")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(Scalars(c, 1));
      return c->WithRank(c->input(1), 1, &unused);
    })
    .Doc(R"doc(
Forgets how often keys have come that wait for a row. Filters forget nothing, and tables of strings
know no numbers of keys that wait.
)doc");

REGISTER_OP("TfEmbedSavedKeys")
    .Input("table: resource")
    .Input("rows: variant")
    .Input("block: int64")
    .Output("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(Scalars(c, 3));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Reads the keys of a block of rows.");

REGISTER_OP("TfEmbedLoadSavedRows")
    .Input("table: resource")
    .Input("rows: variant")
    .Input("block: int64")
    .Input("owners: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(Scalars(c, 3));
      return c->WithRank(c->input(3), 1, &unused);
    })
    .Doc(R"doc(
Puts the rows of a block into the table, with their slots and statistics; present rows of the same
keys are replaced. Where there are more rows than a shard's bound, the first to leave do.

owners: The shard of each key; -2 leaves the choice to the table, and -3 the row out. Or empty, which is
  -2 for all.
)doc");

}  // namespace tf_embed
