# SPDX-License-Identifier: Apache-2.0
"""The steps that Keras optimizers apply to gradients before the rule, for gradients of rows.

The steps are defined on the gradient of the variable, so gradients of equal keys are summed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_embed.ops import pooling_ops


def sum_equal_keys(
    keys: tf.Tensor, gradients: tf.Tensor, dtype: tf.DType, handle: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Distinct keys and the sums of their gradients, in the order of first occurrence.

    Args:
        keys: [n].
        gradients: [n, dim].
        dtype: The dtype of sums.
        handle: The table whose device computes the sums. None: the host.

    Returns:
        Keys [m] and sums [m, dim], m at most n.
    """
    if pooling_ops.compute_dtype(gradients.dtype) != pooling_ops.compute_dtype(dtype):
        gradients = tf.cast(gradients, dtype)
    distinct, _, sums = pooling_ops.sum_by_key(keys, gradients, sum_dtype=dtype, handle=handle)
    return distinct, sums


class Clipping(NamedTuple):
    """The clipping options of an optimizer: the option that counts, and 0 for others."""

    clipnorm: float = 0.0
    global_clipnorm: float = 0.0
    clipvalue: float = 0.0


def clipping(optimizer: Any) -> Clipping:
    """Returns the clipping of an optimizer: as in Keras, by the first option above 0."""
    for option in Clipping._fields:
        value = getattr(optimizer, option)
        if value and value > 0:
            return Clipping(**{option: value})
    return Clipping()


def clips(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer clips gradients."""
    return any(clipping(optimizer))


def clip(optimizer: keras.optimizers.Optimizer, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient of one variable, clipped.

    Args:
        optimizer: The optimizer that has the options. The global norm has no other variable.
        gradient: The gradient of a whole variable: distinct rows, [n, dim].
    """
    norm, global_norm, value = clipping(optimizer)
    if norm or global_norm:
        squares = tf.reduce_sum(tf.square(gradient))
        if norm:  # an infinite norm makes finite elements 0, unlike an infinite global norm
            return gradient * norm / tf.maximum(tf.sqrt(squares), norm)
        return gradient * tf.cast(norm_factor(squares, global_norm), gradient.dtype)
    return tf.clip_by_value(gradient, -value, value)


def norm_factor(squares: tf.Tensor, largest: float) -> tf.Tensor:
    """Returns the factor that scales gradients to a global norm of at most `largest`.

    Args:
        squares: Sum of the squares of the gradient, scalar. If it is infinite or NaN, the factor is
            NaN.
    """
    norm = tf.sqrt(squares)
    factor = largest / tf.maximum(norm, tf.cast(largest, norm.dtype))
    # The difference is NaN if the norm is not finite, as in Keras.
    return factor + (norm - norm)


def sum_of_squares(gradients: Iterable[Any], scale: Any = 1.0) -> tf.Tensor:
    """The sum of squares of some gradients, each divided by a scale; float32 scalar.

    As in Keras, slices of equal indices count separately. If their sums counted, Keras's own norm
    would still be above the bound, and it would clip dense variables again.

    Args:
        gradients: Dense tensors, or tf.IndexedSlices of dense variables.
        scale: The factor of the loss. The squares of scaled gradients could overflow.
    """
    total = tf.constant(0.0)
    for gradient in gradients:
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        values = tf.cast(values, tf.float32) / tf.cast(scale, tf.float32)
        total += tf.reduce_sum(tf.square(values))
    return total


def scaled(gradient: Any, factor: Any) -> Any:
    """A gradient of a dense variable, dense or tf.IndexedSlices, times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def all_finite(gradients: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether some tensors have neither an infinity nor a NaN; bool scalar."""
    finite = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)
