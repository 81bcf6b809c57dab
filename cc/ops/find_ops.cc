// SPDX-License-Identifier: Apache-2.0
// Lookups of rows. table_shapes.h has the common inputs.
#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "cc/ops/table_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// Outputs of a lookup: rows, and whether each key has a row.
absl::Status FindShape(InferenceContext* c) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(ShapeOfRows(c, &rows));
  c->set_output(0, rows);
  c->set_output(1, c->input(1));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfEmbedFind")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("defaults: value_dtype")
    .Input("tokens: num_tokens * token_dtype")
    .Output("values: value_dtype")
    .Output("exists: bool")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("token_dtype: {variant, float, half, bfloat16, double} = DT_VARIANT")
    .Attr("dim: int >= 1")
    .Attr("training: bool = false")
    .SetIsStateful()
    .SetShapeFn(FindShape)
    .Doc(R"doc(
Looks rows up. Changes no row.

defaults: Rows of absent keys: [0] for the table's initializer, [dim] for one row for all,
  keys.shape + [dim] for a row each.
tokens: None; or one, which receives the gradient: the output of TfEmbedToken, or the anchor.
values: keys.shape + [dim].
exists: keys.shape; whether the table holds the key.
training: Whether the lookup is part of a training step. It is then a use of the rows, in a table
  that keeps statistics, and expired rows are absent.
)doc");

REGISTER_OP("TfEmbedFindOrInsert")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("defaults: value_dtype")
    .Input("scores: num_scores * int64")
    .Output("values: value_dtype")
    .Output("exists: bool")
    .Attr(kKeyDtype)
    .Attr("num_scores: int >= 0 = 0")
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("training: bool = false")
    .SetIsStateful()
    .SetShapeFn(FindShape)
    .Doc(R"doc(
Looks rows up, and inserts the initial rows of absent keys. Of equal keys, the first default counts.

defaults: As in TfEmbedFind.
exists: keys.shape; whether the table held the key before.
training: As in TfEmbedFind; then only keys that TfEmbedApply would insert now are inserted.
)doc");

REGISTER_OP("TfEmbedPrefetch")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(CheckKeys)
    .Doc(R"doc(
Promotes rows from the lower tiers of a table to its cache, and marks them as used in this step.
Fills at most half of the cache. Has no effect on a table without tiers.

keys: Keys, any shape; absent ones are ignored.
)doc");

}  // namespace tf_embed
