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
Says whether tables can be on GPUs: as this library was built, and by what CUDA finds here.
)doc");

}  // namespace tf_embed
