"""A pooled lookup in many tables by one op, and its gradient by another.

All bags of a batch stand in one line: bag b holds indices offsets[b] up to offsets[b + 1].
`pieces` says of which table each run of bags is, and where its pooled rows go; see
cc/ops/table_batch_ops.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.lookup_gradient import gradient_of_token

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
    training: bool = False,
) -> tf.Tensor:
    """Looks rows up in many tables, pools those of each bag, and changes no row.

    Differentiable with respect to tokens and weights. Shards are chosen by the remainder.

    Args:
        handles: The tables' resources. Keys are int64; rows are not float64.
        indices: int64 [n].
        offsets: int64 [bags + 1], from 0 to n.
        pieces: int64 [pieces, 5]: number of the table, first bag, number of bags, first value and
            stride. The pooled row of a piece's i-th bag is the values from first + i * stride on,
            as many as the table's dim. Pieces cover all values and do not overlap.
        size: int64 scalar, the number of values.
        weights: None, or float32 [n].
        tokens: What gradients go to, see `ops.token`: one for each table, or none.
        row_dtypes: Dtype of the rows of each table.
        dims: Dim of each table.
        combiner: "sum" of weight x row; or "mean", which divides by the number of indices in a bag.
        training: Whether this is a use of the rows.

    Returns:
        The pooled values, float32 [size]. Those of an empty bag are 0.
    """
    return _raw.tf_embed_find_pooled_tables(
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
        training=training,
    )


@tf.RegisterGradient("TfEmbedFindPooledTables")
def _find_pooled_tables_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """For each token the sums by key of its table; for the weights a tensor; for all else, none."""
    dims = op.get_attr("dims")
    count, num_weights = len(dims), op.get_attr("num_weights")
    indices, offsets, pieces, _ = op.inputs[count : count + 4]
    weights = op.inputs[count + 4 : count + 4 + num_weights]
    tokens = op.inputs[count + 4 + num_weights :]
    combiner = op.get_attr("combiner")
    shared = {
        "indices": indices,
        "offsets": offsets,
        "pieces": pieces,
        "gradient": tf.convert_to_tensor(gradient),
        "weights": list(weights),
        "dims": dims,
        "combiner": combiner.decode() if isinstance(combiner, bytes) else combiner,
    }
    of_tokens: list[Any] = []
    if tokens:
        distinct, sums = _raw.tf_embed_sum_by_key_tables(
            **shared, num_tables=count, sum_dtypes=op.get_attr("row_dtypes")
        )
        of_tokens = [
            gradient_of_token(*one) for one in zip(tokens, distinct, sums, dims, strict=True)
        ]
    of_weights: list[Any] = []
    if num_weights:
        training = op.get_attr("training")
        of_weights = [
            _raw.tf_embed_weight_gradients_of_tables(
                tables=op.inputs[:count], **shared, training=training
            )
        ]
    return [None] * (count + 4) + of_weights + of_tokens
