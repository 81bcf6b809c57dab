// SPDX-License-Identifier: Apache-2.0
// Ops of the exchange between workers. They pack and unpack; TensorFlow's collectives send.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "cc/ops/longer_shape.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using absl::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// Output shapes of an op that routes the keys of some tables: keys, outputs set by `second`,
// counts.
template <typename Second>
Status RoutedShapes(InferenceContext* c, const Second& second) {
  int64_t num_workers, num_tables;
  TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
  TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
  if (c->num_outputs() != 2 * num_tables + 1) {
    return absl::InvalidArgumentError("There must be as many `keys` as `owners`.");
  }
  for (int i = 0; i < num_tables; ++i) {
    c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
    TF_RETURN_IF_ERROR(second(i, static_cast<int>(num_tables) + i));
  }
  c->set_output(c->num_outputs() - 1, c->Matrix(num_tables, num_workers));
  return Status();
}

}  // namespace

REGISTER_OP("TfEmbedRouteKeys")
    .Input("keys: key_dtypes")
    .Input("owners: num_tables * int32")
    .Output("routed: key_dtypes")
    .Output("places: num_tables * int32")
    .Output("counts: int32")
    .Attr(kKeyDtypes)
    .Attr("num_tables: int >= 1")
    .Attr("num_workers: int >= 1")
    .Attr("owner_rules: list({'hash', 'remainder'}) >= 1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      return RoutedShapes(c, [c](int table, int output) -> Status {
        c->set_output(output, c->input(table));
        return Status();
      });
    })
    .Doc(R"doc(
Brings the keys of batches together by the worker that owns them, each key of a table once.

keys: Of each table; any shape.
owners: Of each table, the worker of each key, flattened, the same for equal keys; [0]: by the rule.
routed: Of each table, [u]; the distinct keys, those of worker 0 first, each worker's in the order
  in which they first come.
places: Of each table, of the shape of its keys; where each key is among them.
counts: [num_tables, num_workers]; how many of them each worker owns.
owner_rules: Of each table. hash: a hash of the key, the same in every process; remainder:
  floor_mod(key, num_workers), which strings do not have.
)doc");

REGISTER_OP("TfEmbedRouteGradients")
    .Input("keys: key_dtypes")
    .Input("gradients: gradient_dtypes")
    .Input("owners: num_tables * int32")
    .Output("routed: key_dtypes")
    .Output("sums: sum_dtypes")
    .Output("counts: int32")
    .Attr(kKeyDtypes)
    .Attr("gradient_dtypes: list({float, half, bfloat16, double}) >= 1")
    .Attr("sum_dtypes: list({float, double}) >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("num_workers: int >= 1")
    .Attr("owner_rules: list({'hash', 'remainder'}) >= 1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      return RoutedShapes(c, [c](int table, int output) -> Status {
        if (output >= c->num_inputs()) {
          return absl::InvalidArgumentError("There must be as many `gradients` as `owners`.");
        }
        ShapeHandle gradients;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(output), 2, &gradients));
        c->set_output(output, c->Matrix(InferenceContext::kUnknownDim, c->Dim(gradients, 1)));
        return Status();
      });
    })
    .Doc(R"doc(
Brings the gradients of rows together by the worker that owns them. Those of equal keys are summed,
in the order of the batch.

keys: Of each table, [n].
gradients: Of each table, [n, dim].
owners, routed, counts, owner_rules: As in TfEmbedRouteKeys.
sums: Of each table, [u, dim].
sum_dtypes: Of each table: double for gradients of double, float for all others.
)doc");

REGISTER_OP("TfEmbedMessageWords")
    .Input("parts: part_types")
    .Input("counts: int32")
    .Output("words: int32")
    .Attr("part_types: list(type) >= 1")
    .Attr("part_tables: list(int) >= 1")
    .Attr("wire_types: list({'same', 'bfloat16', 'float16'}) >= 1")
    .Attr("rank: int >= -1 = -1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1), 2, &counts));
      c->set_output(0, c->Vector(c->Dim(counts, 1)));
      return Status();
    })
    .Doc(R"doc(
Counts the 32-bit words of the message to each worker, whose arguments are those of TfEmbedPackMessages.
)doc");

REGISTER_OP("TfEmbedPlanExchange")
    .Input("gathered: int32")
    .Output("capacity: int64")
    .Output("number: int32")
    .Output("reply_capacity: int64")
    .Output("reply_number: int32")
    .Output("received: int32")
    .Attr("num_workers: int >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("rank: int >= 0")
    .Attr("reply_tables: list(int) >= 0")
    .Attr("reply_row_bytes: list(int) >= 0")
    .SetShapeFn([](InferenceContext* c) -> Status {
      int64_t num_workers, num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Scalar());
      c->set_output(4, c->Matrix(num_tables, num_workers));
      return Status();
    })
    .Doc(R"doc(
Makes of what all workers said of their messages what they must agree on.

gathered: int32, the vectors of all workers one behind the other: how many keys of each table the
  worker sends to each, [num_tables, num_workers], and then the words of these messages,
  [num_workers].
capacity: The words that each message gets; the same on all workers. What a worker has for itself is
  in no message, and needs no room in a reply.
number: The number of that capacity, less than 256.
reply_capacity: The same of the replies.
reply_number: The same of the replies.
received: [num_tables, num_workers]; how many keys the worker `rank` gets from each.
reply_tables: Of which table each part of a reply is.
reply_row_bytes: Bytes of a row of each of these parts.
)doc");

REGISTER_OP("TfEmbedPackMessages")
    .Input("parts: part_types")
    .Input("counts: int32")
    .Input("capacity: int64")
    .Output("messages: int32")
    .Attr("part_types: list(type) >= 1")
    .Attr("part_tables: list(int) >= 1")
    .Attr("wire_types: list({'same', 'bfloat16', 'float16'}) >= 1")
    .Attr("rank: int >= -1 = -1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 2), 2, &counts));
      c->set_output(0, c->Matrix(c->Dim(counts, 1), InferenceContext::kUnknownDim));
      return Status();
    })
    .Doc(R"doc(
Makes a message to each worker, of the same length for all; see cc/core/exchange/message.h.

parts: Vectors of keys and matrices of rows, in the order of the workers that they go to.
counts: [num_tables, num_workers]; how many keys, or rows, of each table go to each worker.
capacity: int64 scalar, the words of a message.
messages: [num_workers, capacity].
part_tables: Of which table each part is.
wire_types: How the numbers of each part travel; only float32 may travel as another type.
rank: The worker whose own message stays empty, because it takes its parts as they are; -1: none.
)doc");

REGISTER_OP("TfEmbedUnpackMessages")
    .Input("messages: int32")
    .Input("counts: int32")
    .Input("own: own_types")
    .Input("own_counts: int32")
    .Output("parts: part_types")
    .Attr("part_types: list(type) >= 1")
    .Attr("own_types: list(type) >= 0 = []")
    .Attr("part_tables: list(int) >= 1")
    .Attr("wire_types: list({'same', 'bfloat16', 'float16'}) >= 1")
    .Attr("widths: list(int) >= 1")
    .Attr("rank: int >= -1 = -1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      std::vector<int64_t> widths;
      TF_RETURN_IF_ERROR(c->GetAttr("widths", &widths));
      for (int i = 0; i < c->num_outputs(); ++i) {
        const bool is_matrix = static_cast<size_t>(i) < widths.size() && widths[i] > 0;
        c->set_output(i, is_matrix ? c->Matrix(InferenceContext::kUnknownDim, widths[i])
                                   : c->Vector(InferenceContext::kUnknownDim));
      }
      return Status();
    })
    .Doc(R"doc(
Takes messages apart: the message of each worker to this one, as TfEmbedPackMessages made it there.

messages: [num_workers, capacity], those of worker 0 first.
counts: [num_tables, num_workers]; how many keys, or rows, of each table came from each.
own: The parts that this worker packed, of which it takes its own share; none if `rank` is -1.
own_counts: The counts that it packed them with.
parts: Those of worker 0 first.
rank: This worker, as it packed; -1: what it sent to itself is in the messages too.
widths: Of each part the numbers in a row, 0 for keys.
)doc");

REGISTER_OP("TfEmbedRoutedRows")
    .Input("keys: key_dtype")
    .Input("noted: num_noted * key_dtype")
    .Input("routed: key_dtype")
    .Input("rows: value_dtype")
    .Input("places: int32")
    .Input("tokens: num_tokens * token_dtype")
    .Output("of_batch: value_dtype")
    .Attr("num_noted: int >= 0 = 0")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("token_dtype: {variant, float, half, bfloat16, double} = DT_VARIANT")
    .Attr(kKeyDtype)
    .Attr("value_dtype: {float, half, bfloat16, double, int8, int32, int64, bool}")
    .Attr("label: string = ''")
    .SetShapeFn([](InferenceContext* c) -> Status {
      int64_t num_noted;
      TF_RETURN_IF_ERROR(c->GetAttr("num_noted", &num_noted));
      if (num_noted > 1) return absl::InvalidArgumentError("`noted` must be at most one tensor.");
      const int first = 1 + static_cast<int>(num_noted);
      ShapeHandle unused, rows, shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &rows));
      TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(first + 2), &shape));
      TF_RETURN_IF_ERROR(WithAxis(c, shape, c->Dim(rows, 1), &shape));
      c->set_output(0, shape);
      return Status();
    })
    .Doc(R"doc(
Gives each key of a batch the row that its distinct key has. The gradient of the rows goes to the
token, with the distinct keys.

keys: The batch.
noted: None, or the keys that were routed. It fails if they are others.
routed: [u]; the distinct keys.
rows: [u, dim].
places: keys.shape; where each key is among the distinct ones.
tokens: None, or what the gradient goes to, as in TfEmbedFind.
of_batch: keys.shape + [dim].
label: What messages call the table.
)doc");

REGISTER_OP("TfEmbedRoutedRowsGradient")
    .Input("gradient: value_dtype")
    .Input("routed: key_dtype")
    .Input("places: int32")
    .Output("keys: key_dtype")
    .Output("sums: value_dtype")
    .Attr("value_dtype: {float, half, bfloat16, double}")
    .Attr(kKeyDtype)
    .Attr("dim: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> Status {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      ShapeHandle routed;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &routed));
      c->set_output(0, routed);
      c->set_output(1, c->Matrix(c->Dim(routed, 0), dim));
      return Status();
    })
    .Doc(R"doc(
The gradient of TfEmbedRoutedRows: sums for the distinct keys, taken in the order of the batch.

gradient: keys.shape + [dim].
keys: The distinct keys [u].
sums: [u, dim].
)doc");

REGISTER_OP("TfEmbedUnlessFrozen")
    .Input("keys: key_dtype")
    .Input("gradients: gradient_dtype")
    .Input("trained: bool")
    .Output("some_keys: key_dtype")
    .Output("some_gradients: gradient_dtype")
    .Attr(kKeyDtype)
    .Attr("gradient_dtype: {float, half, bfloat16, double}")
    .SetShapeFn([](InferenceContext* c) -> Status {
      ShapeHandle unused, gradients;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &gradients));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Matrix(InferenceContext::kUnknownDim, c->Dim(gradients, 1)));
      return Status();
    })
    .Doc(R"doc(
Gives the gradient of a table as it is if the table is trained; otherwise that of no keys.

keys: [n].
gradients: [n, dim].
trained: Whether it is.
)doc");

}  // namespace tf_embed
