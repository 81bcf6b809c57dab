// SPDX-License-Identifier: Apache-2.0
// Ops that let processes compare their library builds.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedBuild")
    .Output("build: string")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .SetIsStateful()
    .Doc(R"doc(
Says what tells the build of this library from others, in the process of the device that runs it.

build: The build ID that the linker gave it, in hexadecimal digits; empty if it has none.
)doc");

}  // namespace tf_embed
