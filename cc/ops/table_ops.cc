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

table: The handle.
key_dtype: Type of the keys.
value_dtype: Type of a row's weights.
dim: Number of weights in a row.
num_shards: Number of shards that the table's keys are spread over.
init_size: Rows that each shard makes room for.
label: The name that error messages use.
initializer: Rule of the initial row of a key.
initializer_values: Decimal numbers with a blank between them, which are read as float64: the value
  for constant, the row itself for row, minimum and maximum for uniform, mean and standard
  deviation for normal and truncated_normal.
seed: Seed of the initial rows.
table_id: Second half of the seed: tables of one seed and different ids have different rows.
max_rows: The most rows in all shards together, spread evenly, at least one each; 0 for no bound.
eviction: The rows that leave first for new ones: lru, those not used for the most steps; lfu, those
  used in the fewest steps; ttl, those not used for the longest time; score, those of the lowest
  score; epoch_lru and epoch_lfu, those last used in the earliest epoch, and of these as lru and lfu;
  none, no rows: new ones beyond max_rows are refused.
steps_per_epoch: How many steps are an epoch; 0 where TfEmbedSetClock alone says which one it is.
ttl_milliseconds: After how long without use a row is expired; 0 for never.
admission: How TfEmbedApply's absent keys are counted until they get a row: exactly, or by Bloom
  filters.
admission_threshold: The number of steps with a key in which it gets its row.
admission_error_rate: The chance that a Bloom filter lets a key in early.
admission_max_keys: How many keys wait at most, those that came last; 0 for all.
statistics: What is kept of the use of each row besides what the rest needs, a sum of 1 for the last
  step, 2 for the last time, 4 for the number of steps, 8 for the score, 16 for the latest epoch.
log_evicted: Whether rows that leave by this policy are kept for TfEmbedDrainEvicted.
gpu_total_bytes: Of a table on a GPU, all shards together, the bytes of its memory for index and
  rows; -1 for no bound.
gpu_bytes: The bytes of it for rows alone; -1 for no bound.
host_bytes: The bytes of the host's memory for rows: of a table on a GPU, those that find no room
  there, or with a `path` those between its cache and the disk; of a table on a CPU with a `path`,
  those in the cache. -1 for no bound; of a table on a GPU with a `path`, for no rows there.
gpu_cache: Whether the memory of a GPU is a cache over the host's, also without a `path`.
evict_by_bytes: Whether rows leave, by `eviction`, for those that these bounds leave no room for, also
  without max_rows; else these are refused.
path: A folder on disk, in which the table has a folder of its own for the rows that find no room in
  the memory above; empty for a table without such rows.
disk_bytes: The bytes of files there; -1 for no bound.
keep_leftovers: Whether files that a process left there when it ended are renamed and not removed.
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
Brings rows that are on disk to the table's cache, where they count as used in the present step. No
row changes. As many as half of the cache takes; a table without a disk has nothing to bring.

table: The table.
keys: Keys; absent ones are passed over.
owners: The shard of each key, or none to let the table choose.
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
Looks rows up and changes no row.

defaults: Rows of absent keys: empty for the table's initializer, [dim] for one row for all,
  keys.shape + [dim] for a row each.
tokens: None; or one, which gets the gradient of the rows: of TfEmbedToken, or the anchor itself.
values: keys.shape + [dim].
exists: keys.shape; whether the table holds the key.
training: Whether this is a part of a training step: it is a use of the rows then, in a table that
  keeps statistics, and an expired row is absent.
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
Looks rows up and inserts the initial row of each absent key. Of a key that stands several times
in the batch, the first position's default is the one inserted.

defaults: As in TfEmbedFind.
exists: keys.shape; whether the table held the key before.
training: As in TfEmbedFind; and only those keys are inserted that TfEmbedApply would insert now.
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
Writes rows. Of a key that stands several times in the batch, the last position wins.

distinct: Says that no key comes twice, which spares the search for equal ones. Where one does all
  the same, one of its positions wins.
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
Adds to rows that exist and inserts rows that do not, as the caller saw them.

old_values: keys.shape + [dim], what the caller saw; not read where exists is false.
new_values: keys.shape + [dim], what the rows should become.
exists: keys.shape. True and present: new - old is added, rounded to the value type. False and
  absent: the new row is inserted. Otherwise the table has changed since the caller looked, and
  nothing is done.
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
One step of an optimizer. Gradients of equal keys are summed in position order, absent keys get
their initial row, and the rule runs on each row once.

gradients: keys.shape + [dim], of the table's value type, or of float32 for float16 and bfloat16
  tables, whose sums and rules are in float32 either way.
hyper: Hyper-parameters of the rule. weight_decay is Keras's, before the rule, and decay the rule's
  own. nesterov and keeps_average are 0 or 1. A rule with average_every changes all rows at the end
  of some steps.
)doc",
                      HyperOfRules(), R"doc(step: The number of this step; the first is 1.
rule: A rule other than the table's present one replaces the slots and keeps the weights.
distinct: Says that no key comes twice, which spares the search for equal ones. Where one does all
  the same, the rule runs for each of its positions, in any order.
stochastic_rounding: Rounds float16 and bfloat16 weights up or down by chance, so that the mean is
  right; else to nearest. The noise is a function of the table's seed and id, the step, the key and
  the column. Nothing to tables of other types.
token: None, or one of two numbers: that of a step, which the table applies once, however often it
  comes; and one below which all steps are over, so that the table need not keep them in mind.
trained: None, or whether there is a step at all, a scalar.
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
Reads whole rows for an optimizer that runs outside of the table, an external rule, and inserts
nothing. Where the table's rule is another one, it becomes this one first: all rows get its initial
slots and keep their weights.

defaults: As in TfEmbedFind.
values: keys.shape + [dim].
slots: keys.shape + [slots of a row], float64 for float64 tables, else float32. Of the same moment
  as the row's values. Absent keys have the initial slots.
exists: keys.shape; whether the table holds the key.
rule_id: Which optimizer. Rules are the same when their id and slot_widths are; initial values may
  differ, and are those of the rows that come from now on.
slot_widths: Number of slots in each group; at most 16 groups.
slot_initial_values: Decimal numbers with a blank between them, "nan" allowed: the value of each
  group's slots in a new row.
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
Writes whole rows back, and inserts those of absent keys. Of a key that stands several times in the
batch, the last position wins. If the table's rule is not this external one any more, nothing is
written and the error is FailedPrecondition. A fused rule becomes the table's.

values: keys.shape + [dim].
slots: keys.shape + [slots of a row].
rule: As in TfEmbedRowsOfOtherRule.
initial_value: As in TfEmbedReadSlots.
distinct: Says that no key comes twice, which spares the search for equal ones. Where one does all
  the same, one of its positions wins.
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
    .Doc("Removes keys with all that belongs to them. Absent keys are no error.");

REGISTER_OP("TfEmbedClear")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarHandle)
    .Doc("Removes every key and gives the memory back.");

REGISTER_OP("TfEmbedShrink")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarHandle)
    .Doc("Compacts the table after many keys were removed, and gives memory back.");

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
Counts keys.

shard: Which shard, or -1 for all.
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
Reads the slots that a rule keeps beside rows, and changes nothing. Where the table's rule is
another one, they are those with which a first step would begin.

slots: keys.shape + [slots of a row], float64 for float64 tables, else float32. Absent keys have the
  initial ones.
exists: keys.shape; whether the table holds the key.
rule: As in TfEmbedRowsOfOtherRule.
initial_value: That of the first group of a rule of TfEmbedApply.
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
Counts the rows whose slots belong to another rule; the first TfEmbedApply or TfEmbedFindSlots of
this rule replaces them.

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
The largest of all rows' slots of that number, at least 0; 0 where the table's rule is another.
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
Copies the whole table, as it is at one moment: writers wait meanwhile, readers do not.

keys: [num_rows].
values: [num_rows, dim].
slots: [num_rows, slots of a row] in float32, or float64 for float64 tables;
  [num_rows, 0] without a rule or when with_slots is false.
meta: What a restored table needs besides its rows: format version, seed, table id, rule, slots.
statistics: [num_rows, statistics of a row], in the order of the bits of TfEmbedTable's `statistics`;
  [num_rows, 0] when with_policy is false. Scores have their highest bit turned, so that they are in
  order as unsigned numbers.
policy: Format version, the step of the table's clock, the bits of the statistics, and what admission
  has counted. The step is 0 in a table without statistics. When with_policy is false there are
  no statistics and no counts.
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
Replaces the whole content of a table by an export of TfEmbedExport, from any number of shards:
rows, slots, rule, seed and table id. What does not fit is refused before anything is changed.
Statistics that both tables have are taken over, others begin now; so do the counts of admission
where it is of another kind. Where there are more rows than a shard's bound, the first to leave do.
)doc");

}  // namespace tf_embed
