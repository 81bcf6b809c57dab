# SPDX-License-Identifier: Apache-2.0
"""The gradient of a pooled lookup, and the gradient of that gradient.

For the token of the lookup it has distinct keys and the sums of their gradients, read bag by bag,
see cc/ops/pooling_ops.cc. The gradient of the weights, and gradients of gradients, are computed by
the same pooling made of TensorFlow's ops, `Pooling.pool`. The gradient of the weights uses the rows
of the forward pass, as in tf.nn.embedding_lookup_sparse, because the table may change before the
backward pass. They are an output of the lookup, which it writes only if the graph uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed.ops import each_table_ops, pooling_ops, stock_ops
from tf_embed.ops.each_table_ops import PooledLookup
from tf_embed.ops.lookup_gradient import gradient_of_token, is_skipped


@tf.RegisterGradient("TfEmbedFindPooled")
@tf.RegisterGradient("TfEmbedLinkPooled")
def _find_pooled_gradient(op: tf.Operation, gradient: Any, *_: Any) -> list[Any]:
    """For the token, sums by key; for the weights, a tensor; for other inputs, none.

    The rows of a lookup have no gradient of their own, see `_rows_of`.
    """
    handle, keys = op.inputs[:2]
    token = op.inputs[4] if op.get_attr("num_tokens") else None
    pooling = _pooling_of(op, first_list=4 if token is None else 5)
    gradients: list[Any] = [None] * len(op.inputs)
    gradient = tf.convert_to_tensor(gradient)
    dim = op.get_attr("dim")
    if token is not None and not is_skipped(op, 4):
        distinct, _, sums = pooling_ops.sum_by_key(
            keys,
            gradient,
            pooling.bags,
            pooling.weights,
            sum_dtype=op.get_attr("value_dtype"),
            combiner=pooling.combiner,
            padding=pooling.padding,
            handle=handle,
        )
        gradients[4] = gradient_of_token(token, distinct, sums, dim)
    last = len(op.inputs) - 1
    if pooling.weights is not None and not is_skipped(op, last):
        rows = tf.reshape(_rows_of(op, token, pooling.padding, gradient.dtype), [-1, dim])
        gradients[last] = pooling.gradient_of_weights(keys, rows, gradient)
    return gradients


def _rows_of(
    op: tf.Operation,
    token: tf.Tensor | None,
    padding: pooling_ops.Padding | None,
    dtype: tf.DType,
) -> tf.Tensor:
    """The rows of the keys of a weighted lookup, keys.shape + [dim].

    They are tied to the token here, because the gradient of the weights has a gradient too.
    """
    handle, keys, owners, defaults = op.inputs[:4]
    is_found = len(op.outputs) > 1
    rows = op.outputs[1] if is_found else tf.cast(defaults, dtype)
    # The lookup of a SavedModel of before has rows as defaults, which are tied to the token.
    if token is None or not (is_found or op.type == "TfEmbedLinkPooled"):
        return rows
    alone = PooledLookup(
        handle,
        tf.expand_dims(keys, -1),  # a bag for each key
        owners,
        defaults,
        bags=(),
        weights=None,
        value_dtype=op.get_attr("value_dtype"),
        dim=op.get_attr("dim"),
        combiner="sum",
        padding=padding,
    )
    return each_table_ops.link_pooled(alone, rows, token)


@tf.RegisterGradient("TfEmbedSumByKey")
def _sum_by_key_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
    """For the gradients that were summed, and for the weights."""
    keys, summed = op.inputs[:2]
    results: list[Any] = [None] * len(op.inputs)
    pooling = _pooling_of(op, first_list=2)
    of_sums = tf.cast(tf.convert_to_tensor(gradients[2]), pooling_ops.compute_dtype(summed.dtype))
    # Padding (-1) takes a row of zeros. There may be no other row.
    inverse, count = op.outputs[1], tf.shape(of_sums, op.outputs[1].dtype)[0]
    of_rows = tf.gather(tf.pad(of_sums, [[0, 1], [0, 0]]), tf.where(inverse < 0, count, inverse))
    if pooling.combiner == "none":
        results[1] = tf.cast(of_rows, summed.dtype)
        return results
    of_rows = tf.reshape(of_rows, [-1, tf.shape(of_sums)[1]])
    results[1] = tf.cast(pooling.pool(keys, of_rows, pooling.weights), summed.dtype)
    last = len(op.inputs) - 1 - op.get_attr("num_tables")
    if pooling.weights is not None and not is_skipped(op, last):
        wide = tf.cast(summed, of_rows.dtype)
        results[last] = pooling.gradient_of_weights(keys, of_rows, wide)
    return results


def _pooling_of(op: tf.Operation, first_list: int) -> Pooling:
    """The `Pooling` of an op, from its inputs and attributes.

    Args:
        first_list: Number of the first of the inputs that are bags and weights.
    """
    num_bags = op.get_attr("num_bags")
    combiner = op.get_attr("combiner")
    padding = op.get_attr("padding") or op.get_attr("padding_text")
    return Pooling(
        bags=tuple(op.inputs[first_list : first_list + num_bags]),
        weights=op.inputs[first_list + num_bags] if op.get_attr("num_weights") else None,
        # Bytes or a str, depending on how the op was recorded.
        combiner=combiner.decode() if isinstance(combiner, bytes) else combiner,
        padding=padding[0] if padding else None,
    )


@dataclasses.dataclass(frozen=True)
class Pooling:
    """Pooling by ops of TensorFlow. Arguments as in `pooling_ops.find_pooled`."""

    bags: pooling_ops.Bags
    weights: tf.Tensor | None
    combiner: str
    padding: pooling_ops.Padding | None

    def gradient_of_weights(
        self, keys: tf.Tensor, rows: tf.Tensor, upstream: tf.Tensor
    ) -> tf.Tensor:
        """The gradient of the weights, keys.shape.

        Args:
            rows: [number of keys, dim].
            upstream: The gradient of the pooled rows.
        """
        # A tensor of this graph. In a loop or a condition the weights belong to the graph around
        # it, and each op would get another stand-in for them, which the tape does not watch.
        weights = tf.identity(self.weights)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            pooled = self.pool(keys, rows, weights)
        return tape.gradient(pooled, weights, output_gradients=upstream)

    def find_and_pool(
        self, keys: tf.Tensor, rows_of: Callable[[tf.Tensor], tf.Tensor], dim: int
    ) -> tf.Tensor:
        """Pools the rows of keys; padding has no row.

        Args:
            rows_of: From keys [n] to rows [n, dim], of the dtype that they are pooled in.
        """
        flat = tf.reshape(keys, [-1])
        if self.padding is None:
            return self.pool(keys, rows_of(flat), self.weights)
        places = tf.where(tf.logical_not(self.is_padding(flat)))
        rows = tf.scatter_nd(
            places, rows_of(tf.gather_nd(flat, places)), [tf.size(flat, tf.int64), dim]
        )
        return self.pool(keys, tf.ensure_shape(rows, [None, dim]), self.weights)

    def pool(self, keys: tf.Tensor, rows: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        """Pools rows [number of keys, dim] by ops of TensorFlow, each of which has a gradient."""
        factors = self._factors(keys, rows.dtype, weights)
        shape, numbers = self._bags_of(keys)
        if weights is not None or self.padding is not None:
            rows = factors[:, tf.newaxis] * rows
        total = tf.math.unsorted_segment_sum(rows, numbers, tf.reduce_prod(shape))
        return self._divided(total, shape, numbers, factors)

    def of_sums(self, keys: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        """The pooled rows, from the weighted sum of the rows of each bag.

        Args:
            total: [number of bags, dim].
        """
        shape, numbers = self._bags_of(keys)
        return self._divided(total, shape, numbers, self._factors(keys, total.dtype, self.weights))

    def shape_of(self, keys: tf.Tensor) -> tf.Tensor:
        """The shape of the bags, int64."""
        return self._bags_of(keys)[0]

    def is_padding(self, keys: tf.Tensor) -> tf.Tensor:
        """The mask [n] of keys that are padding. REQUIRES: there is padding."""
        padding = self.padding
        # The padding comes from a user, unsigned, or from an attribute of an op, signed.
        if keys.dtype == tf.uint64:
            assert isinstance(padding, int)
            keys, padding = tf.bitcast(keys, tf.int64), stock_ops.as_int64(padding)
        return tf.equal(keys, tf.constant(padding, keys.dtype))

    def _factors(self, keys: tf.Tensor, dtype: tf.DType, weights: tf.Tensor | None) -> tf.Tensor:
        """The weight of each key, 0 for padding, [number of keys]."""
        flat = tf.reshape(keys, [-1])
        if weights is None:
            factors = tf.ones(tf.shape(flat), dtype)
        else:
            factors = tf.reshape(weights, [-1])
        if self.padding is not None:
            factors = tf.where(self.is_padding(flat), tf.zeros([], dtype), factors)
        return factors

    def _divided(
        self, total: tf.Tensor, shape: tf.Tensor, numbers: tf.Tensor, factors: tf.Tensor
    ) -> tf.Tensor:
        """Sums over their divisors, in the shape of the bags."""
        count = tf.reduce_prod(shape)
        if self.combiner == "mean":
            divisor = tf.math.unsorted_segment_sum(factors, numbers, count)
        elif self.combiner == "sqrtn":
            squares = tf.math.unsorted_segment_sum(tf.square(factors), numbers, count)
            is_zero = tf.equal(squares, 0)  # sqrt has no gradient at 0
            divisor = tf.sqrt(tf.where(is_zero, tf.ones_like(squares), squares))
            divisor = tf.where(is_zero, tf.zeros_like(squares), divisor)
        else:
            divisor = None
        if divisor is not None:
            total = tf.math.divide_no_nan(total, divisor[:, tf.newaxis])
        pooled = tf.reshape(total, tf.concat([shape, tf.shape(total, tf.int64)[1:]], 0))
        if shape.shape[0] is not None and total.shape.rank == 2:  # a reshape may forget both
            pooled.set_shape([None] * shape.shape[0] + [total.shape[1]])
        return pooled

    def _bags_of(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The shape of the bags, and the bag of each key, both int64."""
        if not self.bags:
            shape = tf.shape(keys, tf.int64)
            places = tf.range(tf.size(keys, tf.int64))
            # The divisor is not 0 if the last axis is empty.
            return shape[:-1], places // tf.maximum(shape[-1], 1)
        if len(self.bags) == 1:
            (splits,) = self.bags
            return tf.shape(splits, tf.int64)[:1] - 1, stock_ops.bag_of_each(splits)
        indices, shape = self.bags
        strides = tf.math.cumprod(shape[:-1], exclusive=True, reverse=True)
        return shape[:-1], tf.reduce_sum(indices[:, :-1] * strides, axis=-1)
