// SPDX-License-Identifier: Apache-2.0
// A pooled lookup in many tables, and the ops of its gradients. There are two ways to train.
// SumByKeyTables gives each table its own gradient, for any optimizer. Or PackBatch keeps the
// batch, and ApplyTables trains all tables with it in one step, so that gradients by key are never
// materialized.
//
// Bags are consecutive: bag b holds indices offsets[b] to offsets[b + 1]. `pieces` [n, 5] assigns
// them to tables. A piece is a run of bags whose keys are from one table:
//
//     table, first bag, number of bags, begin, stride
//
// The pooled row of its i-th bag starts at value begin + i * stride of all pooled values, and has
// the table's dim. Pieces must cover each value exactly once, and a bag may be in only one piece.
// Other pieces are refused.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/rules/rule_names.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// Inputs from `first` on: indices, offsets, pieces. Tables precede them.
absl::Status CheckBatch(InferenceContext* c, int first) {
  ShapeHandle unused;
  for (int i = 0; i < first; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &unused));
  return c->WithRank(c->input(first + 2), 2, &unused);
}

}  // namespace

REGISTER_OP("TfEmbedFindPooledTables")
    .Input("tables: num_tables * resource")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("size: int64")
    .Input("weights: num_weights * float")
    .Input("tokens: token_dtypes")
    .Output("pooled: float")
    .Output("found: found_dtypes")
    .Attr("num_tables: int >= 1")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("token_dtypes: list({variant, float, half, bfloat16}) >= 0 = []")
    .Attr("row_dtypes: list({float, half, bfloat16, int8}) >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .Attr("packs: bool = false")
    .Attr("max_gradient: float = 0.0")
    .Attr("training: bool = false")
    .Attr("rows: list(int) = []")
    .Attr("found_dtypes: list({float}) >= 0 = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      TF_RETURN_IF_ERROR(CheckBatch(c, num_tables));
      ShapeHandle pooled;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(num_tables + 3), 0, &pooled));
      for (int i = 0; i < c->num_outputs(); ++i) {
        c->set_output(i, c->Vector(c->UnknownDim()));
      }
      return absl::Status();
    })
    .Doc(R"doc(
Looks rows up in many tables and pools those of each bag. Changes no row.

tables: Handles of tables with int64 keys and rows of float, half or bfloat16; or of int8, with dim
  codes, a scale and a bias (cc/core/rows/quantized_row.h), which are tables of dim + 8.
indices: The keys [n].
offsets: [bags + 1], from 0 to n, not decreasing; bag b holds indices offsets[b] up to offsets[b +
  1].
pieces: [p, 5]: table, first bag, number of bags, begin, stride. The pooled row of the i-th bag of a
  piece begins at value begin + i * stride. Pieces must cover each value once.
size: Scalar; the number of pooled values.
weights: None; or one, float [n].
tokens: None; or one for each table, as in TfEmbedFind; with `packs`, one for all.
pooled: [size].
found: None; or one, the rows of the indices, piece by piece, [sum of dims]. The gradient of the
  weights is made of them.
row_dtypes: Type of the rows of each table.
dims: Dim of the pooled rows of each table.
combiner: sum: the sum of weight x row. mean: divided by the number of indices in the bag. An empty
  bag is 0.
packs: Whether the token's gradient is the packed batch and the gradient of the pooled values.
max_gradient: The bound to which elements of the gradient of the pooled values are clipped; 0 for
  none.
training: As in TfEmbedFind.
rows: Number of rows of each table, for the shape of its gradient, -1 for a table of any number; or
  empty.
)doc");

// The number of outputs is not an attribute: TensorFlow would allocate for any given number, and
// hang on a graph lock if there is none.
REGISTER_OP("TfEmbedSumByKeyTables")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("gradient: float")
    .Input("weights: num_weights * float")
    .Output("distinct: distinct_dtypes")
    .Output("sums: sum_dtypes")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("distinct_dtypes: list({int64}) >= 1")
    .Attr("sum_dtypes: list({float, half, bfloat16}) >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      std::vector<int64_t> dims;
      tensorflow::DataTypeVector distinct_dtypes;
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      TF_RETURN_IF_ERROR(c->GetAttr("distinct_dtypes", &distinct_dtypes));
      const int num_tables = static_cast<int>(dims.size());
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(CheckBatch(c, 0));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
      if (distinct_dtypes.size() != dims.size() || c->num_outputs() != 2 * num_tables) {
        return absl::InvalidArgumentError(
            "`dims`, `distinct_dtypes` and `sum_dtypes` must have one for each table.");
      }
      for (int i = 0; i < num_tables; ++i) {
        if (dims[static_cast<size_t>(i)] < 1) {
          return absl::InvalidArgumentError(
              absl::StrCat("`dims` must be from 1. Received: ", dims[static_cast<size_t>(i)], "."));
        }
        const auto distinct = c->UnknownDim();
        c->set_output(i, c->Vector(distinct));
        c->set_output(num_tables + i,
                      c->Matrix(distinct, c->MakeDim(dims[static_cast<size_t>(i)])));
      }
      return absl::Status();
    })
    .Doc(R"doc(
Sums the gradients of equal keys of each table, in the order of the indices.

All pieces of a table are summed together. The other inputs are as in TfEmbedFindPooledTables.

gradient: The gradient of the pooled values [size]. That of an index is weight x gradient of its
  bag; for mean, divided by the number of indices in the bag.
distinct: For each table, the distinct keys [u], in order of first occurrence.
sums: For each table, [u, dim]; computed in float and rounded once.
)doc");

REGISTER_OP("TfEmbedPackBatch")
    .Input("tables: num_tables * resource")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("size: int64")
    .Input("weights: num_weights * float")
    .Output("batch: int64")
    .Attr("num_tables: int >= 1")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(CheckBatch(c, num_tables));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(num_tables + 3), 0, &unused));
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::Status();
    })
    .Doc(R"doc(
Packs a batch into one vector. The inputs are those of TfEmbedFindPooledTables.

The concatenation of such vectors is a valid input of TfEmbedApplyTables. Tables are not read: they
only place the op on their device.

batch: The packed batch; its first element is its length.
)doc");

REGISTER_OP("TfEmbedApplyTables")
    .Input("tables: num_tables * resource")
    .Input("batches: int64")
    .Input("gradients: float")
    .Input("hyper: double")
    .Input("step: int64")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), "}"))
    .Attr("slot_types: list({float, half, bfloat16}) = []")
    .Attr("stochastic_rounding: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int num_tables;
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      for (int i = 0; i < num_tables; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      }
      TF_RETURN_IF_ERROR(c->WithRank(c->input(num_tables), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(num_tables + 1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(num_tables + 2), 1, &unused));
      return c->WithRank(c->input(num_tables + 3), 0, &unused);
    })
    .Doc(R"doc(
Runs one step of an optimizer in many tables.

In each table, the gradients of equal keys of all batches are summed in order, absent keys get their
initial rows, and the rule runs once on each row.

tables: As in TfEmbedFindPooledTables, of one shard each.
batches: Outputs of TfEmbedPackBatch, any number of them concatenated; another vector is
  InvalidArgument.
gradients: The gradients of the pooled values of these batches, concatenated.
hyper: Hyper-parameters of the rule, as in TfEmbedApply; or [tables, hyper-parameters].
step: Scalar; the number of this step, from 1.
dims: Dim of each table.
combiner: As in TfEmbedFindPooledTables.
slot_types: The type of each of the rule's groups of slots in the rows; empty for the compute type,
  double for rows of double and otherwise float. Narrower slots are rounded to nearest after each
  step. Rows with slots of this rule in other types are converted.
stochastic_rounding: As in TfEmbedApply.
)doc");

}  // namespace tf_embed
