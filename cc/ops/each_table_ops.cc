// SPDX-License-Identifier: Apache-2.0
// A step of many tables, each with its own keys, in one op for lookups and one for updates. They
// give what an op for each table gives, bit for bit.
//
//     keys of each table --TfEmbedFindEach--> rows of each --TfEmbedLinkRows--> rows
//                                               token --^
//
// A table whose rows no loss uses must not be trained. But a tape turns a missing gradient of one
// of an op's outputs into zeros. So the lookup of many has no gradient, and an op for each table
// links its rows to its token.
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/rules/rule_names.h"
#include "cc/ops/key_types.h"
#include "cc/ops/pooling_shapes.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// The shapes of an op of many tables, whose input k of table i is input k * size() + i.
class EachTable {
 public:
  explicit EachTable(InferenceContext* c) : c_(c) {}

  // Reads `dims`. Checks that each list of types has one for each table, and the ranks of handles
  // and owners.
  absl::Status Read(std::initializer_list<const char*> lists) {
    int num_tables;
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(c_->GetAttr("dims", &dims_));
    TF_RETURN_IF_ERROR(c_->GetAttr("num_tables", &num_tables));
    if (size() != num_tables) return NotOneEach("dims", dims_.size());
    for (const char* const name : lists) {
      tensorflow::DataTypeVector types;
      TF_RETURN_IF_ERROR(c_->GetAttr(name, &types));
      if (types.size() != dims_.size()) return NotOneEach(name, types.size());
    }
    for (int i = 0; i < size(); ++i) {
      TF_RETURN_IF_ERROR(c_->WithRank(input(0, i), 0, &unused));
      TF_RETURN_IF_ERROR(c_->WithRank(input(2, i), 1, &unused));
      if (dims_[static_cast<size_t>(i)] >= 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("`dims` must be from 1. Received: ", dims_[static_cast<size_t>(i)], "."));
    }
    return absl::OkStatus();
  }

  int size() const { return static_cast<int>(dims_.size()); }
  ShapeHandle input(int argument, int i) const { return c_->input(argument * size() + i); }
  // Returns shape + [dim of table i].
  absl::Status WithDim(ShapeHandle shape, int i, ShapeHandle* rows) const {
    return WithAxis(c_, shape, dims_[static_cast<size_t>(i)], rows);
  }

  static absl::Status NotOneEach(const char* name, size_t received) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must have one for each of the tables. Received: ", received, "."));
  }

 private:
  InferenceContext* const c_;
  std::vector<int64_t> dims_;
};

absl::Status FindEachShape(InferenceContext* c) {
  EachTable tables(c);
  TF_RETURN_IF_ERROR(tables.Read({"key_dtypes", "value_dtypes"}));
  for (int i = 0; i < tables.size(); ++i) {
    ShapeHandle rows;
    TF_RETURN_IF_ERROR(tables.WithDim(tables.input(1, i), i, &rows));
    c->set_output(i, rows);
  }
  return absl::OkStatus();
}

absl::Status FindPooledEachShape(InferenceContext* c) {
  EachTable tables(c);
  std::vector<int64_t> num_bags;
  std::vector<bool> has_weights;
  TF_RETURN_IF_ERROR(tables.Read({"key_dtypes", "value_dtypes", "pooled_dtypes"}));
  TF_RETURN_IF_ERROR(c->GetAttr("has_weights", &has_weights));
  TF_RETURN_IF_ERROR(c->GetAttr("num_bags", &num_bags));
  if (static_cast<int>(num_bags.size()) != tables.size()) {
    return EachTable::NotOneEach("num_bags", num_bags.size());
  }
  int first = 4 * tables.size();
  int found = tables.size();
  for (int i = 0; i < tables.size(); ++i) {
    const int64_t count = num_bags[static_cast<size_t>(i)];
    if (count < 0 || count > 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("`num_bags` must be from 0 to 2. Received: ", count, "."));
    }
    if (first + count > c->num_inputs()) {
      return absl::InvalidArgumentError("`bags` must be those of all tables. Received: fewer.");
    }
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(BagsShape(c, tables.input(1, i), count, first, &shape));
    TF_RETURN_IF_ERROR(tables.WithDim(shape, i, &shape));
    c->set_output(i, shape);
    first += static_cast<int>(count);
    // The kernel refuses lists that do not match.
    const size_t number = static_cast<size_t>(i);
    if (number >= has_weights.size() || !has_weights[number] || found >= c->num_outputs()) continue;
    TF_RETURN_IF_ERROR(tables.WithDim(tables.input(1, i), i, &shape));
    c->set_output(found++, shape);
  }
  return absl::OkStatus();
}

absl::Status ApplyEachShape(InferenceContext* c) {
  EachTable tables(c);
  TF_RETURN_IF_ERROR(tables.Read({"key_dtypes", "gradient_dtypes"}));
  for (int i = 0; i < tables.size(); ++i) {
    ShapeHandle rows, unused;
    TF_RETURN_IF_ERROR(tables.WithDim(tables.input(1, i), i, &rows));
    TF_RETURN_IF_ERROR(c->Merge(tables.input(3, i), rows, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(tables.input(4, i), 1, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(tables.input(5, i), 0, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(tables.input(6, i), 0, &unused));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfEmbedFindEach")
    .Input("tables: num_tables * resource")
    .Input("keys: key_dtypes")
    .Input("owners: num_tables * int32")
    .Input("defaults: value_dtypes")
    .Output("values: value_dtypes")
    .Attr("num_tables: int >= 1")
    .Attr(kKeyDtypes)
    .Attr("value_dtypes: list({float, half, bfloat16, double, int8, int32, int64, bool}) >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("training: list(bool) >= 1")
    .SetIsStateful()
    .SetShapeFn(FindEachShape)
    .Doc(R"doc(
Looks rows up in many tables, each by its own keys. Changes no row.

Each argument has one for each table, as in TfEmbedFind. A table may be repeated. Tables of strings
are looked up by TfEmbedFind. On a GPU, all keys have 64 bits, or all have 32.

values: keys.shape + [dim] of each table. They have no gradient, see TfEmbedLinkRows.
)doc");

REGISTER_OP("TfEmbedFindPooledEach")
    .Input("tables: num_tables * resource")
    .Input("keys: key_dtypes")
    .Input("owners: num_tables * int32")
    .Input("defaults: value_dtypes")
    .Input("bags: num_bag_tensors * int64")
    .Input("weights: weights_dtypes")
    .Output("pooled: pooled_dtypes")
    .Output("found: found_dtypes")
    .Attr("num_tables: int >= 1")
    .Attr(kKeyDtypes)
    .Attr("value_dtypes: list({float, half, bfloat16, double}) >= 1")
    .Attr("pooled_dtypes: list({float, double}) >= 1")
    .Attr("num_bag_tensors: int >= 0")
    .Attr("num_bags: list(int) >= 1")
    .Attr("weights_dtypes: list({float, double}) >= 0")
    .Attr("has_weights: list(bool) >= 1")
    .Attr(absl::StrCat("combiners: list({", QuotedNames(kCombinerNames), "}) >= 1"))
    .Attr("has_padding: list(bool) >= 1")
    .Attr("paddings: list(int) >= 1")
    .Attr("padding_texts: list(string) >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("training: list(bool) >= 1")
    .Attr("found_dtypes: list({float, double}) >= 0 = []")
    .SetIsStateful()
    .SetShapeFn(FindPooledEachShape)
    .Doc(R"doc(
Looks rows up in many tables, each by its own keys, and pools those of each bag. Changes no row.

Each argument has one for each table, as in TfEmbedFindPooled, except for two lists that have the
tensors of all tables in turn. A table may be repeated. On a GPU, all keys have 64 bits, or all have
32.

bags: The tensors that define the bags of each table.
num_bags: The number of these: 0, 1 or 2.
weights: The weights of each table that has some.
has_weights: Whether a table has them.
pooled: The shape of the bags + [dim] of each table. They have no gradient, see TfEmbedLinkPooled.
found: None; or the row of each key of each table with weights, as in TfEmbedFindPooled.
has_padding: Whether a table has a padding key.
paddings: The padding key; ignored without one, and for string keys.
padding_texts: The padding of string keys; ignored for others.
)doc");

REGISTER_OP("TfEmbedApplyEach")
    .Input("tables: num_tables * resource")
    .Input("keys: key_dtypes")
    .Input("owners: num_tables * int32")
    .Input("gradients: gradient_dtypes")
    .Input("hyper: num_tables * double")
    .Input("step: num_tables * int64")
    .Input("trained: num_tables * bool")
    .Attr("num_tables: int >= 1")
    .Attr(kKeyDtypes)
    .Attr("gradient_dtypes: list({float, half, bfloat16, double}) >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("rules: list({", QuotedRuleNames(), "}) >= 1"))
    .Attr("distinct: list(bool) >= 1")
    .Attr("stochastic_rounding: list(bool) >= 1")
    .SetIsStateful()
    .SetShapeFn(ApplyEachShape)
    .Doc(R"doc(
Runs one step of an optimizer in many tables, each with its own keys, gradients and rule.

Each argument has one for each table, as in TfEmbedApply. If the step of a table fails, those of
other tables may have been made, as with an op for each. The error is that of the first table that
failed, and names it.

tables: Each table once. A table whose writes have scores or a token is updated by TfEmbedApply.
trained: Scalar of each table. If it is false, nothing is done there.
)doc");

REGISTER_OP("TfEmbedLinkRows")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("rows: value_dtype")
    .Input("token: token_dtype")
    .Output("linked: value_dtype")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("token_dtype: {variant, float, half, bfloat16, double} = DT_VARIANT")
    .Attr("dim: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t dim;
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), dim, &rows));
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), rows, &rows));
      c->set_output(0, rows);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns rows that TfEmbedFindEach found, without a copy, with the gradient that TfEmbedFind has.

table: The table, on whose device TensorFlow then places this op. It is not read.
keys: Keys of the rows, any shape.
rows: keys.shape + [dim].
token: Receives the gradient, as in TfEmbedFind.
linked: rows.
)doc");

REGISTER_OP("TfEmbedLinkPooled")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("pooled: pooled_dtype")
    .Input("defaults: value_dtype")
    .Input("tokens: num_tokens * token_dtype")
    .Input("bags: num_bags * bags_dtype")
    .Input("weights: num_weights * weights_dtype")
    .Output("linked: pooled_dtype")
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
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns rows that TfEmbedFindPooledEach pooled, without a copy, with the gradients that
TfEmbedFindPooled has. Arguments without a description are those of the lookup.

table: The table, on whose device TensorFlow then places this op. It is not read.
pooled: The shape of the bags + [dim].
defaults: With weights a row for each key: its row, of which the gradient of the weights is made.
tokens: As in TfEmbedFindPooled.
linked: pooled.
)doc");

}  // namespace tf_embed
