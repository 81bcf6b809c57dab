// SPDX-License-Identifier: Apache-2.0
// The bounds check of a batch of bags, before lookups in arrays of rows.
#include "absl/status/status.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

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
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      c->set_output(2, c->Vector(c->UnknownDim()));
      c->set_output(3, c->Scalar());
      c->set_output(4, c->Scalar());
      return CheckRanks(c, {1, 1, 1});
    })
    .Doc(R"doc(
Removes the indices of a batch that are not row numbers, and repairs its offsets.

The inputs do not change. The number of bags must agree with `offsets`, in every mode; otherwise the
error is InvalidArgument.

indices: [n].
offsets: [bags + 1]; bag b holds indices offsets[b] up to offsets[b + 1].
num_bags: [features]; the number of bags of each feature. Features are consecutive.
checked_indices: The indices that remain, in order.
checked_offsets: [bags + 1]. In modes `warning` and `ignore`, an invalid offset becomes the nearest
  valid one: between the offset before it and n, the first one 0 and the last one n.
kept: The positions of the remaining indices; [0] unless `changed`.
changed: Scalar; whether indices were removed.
num_events: Scalar; the number of indices out of bounds and of repaired offsets, 0 in mode `none`.
  An index of -1 is removed and not counted.
rows: The number of rows of each feature, or -1 for a feature whose indices are all valid.
tables: The name of each feature's table, for messages.
owner: The name of the batch's owner, for messages.
mode: fatal: the error is InvalidArgument. warning: faults of each kind are logged in the first call
  that has some, and in the second, the fourth and so on. ignore: no message. none: no message, no
  count, and invalid offsets are InvalidArgument.
padding: None; or one index that is removed from every feature and is no fault.
)doc");

}  // namespace tf_embed
