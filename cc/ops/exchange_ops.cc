// SPDX-License-Identifier: Apache-2.0
// Ops of the exchange between workers. They pack and unpack; TensorFlow's collectives send.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

REGISTER_OP("TfEmbedMessageWords")
    .Input("parts: part_types")
    .Input("counts: int32")
    .Output("words: int32")
    .Attr("part_types: list(type) >= 1")
    .Attr("part_tables: list(int) >= 1")
    .Attr("wire_types: list({'same', 'bfloat16', 'float16'}) >= 1")
    .Attr("rank: int >= -1 = -1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1), 2, &counts));
      c->set_output(0, c->Vector(c->Dim(counts, 1)));
      return absl::Status();
    })
    .Doc(R"doc(
Returns the length of the message to each worker, in words of 4 bytes.

The arguments are those of TfEmbedPackMessages. A message of 2^31 words or more is InvalidArgument.

words: [num_workers]; 0 for `rank`.
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
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t num_workers, num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Scalar());
      c->set_output(4, c->Matrix(num_tables, num_workers));
      return absl::Status();
    })
    .Doc(R"doc(
Computes the message sizes that all workers must agree on, from their announcements.

gathered: The vectors of all workers, one after the other. A worker's vector is the number of keys
  of each table that it sends to each worker, [num_tables, num_workers], and then the words of these
  messages, [num_workers].
capacity: Scalar; the words of each message, equal on all workers. A worker's keys for itself are in
  no message and need no room in a reply.
number: Scalar; the number of that capacity, less than 256.
reply_capacity: Scalar; the words of each reply.
reply_number: Scalar; the number of that capacity.
received: [num_tables, num_workers]; the number of keys that worker `rank` gets from each worker.
reply_tables: The table of each part of a reply.
reply_row_bytes: The bytes of a row of each of these parts.
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
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 2), 2, &counts));
      c->set_output(0, c->Matrix(c->Dim(counts, 1), InferenceContext::kUnknownDim));
      return absl::Status();
    })
    .Doc(R"doc(
Packs a message of equal length for each worker; see cc/core/exchange/message.h.

parts: Vectors of keys and matrices of rows, grouped by destination worker.
counts: [num_tables, num_workers]; the number of keys or rows of each table for each worker.
capacity: Scalar; the words of 4 bytes of a message. Too few are InvalidArgument.
messages: [num_workers, capacity], zeros behind the end of a message.
part_tables: The table of each part.
wire_types: The type of each part on the wire. Only float parts may travel as a narrower type.
rank: The worker whose message stays empty, because it uses its own parts directly; -1 for none.
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
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      std::vector<int64_t> widths;
      TF_RETURN_IF_ERROR(c->GetAttr("widths", &widths));
      for (int i = 0; i < c->num_outputs(); ++i) {
        const bool is_matrix = static_cast<size_t>(i) < widths.size() && widths[i] > 0;
        c->set_output(i, is_matrix ? c->Matrix(InferenceContext::kUnknownDim, widths[i])
                                   : c->Vector(InferenceContext::kUnknownDim));
      }
      return absl::Status();
    })
    .Doc(R"doc(
Unpacks the messages that all workers have packed for this one.

Counts that do not fit the messages are InvalidArgument. Attributes without a description are as in
TfEmbedPackMessages.

messages: [num_workers, capacity], that of worker 0 first.
counts: [num_tables, num_workers]; the number of keys or rows of each table from each worker.
own: The parts that this worker packed, from which it takes its own share; none if `rank` is -1.
own_counts: The counts that it packed them with.
parts: Keys and rows, those of worker 0 first.
widths: The number of columns of each part; 0 for a vector of keys.
rank: This worker, as it packed; -1 if its own message is among the messages.
)doc");

}  // namespace tf_embed
