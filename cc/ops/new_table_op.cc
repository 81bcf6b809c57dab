// SPDX-License-Identifier: Apache-2.0
// The op that creates a table in eager execution.

#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status NewTableShape(InferenceContext* c) {
  constexpr int kInitializerValues = 4;
  ShapeHandle unused;
  for (int input = 0; input < c->num_inputs(); ++input) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(input), input == kInitializerValues ? 1 : 0, &unused));
  }
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfEmbedNewTable")
    .Input("label: string")
    .Input("init_size: int64")
    .Input("seed: int64")
    .Input("table_id: int64")
    .Input("initializer_values: double")
    .Input("max_rows: int64")
    .Input("eviction: string")
    .Input("steps_per_epoch: int64")
    .Input("ttl_milliseconds: int64")
    .Input("admission: string")
    .Input("admission_threshold: int64")
    .Input("admission_error_rate: float")
    .Input("admission_max_keys: int64")
    .Input("statistics: int64")
    .Input("log_evicted: bool")
    .Input("gpu_total_bytes: int64")
    .Input("gpu_bytes: int64")
    .Input("host_bytes: int64")
    .Input("gpu_cache: bool")
    .Input("evict_by_bytes: bool")
    .Input("path: string")
    .Input("disk_bytes: int64")
    .Input("keep_leftovers: bool")
    .Input("redis: string")
    .Output("table: resource")
    .Attr(tf_embed::kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("num_shards: int >= 1 = 1")
    .Attr("initializer: {'constant', 'row', 'uniform', 'normal', 'truncated_normal'} = 'constant'")
    .SetIsStateful()
    .SetShapeFn(NewTableShape)
    .Doc(R"doc(
Creates a new table with each call.

TfEmbedTable differs: it gives a table a name, by which a graph finds it again. The inputs that are
not described here are attributes of the same name there, as scalars.

initializer_values: A vector of the numbers of that attribute.
redis: A line `name=value` for each field of the table's place in Redis; empty if it is in memory.
table: The handle.
)doc");
