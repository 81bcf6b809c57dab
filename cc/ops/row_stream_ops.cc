// SPDX-License-Identifier: Apache-2.0
// Ops that read and write saved rows block by block, without a table.
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedDescribeRows")
    .Input("folder: string")
    .Input("file_name: string")
    .Output("numbers: int64")
    .Output("names: string")
    .Output("meta: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Vector(11));
      c->set_output(1, c->Vector(3));
      c->set_output(2, c->Vector(InferenceContext::kUnknownDim));
      return CheckRanks(c, {0, 0});
    })
    .Doc(R"doc(
Describes a save without reading its rows.

Reads the manifests of all processes and the header of the first file, and checks their checksums
alone. Inputs are as in TfEmbedOpenRowStream.

numbers: [11]; the number of the save, its time in milliseconds since 1970, the save since which it
  has the changes or 0, the numbers of processes, of files, of linked files, of rows and of bytes,
  the bits of the statistics of a row, and the step and the epoch of the table's clock.
names: [3]; the names of the types of keys and of values, and the name of the folder of the save
  since which it has the changes.
meta: The state of the saved table besides its rows.
)doc");

REGISTER_OP("TfEmbedOpenRowStream")
    .Input("folder: string")
    .Input("file_name: string")
    .Output("rows: variant")
    .Output("counts: int64")
    .Output("types: string")
    .Output("meta: int64")
    .Attr("alone: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Vector(4));
      c->set_output(2, c->Vector(2));
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      return CheckRanks(c, {0, 0});
    })
    .Doc(R"doc(
Opens a save without a table, and checks every byte of it. Includes the parts of all processes.

Reads saves of TfEmbedSaveRows, by the same inputs, and of TfEmbedFinishRowStream. A missing save is
NotFound, a damaged one DataLoss.

rows: Scalar; the open files.
counts: [4]; the numbers of blocks, of rows, of weights in a row and of slots in a row.
types: [2]; the names of the types of keys and of values.
meta: The state of the saved table besides its rows, for TfEmbedBeginRowStream; [0] if no table made
  the save.
alone: Whether to leave out the saves that a save of changes builds on.
)doc");

REGISTER_OP("TfEmbedReadRowStream")
    .Input("rows: variant")
    .Input("block: int64")
    .Output("keys: key_dtype")
    .Output("weights: value_dtype")
    .Output("slots: slot_dtype")
    .Output("statistics: int64")
    .Output("kept: int64")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("slot_dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      const auto rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(2, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(3, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(4, c->Scalar());
      return CheckRanks(c, {0, 0});
    })
    .Doc(R"doc(
Reads a block of rows.

Other types than those of the rows are InvalidArgument.

rows: Scalar; output of TfEmbedOpenRowStream.
block: Scalar; the number of the block, from 0.
keys: [num_rows].
weights: [num_rows, dim].
slots: [num_rows, slots of a row]. Rows that were saved without slots get initial ones.
statistics: [num_rows, statistics of a row]; the words of a row's statistics.
kept: Scalar; the bits of these statistics. The blocks of a chain may have different ones.
slot_dtype: double for weights of double, otherwise float.
)doc");

REGISTER_OP("TfEmbedBeginRowStream")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("meta: int64")
    .Output("stream: variant")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 1}, {0}))
    .Doc(R"doc(
Begins a save of rows with int64 keys.

It can't be loaded before TfEmbedFinishRowStream. If the stream is dropped before that, its file is
removed. Inputs without a description are as in TfEmbedSaveRows.

meta: Output of TfEmbedOpenRowStream, for rows with the same slots and seed; or [0].
stream: Scalar; the stream.
value_dtype: Type of the weights.
dim: Number of weights in a row.
)doc");

REGISTER_OP("TfEmbedAppendRowStream")
    .Input("stream: variant")
    .Input("keys: int64")
    .Input("weights: value_dtype")
    .Input("slots: slot_dtype")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("slot_dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 1, 2, 2}))
    .Doc(R"doc(
Writes rows to a save.

`keys` must be distinct within a call. If a key is in two calls, a load takes the later row. After a
failure, or after TfEmbedFinishRowStream, the error is FailedPrecondition.

keys: [num_rows].
weights: [num_rows, dim].
slots: [num_rows, slots of a row].
)doc");

REGISTER_OP("TfEmbedFinishRowStream")
    .Input("stream: variant")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}))
    .Doc(R"doc(
Completes a save, which then replaces an earlier one of the same name.

A failure leaves the earlier save in place.

stream: Scalar; output of TfEmbedBeginRowStream.
)doc");

}  // namespace tf_embed
