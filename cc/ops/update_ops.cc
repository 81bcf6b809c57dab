// SPDX-License-Identifier: Apache-2.0
// Changes of rows. table_shapes.h has the common inputs.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/rules/rule_names.h"
#include "cc/ops/key_types.h"
#include "cc/ops/table_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedInsertOrAssign")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("values: value_dtype")
    .Input("scores: num_scores * int64")
    .Attr(kKeyDtype)
    .Attr("num_scores: int >= 0 = 0")
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("distinct: bool = false")
    .SetIsStateful()
    .SetShapeFn(CheckRows)
    .Doc(R"doc(
Writes rows, and inserts those of absent keys. Of equal keys, the last position wins.

values: keys.shape + [dim].
distinct: Declares that no key repeats, which skips the search for equal keys. If one does, any one
  of its positions wins.
)doc");

REGISTER_OP("TfEmbedAccum")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("old_values: value_dtype")
    .Input("new_values: value_dtype")
    .Input("exists: bool")
    .Input("scores: num_scores * int64")
    .Attr(kKeyDtype)
    .Attr("num_scores: int >= 0 = 0")
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckRows(c));
      ShapeHandle merged;
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->input(4), &merged));
      return c->Merge(c->input(1), c->input(5), &merged);
    })
    .Doc(R"doc(
Adds to rows that exist, and inserts rows that do not, according to an earlier lookup of the caller.

old_values: keys.shape + [dim], the rows as looked up; ignored if `exists` is false.
new_values: keys.shape + [dim], the wanted rows.
exists: keys.shape. If true and the key is present, new - old is added, rounded to the value type.
  If false and the key is absent, the new row is inserted. Otherwise nothing is done, because the
  table has changed since the lookup.
)doc");

REGISTER_OP("TfEmbedApply")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("gradients: gradient_dtype")
    .Input("hyper: double")
    .Input("step: int64")
    .Input("scores: num_scores * int64")
    .Input("token: num_tokens * int64")
    .Input("trained: num_trained * bool")
    .Attr(kKeyDtype)
    .Attr("num_scores: int >= 0 = 0")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("num_trained: int >= 0 = 0")
    .Attr("gradient_dtype: {float, half, bfloat16, double}")
    .Attr("dim: int >= 1")
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), "}"))
    .Attr("distinct: bool = false")
    .Attr("stochastic_rounding: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckRows(c));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &unused));
      return c->WithRank(c->input(5), 0, &unused);
    })
    .Doc(absl::StrCat(R"doc(
Runs one step of an optimizer: sums the gradients of equal keys in batch order, inserts the initial
rows of absent keys, and runs the rule once on each row.

gradients: keys.shape + [dim], of the table's value type; or float for tables of half and bfloat16,
  whose sums and rules are computed in float in any case.
hyper: Hyper-parameters of the rule. weight_decay is Keras's, before the rule; decay is the rule's
  own. nesterov and keeps_average are 0 or 1. A rule with average_every changes all rows at the end
  of some steps.
)doc",
                      HyperOfRules(), R"doc(step: Scalar; the number of this step, from 1.
rule: The rule. If the table has another, the slots are replaced and the weights stay.
distinct: Declares that no key repeats, which skips the search for equal keys. If one does, the rule
  runs for each of its positions, in any order.
stochastic_rounding: Whether to round half and bfloat16 weights at random, right in the mean, or to
  nearest. The noise is a function of the table's seed and id, the step, the key and the column.
token: None; or one of [2]: the number of a step, which the table applies once even if it is sent
  again, and a number below which all steps are over, so that the table can forget those.
trained: None; or one scalar. If it is false, nothing is done.
)doc"));

REGISTER_OP("TfEmbedErase")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(CheckKeys)
    .Doc("Removes keys with their rows. Absent keys are ignored.");

}  // namespace tf_embed
