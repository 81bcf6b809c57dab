// SPDX-License-Identifier: Apache-2.0
// Ops that read and write saved rows block by block, without a table.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedOpenRowStream")
    .Input("folder: string")
    .Input("file_name: string")
    .Output("rows: variant")
    .Output("counts: int64")
    .Output("types: string")
    .Output("meta: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Vector(4));
      c->set_output(2, c->Vector(2));
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds what TfEmbedSaveRows or TfEmbedFinishRowStream wrote, the parts of all processes, reads all of it
and checks every byte.

folder: Where the files are.
file_name: What the files are named after.
rows: The files, open.
counts: How many blocks and how many rows they have, and how many weights and slots a row has.
types: The names of the types of keys and of values.
meta: What the table was besides its rows, for TfEmbedBeginRowStream. None if no table saved them.
)doc");

REGISTER_OP("TfEmbedReadRowStream")
    .Input("rows: variant")
    .Input("block: int64")
    .Output("keys: key_dtype")
    .Output("weights: value_dtype")
    .Output("slots: slot_dtype")
    .Attr("key_dtype: {int64, int32, uint64, uint32}")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("slot_dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      const auto rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(2, c->Matrix(rows, InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads a block of rows. Types must be those of the rows; slots are float64 if weights are, otherwise
float32.
)doc");

REGISTER_OP("TfEmbedBeginRowStream")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("meta: int64")
    .Output("stream: variant")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Begins a save of rows with int64 keys. Nothing of it can be loaded before TfEmbedFinishRowStream; if
the stream is dropped before, its file is removed.

folder: Where the files are put. It is made.
file_name: What the files are named after.
meta: What TfEmbedOpenRowStream gave, and then rows have slots and a seed as those; or empty.
value_dtype: Type of weights.
dim: How many weights a row has.
)doc");

REGISTER_OP("TfEmbedAppendRowStream")
    .Input("stream: variant")
    .Input("keys: int64")
    .Input("weights: value_dtype")
    .Input("slots: slot_dtype")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("slot_dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &unused));
      return c->WithRank(c->input(3), 2, &unused);
    })
    .Doc(R"doc(
Writes rows. No key may come twice in `keys`; of a key in two calls the later row is loaded.

weights: Of shape [keys, dim].
slots: Of shape [keys, slots].
)doc");

REGISTER_OP("TfEmbedFinishRowStream")
    .Input("stream: variant")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      return c->WithRank(c->input(0), 0, &unused);
    })
    .Doc("Ends a save, which takes the place of an earlier one of the same name.");

}  // namespace tf_embed
