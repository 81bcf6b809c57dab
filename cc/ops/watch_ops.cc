// SPDX-License-Identifier: Apache-2.0
// Ops that abort a collective if other workers do not join.
#include "absl/status/status.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedStartWatch")
    .Input("seconds: float")
    .Output("watch: variant")
    .Output("watches: bool")
    .Attr("what: string")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0, 0}))
    .Doc(R"doc(
Aborts all collectives of this process if the watch has not ended after some time.

TensorFlow's own time-out keeps a thread asleep for each collective until the time is over, even if
the collective has finished.

seconds: Scalar; above 0 and at most 1e8.
watch: Scalar; ends with its last copy, after TfEmbedEndWatch or a failure of the step.
watches: Scalar; whether there is a collective executor to abort. Eager execution may have none.
what: The name of the awaited exchange in the error, which is DeadlineExceeded.
)doc");

REGISTER_OP("TfEmbedEndWatch")
    .Input("watch: variant")
    .Input("result: T")
    .Output("checked: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->input(1));
      return absl::Status();
    })
    .Doc(R"doc(
Ends a watch, and returns the awaited result unchanged.

watch: Scalar; output of TfEmbedStartWatch.
result: Any tensor.
checked: The same tensor.
)doc");

}  // namespace tf_embed
