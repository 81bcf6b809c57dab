// SPDX-License-Identifier: Apache-2.0
// Ops that save rows to files and load them.
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedSaveRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Attr("folder_variable: string = ''")
    .Attr("rank: int = 0")
    .Attr("processes: int = 1")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .Attr("links: bool = false")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0}))
    .Doc(R"doc(
Writes all rows to files, as of one moment.

Writers wait until the rows are written; readers do not. The save replaces an earlier one of the
same name, rank and number of processes once it is complete. A failure leaves the earlier save in
place.

folder: Scalar; the folder of the files, a path of any file system of TensorFlow. It is created.
file_name: Scalar; the common beginning of the file names.
folder_variable: The name of an environment variable that replaces `folder` if it is set when the op
  runs.
rank: The number of this process, of `processes`. Each process saves its own rows.
processes: The number of processes that save.
buffer_bytes: The approximate size of a block of rows in a file.
with_slots: Whether to write the optimizer slots. Without them, no file is linked.
links: Whether to link the files of a table over a disk instead of copying them, if possible.
)doc");

REGISTER_OP("TfEmbedSaveRowsPart")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Input("save: int64")
    .Input("rank: int64")
    .Input("processes: int64")
    .Attr("buffer_bytes: int >= 1 = 4194304")
    .Attr("with_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0, 0, 0, 0}))
    .Doc(R"doc(
Writes all rows to files as one part of a save of several processes.

As TfEmbedSaveRows. TfEmbedJoinRows makes one save of the parts. A part replaces the files that this
process has written for an earlier save of the same name, which then can't be loaded any more.

save: Scalar; the number of the save, equal in all processes, not 0.
rank: Scalar; the number of this process, of `processes`.
processes: Scalar; the number of processes.
)doc");

REGISTER_OP("TfEmbedRowsSaved")
    .Input("table: resource")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn(Ranks({0}, {0}))
    .Doc(R"doc(
Returns the number of rows that saves have written since the table was made.

Includes saves that failed. Does not wait for a running save, so it can show progress.

rows: Scalar.
)doc");

REGISTER_OP("TfEmbedOpenSavedRows")
    .Input("table: resource")
    .Input("folder: string")
    .Input("file_name: string")
    .Output("rows: variant")
    .Output("num_blocks: int64")
    .Output("by_key: bool")
    .Output("waiting: key_dtype")
    .Attr("folder_variable: string = ''")
    .Attr("rank: int = 0")
    .Attr("processes: int = 1")
    .Attr("whole: bool = false")
    .Attr("with_slots: bool = true")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0}, {0, 0, 0, 1}))
    .Doc(R"doc(
Opens a save, checks every byte of it, and prepares the table to take its rows.

The table takes the rule of the saved slots. An empty table also takes the seed and the admission
counts of all files. A missing save is NotFound, a damaged one DataLoss, one of other types or dim
InvalidArgument, and one with slots of another optimizer FailedPrecondition; then nothing changes.
Arguments without a description are as in TfEmbedSaveRows.

rows: Scalar; the open files.
num_blocks: Scalar; the number of blocks of rows.
by_key: Scalar; whether another number of processes than `processes` made the save, so that this
  process must select its own rows by key.
waiting: The integer keys that now wait for admission, if they are known: a Bloom filter keeps none,
  and a table of strings returns none.
whole: Whether to open the rows of all processes, instead of only this one's.
with_slots: Whether to load the optimizer slots. Without them, those of any optimizer fit.
)doc");

REGISTER_OP("TfEmbedSavedRowCounts")
    .Input("table: resource")
    .Input("rows: variant")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0}, {1}))
    .Doc(R"doc(
Returns the number of rows in each block of open files.

Includes rows that a newer save of a chain replaces.

rows: Scalar; the open files.
counts: [num_blocks].
)doc");

REGISTER_OP("TfEmbedForgetWaiting")
    .Input("table: resource")
    .Input("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 1}))
    .Doc(R"doc(
Resets the admission counts of keys that wait for a row.

Has no effect on Bloom filters, on tables without admission, and on tables of strings.

keys: [n], of the table's key type.
)doc");

REGISTER_OP("TfEmbedSavedKeys")
    .Input("table: resource")
    .Input("rows: variant")
    .Input("block: int64")
    .Output("keys: key_dtype")
    .Attr(kKeyDtype)
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0}, {1}))
    .Doc(R"doc(
Returns the keys of a block of rows.

rows: Scalar; the open files.
block: Scalar; the number of the block, from 0.
keys: [num_rows].
)doc");

REGISTER_OP("TfEmbedLoadSavedRows")
    .Input("table: resource")
    .Input("rows: variant")
    .Input("block: int64")
    .Input("owners: int32")
    .SetIsStateful()
    .SetShapeFn(Ranks({0, 0, 0, 1}))
    .Doc(R"doc(
Loads a block of rows into the table, with slots and statistics.

Replaces the rows of keys that are present. If a shard then exceeds its bound, the rows that come
first in the eviction order leave.

rows: Scalar; the open files.
block: Scalar; the number of the block, from 0.
owners: The shard of each key, int32 [num_rows]: -2 leaves the choice to the table, -3 skips the
  row. [0] leaves all choices to the table.
)doc");

}  // namespace tf_embed
