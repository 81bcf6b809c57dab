// SPDX-License-Identifier: Apache-2.0
// Ops that look up bags of many tables at the workers that own their keys. Bags are split by owner,
// owners pool their own keys, and the returned rows are summed. Batches are those of
// table_batch_ops.cc.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/pooling/bags.h"
#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_embed {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status CheckVectors(InferenceContext* c, int begin, int end) {
  ShapeHandle unused;
  for (int i = begin; i < end; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
  return absl::OkStatus();
}

// Checks inputs from `first` on: indices, offsets, pieces.
absl::Status CheckBatch(InferenceContext* c, int first) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(CheckVectors(c, first, first + 2));
  return c->WithRank(c->input(first + 2), 2, &unused);
}

}  // namespace

REGISTER_OP("TfEmbedSplitPooled")
    .Input("keys: key_dtype")
    .Input("owners: int32")
    .Input("bags: num_bags * bags_dtype")
    .Output("asked: key_dtype")
    .Output("places: int32")
    .Output("place_positions: int32")
    .Output("place_bags: int64")
    .Output("bag_keys: key_dtype")
    .Output("key_positions: int32")
    .Output("lengths: int32")
    .Output("sum_bags: int64")
    .Output("counts: int32")
    .Attr(kKeyDtype)
    .Attr("num_bags: int >= 0 = 0")
    .Attr("bags_dtype: {int64, int32} = DT_INT64")
    .Attr("padding: list(int) = []")
    .Attr("padding_text: list(string) = []")
    .Attr("num_workers: int >= 1")
    .Attr("rank: int >= 0")
    .Attr("owner_rule: {'hash', 'remainder'} = 'hash'")
    .Attr("ask_by: {'less', 'bags', 'keys'} = 'less'")
    .Attr("row_bytes: int >= 1")
    .Attr("sum_bytes: int >= 1")
    .Attr("weight_bytes: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      int64_t num_workers;
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      const ShapeHandle places = c->Vector(c->UnknownDim());
      const ShapeHandle keys = c->Vector(c->UnknownDim());
      const ShapeHandle sums = c->Vector(c->UnknownDim());
      c->set_output(0, c->Vector(c->UnknownDim()));
      for (const int output : {1, 2, 3}) c->set_output(output, places);
      for (const int output : {4, 5}) c->set_output(output, keys);
      for (const int output : {6, 7}) c->set_output(output, sums);
      c->set_output(8, c->Matrix(3, num_workers));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes the keys of a pooled lookup apart by the workers that own them.

There are two ways to ask, and the op takes the one that sends less. By keys: each distinct key is
asked for, and its row comes back. By bags: what an owner has of the keys of a bag is a bag for it,
and the sum of its rows comes back. The outputs of the other way are empty. Padding is left out.

keys, bags, padding, padding_text: As in TfEmbedFindPooled.
owners: The worker of each key, flattened, the same for equal keys; [0]: by the rule.
asked: By keys, the distinct keys, worker by worker.
places: By keys, of each key that is no padding, bag by bag, where it is among them.
place_positions: Where that key is in the flattened keys.
place_bags: The bag of that key.
bag_keys: By bags, all keys, worker by worker, and bag by bag.
key_positions: Where each of them is in the flattened keys.
lengths: By bags, how many keys of a bag a worker gets, for each sum.
sum_bags: The bag of each sum.
counts: [3, num_workers]; how much of `asked`, `bag_keys` and `lengths` each worker gets.
rank: This worker, to which nothing needs to be sent.
owner_rule: As in TfEmbedRouteKeys.
ask_by: bags, keys: in this way; less: as above.
row_bytes: What a row takes on the wire.
sum_bytes: What a sum takes, or a gradient.
weight_bytes: What the weight of a key takes that is asked for in a bag; its gradient takes as much.
)doc");

REGISTER_OP("TfEmbedSplitBags")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("size: int64")
    .Input("owners: int32")
    .Input("weights: num_weights * float")
    .Output("keys: int64")
    .Output("lengths: int32")
    .Output("bags: int32")
    .Output("counts: int32")
    .Output("sources: int64")
    .Output("splits: int64")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("dims: list(int) >= 1")
    .Attr("num_workers: int >= 1")
    .Attr("rank: int >= 0")
    .Attr("owner_rule: {'hash', 'remainder'} = 'hash'")
    .Attr("ask_by: {'less', 'bags', 'keys'} = 'less'")
    .Attr("bytes_of_number: int >= 1 = 4")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckBatch(c, 0));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &unused));
      int64_t num_workers;
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      for (const int output : {0, 1, 2, 4}) c->set_output(output, c->Vector(c->UnknownDim()));
      c->set_output(3, c->Matrix(4, num_workers));
      c->set_output(5, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes the bags of a batch apart by the workers that own their keys.

What an owner has of the keys of a bag becomes a bag for it, or each distinct key does: of each
table, the one that sends less.

indices, offsets, pieces, size: As in TfEmbedFindPooledTables.
owners: The worker of each index, the same for equal keys of a table; [0]: by the rule.
weights: If there are any, keys are asked for one by one, because weights are multiplied here.
keys: What is sent, worker by worker, and to each worker table by table.
lengths: Number of keys of each bag that is sent.
bags: [num_workers * tables]; of each worker, how many bags are sent of each table.
counts: [4, num_workers]; how many keys, bags and tables are sent to each worker, and how many values
  come back: dim for each bag, side by side.
sources: A pooled row is the sum of some rows of these values; where each of those begins.
splits: offsets.shape; from where to where the sources of each bag are.
rank: This worker, to which nothing needs to be sent.
owner_rule: As in TfEmbedRouteKeys.
ask_by: bags, keys: in this way for all tables; less: as above.
bytes_of_number: What a number of a row takes on the wire.
)doc");

REGISTER_OP("TfEmbedJoinBags")
    .Input("values: float")
    .Input("sources: int64")
    .Input("splits: int64")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("size: int64")
    .Input("weights: num_weights * float")
    .Output("pooled: float")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .Attr("max_gradient: float = 0.0")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckVectors(c, 0, 3));
      TF_RETURN_IF_ERROR(CheckBatch(c, 3));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 0, &unused));
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts the pooled rows of a batch together from what its owners sent back.

values: What came back for the bags that TfEmbedSplitBags gave.
sources, splits: As it gave them. The other inputs and attributes are those of
  TfEmbedFindPooledTables, and so is the output.
)doc");

REGISTER_OP("TfEmbedJoinBagsGradient")
    .Input("gradient: float")
    .Input("values: float")
    .Input("sources: int64")
    .Input("splits: int64")
    .Input("indices: int64")
    .Input("offsets: int64")
    .Input("pieces: int64")
    .Input("weights: num_weights * float")
    .Output("of_values: float")
    .Output("of_weights: float")
    .Attr("num_weights: int >= 0 = 0")
    .Attr("dims: list(int) >= 1")
    .Attr(absl::StrCat("combiner: {", QuotedNames(kManyTablesCombinerNames), "}"))
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckVectors(c, 0, 4));
      TF_RETURN_IF_ERROR(CheckBatch(c, 4));
      c->set_output(0, c->input(1));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of TfEmbedJoinBags.

gradient: That of the pooled rows.
of_values: That of the values.
of_weights: That of the weights; [0] if there are none.
)doc");

}  // namespace tf_embed
