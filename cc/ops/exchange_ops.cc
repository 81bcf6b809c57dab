// SPDX-License-Identifier: Apache-2.0
// The ops of the exchange between workers. They pack and unpack; TensorFlow's collectives send.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {

using absl::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfEmbedRouteKeys")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Output("routed: key_dtype")
    .Output("places: int32")
    .Output("counts: int32")
    .Attr(kKeyDtype)
    .Attr("num_workers: int >= 1")
    .Attr("owner_rule: {'hash', 'remainder'} = 'hash'")
    .SetShapeFn([](InferenceContext* c) -> Status {
      int64_t num_workers;
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->input(0));
      c->set_output(2, c->Vector(num_workers));
      return Status();
    })
    .Doc(R"doc(
Brings the keys of a batch together by the worker that owns them, each key once.

keys: Any shape.
owners: The worker of each key, flattened, the same for equal keys; [0]: by the rule.
routed: [u]; the distinct keys, those of worker 0 first, each worker's in the order in which they
  first come.
places: keys.shape; where each key is among them.
counts: [num_workers]; how many of them each worker owns.
owner_rule: hash: a hash of the key, the same in every process; remainder: floor_mod(key,
  num_workers), which strings do not have.
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

REGISTER_OP("TfEmbedExchangedRows")
    .Input("token: token_dtype")
    .Input("keys: key_dtype")
    .Input("rows: value_dtype")
    .Output("exchanged: value_dtype")
    .Attr("token_dtype: {float, half, bfloat16, double, variant}")
    .Attr("key_dtype: {int64, int32, uint64, uint32, string}")
    .Attr("value_dtype: type")
    .SetShapeFn([](InferenceContext* c) -> Status {
      c->set_output(0, c->input(2));
      return Status();
    })
    .Doc(R"doc(
Gives rows as they are. Their gradient goes to the token, with the keys.

token: What the gradient goes to, as in TfEmbedFind.
keys: [u].
rows: [u, dim].
)doc");

}  // namespace tf_embed
