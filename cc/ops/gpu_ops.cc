// SPDX-License-Identifier: Apache-2.0
// Queries about GPUs, for Python.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedHasGpuTables")
    .Output("answer: bool")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Returns whether tables can be on GPUs: the library has GPU support, and CUDA finds a GPU.

answer: Scalar.
)doc");

}  // namespace tf_embed
