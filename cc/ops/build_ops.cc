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
Returns the build ID of this library, so that processes can compare theirs.

build: Scalar; the linker's build ID in hexadecimal digits, of the process whose device runs the op.
  Empty if the library has none.
)doc");

}  // namespace tf_embed
