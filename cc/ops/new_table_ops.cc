// SPDX-License-Identifier: Apache-2.0
// Ops that create tables.
#include "absl/strings/str_cat.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedNewTable")
    .Input("label: string")
    .Input("init_size: int64")
    .Input("seed: int64")
    .Input("table_id: int64")
    .Input("initializer_values: double")
    .Input("settings: string")
    .Output("table: resource")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool, string}")
    .Attr("dim: int >= 1")
    .Attr("num_shards: int >= 1 = 1")
    .Attr("initializer: {'constant', 'row', 'uniform', 'normal', 'truncated_normal'} = 'constant'")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0, 0, 1, 0}, {0}))
    .Doc(R"doc(
Creates a new table with each call.

TfEmbedTable differs: it gives a table a name, by which a graph finds it again. The inputs are
attributes of the same name there, as scalars.

initializer_values: A vector of the numbers of that attribute.
settings: The same text; it may also have lines of the table's place in Redis.
table: The handle.
)doc");

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
    .Attr("settings: string = ''")
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
settings: The policy and the storage: a line `name=value` for each setting that is not its default,
  with C escapes in the value; see PolicySettings and StorageSettings in cc/tf.
max_rows: This and all further attributes are settings as graphs of earlier versions have them. They
  have no effect beside `settings`.
)doc");

REGISTER_OP("TfEmbedShareTable")
    .Input("table: resource")
    .Output("shared: variant")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0}))
    .Doc(R"doc(
Gives a table to TfEmbedTableHere.

table: The handle.
shared: Scalar; the table.
)doc");

REGISTER_OP("TfEmbedTableHere")
    .Input("shared: variant")
    .Output("table: resource")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0}))
    .Doc(R"doc(
Returns a handle of a table for ops of the CPU, wherever the rows are.

shared: Scalar; the output of TfEmbedShareTable.
table: The handle, which does not keep the table alive.
)doc");

}  // namespace tf_embed
