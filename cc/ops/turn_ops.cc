// SPDX-License-Identifier: Apache-2.0
// Turns: mutual exclusion of steps that read rows, compute outside of the table and write back.
//
//   TfEmbedTakeTurn --> turn ... TfEmbedFindSlots ... TfEmbedAssignSlots ... TfEmbedEndTurn
#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using absl::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedTakeTurn")
    .Input("table: resource")
    .Output("turn: variant")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      c->set_output(0, c->Scalar());
      return Status();
    })
    .Doc(R"doc(
Waits for the turn of a table, first come, first served, and blocks no thread of the runtime.

A turn excludes other turns of the table and nothing else. It is over with TfEmbedEndTurn, or once
the last copy of `turn` is gone, as after a step that failed.

table: Handle of the table.
turn: The turn.
)doc");

REGISTER_OP("TfEmbedEndTurn")
    .Input("table: resource")
    .Input("turn: variant")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      return Status();
    })
    .Doc(R"doc(
Ends a turn. One that is over stays so.

table: Handle of the table.
turn: What TfEmbedTakeTurn gave for the table.
)doc");

}  // namespace tf_embed
