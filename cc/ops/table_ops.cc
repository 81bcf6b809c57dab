// SPDX-License-Identifier: Apache-2.0
// The op set of a table. One set serves every store and every device: key type, value type and
// dim are run-time values of the handle, so nothing here is repeated for a dtype.
//
// Common inputs
//   table    the resource. It holds every shard of one variable.
//   keys     any shape. A row's shape is [dim], so rows have shape keys.shape + [dim].
//            Strings are any bytes, and different ones are different keys.
//   owners   the shard of each key, flattened: int32 [num_keys]; or int32 [0], which leaves
//            the choice to the table: floor_mod(key, num_shards), for a string of its 64-bit key.
//   scores   none; or the scores of the written rows, keys.shape, in a table that keeps scores.
//            The last of equal keys wins. If scores decide evictions, a new row only replaces a
//            row of an equal or lower score.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/core/rules/rule_names.h"
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

// keys.shape + [dim].
absl::Status RowsShape(InferenceContext* c, ShapeHandle keys, ShapeHandle* rows) {
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  return WithAxis(c, keys, dim, rows);
}

absl::Status ScalarHandle(InferenceContext* c) {
  ShapeHandle unused;
  return c->WithRank(c->input(0), 0, &unused);
}

// Checks inputs 0 to 2 (table, keys, owners) and returns the shape of the keys' rows.
absl::Status TableKeysOwners(InferenceContext* c, ShapeHandle* rows) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(ScalarHandle(c));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  return RowsShape(c, c->input(1), rows);
}

absl::Status FindShape(InferenceContext* c) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(TableKeysOwners(c, &rows));
  c->set_output(0, rows);
  c->set_output(1, c->input(1));
  return absl::Status();
}

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

absl::Status RowsInputShape(InferenceContext* c) {
  ShapeHandle rows, merged;
  TF_RETURN_IF_ERROR(TableKeysOwners(c, &rows));
  return c->Merge(c->input(3), rows, &merged);
}

}  // namespace

REGISTER_OP("TfEmbedTable")
    .Output("table: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("num_shards: int >= 1 = 1")
    .Attr("init_size: int >= 0 = 0")
    .Attr("label: string = ''")
    .Attr("initializer: {'constant', 'row', 'uniform', 'normal', 'truncated_normal'} = 'constant'")
    .Attr("initializer_values: string = '0'")
    .Attr("seed: int = 0")
    .Attr("table_id: int = 0")
    .Attr("max_rows: int >= 0 = 0")
    .Attr(absl::StrCat("eviction: {'none', ", QuotedNames(kEvictionOrderNames), "} = 'lru'"))
    .Attr("steps_per_epoch: int >= 0 = 0")
    .Attr("ttl_milliseconds: int >= 0 = 0")
    .Attr("admission: {'none', 'counter', 'bloom'} = 'none'")
    .Attr("admission_threshold: int >= 1 = 1")
    .Attr("admission_error_rate: float = 0.01")
    .Attr("admission_max_keys: int >= 0 = 0")
    .Attr("statistics: int >= 0 = 0")
    .Attr("log_evicted: bool = false")
    .Attr("gpu_total_bytes: int >= -1 = -1")
    .Attr("gpu_bytes: int >= -1 = -1")
    .Attr("host_bytes: int >= -1 = 0")
    .Attr("gpu_cache: bool = false")
    .Attr("evict_by_bytes: bool = false")
    .Attr("path: string = ''")
    .Attr("disk_bytes: int >= -1 = -1")
    .Attr("keep_leftovers: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Creates a table, or finds the one of the same container and shared_name.

A table of that name with another type, dim, num_shards or policy is InvalidArgument.

table: The handle.
key_dtype: Type of the keys.
value_dtype: Type of a row's weights.
dim: Number of weights in a row.
num_shards: Number of shards over which the keys are spread.
init_size: Number of rows that each shard makes room for.
label: The name of the table in messages.
initializer: Rule of the initial row of a key.
initializer_values: Decimal numbers, separated by blanks and read as float64. constant: the value.
  row: the row. uniform: minimum and maximum. normal and truncated_normal: mean and standard
  deviation.
seed: Seed of the initial rows.
table_id: Second half of the seed: tables of one seed and different ids have different rows.
max_rows: Bound on the rows of all shards together, spread evenly, at least one each; 0 for none.
eviction: The rows that leave first. lru: not used for the most steps. lfu: used in the fewest
  steps. ttl: not used for the longest time. score: lowest score. epoch_lru, epoch_lfu: last used in
  the earliest epoch, then as lru, lfu. none: no row leaves; new rows beyond max_rows are refused.
steps_per_epoch: Steps in an epoch; 0 if TfEmbedSetClock alone sets the epoch.
ttl_milliseconds: Time without use after which a row expires, in milliseconds; 0 for never.
admission: How to count the absent keys of TfEmbedApply until they get a row: counter, exactly;
  bloom, in Bloom filters; none, a key gets its row at once.
admission_threshold: The number of steps with a key after which it gets its row.
admission_error_rate: The chance, above 0 and below 1, that a Bloom filter admits a key early.
admission_max_keys: Bound on the waiting keys, of which the latest stay; 0 for none.
statistics: Statistics to keep besides those that the policy needs, a sum of 1 for the last step, 2
  for the last time, 4 for the number of steps, 8 for the score, 16 for the latest epoch.
log_evicted: Whether to keep evicted rows for TfEmbedDrainEvicted.
gpu_total_bytes: Bound on GPU memory for index and rows of all shards, in bytes; -1 for none.
gpu_bytes: Bound on the GPU memory for rows alone, in bytes; -1 for none.
host_bytes: Bound on the host memory for rows, in bytes. On a GPU: for the rows that do not fit
  there or, with a `path`, for those between its cache and the disk. On a CPU with a `path`: for the
  cache. -1 for none; on a GPU with a `path`, for no rows there.
gpu_cache: Whether GPU memory is a cache over host memory, even without a `path`.
evict_by_bytes: Whether rows leave by `eviction` at these bounds; otherwise new rows are refused.
path: A folder on disk, in which the table makes its own for rows beyond memory; empty for none.
disk_bytes: Bound on the files there, in bytes; -1 for none.
keep_leftovers: Whether to rename, not remove, the files that an earlier process left there.
)doc");

REGISTER_OP("TfEmbedPrefetch")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      return c->WithRank(c->input(2), 1, &unused);
    })
    .Doc(R"doc(
Promotes rows from the lower tiers of a table to its cache, and marks them as used in this step.
Fills at most half of the cache. Has no effect on a table without tiers.

table: Handle of the table.
keys: Keys, any shape; absent ones are ignored.
owners: The shard of each key, int32 [num_keys]; or [0], which leaves the choice to the table.
)doc");

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
    .SetShapeFn(RowsInputShape)
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
      TF_RETURN_IF_ERROR(RowsInputShape(c));
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
      TF_RETURN_IF_ERROR(RowsInputShape(c));
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
      TF_RETURN_IF_ERROR(TableKeysOwners(c, &rows));
      TF_RETURN_IF_ERROR(SlotsShape(c, &slots));
      c->set_output(0, rows);
      c->set_output(1, slots);
      c->set_output(2, c->input(1));
      return absl::Status();
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
      TF_RETURN_IF_ERROR(RowsInputShape(c));
      TF_RETURN_IF_ERROR(c->GetAttr("rule", &rule));
      if (rule != "external") return absl::Status();
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

REGISTER_OP("TfEmbedErase")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      return c->WithRank(c->input(2), 1, &unused);
    })
    .Doc("Removes keys with their rows. Absent keys are ignored.");

REGISTER_OP("TfEmbedClear")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarHandle)
    .Doc("Removes all keys and releases the memory.");

REGISTER_OP("TfEmbedShrink")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarHandle)
    .Doc("Compacts the table after many keys were removed, and releases memory.");

REGISTER_OP("TfEmbedSize")
    .Input("table: resource")
    .Input("shard: int64")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Scalar());
      return absl::Status();
    })
    .Doc(R"doc(
Returns the number of keys.

shard: The shard, or -1 for all; any other number is InvalidArgument.
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
      ShapeHandle rows, slots;
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &rows));
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), InferenceContext::kUnknownDim, &slots));
      c->set_output(0, slots);
      c->set_output(1, c->input(1));
      return absl::Status();
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

REGISTER_OP("TfEmbedExport")
    .Input("table: resource")
    .Output("keys: key_dtype")
    .Output("values: value_dtype")
    .Output("slots: slot_dtype")
    .Output("meta: int64")
    .Output("statistics: int64")
    .Output("policy: int64")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("slot_dtype: {float, double}")
    .Attr("dim: int >= 1")
    .Attr("with_slots: bool = true")
    .Attr("with_policy: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      const DimensionHandle rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, dim));
      c->set_output(2, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(4, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(5, c->Vector(InferenceContext::kUnknownDim));
      return absl::Status();
    })
    .Doc(R"doc(
Copies the whole table as of one moment. Writers wait, readers do not.

keys: [num_rows].
values: [num_rows, dim].
slots: [num_rows, slots of a row], double for tables of double, otherwise float; [num_rows, 0]
  without a rule or if with_slots is false.
meta: The table's state besides its rows: format version, seed, table id, rule, slots.
statistics: [num_rows, statistics of a row], in the order of the bits of TfEmbedTable's
  `statistics`; [num_rows, 0] if with_policy is false. The highest bit of scores is inverted, so
  that they are in order as unsigned numbers.
policy: Format version, step of the clock (0 in a table without statistics), bits of the statistics,
  admission counts. If with_policy is false, there are no statistics and no counts.
)doc");

REGISTER_OP("TfEmbedImport")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("values: value_dtype")
    .Input("slots: slot_dtype")
    .Input("meta: int64")
    .Input("statistics: int64")
    .Input("policy: int64")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("slot_dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(ScalarHandle(c));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(5), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 2, &unused));
      return c->WithRank(c->input(7), 1, &unused);
    })
    .Doc(R"doc(
Replaces the content of a table by a TfEmbedExport of any number of shards.

Statistics that both tables keep, and admission counts of the same kind, are taken over; others
begin now. If the input does not fit, nothing changes. Rows beyond a shard's bound leave in the
eviction order.
)doc");

}  // namespace tf_embed
