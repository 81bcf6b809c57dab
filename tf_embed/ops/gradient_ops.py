# SPDX-License-Identifier: Apache-2.0
"""The ops of gradients of rows, typed."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def token(anchor: tf.Tensor, *, key_dtype: tf.DType, rows: int = -1) -> tf.Tensor:
    """A variant scalar that links a lookup to the anchor, so that the gradient reaches it.

    If it is created outside the loops and conditions of a lookup, it carries gradients out of them;
    see cc/ops/gradient_ops.cc.

    Args:
        anchor: The value [0, dim] of the variable that represents the table on a gradient tape.
        key_dtype: Dtype of the table's keys.
        rows: Number of rows, for the shape of the gradient; -1 if the table has none.
    """
    return _raw.tf_embed_token(anchor=anchor, key_dtype=key_dtype, dim=anchor.shape[1], rows=rows)


def row_gradients(keys: tf.Tensor, values: tf.Tensor, packed: bool = False) -> tf.Tensor:
    """Packs gradients of rows into one variant scalar, which TensorFlow can add and zero.

    Args:
        keys: [n].
        values: [n, dim].
        packed: Whether `keys` are a packed batch, and `values` the gradients [m, 1] of its pooled
            values.
    """
    with _on_host():
        return _raw.tf_embed_row_gradients(keys=keys, values=values, packed=packed)


def unpack_row_gradients(
    gradients: tf.Tensor, *, key_dtype: tf.DType, value_dtype: tf.DType, dim: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The keys [n] and the gradients [n, dim] in such a variant."""
    with _on_host():
        return _raw.tf_embed_unpack_row_gradients(
            gradients=gradients, key_dtype=key_dtype, value_dtype=value_dtype, dim=dim
        )


def _on_host() -> AbstractContextManager[Any]:
    """Where eager ops with arrays on the host run, see `Table.handle_on_host`."""
    return tf.device("/CPU:0") if tf.executing_eagerly() else contextlib.nullcontext()


def keys_of(gradient: tf.IndexedSlices, key_dtype: tf.DType, owner: str) -> tf.Tensor:
    """The keys of an anchor's gradient.

    Raises:
        TypeError: If the indices and the table's keys are not both strings or both integers.
        tf.errors.InvalidArgumentError: If an index does not fit the key dtype. Raised by the op.
    """
    keys = gradient.indices
    if not tf.is_tensor(keys):  # tf.IndexedSlices that the user made
        keys = tf.convert_to_tensor(keys, key_dtype)
    if key_dtype == tf.uint64 and keys.dtype == tf.int64:
        return tf.bitcast(keys, tf.uint64)
    if (key_dtype == tf.string) != (keys.dtype == tf.string):
        raise TypeError(
            f"The gradient of {owner!r} must have its {key_dtype.name} keys as its indices. "
            f"Received: indices of dtype {keys.dtype.name}"
        )
    cast = tf.cast(keys, key_dtype)
    if keys.dtype.size <= key_dtype.size:
        return cast
    message = f"The gradient of {owner!r} must have {key_dtype.name} keys as its indices."
    check = tf.debugging.assert_equal(tf.cast(cast, keys.dtype), keys, message)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(cast)
