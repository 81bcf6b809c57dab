// SPDX-License-Identifier: Apache-2.0
// Slots of optimizers. table_shapes.h has the common inputs.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/rules/rule_names.h"
#include "cc/ops/key_types.h"
#include "cc/ops/table_shapes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

// keys.shape + [slots of a row].
absl::Status SlotsShape(InferenceContext* c, ShapeHandle* slots) {
  std::vector<int64_t> widths;
  TF_RETURN_IF_ERROR(c->GetAttr("slot_widths", &widths));
  int64_t slots_per_row = 0;
  for (int64_t width : widths) {
    if (width < 1 || width > INT32_MAX) {
      return absl::InvalidArgumentError("`slot_widths` must be from 1 to 2147483647.");
    }
    slots_per_row += width;
  }
  return WithAxis(c, c->input(1), slots_per_row, slots);
}

}  // namespace

REGISTER_OP("TfEmbedFindSlots")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("defaults: value_dtype")
    .Output("values: value_dtype")
    .Output("slots: slot_dtype")
    .Output("exists: bool")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("slot_dtype: {float, double}")
    .Attr("dim: int >= 1")
    .Attr("rule_id: int")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initial_values: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle rows, slots;
      TF_RETURN_IF_ERROR(ShapeOfRows(c, &rows));
      TF_RETURN_IF_ERROR(SlotsShape(c, &slots));
      c->set_output(0, rows);
      c->set_output(1, slots);
      c->set_output(2, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads whole rows, each at one moment, for an optimizer outside of the table (an external rule).
Inserts nothing. If the table has another rule, it takes this one first: rows keep their weights and
get the initial slots.

defaults: As in TfEmbedFind.
values: keys.shape + [dim].
slots: keys.shape + [slots of a row], float64 for float64 tables, otherwise float32. Absent keys
  have the initial slots.
exists: keys.shape; whether the table holds the key.
rule_id: The number of the optimizer. Rules with equal id and slot_widths are the same; their
  initial values may differ, and apply to new rows.
slot_widths: Number of slots in each group, at most 16 groups.
slot_initial_values: Decimal numbers, separated by blanks, "nan" included: the initial value of each
  group's slots.
)doc");

REGISTER_OP("TfEmbedAssignSlots")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("values: value_dtype")
    .Input("slots: slot_dtype")
    .Input("scores: num_scores * int64")
    .Attr(kKeyDtype)
    .Attr("num_scores: int >= 0 = 0")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr("slot_dtype: {float, double}")
    .Attr("dim: int >= 1")
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), ", 'external'} = 'external'"))
    .Attr("rule_id: int = 0")
    .Attr("slot_widths: list(int) = []")
    .Attr("slot_initial_values: string = ''")
    .Attr("initial_value: float = 0.0")
    .Attr("distinct: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle slots, merged;
      std::string rule;
      TF_RETURN_IF_ERROR(CheckRows(c));
      TF_RETURN_IF_ERROR(c->GetAttr("rule", &rule));
      if (rule != "external") return absl::OkStatus();
      TF_RETURN_IF_ERROR(SlotsShape(c, &slots));
      return c->Merge(c->input(4), slots, &merged);
    })
    .Doc(R"doc(
Writes whole rows, and inserts those of absent keys. Of equal keys, the last position wins. If the
table no longer has this external rule, the error is FailedPrecondition. A fused rule becomes the
table's.

values: keys.shape + [dim].
slots: keys.shape + [slots of a row].
rule: As in TfEmbedRowsOfOtherRule.
initial_value: As in TfEmbedReadSlots.
distinct: As in TfEmbedInsertOrAssign.
)doc");

REGISTER_OP("TfEmbedReadSlots")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Output("slots: slot_dtype")
    .Output("exists: bool")
    .Attr(kKeyDtype)
    .Attr("slot_dtype: {float, double}")
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), ", 'external'}"))
    .Attr("rule_id: int = 0")
    .Attr("slot_widths: list(int) = []")
    .Attr("slot_initial_values: string = ''")
    .Attr("initial_value: float = 0.0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle slots;
      TF_RETURN_IF_ERROR(CheckKeys(c));
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), InferenceContext::kUnknownDim, &slots));
      c->set_output(0, slots);
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads the slots of a rule; if the table has another rule, those that this one would start with.

slots: keys.shape + [slots of a row], float64 for float64 tables, otherwise float32. Absent keys
  have the initial slots.
exists: keys.shape; whether the table holds the key.
rule: As in TfEmbedRowsOfOtherRule.
initial_value: The initial value of the first group of slots of a fused rule.
)doc");

REGISTER_OP("TfEmbedRowsOfOtherRule")
    .Input("table: resource")
    .Output("rows: int64")
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), ", 'external'}"))
    .Attr("rule_id: int = 0")
    .Attr("slot_widths: list(int) = []")
    .Attr("slot_initial_values: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns the number of rows with slots of another rule, which a first step of this rule would
replace.

rule: A rule of TfEmbedApply; or external, which rule_id, slot_widths and slot_initial_values
  describe as in TfEmbedFindSlots.
)doc");

REGISTER_OP("TfEmbedLargestSlot")
    .Input("table: resource")
    .Output("largest: double")
    .Attr(absl::StrCat("rule: {", QuotedRuleNames(), "}"))
    .Attr("slot: int >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns the largest value of a slot in all rows, at least 0; 0 if the table has another rule.
)doc");

}  // namespace tf_embed
