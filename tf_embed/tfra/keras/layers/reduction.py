# SPDX-License-Identifier: Apache-2.0
"""Pooling of the rows of a bag, by a combiner name or a function.

The table itself pools unclipped rows by sum, mean and sqrtn, without an array of all rows. This
module has the remaining cases: other combiner names, functions, and clipped rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.layers.table_layer import deserialized

Combiner = str | Callable[..., Any]

_ALIASES = {"sqrt_n": "sqrtn"}  # as in tf.sparse.segment_sqrt_n


def _std(rows: tf.Tensor, bags: tf.Tensor, num_bags: tf.Tensor) -> tf.Tensor:
    variance = _variance(rows, bags, num_bags)
    # The slope of the root is infinite at 0, which is the variance of a bag with a single id.
    is_positive = variance > 0
    root = tf.sqrt(tf.where(is_positive, variance, tf.ones_like(variance)))
    return tf.where(is_positive, root, tf.zeros_like(variance))


def _variance(rows: tf.Tensor, bags: tf.Tensor, num_bags: tf.Tensor) -> tf.Tensor:
    means = tf.math.unsorted_segment_mean(rows, bags, num_bags)
    return tf.math.unsorted_segment_mean((rows - tf.gather(means, bags)) ** 2, bags, num_bags)


_BY_NAME: dict[str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "sum": tf.math.unsorted_segment_sum,
    "mean": tf.math.unsorted_segment_mean,
    "sqrtn": tf.math.unsorted_segment_sqrt_n,
    "min": tf.math.unsorted_segment_min,
    "max": tf.math.unsorted_segment_max,
    "prod": tf.math.unsorted_segment_prod,
    "std": _std,
    "variance": _variance,
}


def combiner_of(combiner: Any) -> Combiner:
    """Checks and returns a combiner: a name, a function, or a function serialized by Keras.

    Raises:
        TypeError: If `combiner` is none of these.
        ValueError: If no combiner has that name.
    """
    combiner = deserialized(combiner, "combiner")
    if callable(combiner) and not isinstance(combiner, type):
        return combiner
    if not isinstance(combiner, str):
        raise TypeError(
            "`combiner` must be a name or a function of rows and axis. Received: combiner="
            f"{validation.shown(combiner)}"
        )
    name = _ALIASES.get(combiner, combiner)
    if name not in _BY_NAME:
        raise ValueError(
            f"`combiner` must be one of {', '.join(_BY_NAME)}, or a function of rows and axis, "
            f"such as tf.reduce_logsumexp. Received: combiner={validation.shown(combiner)}"
        )
    return name


def reduce_bags(
    rows: tf.Tensor,
    bags: tf.Tensor,
    num_bags: tf.Tensor,
    combiner: Combiner,
    owner: str = "reduce_bags",
) -> tf.Tensor:
    """Pools the rows of each bag.

    Args:
        rows: [n, dim].
        bags: int64 [n], the bag of each row, from 0 to num_bags - 1, in any order.
        num_bags: int64 scalar.
        combiner: The result of `combiner_of`. A function gets a tf.RaggedTensor
            [num_bags, (m), dim] and `axis=1`.
        owner: The layer, for messages.

    Returns:
        [num_bags, dim]; zeros for an empty bag.

    Raises:
        TypeError: If a function does not return a tensor.
        ValueError: If a function fails, or does not return a row per bag.

    Example:
        >>> import tensorflow as tf
        >>> rows = tf.constant([[1.0], [5.0], [2.0]])
        >>> reduce_bags(rows, tf.constant([0, 0, 2], tf.int64), 3, "max").numpy().tolist()
        [[5.0], [0.0], [2.0]]
    """
    if isinstance(combiner, str):
        reduced = _BY_NAME[combiner](rows, bags, num_bags)
    else:
        # Row ids of a ragged tensor must not decrease.
        order = tf.argsort(bags, stable=True)
        lists = tf.RaggedTensor.from_value_rowids(
            tf.gather(rows, order), tf.gather(bags, order), num_bags, validate=False
        )
        reduced = one_row_each(combiner, lists, rows.shape[-1], owner)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bags), bags, num_bags)
    # For an empty bag, TensorFlow gives the lowest number as a maximum, and 1 as a product.
    return tf.where((counts > 0)[:, tf.newaxis], reduced, tf.zeros_like(reduced))


def one_row_each(combiner: Callable[..., Any], rows: Any, dim: int, owner: str) -> tf.Tensor:
    """Calls a combiner function, and checks that it returns one row for each bag.

    Raises:
        TypeError: If the result is not a tensor.
        ValueError: If the result has a wrong shape, or the function fails.
    """
    reduced = validation.call_of(combiner, "combiner", owner, rows, axis=1)
    if isinstance(reduced, tf.RaggedTensor):
        reduced = reduced.to_tensor()
    reduced = validation.as_tensor(reduced, "combiner(rows, axis=1)", owner)
    if not reduced.shape.is_compatible_with([None, dim]):
        raise ValueError(
            f"`combiner` must reduce rows [bags, ids, {dim}] over axis 1 to [bags, {dim}]. "
            f"Received: combiner={combiner!r}, which gave the shape {reduced.shape}"
        )
    return reduced
