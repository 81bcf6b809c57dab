// SPDX-License-Identifier: Apache-2.0
// Ops that carry row gradients out of loops and conditions. TensorFlow would otherwise sum dense
// tensors of the anchor's shape, which has no rows.
//
//   anchor --TfEmbedToken--> token --> [loop: ... TfEmbedFind ...]
//
// The token is made outside of the loop. Inside, TfEmbedRowGradients makes its gradient, a variant
// that TensorFlow sums over iterations. Outside, TfEmbedUnpackRowGradients returns the keys and
// rows of the anchor's gradient.
#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedToken")
    .Input("anchor: value_dtype")
    .Output("token: variant")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {half, bfloat16, float, double}")
    .Attr("dim: int >= 1")
    .Attr("rows: int = -1")
    .SetShapeFn(Ranks({2}, {0}))
    .Doc(R"doc(
Makes the input by which the gradient of a lookup reaches the anchor.

anchor: The value [0, dim] of the variable that stands for a table on a gradient tape.
token: Scalar; an empty variant of row gradients. Only its gradient matters.
key_dtype: Type of the table's keys.
dim: Number of weights in a row.
rows: Number of rows, for the shape of the gradient; -1 for a table of any number.
)doc");

REGISTER_OP("TfEmbedRowGradients")
    .Input("keys: key_dtype")
    .Input("values: value_dtype")
    .Output("gradients: variant")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {half, bfloat16, float, double}")
    .Attr("packed: bool = false")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle keys, values;
      DimensionHandle rows;
      bool packed;
      TF_RETURN_IF_ERROR(c->GetAttr("packed", &packed));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &values));
      if (!packed) TF_RETURN_IF_ERROR(c->Merge(c->Dim(keys, 0), c->Dim(values, 0), &rows));
      c->set_output(0, c->Scalar());
      return absl::Status();
    })
    .Doc(R"doc(
Wraps row gradients in a variant that TensorFlow can add up.

The sum of two is the concatenation of their lists.

keys: [n].
values: [n, dim].
gradients: Scalar.
packed: Whether `keys` is a batch of many tables (TfEmbedPackBatch), and `values` [m, 1] the
  gradient of its pooled values.
)doc");

REGISTER_OP("TfEmbedUnpackRowGradients")
    .Input("gradients: variant")
    .Output("keys: key_dtype")
    .Output("values: value_dtype")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {half, bfloat16, float, double}")
    .Attr("dim: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Matrix(c->UnknownDim(), c->MakeDim(dim)));
      return CheckRanks(c, {0});
    })
    .Doc(R"doc(
Returns the keys and the gradients of all lookups in a variant. Keys may repeat.

gradients: Scalar; the result of TfEmbedRowGradients, or a sum of several. Gradients of another
  table type are InvalidArgument.
keys: [n].
values: [n, dim].
dim: Number of weights in a row.
)doc");

}  // namespace tf_embed
