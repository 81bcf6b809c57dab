// SPDX-License-Identifier: Apache-2.0
// Keys grouped by the worker that owns them, and the rows that are returned.
#include <cstdint>

#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// Output shapes of an op that routes the keys of some tables: keys, outputs set by `second`,
// counts.
template <typename Second>
absl::Status RoutedShapes(InferenceContext* c, const Second& second) {
  int64_t num_workers, num_tables;
  TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
  TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
  if (c->num_outputs() != 2 * num_tables + 1) {
    return absl::InvalidArgumentError("There must be as many `keys` as `owners`.");
  }
  for (int i = 0; i < num_tables; ++i) {
    c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
    TF_RETURN_IF_ERROR(second(i, static_cast<int>(num_tables) + i));
  }
  c->set_output(c->num_outputs() - 1, c->Matrix(num_tables, num_workers));
  return absl::Status();
}

}  // namespace

REGISTER_OP("TfEmbedRouteKeys")
    .Input("keys: key_dtypes")
    .Input("owners: num_tables * int32")
    .Output("routed: key_dtypes")
    .Output("places: num_tables * int32")
    .Output("counts: int32")
    .Attr(kKeyDtypes)
    .Attr("num_tables: int >= 1")
    .Attr("num_workers: int >= 1")
    .Attr("owner_rules: list({'hash', 'remainder'}) >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      return RoutedShapes(c, [c](int table, int output) -> absl::Status {
        c->set_output(output, c->input(table));
        return absl::Status();
      });
    })
    .Doc(R"doc(
Groups the distinct keys of batches by the worker that owns them.

keys: The keys of each table, any shape.
owners: For each table, the worker of each key, int32 [num_keys], flattened, equal for equal keys;
  or [0], which leaves the choice to the rule.
routed: For each table, the distinct keys [u], those of worker 0 first; within a worker, in order of
  first occurrence.
places: For each table, keys.shape: the index of each key in `routed`.
counts: [num_tables, num_workers]; the number of distinct keys that each worker owns.
owner_rules: For each table. hash: a hash of the key, equal in all processes. remainder:
  floor_mod(key, num_workers), for integer keys only.
)doc");

REGISTER_OP("TfEmbedRouteGradients")
    .Input("keys: key_dtypes")
    .Input("gradients: gradient_dtypes")
    .Input("owners: num_tables * int32")
    .Output("routed: key_dtypes")
    .Output("sums: sum_dtypes")
    .Output("counts: int32")
    .Attr(kKeyDtypes)
    .Attr("gradient_dtypes: list({float, half, bfloat16, double}) >= 1")
    .Attr("sum_dtypes: list({float, double}) >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("num_workers: int >= 1")
    .Attr("owner_rules: list({'hash', 'remainder'}) >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      return RoutedShapes(c, [c](int /*table*/, int output) -> absl::Status {
        if (output >= c->num_inputs()) {
          return absl::InvalidArgumentError("There must be as many `gradients` as `owners`.");
        }
        ShapeHandle gradients;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(output), 2, &gradients));
        c->set_output(output, c->Matrix(InferenceContext::kUnknownDim, c->Dim(gradients, 1)));
        return absl::Status();
      });
    })
    .Doc(R"doc(
Groups the gradients of rows by the worker that owns them, and sums those of equal keys.

Sums are in batch order. Arguments without a description are as in TfEmbedRouteKeys.

keys: The keys of each table [n].
gradients: The gradients of each table [n, dim].
sums: For each table, the sums [u, dim], of `sum_dtypes`.
sum_dtypes: double for gradients of double, float for all others; another is InvalidArgument.
)doc");

REGISTER_OP("TfEmbedRoutedRows")
    .Input("keys: key_dtype")
    .Input("noted: num_noted * key_dtype")
    .Input("routed: key_dtype")
    .Input("rows: value_dtype")
    .Input("places: int32")
    .Input("tokens: num_tokens * token_dtype")
    .Output("of_batch: value_dtype")
    .Attr("num_noted: int >= 0 = 0")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("token_dtype: {variant, float, half, bfloat16, double} = DT_VARIANT")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool}")
    .Attr("label: string = ''")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t num_noted;
      TF_RETURN_IF_ERROR(c->GetAttr("num_noted", &num_noted));
      if (num_noted > 1) return absl::InvalidArgumentError("`noted` must be at most one tensor.");
      const int first = 1 + static_cast<int>(num_noted);
      ShapeHandle unused, rows, shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &rows));
      TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(first + 2), &shape));
      TF_RETURN_IF_ERROR(WithAxis(c, shape, c->Dim(rows, 1), &shape));
      c->set_output(0, shape);
      return absl::Status();
    })
    .Doc(R"doc(
Gathers the rows of a batch from the rows of its distinct keys.

The gradient of the rows goes to the token, with the distinct keys.

keys: The keys of the batch, any shape.
noted: None; or one, the keys that were routed. Other keys than `keys` are InvalidArgument.
routed: The distinct keys [u].
rows: The rows of these [u, dim].
places: keys.shape; the index of each key in `routed`.
tokens: None; or one, which receives the gradient, as in TfEmbedFind.
of_batch: keys.shape + [dim].
label: The name of the table in messages.
)doc");

REGISTER_OP("TfEmbedRoutedRowsGradient")
    .Input("gradient: value_dtype")
    .Input("routed: key_dtype")
    .Input("places: int32")
    .Output("keys: key_dtype")
    .Output("sums: value_dtype")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr(kKeyDtype)
    .Attr("dim: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      ShapeHandle routed;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &routed));
      c->set_output(0, routed);
      c->set_output(1, c->Matrix(c->Dim(routed, 0), dim));
      return absl::Status();
    })
    .Doc(R"doc(
Computes the gradient of TfEmbedRoutedRows: sums by distinct key, in batch order.

gradient: places.shape + [dim].
routed: The distinct keys [u].
places: As in TfEmbedRoutedRows.
keys: The distinct keys [u].
sums: [u, dim]; half and bfloat16 are summed in float and rounded once.
dim: Number of weights in a row.
)doc");

REGISTER_OP("TfEmbedUnlessFrozen")
    .Input("keys: key_dtype")
    .Input("gradients: gradient_dtype")
    .Input("trained: bool")
    .Output("some_keys: key_dtype")
    .Output("some_gradients: gradient_dtype")
    .Attr(kKeyDtype)
    .Attr("gradient_dtype: {float, half, bfloat16, double}")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckRanks(c, {1, 2, 0}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Matrix(InferenceContext::kUnknownDim, c->Dim(c->input(1), 1)));
      return absl::Status();
    })
    .Doc(R"doc(
Returns the gradient of a table if the table is trained, and that of no keys otherwise.

keys: [n].
gradients: [n, dim].
trained: Scalar; whether the table is trained.
some_keys: [n], or [0].
some_gradients: [n, dim], or [0, dim].
)doc");

}  // namespace tf_embed
