# SPDX-License-Identifier: Apache-2.0
"""The ops of pooled lookups and of the gradients of their rows, typed.

The ops check their inputs themselves, and `validation.py` checks the arguments of users. The
wrappers check nothing. They share these inputs:

    handle: The table's resource, a scalar.
    keys: Any shape, of the table's key dtype. A row's shape is [dim], so the rows of `keys` have
        the shape keys.shape + [dim].
    owners: The shard of each key, flattened, int32. An int32 [0] means the table's own rule,
        floor_mod(key, num_shards).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import stock_ops, substitutes

_raw = _library.load()

# The partition of keys into bags. (): the keys along the last axis. (row splits [bags + 1],): runs
# of the flattened keys. (indices [keys, rank], dense shape [rank]): the lines along the last axis
# of a sparse tensor, whose values are the keys in any order.
Bags: TypeAlias = tuple[tf.Tensor, ...]

# A key that is ignored.
Padding: TypeAlias = int | str | bytes


def checked_sparse(ids: tf.SparseTensor, label: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The parts of sparse ids, after a check that the indices lie within the dense_shape.

    TensorFlow accepts any numbers for both, and aborts the process if a size becomes negative.
    """
    if substitutes.are_used():
        return stock_ops.checked_sparse(ids.indices, ids.values, ids.dense_shape, label)
    return _raw.tf_embed_check_sparse(ids.indices, ids.values, ids.dense_shape, label)


def find_pooled(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    defaults: tf.Tensor,
    token: tf.Tensor | None,
    bags: Bags,
    weights: tf.Tensor | None,
    *,
    value_dtype: tf.DType,
    dim: int,
    combiner: str,
    padding: Padding | None,
    training: bool = False,
) -> tf.Tensor:
    """Looks up rows and pools the rows of each bag, without changing any row.

    Args:
        defaults: Rows of absent keys: [0] for the table's initializer, [dim] for one row for
            all, or keys.shape + [dim].
        token: The target of the gradient of the rows: the anchor's value, or in a graph a `token`
            of it. None means no gradient.
        weights: None, or the weight of each key, of `compute_dtype(value_dtype)`.
        value_dtype: The table's value dtype, which must be floating.
        combiner: "sum", "mean" or "sqrtn".
        padding: None, or a key that is ignored: its number in int64, or a string.
        training: Whether this counts as a use of the rows, if the table keeps statistics.

    Returns:
        A row for each bag, the shape of the bags + [dim], of `compute_dtype(value_dtype)`.
    """
    pooled, _ = _raw.tf_embed_find_pooled(
        table=handle,
        keys=keys,
        owners=owners,
        defaults=defaults,
        tokens=[] if token is None else [token],
        bags=list(bags),
        weights=[] if weights is None else [weights],
        pooled_dtype=compute_dtype(value_dtype),
        dim=dim,
        combiner=combiner,
        **padding_arguments(padding),
        training=training,
        # See `pooled_gradient`.
        found_dtypes=[] if weights is None else [compute_dtype(value_dtype)],
    )
    return pooled


def sum_by_key(
    keys: tf.Tensor,
    gradients: tf.Tensor,
    bags: Bags = (),
    weights: tf.Tensor | None = None,
    *,
    sum_dtype: tf.DType,
    combiner: str = "none",
    padding: Padding | None = None,
    handle: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums the gradients of equal keys, in position order.

    Args:
        keys: Any shape.
        gradients: keys.shape + [dim]. With a combiner, the gradients of the rows that
            `find_pooled` returned for the same further arguments.
        sum_dtype: Dtype of the sums. Its `compute_dtype`, in which the sums are computed, must
            equal the `compute_dtype` of the gradients.
        handle: The table whose device runs the op. None runs it on the host, which also works in
            a build without GPUs.

    Returns:
        The distinct keys [u] in order of first occurrence, the index of each key among them,
        keys.shape, int32, -1 for padding, and the sums [u, dim].
    """
    with _where(handle) as tables:
        return _raw.tf_embed_sum_by_key(
            keys=keys,
            gradients=gradients,
            bags=list(bags),
            weights=[] if weights is None else [weights],
            tables=tables,
            sum_dtype=sum_dtype,
            combiner=combiner,
            **padding_arguments(padding),
        )


def unique_keys(keys: tf.Tensor, handle: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the distinct keys.

    Args:
        handle: As in `sum_by_key`.

    Returns:
        The distinct keys [u] in order of first occurrence, and the index of each key among them,
        keys.shape, int32.
    """
    if substitutes.are_used():
        return stock_ops.unique_keys(keys)
    with _where(handle) as tables:
        return _raw.tf_embed_unique_keys(keys=keys, tables=tables)


@contextlib.contextmanager
def _where(handle: tf.Tensor | None) -> Iterator[list[tf.Tensor]]:
    """The `tables` input of an op that needs no table: it only places the op on a device."""
    if handle is not None:
        yield [handle]
    else:
        with tf.device("/CPU:0"):
            yield []


def padding_arguments(padding: Padding | None) -> dict[str, Any]:
    """The padding arguments of the ops."""
    if isinstance(padding, (str, bytes)):
        return {"padding": [], "padding_text": [padding]}
    return {"padding": [] if padding is None else [stock_ops.as_int64(padding)], "padding_text": []}


def compute_dtype(value_dtype: tf.DType) -> tf.DType:
    """The dtype in which rows of a dtype are summed: float64 for float64, otherwise float32."""
    return tf.float64 if value_dtype == tf.float64 else tf.float32
