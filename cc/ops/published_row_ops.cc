// SPDX-License-Identifier: Apache-2.0
// Ops by which a table follows another table that publishes its changes as saves.
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedOpenPublishedRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("save: int64")
    .Output("rows: variant")
    .Output("num_blocks: int64")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0, 0}, {0, 0}))
    .Doc(R"doc(
Opens a save that another table has published, and checks every byte of it.

The table is not changed. A save of changes is opened without the saves that it builds on. A missing
save is NotFound; a damaged save, or one with another number, is DataLoss.

folder: Scalar; the folder of the files.
file_name: Scalar; the common beginning of the file names.
save: Scalar; the number that the save must have.
rows: Scalar; the open files, for TfEmbedLoadSavedRows.
num_blocks: Scalar; the number of blocks of rows.
)doc");

REGISTER_OP("TfEmbedBeginPublishedRows")
    .Input("table: resource")
    .Input("rows: variant")
    .Output("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0}, {1}))
    .Doc(R"doc(
Prepares a table to take the rows of a publication.

A publication is a save of all rows, or of the changes since a save that the table already has.
Absent keys get the initial rows of the saved table from now on. Next, the caller removes `keys` and
loads all blocks of rows.

rows: Scalar; output of TfEmbedOpenPublishedRows.
keys: The keys to remove, each once. For a save of all rows: the keys that are in the table and not
  in the save.
)doc");

}  // namespace tf_embed
