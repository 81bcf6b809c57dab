// SPDX-License-Identifier: Apache-2.0
// Turns: mutual exclusion of steps that read rows, compute outside of the table and write back.
//
//   TfEmbedTakeTurn --> turn ... TfEmbedFindSlots ... TfEmbedAssignSlots ... TfEmbedEndTurn
#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedTakeTurn")
    .Input("table: resource")
    .Output("turn: variant")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      c->set_output(0, c->Scalar());
      return absl::Status();
    })
    .Doc(R"doc(
Waits for the turn of a table. Blocks no thread of the runtime.

Turns are granted first come, first served. A turn excludes other turns of the table and nothing
else. It ends with TfEmbedEndTurn, or with the last copy of `turn`, as after a step that failed.

table: Handle of the table.
turn: Scalar; the turn.
)doc");

REGISTER_OP("TfEmbedEndTurn")
    .Input("table: resource")
    .Input("turn: variant")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      return absl::Status();
    })
    .Doc(R"doc(
Ends a turn. Has no effect on a turn that has ended.

table: Handle of the table.
turn: Scalar; output of TfEmbedTakeTurn for the table.
)doc");

}  // namespace tf_embed
