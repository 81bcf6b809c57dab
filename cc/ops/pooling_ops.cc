// SPDX-License-Identifier: Apache-2.0
// Pooled lookups, and the ops of their gradients. table_shapes.h has the common inputs.
//
//     keys --TfEmbedFindPooled--> a row for each bag; if asked, also the row of each key
//     gradient of these rows --TfEmbedSumByKey--> distinct keys and the sums of their gradients
//
// Without weights, neither op materializes a row for each key. The gradient of weights is made of
// these rows, and they are written only if the graph uses them. SumByKey runs on the device of its
// table input, whose content it does not read. The input list `bags` defines the bags:
//   none              the keys along the last axis of `keys`
//   [splits]          row splits [bags + 1]: bag b holds the flattened keys from splits[b] up to
//                     splits[b + 1]
//   [indices, shape]  the keys are the values of a sparse array of `shape` [rank], int64, at
//                     `indices` [keys, rank], in any order; the lines along its last axis are the
//                     bags
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/pooling/bags.h"
#include "cc/ops/key_types.h"
#include "cc/ops/pooling_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// Outputs 0 and 1: the distinct keys, and the index of each key among them.
void DistinctShape(InferenceContext* c, DimensionHandle distinct) {
  c->set_output(0, c->Vector(distinct));
  c->set_output(1, c->input(0));
}

}  // namespace

REGISTER_OP("TfEmbedFindPooled")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("defaults: value_dtype")
    .Input("tokens: num_tokens * token_dtype")
    .Input("bags: num_bags * bags_dtype")
    .Input("weights: num_weights * weights_dtype")
    .Output("pooled: pooled_dtype")
    .Output("found: found_dtypes")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("pooled_dtype: {float, double}")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("token_dtype: {variant, float, half, bfloat16, double} = DT_VARIANT")
    .Attr("num_bags: int >= 0 = 0")
    .Attr("bags_dtype: {int64, int32} = DT_INT64")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("weights_dtype: {float, double} = DT_FLOAT")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kCombinerNames), "}"))
    .Attr("padding: list(int) = []")
    .Attr("padding_text: list(string) = []")
    .Attr("dim: int >= 1")
    .Attr("training: bool = false")
    .Attr("found_dtypes: list({float, double}) >= 0 = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle shape, found;
      int num_tokens;
      int64_t dim;
      TF_RETURN_IF_ERROR(CheckRanks(c, {0, -1, 1}));
      TF_RETURN_IF_ERROR(c->GetAttr("num_tokens", &num_tokens));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(BagsShape(c, c->input(1), 4 + num_tokens, &shape));
      TF_RETURN_IF_ERROR(WithAxis(c, shape, dim, &shape));
      c->set_output(0, shape);
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), dim, &found));
      for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, found);
      return absl::Status();
    })
    .Doc(R"doc(
Looks rows up and pools those of each bag. Changes no row.

defaults: As in TfEmbedFind.
tokens: As in TfEmbedFind.
bags: None: a bag is a line along the last axis of `keys`. One tensor: row splits [bags + 1]. Two:
  the indices [num_keys, rank] and the shape [rank] of a sparse tensor.
weights: None; or one, with a weight of `pooled_dtype` for each key.
pooled: The shape of the bags + [dim].
found: None; or one, the row of each key, zeros for padding, keys.shape + [dim]. The gradient of
  the weights is made of them.
found_dtypes: None; or `pooled_dtype`.
pooled_dtype: double for tables of double, otherwise float.
combiner: sum: the sum of weight x row. mean: divided by the sum of the weights. sqrtn: divided by
  the square root of the sum of their squares. If the divisor is 0, the row is 0.
padding: None; or one key that counts for nothing and is not looked up.
padding_text: The same for string keys.
training: As in TfEmbedFind.
)doc");

REGISTER_OP("TfEmbedSumByKey")
    .Input("keys: key_dtype")
    .Input("gradients: gradient_dtype")
    .Input("bags: num_bags * bags_dtype")
    .Input("weights: num_weights * weights_dtype")
    .Input("tables: num_tables * resource")
    .Output("distinct: key_dtype")
    .Output("inverse: int32")
    .Output("sums: sum_dtype")
    .Attr(kKeyDtype)
    .Attr("gradient_dtype: {float, half, bfloat16, double}")
    .Attr("sum_dtype: {float, half, bfloat16, double}")
    .Attr("num_bags: int >= 0 = 0")
    .Attr("bags_dtype: {int64, int32} = DT_INT64")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("weights_dtype: {float, double} = DT_FLOAT")
    .Attr("num_tables: int >= 0 = 0")
    .Attr(absl::StrCat("combiner: {'none', ", QuotedNames(kCombinerNames), "} = 'none'"))
    .Attr("padding: list(int) = []")
    .Attr("padding_text: list(string) = []")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      std::string combiner;
      ShapeHandle shape = c->input(0), gradients;
      TF_RETURN_IF_ERROR(c->GetAttr("combiner", &combiner));
      if (combiner != "none") TF_RETURN_IF_ERROR(BagsShape(c, shape, 2, &shape));
      TF_RETURN_IF_ERROR(WithAxis(c, shape, c->UnknownDim(), &shape));
      TF_RETURN_IF_ERROR(c->Merge(c->input(1), shape, &gradients));
      const DimensionHandle distinct = c->UnknownDim();
      DistinctShape(c, distinct);
      c->set_output(2, c->Matrix(distinct, c->Dim(gradients, -1)));
      return absl::Status();
    })
    .Doc(R"doc(
Sums the gradients of equal keys, in batch order.

keys: Keys, any shape.
gradients: keys.shape + [dim]. With a combiner: the gradient of the pooled rows, the shape of the
  bags + [dim]. The gradient of a key is then weight x gradient of its bag / divisor of the bag.
bags: As in TfEmbedFindPooled; none without a combiner.
weights: None; or one, with a weight for each key: float, or double for gradients of double.
tables: None; or one, on whose device TensorFlow then places this op. It is not read.
distinct: The distinct keys [u] except padding, in order of first occurrence.
inverse: keys.shape; the index of each key in `distinct`, -1 for padding.
sums: [u, dim]; computed in double for double, otherwise in float, and rounded once.
sum_dtype: double for gradients of double, any other type for the others.
combiner: As in TfEmbedFindPooled; none: each key has its own gradient.
padding: As in TfEmbedFindPooled.
padding_text: As in TfEmbedFindPooled.
)doc");

REGISTER_OP("TfEmbedUniqueKeys")
    .Input("keys: key_dtype")
    .Input("tables: num_tables * resource")
    .Output("distinct: key_dtype")
    .Output("inverse: int32")
    .Attr(kKeyDtype)
    .Attr("num_tables: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      DistinctShape(c, c->UnknownDim());
      return absl::Status();
    })
    .Doc(R"doc(
Returns the distinct keys of a batch, and the index of each key among them.

keys: Keys, any shape.
tables: As in TfEmbedSumByKey.
distinct: [u], in order of first occurrence.
inverse: keys.shape.
)doc");

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
      return absl::OkStatus();
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
