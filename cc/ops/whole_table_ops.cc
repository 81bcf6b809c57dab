// SPDX-License-Identifier: Apache-2.0
// Ops on all rows of a table.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/store/store_stats.h"
#include "cc/ops/key_types.h"
#include "cc/ops/table_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {
namespace {

std::string MeaningsOfStats() {
  std::string lines;
  for (const StoreStat& stat : kStoreStats) absl::StrAppend(&lines, "  ", stat.meaning, ";\n");
  return lines;
}

// The shape function of an op that takes a table and returns `count` numbers.
auto NumbersOfTable(size_t count) {
  return [count](InferenceContext* c) -> absl::Status {
    c->set_output(0, c->Vector(static_cast<int64_t>(count)));
    return CheckRanks(c, {0});
  };
}

}  // namespace

REGISTER_OP("TfEmbedSize")
    .Input("table: resource")
    .Input("shard: int64")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0}, {0}))
    .Doc(R"doc(
Returns the number of keys.

shard: The shard, or -1 for all; any other number is InvalidArgument.
)doc");

REGISTER_OP("TfEmbedClear")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}))
    .Doc("Removes all keys and releases the memory.");

REGISTER_OP("TfEmbedShrink")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}))
    .Doc("Compacts the table after many keys were removed, and releases memory.");

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
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      const DimensionHandle rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, dim));
      c->set_output(2, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(4, c->Matrix(rows, InferenceContext::kUnknownDim));
      c->set_output(5, c->Vector(InferenceContext::kUnknownDim));
      return CheckRanks(c, {0});
    })
    .Doc(R"doc(
Copies the whole table as of one moment. Writers wait, readers do not.

keys: [num_rows].
values: [num_rows, dim].
slots: [num_rows, slots of a row], double for tables of double, otherwise float; [num_rows, 0]
  without a rule or if with_slots is false.
meta: The table's state besides its rows: format version, seed, table id, rule, slots.
statistics: [num_rows, statistics of a row], in the order of
  cc/core/rows/row_statistics.h; [num_rows, 0] if with_policy is false. The highest bit of scores is inverted, so
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
    .SetShapeFn(Ranks({0, 1, 1, 2, 2, 1, 2, 1}))
    .Doc(R"doc(
Replaces the content of a table by a TfEmbedExport of any number of shards.

Statistics that both tables keep, and admission counts of the same kind, are taken over; others
begin now. If the input does not fit, nothing changes. Rows beyond a shard's bound leave in the
eviction order.
)doc");

REGISTER_OP("TfEmbedStats")
    .Input("table: resource")
    .Output("numbers: int64")
    .SetIsStateful()
    .SetShapeFn(NumbersOfTable(std::size(kStoreStats)))
    .Doc(absl::StrCat(R"doc(
Returns the sizes of a table, and counts of events since it was made, summed over its shards.

numbers: One number for each of these, in this order:
)doc",
                      MeaningsOfStats()));

REGISTER_OP("TfEmbedOrigin")
    .Input("table: resource")
    .Output("numbers: int64")
    .SetIsStateful()
    .SetShapeFn(NumbersOfTable(2))
    .Doc(R"doc(
Returns the numbers from which a table draws random initial rows. A load replaces them by those of
the table that was saved.

numbers: The attributes `seed` and `table_id` of TfEmbedTable, or those that were loaded.
)doc");

}  // namespace tf_embed
