// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/core/table/table_stats.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

std::string MeaningsOfStats() {
  std::string lines;
  for (const TableStat& stat : kTableStats) absl::StrAppend(&lines, "  ", stat.meaning, ";\n");
  return lines;
}

// The shape function of an op that takes a table and returns so many numbers.
auto NumbersOfTable(size_t count) {
  return [count](InferenceContext* c) -> absl::Status {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
    c->set_output(0, c->Vector(static_cast<int64_t>(count)));
    return absl::OkStatus();
  };
}

REGISTER_OP("TfEmbedStats")
    .Input("table: resource")
    .Output("numbers: int64")
    .SetIsStateful()
    .SetShapeFn(NumbersOfTable(std::size(kTableStats)))
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

}  // namespace
}  // namespace tf_embed
