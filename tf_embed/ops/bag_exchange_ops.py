# SPDX-License-Identifier: Apache-2.0
"""Bags of many tables, looked up at the workers that own their keys.

`split_bags` takes the bags of a batch apart by owner. Owners pool what they get, and `join_bags`
adds up what they send back; see cc/ops/bag_exchange_ops.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()

tf.no_gradient("TfEmbedSplitBags")


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
    """The bags that owners get, worker by worker, and to each worker table by table.

    Attributes:
        keys: int64 [k].
        lengths: Number of keys of each bag, int32 [b].
        bags: Number of bags of each table, int32 [workers * tables].
        counts: How many keys, bags and tables each worker gets, and how many values it sends back,
            int32 [4, workers].
        sources: Where the rows begin, among these values, that make the pooled rows; int64 [s].
        splits: From where to where the sources of each bag are, int64 [bags + 1].
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
    """Takes the bags of a batch apart by the workers that own their keys.

    Args:
        bags: The bags. With weights, each distinct key is asked for by itself.
        owners: The worker of each index, int32; [0]: by the rule.
        dims: Number of weights in a row of each table.
        num_workers: Number of workers.
        rank: The number of this one.
        owner_rule: "hash" or "remainder".
        ask_by: What owners get: "bags" with what they own of the keys of each bag, the distinct
            "keys" as bags of one, or of each table what sends "less".
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
        values: What owners sent back, float32 [v].
        split: What they got.
        bags: The bags.
        dims: As in `split_bags`.
        combiner: "sum" or "mean".
        max_gradient: What elements of the gradient of the pooled values are clipped to; 0: not.

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
    """For the values, and for the weights."""
    values, sources, splits, indices, offsets, pieces = op.inputs[:6]
    weights = list(op.inputs[7:])
    combiner = op.get_attr("combiner")
    gradient = tf.convert_to_tensor(gradient)
    most = op.get_attr("max_gradient")
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
