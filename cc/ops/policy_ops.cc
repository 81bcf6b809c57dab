// SPDX-License-Identifier: Apache-2.0
// Admission and eviction ops. The policy itself is in the attributes of TfEmbedTable. Common
// inputs: see table_shapes.h.
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/ops/key_types.h"
#include "cc/ops/table_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedRestrict")
    .Input("table: resource")
    .Input("num_reserved: int64")
    .Output("removed: int64")
    .Attr(absl::StrCat("order: {", QuotedNames(kEvictionOrderNames), "}"))
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0}, {0}))
    .Doc(R"doc(
Removes expired rows, and then the rows that come first in an order, until enough are gone.

The bound holds for all shards together. If many rows leave, their memory is released. A table that
does not keep the statistics of the order is FailedPrecondition.

num_reserved: Scalar; the number of rows that may stay.
removed: Scalar; the number of rows that left.
order: As `eviction` of TfEmbedTable.
)doc");

REGISTER_OP("TfEmbedDrainEvicted")
    .Input("table: resource")
    .Output("keys: key_dtype")
    .Output("values: value_dtype")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      const DimensionHandle rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, dim));
      return CheckRanks(c, {0});
    })
    .Doc(R"doc(
Returns the rows that the policy has removed since the last call, and forgets them.

A table that was made without log_evicted is FailedPrecondition.

keys: [num_rows], in the order of removal. A key that returned and left again is there twice.
values: [num_rows, dim]; the weights at the time of removal.
)doc");

REGISTER_OP("TfEmbedRowStatistics")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Output("statistics: int64")
    .Output("exists: bool")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle statistics;
      TF_RETURN_IF_ERROR(CheckKeys(c));
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), std::size(kAllStatistics), &statistics));
      c->set_output(0, statistics);
      c->set_output(1, c->input(1));
      return absl::Status();
    })
    .Doc(R"doc(
Reads the statistics of rows. This is not a use of the rows.

statistics: keys.shape + [5]: last step; last time, in milliseconds since 1970; number of steps;
  score; latest epoch. 0 for statistics that the table does not keep, and for absent keys.
exists: keys.shape; whether the table holds the key.
)doc");

REGISTER_OP("TfEmbedExportScores")
    .Input("table: resource")
    .Input("split_size: int64")
    .Output("keys: key_dtype")
    .Output("scores: int64")
    .Attr(kKeyDtype)
    .Attr(absl::StrCat("order: {", QuotedNames(kEvictionOrderNames), "}"))
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->output(0));
      return CheckRanks(c, {0, 0});
    })
    .Doc(R"doc(
Returns all keys with the first number that an order compares, as of one moment.

Writers wait, readers do not. A table that does not keep the statistics of the order is
FailedPrecondition.

split_size: Scalar; the most rows to copy at a time, at least 1.
keys: [num_rows], in no particular order.
scores: [num_rows]. lru: the last step. lfu: the number of steps. ttl: the last time, in
  milliseconds since 1970. score: the score. epoch_lru and epoch_lfu: the latest epoch times 2^32,
  plus the last step or the number of steps, at most 2^32 - 1.
order: As `eviction` of TfEmbedTable.
)doc");

REGISTER_OP("TfEmbedSetScores")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("scores: int64")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle merged;
      TF_RETURN_IF_ERROR(CheckKeys(c));
      return c->Merge(c->input(1), c->input(3), &merged);
    })
    .Doc(R"doc(
Sets the scores of rows.

Absent keys are ignored. Of equal keys, the last position wins. A table that keeps no scores is
FailedPrecondition.

scores: keys.shape.
)doc");

REGISTER_OP("TfEmbedExpiredRows")
    .Input("table: resource")
    .Output("expired: int64")
    .Attr("renews: bool = false")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0}))
    .Doc(R"doc(
Counts the rows that have expired and are still there.

expired: Scalar; their number, 0 for a table without a time to live.
renews: Whether the time to live of all rows begins at the time of the call. The last step and the
  count of a row do not change.
)doc");

REGISTER_OP("TfEmbedSetClock")
    .Input("table: resource")
    .Input("step: int64")
    .Input("milliseconds: int64")
    .Input("epoch: int64")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0, 0}))
    .Doc(R"doc(
Sets the clock of a table, which dates the uses of rows.

step: Scalar; the number of the present step, from 1; -1 keeps it.
milliseconds: Scalar; the time since 1970 at which the clock then stands still; -1 follows the
  system's clock, -2 keeps the present mode.
epoch: Scalar; the number of the present epoch, from 0; -1 derives it from the steps.
)doc");

}  // namespace tf_embed
