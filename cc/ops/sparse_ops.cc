// SPDX-License-Identifier: Apache-2.0
// The op that validates sparse ids.
#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedCheckSparse")
    .Input("indices: int64")
    .Input("values: T")
    .Input("dense_shape: int64")
    .Input("label: string")
    .Output("checked_indices: int64")
    .Output("checked_values: T")
    .Output("checked_shape: int64")
    .Attr("T: type")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle indices, values, shape, unused;
      DimensionHandle count, rank;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &values));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &shape));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &unused));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(values, 0), &count));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 1), c->Dim(shape, 0), &rank));
      c->set_output(0, c->Matrix(count, rank));
      c->set_output(1, c->Vector(count));
      c->set_output(2, c->Vector(rank));
      return absl::Status();
    })
    .Doc(R"doc(
Returns the parts of a sparse tensor after a check that each index is within its dense shape.

An index outside of it is InvalidArgument.

indices: [n, rank].
values: [n].
dense_shape: [rank].
label: Scalar; the name of the tensor in the error.
checked_indices: indices.
checked_values: values.
checked_shape: dense_shape.
)doc");

}  // namespace tf_embed
