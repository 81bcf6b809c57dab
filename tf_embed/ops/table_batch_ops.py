# SPDX-License-Identifier: Apache-2.0
"""A pooled lookup in many tables by one op, and its gradient by another.

All bags of a batch are in one vector: bag b holds indices offsets[b] up to offsets[b + 1].
`pieces` gives the table of each run of bags, and the place of its pooled rows in the output; see
cc/ops/table_batch_ops.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import stock_ops
from tf_embed.ops.lookup_gradient import gradient_of_token, is_skipped

_raw = _library.load()


def find_pooled_tables(
    handles: Sequence[tf.Tensor],
    indices: tf.Tensor,
    offsets: tf.Tensor,
    pieces: tf.Tensor,
    size: tf.Tensor,
    weights: tf.Tensor | None = None,
    tokens: Sequence[tf.Tensor] = (),
    *,
    row_dtypes: Sequence[tf.DType],
    dims: Sequence[int],
    combiner: str,
    packs: bool = False,
    max_gradient: float = 0.0,
    training: bool = False,
    rows: Sequence[int] = (),
    fixed_weights: bool = False,
) -> tf.Tensor:
    """Looks up rows in many tables, pools the rows of each bag, and changes no row.

    Differentiable with respect to tokens and weights. Shards are chosen by the remainder.

    Args:
        handles: The tables' resources. Keys are int64; rows are float32, float16, bfloat16, or from
            `quantized_rows`.
        indices: int64 [n].
        offsets: int64 [bags + 1], from 0 to n.
        pieces: int64 [pieces, 5]: number of the table, first bag, number of bags, first value and
            stride. The pooled row of a piece's i-th bag is the values from first + i * stride on,
            as many as the table's dim. Pieces cover all values and do not overlap.
        size: int64 scalar, the number of values.
        weights: None, or float32 [n].
        tokens: The targets of gradients, see `gradient_ops.token`: a token for each table, or none;
            with `packs` a single token for all tables.
        row_dtypes: Dtype of the rows of each table.
        dims: Number of weights of a row of each table; for int8 rows, 8 less than its dim.
        combiner: "sum" of weight x row; or "mean", which divides by the number of indices in a bag.
        packs: Whether the gradient of the token is the batch and the gradient of its pooled values,
            for `apply_tables`. Otherwise the gradient of each token is rows of its table.
        max_gradient: The bound for clipping elements of the gradient of the pooled values; 0: none.
        training: Whether this is a use of the rows.
        rows: Number of rows of each table, for the shape of its gradient; -1 if a table has no such
            number. May be empty.
        fixed_weights: Whether the weights have no gradient, which saves the rows for it.

    Returns:
        The pooled values, float32 [size]. The values of an empty bag are 0.

    Raises:
        ValueError: If there are tokens, and rows of int8.
    """
    if tokens and tf.int8 in [tf.as_dtype(dtype) for dtype in row_dtypes]:
        names = [tf.as_dtype(dtype).name for dtype in row_dtypes]
        raise ValueError(f"INT8 rows can't be trained, and have no tokens. Received: {names}")
    pooled, _ = _raw.tf_embed_find_pooled_tables(
        tables=handles,
        indices=indices,
        offsets=offsets,
        pieces=pieces,
        size=size,
        weights=[] if weights is None else [weights],
        tokens=list(tokens),
        row_dtypes=list(row_dtypes),
        dims=list(dims),
        combiner=combiner,
        packs=packs,
        max_gradient=max_gradient,
        training=training,
        rows=list(rows),
        # The gradient of the weights is made of the rows of the lookup, because the tables may
        # change before the backward pass.
        found_dtypes=[] if weights is None or fixed_weights else [tf.float32],
    )
    return pooled


def _places_of_rows(
    offsets: tf.Tensor, pieces: tf.Tensor, dims: Sequence[int], count: tf.Tensor
) -> tf.Tensor:
    """The first value of the row of each of `count` indices, if rows are piece by piece, int64."""
    table, first_bag, num_bags = pieces[:, 0], pieces[:, 1], pieces[:, 2]
    dim = tf.gather(tf.constant(list(dims), tf.int64), table)
    first = tf.gather(offsets, first_bag)
    lengths = tf.gather(offsets, first_bag + num_bags) - first
    begin = tf.cumsum(lengths * dim, exclusive=True)
    indices, piece = stock_ops.places_of(first, lengths)
    places = tf.gather(begin, piece) + (indices - tf.gather(first, piece)) * tf.gather(dim, piece)
    # Pieces may be in any order, and omit bags.
    return tf.scatter_nd(indices[:, tf.newaxis], places, count[tf.newaxis])


def apply_tables(
    handles: Sequence[tf.Tensor],
    batches: tf.Tensor,
    gradients: tf.Tensor,
    hyper: tf.Tensor,
    step: tf.Tensor,
    *,
    dims: Sequence[int],
    combiner: str,
    rule: str,
    slot_types: Sequence[tf.DType] = (),
    stochastic_rounding: bool = False,
) -> tf.Operation | None:
    """Makes a step of an optimizer in many tables of one shard each.

    Args:
        handles: As in `find_pooled_tables`.
        batches: int64; the results for the batches of any number of lookups with `packs`,
            concatenated.
        gradients: float32; the gradients of their pooled values, in the same order.
        hyper: float64 vector, or a vector for each table; see TfEmbedApply.
        step: int64 scalar, from 1.
        dims: Dim of each table.
        combiner: As in the lookups.
        rule: Name of the rule.
        slot_types: The type of each of the rule's slots in rows: float32, float16 or bfloat16;
            none: the first.
        stochastic_rounding: As in `Table.apply`.
    """
    return _raw.tf_embed_apply_tables(
        tables=handles,
        batches=batches,
        gradients=gradients,
        hyper=hyper,
        step=step,
        dims=list(dims),
        combiner=combiner,
        rule=rule,
        slot_types=list(slot_types),
        stochastic_rounding=stochastic_rounding,
    )


@tf.RegisterGradient("TfEmbedFindPooledTables")
def _find_pooled_tables_gradient(op: tf.Operation, gradient: Any, *_: Any) -> list[Any]:
    """For each token, the sums by key of its table, or the batch; for the weights, a tensor.

    Rows that were found have no gradient of their own.
    """
    dims = op.get_attr("dims")
    count, num_weights = len(dims), op.get_attr("num_weights")
    indices, offsets, pieces, size = op.inputs[count : count + 4]
    weights = op.inputs[count + 4 : count + 4 + num_weights]
    tokens = op.inputs[count + 4 + num_weights :]
    gradient = tf.convert_to_tensor(gradient)
    most = op.get_attr("max_gradient")
    # As in FBGEMM, which clips the gradient of the output before it is summed by key.
    if most > 0.0:
        gradient = tf.clip_by_value(gradient, -most, most)
    combiner = op.get_attr("combiner")
    batch = {
        "indices": indices,
        "offsets": offsets,
        "pieces": pieces,
        "weights": list(weights),
        "dims": dims,
        "combiner": combiner.decode() if isinstance(combiner, bytes) else combiner,
    }
    of_tokens: list[Any] = []
    if tokens and op.get_attr("packs"):
        # The fused step sums by key itself. Tables have different dims, so the gradients are a
        # column.
        packed = _raw.tf_embed_pack_batch(tables=op.inputs[:count], **batch, size=size)
        column = tf.reshape(gradient, [-1, 1])
        of_tokens = [gradient_of_token(tokens[0], packed, column, 1, packed=True)]
    elif tokens:
        distinct, sums = _raw.tf_embed_sum_by_key_tables(
            **batch,
            gradient=gradient,
            distinct_dtypes=[tf.int64] * count,
            sum_dtypes=op.get_attr("row_dtypes"),
        )
        rows = op.get_attr("rows") or [-1] * count
        of_tokens = [
            gradient_of_token(token, keys, values, dim, rows=of_table)
            for token, keys, values, dim, of_table in zip(
                tokens, distinct, sums, dims, rows, strict=True
            )
        ]
    of_weights: list[Any] = [None] * num_weights
    # Fixed weights have neither rows nor a gradient.
    if op.get_attr("found_dtypes") and not is_skipped(op, count + 4):
        with tf.device("/CPU:0"):
            _, of_weights[0] = _raw.tf_embed_join_bags_gradient(
                gradient=gradient,
                values=op.outputs[1],
                sources=_places_of_rows(offsets, pieces, dims, tf.size(indices, tf.int64)),
                splits=offsets,
                **batch,
            )
    return [None] * (count + 4) + of_weights + of_tokens
