// SPDX-License-Identifier: Apache-2.0
// Ops that look up bags of many tables at the workers that own their keys. Bags are split by owner,
// owners pool their own keys, and the returned rows are summed. Batches are as in
// table_batch_ops.cc.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/pooling/bags.h"
#include "cc/ops/key_types.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_embed {

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
      int64_t num_workers;
      TF_RETURN_IF_ERROR(CheckRanks(c, {-1, 1}));
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
Splits the keys of a pooled lookup by the workers that own them.

There are two ways to ask a worker, and the outputs of the other way are empty. By keys, each
distinct key is sent once and its row comes back. By bags, the keys of a bag that a worker owns are
sent as a bag, and the sum of their rows comes back. Padding is left out. Arguments without a
description are as in TfEmbedFindPooled.

owners: The worker of each key, int32 [num_keys], flattened, equal for equal keys; or [0], which
  leaves the choice to `owner_rule`.
asked: By keys: the distinct keys [u], grouped by worker.
places: By keys: for each key that is not padding, bag by bag, its index in `asked`.
place_positions: Shape of `places`: the position of that key in the flattened keys.
place_bags: Shape of `places`: the bag of that key.
bag_keys: By bags: all keys [n] except padding, grouped by worker, then by bag.
key_positions: [n]; the position of each of these in the flattened keys.
lengths: By bags: for each sum that comes back, the number of its keys.
sum_bags: Shape of `lengths`: the bag of each sum.
counts: [3, num_workers]; the numbers of `asked`, `bag_keys` and `lengths` that go to each worker.
rank: The number of this worker. Its own keys cost nothing.
owner_rule: As in TfEmbedRouteKeys.
ask_by: `bags` or `keys` for that way; `less` for the one that sends fewer bytes.
row_bytes: Bytes of a row on the wire.
sum_bytes: Bytes of a sum, or of its gradient, on the wire.
weight_bytes: Bytes of the weight of a key in a bag; its gradient takes as many. 0 without weights.
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
      int64_t num_workers;
      TF_RETURN_IF_ERROR(CheckRanks(c, {1, 1, 2, 0, 1}));
      TF_RETURN_IF_ERROR(c->GetAttr("num_workers", &num_workers));
      for (const int output : {0, 1, 2, 4}) c->set_output(output, c->Vector(c->UnknownDim()));
      c->set_output(3, c->Matrix(4, num_workers));
      c->set_output(5, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Splits the bags of a batch by the workers that own their keys.

For each table there are two ways to ask: the keys of a bag that a worker owns become a bag for it,
or each distinct key does. Raises InvalidArgument if a worker would get more than 2^31 - 1 values.
Inputs without a description are as in TfEmbedFindPooledTables.

owners: The worker of each index, int32 [n], equal for equal keys of a table; or [0], which leaves
  the choice to `owner_rule`.
weights: None; or one, float [n]. With weights, keys are always asked for one by one, because this
  worker multiplies them.
keys: The keys to send, grouped by worker, then by table.
lengths: The number of keys of each bag that is sent.
bags: [num_workers * tables]; for each worker, the number of bags of each table.
counts: [4, num_workers]; the numbers of keys, bags and tables that go to each worker, and of values
  that come back: dim for each bag.
sources: Where each row that a pooled row sums begins, among the values that come back.
splits: offsets.shape; bag b sums sources splits[b] up to splits[b + 1].
dims: Dim of each table.
rank: The number of this worker. Its own keys cost nothing.
owner_rule: As in TfEmbedRouteKeys.
ask_by: `bags` or `keys` for that way in all tables; `less` for the one that sends fewer bytes, of
  each table.
bytes_of_number: Bytes of a number of a row on the wire, 1 to 8.
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
    .SetShapeFn(Ranks({1, 1, 1, 1, 1, 2, 0}, {1}))
    .Doc(R"doc(
Sums the values that workers sent back into the pooled rows of a batch.

Arguments without a description are as in TfEmbedFindPooledTables.

values: The values [m] that came back for the bags of TfEmbedSplitBags.
sources: Output of TfEmbedSplitBags.
splits: Output of TfEmbedSplitBags.
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
      c->set_output(0, c->input(1));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return CheckRanks(c, {1, 1, 1, 1, 1, 1, 2});
    })
    .Doc(R"doc(
Computes the gradients of TfEmbedJoinBags. Arguments without a description are as there.

gradient: The gradient of the pooled rows [size].
of_values: values.shape; the gradient of the values.
of_weights: The gradient of the weights [n]; [0] without weights.
)doc");

}  // namespace tf_embed
