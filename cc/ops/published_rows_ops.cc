// SPDX-License-Identifier: Apache-2.0
// Ops by which a table follows another table that publishes its changes as saves.
#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedOpenPublishedRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("save: int64")
    .Output("rows: variant")
    .Output("num_blocks: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      for (int input = 0; input < 4; ++input) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 0, &unused));
      }
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds a save, reads all of it and checks every byte. A save of changes comes without what it is changes
of. The table is not changed.

folder: Where the files are.
file_name: What they are named after.
save: The number of the save. Another one there is refused.
rows: The files, open, for TfEmbedLoadSavedRows.
num_blocks: How many blocks of rows they have.
)doc");

REGISTER_OP("TfEmbedBeginPublishedRows")
    .Input("table: resource")
    .Input("rows: variant")
    .Output("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Makes a table ready to become what a publication is: a save of all rows, or of the changes since one that
the table is already. Rows of absent keys become those of the saved table. Then the `keys` are to be
removed, and all blocks of rows loaded.

rows: What TfEmbedOpenPublishedRows gave.
keys: The keys that left, each once: of a save of all rows, those in the table that it does not have.
)doc");

}  // namespace tf_embed
