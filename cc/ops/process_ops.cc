// SPDX-License-Identifier: Apache-2.0
// Ops that query the process in which they run.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedBuild")
    .Output("build: string")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Returns the build ID of this library, so that processes can compare theirs.

build: Scalar; the linker's build ID in hexadecimal digits, of the process whose device runs the op.
  Empty if the library has none.
)doc");

REGISTER_OP("TfEmbedTask")
    .Output("task: int64")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Returns the number of the device's process among the tasks of its job.

task: Scalar, from 0; 0 in a process without a cluster.
)doc");

REGISTER_OP("TfEmbedHasGpuTables")
    .Output("answer: bool")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Returns whether tables can be on GPUs: the library has GPU support, and CUDA finds a GPU.

answer: Scalar.
)doc");

}  // namespace tf_embed
