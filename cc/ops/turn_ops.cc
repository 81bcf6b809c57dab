// SPDX-License-Identifier: Apache-2.0
// Turns: mutual exclusion of steps that read rows, compute outside of the table and write back.
//
//   TfEmbedTakeTurn --> turn ... TfEmbedFindSlots ... TfEmbedAssignSlots ... TfEmbedEndTurn
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedTakeTurn")
    .Input("table: resource")
    .Output("turn: variant")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0}))
    .Doc(R"doc(
Waits for the turn of a table. Blocks no thread of the runtime.

Turns are granted first come, first served. A turn excludes other turns of the table and nothing
else. It ends with TfEmbedEndTurn, or with the last copy of `turn`, as after a step that failed.

turn: Scalar; the turn.
)doc");

REGISTER_OP("TfEmbedEndTurn")
    .Input("table: resource")
    .Input("turn: variant")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0}))
    .Doc(R"doc(
Ends a turn. Has no effect on a turn that has ended.

turn: Scalar; output of TfEmbedTakeTurn for the table.
)doc");

}  // namespace tf_embed
