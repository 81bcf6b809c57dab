// SPDX-License-Identifier: Apache-2.0
// The process of a cluster in which an op runs.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedTask")
    .Output("task: int64")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Returns the number of the device's process among the tasks of its job.

task: Scalar, from 0; 0 in a process without a cluster.
)doc");

}  // namespace tf_embed
