// SPDX-License-Identifier: Apache-2.0
// Ops that abort a collective if other workers do not join.
#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using absl::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedStartWatch")
    .Input("seconds: float")
    .Output("watch: variant")
    .Output("watches: bool")
    .Attr("what: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return Status();
    })
    .Doc(R"doc(
Ends all collectives of this process with an error if the watch is still there after some time.

TensorFlow's own time-out keeps a thread asleep for each collective until the time is over, whether or
not it came to its end.

seconds: Scalar.
watch: Ends with its last tensor, which is when TfEmbedEndWatch has run, or the step has failed.
watches: Whether there is something to end; in eager execution there may be none.
what: What is waited for, for the message.
)doc");

REGISTER_OP("TfEmbedEndWatch")
    .Input("watch: variant")
    .Input("result: T")
    .Output("checked: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> Status {
      c->set_output(0, c->input(1));
      return Status();
    })
    .Doc(R"doc(
Ends a watch, and gives what was waited for as it is.
)doc");

}  // namespace tf_embed
