// The op that makes a table in eager execution.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status NewTableShape(InferenceContext* c) {
  ShapeHandle unused;
  for (int input = 0; input < 4; ++input) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 0, &unused));
  }
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &unused));
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
    .Output("table: resource")
    .Attr("key_dtype: {int64, int32, uint64, uint32, string}")
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("num_shards: int >= 1 = 1")
    .Attr("initializer: {'constant', 'row', 'uniform', 'normal', 'truncated_normal'} = 'constant'")
    .Attr("max_rows: int >= 0 = 0")
    .Attr("eviction: {'lru', 'lfu', 'ttl', 'score', 'epoch_lru', 'epoch_lfu'} = 'lru'")
    .Attr("steps_per_epoch: int >= 0 = 0")
    .Attr("ttl_milliseconds: int >= 0 = 0")
    .Attr("admission: {'none', 'counter', 'bloom'} = 'none'")
    .Attr("admission_threshold: int >= 1 = 1")
    .Attr("admission_error_rate: float = 0.01")
    .Attr("admission_max_keys: int >= 0 = 0")
    .Attr("statistics: int >= 0 = 0")
    .Attr("log_evicted: bool = false")
    .Attr("max_gpu_bytes: int >= -1 = -1")
    .Attr("max_gpu_row_bytes: int >= -1 = -1")
    .Attr("max_pinned_bytes: int >= -1 = 0")
    .Attr("evict_by_bytes: bool = false")
    .SetIsStateful()
    .SetShapeFn(NewTableShape)
    .Doc(R"doc(
Creates a table with each call. TfEmbedTable has a name for it instead, by which a graph finds it again.

label: As the attribute of TfEmbedTable.
init_size: As the attribute of TfEmbedTable.
seed: As the attribute of TfEmbedTable.
table_id: As the attribute of TfEmbedTable.
initializer_values: The numbers of that attribute of TfEmbedTable.
table: The handle.
)doc");
