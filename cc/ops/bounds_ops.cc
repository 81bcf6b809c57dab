// SPDX-License-Identifier: Apache-2.0
// The bounds check of a batch of bags, before lookups in arrays of rows.
#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {
namespace {

using absl::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("TfEmbedCheckBounds")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("num_bags: int64")
    .Output("checked_indices: int64")
    .Output("checked_offsets: int64")
    .Output("kept: int64")
    .Output("changed: bool")
    .Output("num_events: int64")
    .Attr("rows: list(int) >= 1")
    .Attr("tables: list(string) >= 1")
    .Attr("owner: string")
    .Attr("mode: {'fatal', 'warning', 'ignore', 'none'}")
    .Attr("padding: list(int) = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle unused;
      for (int i = 0; i < 3; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      c->set_output(2, c->Vector(c->UnknownDim()));
      c->set_output(3, c->Scalar());
      c->set_output(4, c->Scalar());
      return Status();
    })
    .Doc(R"doc(
Takes the indices out of a batch that are no row numbers, and mends its offsets. The inputs stay.

indices: [n].
offsets: [bags + 1]; bag b holds indices offsets[b] up to offsets[b + 1].
num_bags: [features]; how many bags are of each feature. These stand one behind the other.
checked_indices: Those that remain, in their order.
checked_offsets: [bags + 1]. Outside of `fatal`, an offset that is not from the one before it to n
  becomes the nearest that is, the first one 0, and the last one n.
kept: Where the indices that remain stood; [0] unless `changed`.
changed: Whether some do not remain.
num_events: Number of indices out of bounds and of offsets that were mended; 0 with `none`. An index
  of -1 is none: it is taken out and that is all.
rows: Of each feature the number of its rows, or -1 where every index is good.
tables: Of each feature the name of its table, for messages.
owner: Whose indices they are, for messages.
mode: fatal: an error. warning: faults of each kind are logged, in the first call that has some,
  the second, the fourth and so on. ignore: nothing more. none: likewise, and offsets are not mended.
padding: An index that stands for nothing, in every feature: it is taken out, and is no fault. None,
  or one.
)doc");

}  // namespace tf_embed
