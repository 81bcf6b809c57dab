// SPDX-License-Identifier: Apache-2.0
// Admission and eviction ops. The policy itself is in the attributes of TfEmbedTable. Common
// inputs: see table_ops.cc.
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/ops/key_types.h"
#include "cc/ops/longer_shape.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedRestrict")
    .Input("table: resource")
    .Input("num_reserved: int64")
    .Output("removed: int64")
    .Attr(absl::StrCat("order: {", QuotedNames(kEvictionOrderNames), "}"))
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      return tensorflow::shape_inference::ScalarShape(c);
    })
    .Doc(R"doc(
Removes expired rows, and then those that are first in an order until a number is left in all shards
together. Gives memory back where many went.

num_reserved: How many stay at most.
removed: How many went.
order: As `eviction` of TfEmbedTable; the table keeps the statistics that it goes by.
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
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      const DimensionHandle rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Matrix(rows, dim));
      return absl::Status();
    })
    .Doc(R"doc(
Gives the rows that have left by the policy since the last call, once each time that they left. The
table was made with log_evicted.

keys: [num_rows], in the order in which they left; a key that came back and left again stands twice.
values: [num_rows, dim], as they were when they left.
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
      ShapeHandle unused, statistics;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      TF_RETURN_IF_ERROR(WithAxis(c, c->input(1), std::size(kAllStatistics), &statistics));
      c->set_output(0, statistics);
      c->set_output(1, c->input(1));
      return absl::Status();
    })
    .Doc(R"doc(
Reads what is kept of the use of rows; is no use itself.

statistics: keys.shape + [5]: the last step, the last time in milliseconds since 1970, the number of
  steps, the score, the latest epoch. 0 for what the table does not keep, and for absent keys.
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
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->output(0));
      return absl::Status();
    })
    .Doc(R"doc(
Gives all keys with the number that an order goes by first, as of one moment.

split_size: How many rows are copied at a time, at most.
keys: [num_rows], in no order.
scores: [num_rows]: the last step for lru, the number of steps for lfu, the last time in milliseconds
  since 1970 for ttl, the score for score; for epoch_lru and epoch_lfu, the latest epoch times 2^32
  and the last step or the number of steps, at most 2^32 - 1.
order: As `eviction` of TfEmbedTable; the table keeps the statistics that it goes by.
)doc");

REGISTER_OP("TfEmbedSetScores")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("scores: int64")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused, merged;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      return c->Merge(c->input(1), c->input(3), &merged);
    })
    .Doc(R"doc(
Sets the scores of rows, in a table that keeps them. Absent keys are passed over. Of a key that
stands several times in the batch, the last position wins.

scores: keys.shape.
)doc");

REGISTER_OP("TfEmbedSetClock")
    .Input("table: resource")
    .Input("step: int64")
    .Input("milliseconds: int64")
    .Input("epoch: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      for (int i = 0; i < 4; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      return absl::Status();
    })
    .Doc(R"doc(
Sets the clock by which a table notes uses.

step: The number of the present step, or -1 to leave it.
milliseconds: The time since 1970, at which the clock stands from now on; -1 to go by the system's
  time, -2 to leave it.
epoch: The number of the present epoch, or -1 to leave it to the steps.
)doc");

}  // namespace tf_embed
