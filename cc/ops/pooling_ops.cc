// SPDX-License-Identifier: Apache-2.0
// Pooled lookups, and the ops of their gradients.
//
//     keys --TfEmbedFindPooled--> a row for each bag
//     gradient of these rows --TfEmbedSumByKey--> distinct keys and the sums of their gradients
//
// Neither op materializes a row for each key. SumByKey runs on the device of its table input, whose
// content it does not read. The input list `bags` defines the bags:
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
#include "cc/ops/longer_shape.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the bags, without dim. The list `bags` begins at input `first`.
absl::Status BagsShape(InferenceContext* c, ShapeHandle keys, int first, ShapeHandle* shape) {
  int num_bags;
  TF_RETURN_IF_ERROR(c->GetAttr("num_bags", &num_bags));
  if (num_bags == 0) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(keys, 1, &keys));
    return c->Subshape(keys, 0, -1, shape);
  }
  if (num_bags == 1) {
    ShapeHandle splits;
    DimensionHandle bags;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, &splits));
    TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &bags));
    *shape = c->Vector(bags);
    return absl::Status();
  }
  ShapeHandle unused, dense;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &unused));
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(first + 1, &dense));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(dense, 1, &dense));
  return c->Subshape(dense, 0, -1, shape);
}

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
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused, shape;
      int num_tokens;
      int64_t dim;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      TF_RETURN_IF_ERROR(c->GetAttr("num_tokens", &num_tokens));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(BagsShape(c, c->input(1), 4 + num_tokens, &shape));
      TF_RETURN_IF_ERROR(WithAxis(c, shape, dim, &shape));
      c->set_output(0, shape);
      return absl::Status();
    })
    .Doc(R"doc(
Looks rows up and pools those of each bag, and changes no row.

defaults: As in TfEmbedFind.
tokens: As in TfEmbedFind.
bags: What makes a bag, see above.
weights: None; or one, with a weight for each key, of pooled_dtype.
pooled: A row for each bag: the shape of the bags + [dim].
pooled_dtype: double for double tables, else float.
combiner: sum: the sum of weight x row. mean: divided by the sum of the weights. sqrtn: by the
  square root of the sum of their squares. Where the divisor is 0 the row is 0.
padding: None; or one key, which counts for nothing and is not looked up.
padding_text: In place of padding where keys are strings.
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
Sums the gradients of equal keys, in position order.

gradients: keys.shape + [dim]; or, with a combiner, those of the pooled rows, the shape of the bags
  + [dim], of which the gradient of a key is weight x gradient of its bag / divisor of the bag.
bags: What makes a bag, see above; nothing where the combiner is none.
weights: None; or one, with a weight for each key, of float, or double for double gradients.
tables: None; or one, on whose device TensorFlow then does it.
distinct: [u]; the keys in the order in which they first come, without padding.
inverse: keys.shape; where each key is among the distinct ones, -1 for padding.
sums: [u, dim]; taken in float for float, half and bfloat16, in double for double.
sum_dtype: Any but double for gradients that are not double, and double for those that are.
combiner: As in TfEmbedFindPooled; none: each key has a gradient of its own.
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
Gives the distinct keys [u], in the order in which they first come, and for each key, keys.shape,
where it is among them.

tables: As in TfEmbedSumByKey.
)doc");

}  // namespace tf_embed
