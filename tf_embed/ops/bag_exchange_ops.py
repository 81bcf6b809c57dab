# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups at the workers that own the keys.

For many tables, `split_bags` splits the bags of a batch by owner. Owners pool their parts, and
`join_bags` adds up the sums that they send back. For a single table of any kind, use
`split_pooled`. See cc/ops/bag_exchange_ops.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import pooling_ops

_raw = _library.load()

tf.no_gradient("TfEmbedSplitBags")
tf.no_gradient("TfEmbedSplitPooled")


class SplitPooled(NamedTuple):
    """The keys of a pooled lookup, worker by worker.

    A lookup asks by keys or by bags. By keys, it gets the row of each distinct key, and has `asked`
    and `places`. By bags, it gets the sum of each worker's keys of a bag, and has `bag_keys`. The
    tensors of the other method are empty.

    Attributes:
        asked: The distinct keys [u].
        places: The position in `asked` of each key that is not padding, int32 [p].
        place_positions: The positions of these keys in the flattened batch, int32 [p].
        place_bags: The bag of each of these keys, int64 [p].
        bag_keys: All keys, bag by bag for each worker, [k].
        key_positions: The positions of `bag_keys` in the flattened batch, int32 [k].
        lengths: The number of `bag_keys` in each sum, int32 [s].
        sum_bags: The bag of each sum, int64 [s].
        counts: How much of `asked`, `bag_keys` and `lengths` each worker gets, int32 [3, workers].
    """

    asked: tf.Tensor
    places: tf.Tensor
    place_positions: tf.Tensor
    place_bags: tf.Tensor
    bag_keys: tf.Tensor
    key_positions: tf.Tensor
    lengths: tf.Tensor
    sum_bags: tf.Tensor
    counts: tf.Tensor


def split_pooled(
    keys: tf.Tensor,
    owners: tf.Tensor,
    bags: pooling_ops.Bags,
    *,
    padding: pooling_ops.Padding | None,
    num_workers: int,
    rank: int,
    owner_rule: str,
    row_bytes: int,
    sum_bytes: int,
    weight_bytes: int = 0,
    ask_by: str = "less",
) -> SplitPooled:
    """Splits the keys of a pooled lookup by the workers that own them.

    Args:
        keys: Any shape.
        owners: The worker of each key, flattened, int32. An empty tensor means `owner_rule`.
        bags: As in `pooling_ops.find_pooled`.
        padding: As in `pooling_ops.find_pooled`.
        owner_rule: "hash" or "remainder".
        row_bytes: Bytes of a row on the wire.
        sum_bytes: Bytes of a sum, or a gradient.
        weight_bytes: Bytes of a weight; 0 without weights.
        ask_by: "keys", "bags", or "less" for the way that sends fewer bytes.
    """
    return SplitPooled(
        *_raw.tf_embed_split_pooled(
            keys=keys,
            owners=owners,
            bags=list(bags),
            **pooling_ops.padding_arguments(padding),
            num_workers=num_workers,
            rank=rank,
            owner_rule=owner_rule,
            ask_by=ask_by,
            row_bytes=row_bytes,
            sum_bytes=sum_bytes,
            weight_bytes=weight_bytes,
        )
    )


class Bags(NamedTuple):
    """The bags of a batch, as in `table_batch_ops.find_pooled_tables`.

    Attributes:
        indices: int64 [n].
        offsets: int64 [bags + 1].
        pieces: int64 [pieces, 5].
        size: int64 scalar, the number of pooled values.
        weights: None, or float32 [n].
    """

    indices: tf.Tensor
    offsets: tf.Tensor
    pieces: tf.Tensor
    size: tf.Tensor
    weights: tf.Tensor | None


class Split(NamedTuple):
    """The bags for the owners, ordered by worker and then by table.

    Attributes:
        keys: int64 [k].
        lengths: Number of keys of each bag, int32 [b].
        bags: Number of bags of each table, int32 [workers * tables].
        counts: How many keys, bags and tables each worker gets, and how many values it sends back,
            int32 [4, workers].
        sources: The offsets, in these values, of the rows that make the pooled rows; int64 [s].
        splits: The row splits of `sources` by bag, int64 [bags + 1].
    """

    keys: tf.Tensor
    lengths: tf.Tensor
    bags: tf.Tensor
    counts: tf.Tensor
    sources: tf.Tensor
    splits: tf.Tensor


def split_bags(
    bags: Bags,
    owners: tf.Tensor,
    *,
    dims: Sequence[int],
    num_workers: int,
    rank: int,
    owner_rule: str,
    ask_by: str = "less",
    bytes_of_number: int = 4,
) -> Split:
    """Splits the bags of a batch by the workers that own their keys.

    Args:
        bags: The bags. With weights, the lookup asks for each distinct key by itself.
        owners: The worker of each index, int32. An empty tensor means `owner_rule`.
        dims: Number of weights in a row of each table.
        owner_rule: "hash" or "remainder".
        ask_by: "bags" sends owners their part of each bag. "keys" sends the distinct keys, as bags
            of one key. "less" picks for each table the way that sends fewer bytes.
        bytes_of_number: Bytes of a number of a row on the wire.
    """
    return Split(
        *_raw.tf_embed_split_bags(
            **_inputs(bags),
            size=bags.size,
            owners=owners,
            dims=list(dims),
            num_workers=num_workers,
            rank=rank,
            owner_rule=owner_rule,
            ask_by=ask_by,
            bytes_of_number=bytes_of_number,
        )
    )


def join_bags(
    values: tf.Tensor,
    split: Split,
    bags: Bags,
    *,
    dims: Sequence[int],
    combiner: str,
    max_gradient: float = 0.0,
) -> tf.Tensor:
    """The pooled values of a batch. Differentiable with respect to values and weights.

    Args:
        values: The values that owners sent back, float32 [v].
        split: The bags that owners got.
        dims: As in `split_bags`.
        combiner: "sum" or "mean".
        max_gradient: The bound to which gradients of the pooled values are clipped, elementwise;
            0 for no clipping.

    Returns:
        float32 [size].
    """
    return _raw.tf_embed_join_bags(
        values=values,
        sources=split.sources,
        splits=split.splits,
        **_inputs(bags),
        size=bags.size,
        dims=list(dims),
        combiner=combiner,
        max_gradient=max_gradient,
    )


@tf.RegisterGradient("TfEmbedJoinBags")
def _join_bags_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """The gradients of the values and of the weights."""
    values, sources, splits, indices, offsets, pieces = op.inputs[:6]
    # Input 6 is the size.
    weights = list(op.inputs[7:])
    combiner = op.get_attr("combiner")
    gradient = tf.convert_to_tensor(gradient)
    most = op.get_attr("max_gradient")
    # As in FBGEMM, which clips the gradient of the output before it is summed by key.
    if most > 0.0:
        gradient = tf.clip_by_value(gradient, -most, most)
    of_values, of_weights = _raw.tf_embed_join_bags_gradient(
        gradient=gradient,
        values=values,
        sources=sources,
        splits=splits,
        indices=indices,
        offsets=offsets,
        pieces=pieces,
        weights=weights,
        dims=op.get_attr("dims"),
        combiner=combiner.decode() if isinstance(combiner, bytes) else combiner,
    )
    return [of_values, *[None] * 6, *([of_weights] if weights else [])]


def _inputs(bags: Bags) -> dict[str, Any]:
    return {
        "indices": bags.indices,
        "offsets": bags.offsets,
        "pieces": bags.pieces,
        "weights": [] if bags.weights is None else [bags.weights],
    }
