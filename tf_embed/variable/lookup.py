# SPDX-License-Identifier: Apache-2.0
"""Differentiable lookups."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import (
    pooled_gradient,  # noqa: F401  registers gradients
    pooling_ops,
    substitutes,
)
from tf_embed.table.lookups import Lookup
from tf_embed.table.table import Table
from tf_embed.variable import anchor_tokens
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.variable import Variable

# The argument of lookups: a variable, or an anchor of its table, or a list with one of them.
Params: TypeAlias = Any

# Its square must be finite in float32, in which rows are scaled and their squares summed.
MAX_NORM = 1e19


def embedding_lookup(
    params: Params,
    ids: Any,
    *,
    name: str | None = None,
    max_norm: float | None = None,
    training: bool = False,
) -> tf.Tensor:
    """Looks up rows, differentiably.

    The gradient of `params.trainable_variables` is a tf.IndexedSlices. Its indices are the ids
    (int64 of the same bits for uint64 ids, int64 for uint32), and its values are the gradients of
    their rows. `tf_embed.DynamicEmbeddingOptimizer` applies it to the table. Ids may repeat, and a
    step may look up one variable many times; the gradients of equal ids are summed.

    A lookup works in loops, maps and conditions of TensorFlow and Keras, in a tf.function, and in a
    tf.data pipeline. The tape may be inside or outside of them.

    The gradient has no dense form, because a table has no fixed number of rows. So code that
    densifies it raises an error:

    - dense ops such as tf.norm; apply them to the `values` of the gradient;
    - tape.jacobian; take it with respect to the rows;
    - tf.recompute_grad and keras.remat;
    - a tf.function that does the lookup and is called by a loop of a graph, with the tape outside.

    If TensorFlow has added up or moved the slices before, the error is TensorFlow's own:
    "num_segments == -1".

    Args:
        params: The variable, or a list of it. It may also be the variable's anchor, or another
            anchor of its table, which then receives the gradient.
        ids: Integers, or strings, of any shape. A tensor is cast to the key dtype if the key dtype
            has all numbers of the tensor's dtype.
        name: Name of the operation. It does not select an anchor, because a variable has a single
            anchor for all its lookups.
        max_norm: None, or the L2 norm to which longer rows are scaled down, differentiably, as in
            tf.nn.embedding_lookup. Stored rows do not change. Above 0 and at most 1e19. None takes
            the `max_norm` of an anchor in `params`.
        training: Whether this counts as a use of the rows, if a policy keeps statistics. A step of
            an optimizer always counts as a use.

    Returns:
        Rows, ids.shape + [dim]. Ids without a row yield their initial row, and are not inserted.

    Raises:
        TypeError: If `params` is not a variable, `ids` have a wrong dtype, `training` is a tensor,
            `max_norm` is not a number, or `max_norm` is given for rows that are not floating.
        ValueError: If `max_norm` is out of range, or there are several `params`.

    Example:
        >>> import keras, tf_embed
        >>> v = tf_embed.Variable(dim=2)
        >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        >>> with tf.GradientTape() as tape:
        ...     rows = tf_embed.embedding_lookup(v, [5, 6, 5])
        ...     loss = tf.reduce_sum(rows)
        >>> gradients = tape.gradient(loss, v.trainable_variables)
        >>> optimizer.apply(gradients, v.trainable_variables)
        >>> v.lookup([5, 6]).numpy().tolist()
        [[-2.0, -2.0], [-1.0, -1.0]]
    """
    table, anchor = table_and_anchor(params)
    with validation.name_scope(name, "embedding_lookup"):
        keys = _keys(table, ids)
        token = token_of(table, anchor)
        max_norm = norm_of_lookup(params, max_norm)
        rows = table.look_up(Lookup(table, keys, training, token=token))
        return clipped(rows, max_norm)


def embedding_lookup_unique(
    params: Params,
    ids: Any,
    *,
    name: str | None = None,
    max_norm: float | None = None,
    training: bool = False,
) -> tf.Tensor:
    """The same as `embedding_lookup`, but looks up equal ids only once.

    The faster of the two depends on how often ids repeat. `embedding_lookup` does not need distinct
    ids, because the table sums the gradients of equal ids itself. If the next layer can work on
    distinct rows, `unique_rows` saves the most.

    Args:
        params: As in `embedding_lookup`, and so are all others.

    Returns:
        As in `embedding_lookup`.

    Raises:
        TypeError, ValueError: As in `embedding_lookup`.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> tf_embed.embedding_lookup_unique(v, [[7, 7], [8, 7]])[..., 0].numpy().tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    with validation.name_scope(name, "embedding_lookup_unique"):
        distinct, inverse = _unique(params, ids, training)
        # Clipped before the gather, so that each distinct row is scaled once.
        return _row_of_each(clipped(distinct, norm_of_lookup(params, max_norm)), inverse)


def unique_rows(
    params: Params, ids: Any, name: str | None = None, training: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up the row of each distinct id once, differentiably.

    `tf.gather(rows, inverse)` equals the result of `embedding_lookup`. If ids repeat often, as
    popular items do, this saves memory and work in the layers that can use distinct rows: a
    projection of the rows, attention over them, or a sampled softmax. The gradient equals the
    gradient of `embedding_lookup`, with distinct ids as its indices. It has the dtype of the rows,
    and so do the sums that `tf.gather` makes. For narrow rows these sums lose more precision than
    the table's sums in float32.

    Args:
        params: As in `embedding_lookup`.
        ids: Integers, or strings, of any shape.
        name: Name of the operation.
        training: As in `embedding_lookup`.

    Returns:
        rows: [u, dim], the rows of the distinct ids in order of first occurrence. Ids without a row
            yield their initial row, and are not inserted. The `max_norm` of an anchor in
            `params` applies.
        inverse: int32, ids.shape; the index in `rows` of each id.

    Raises:
        TypeError: If `params` is not a variable, `ids` have a wrong dtype, or `training` is a
            tensor.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> v = tf_embed.Variable(dim=2)
        >>> v.upsert([5, 6], [[1.0, 2.0], [3.0, 4.0]])
        >>> rows, inverse = tf_embed.unique_rows(v, [[6, 5], [6, 6]])
        >>> rows.numpy().tolist()
        [[3.0, 4.0], [1.0, 2.0]]
        >>> inverse.numpy().tolist()
        [[0, 1], [0, 0]]
        >>> projected = tf.gather(tf.matmul(rows, [[1.0], [1.0]]), inverse)  # 2 products, not 4
        >>> projected.numpy().tolist()
        [[[7.0], [3.0]], [[7.0], [7.0]]]
    """
    with validation.name_scope(name, "unique_rows"):
        distinct, inverse = _unique(params, ids, training)
        return clipped(distinct, norm_of_lookup(params, None)), inverse


def _row_of_each(rows: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """`tf.gather(rows, inverse)`, whose gradient is summed in float32, as the table sums."""
    if rows.dtype.size >= tf.float32.size or not rows.dtype.is_floating:
        return tf.gather(rows, inverse)

    @tf.custom_gradient
    def gather(rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            each = tf.reshape(tf.cast(upstream, tf.float32), [-1, tf.shape(rows)[1]])
            sums = tf.math.unsorted_segment_sum(each, tf.reshape(inverse, [-1]), tf.shape(rows)[0])
            return tf.cast(sums, rows.dtype)

        return tf.gather(rows, inverse), gradient

    return gather(rows)


def _unique(params: Params, ids: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of distinct ids, not yet clipped, and the index in them of each id."""
    table, anchor = table_and_anchor(params)
    keys = _keys(table, ids)
    distinct, inverse = pooling_ops.unique_keys(keys, table.handle_for_keys)
    lookup = Lookup(table, distinct, training, token=token_of(table, anchor))
    return table.look_up(lookup), inverse


def table_and_anchor(params: Params, argument: str = "params") -> tuple[Table, Anchor | None]:
    """The table of a lookup, and the anchor that receives the gradient.

    Raises:
        TypeError: If `params` is not a variable.
        ValueError: If there are several variables.
    """
    if isinstance(params, (list, tuple)):
        if len(params) != 1:
            raise ValueError(
                f"`{argument}` must be one tf_embed.Variable. Received: {len(params)} of them"
            )
        (params,) = params
    if isinstance(params, Anchor):
        return params.table, params
    if not isinstance(params, Variable):
        raise TypeError(
            f"`{argument}` must be a tf_embed.Variable. Received: {argument}="
            f"{validation.shown(params)}"
        )
    return params.table, params.anchor


def _keys(table: Table, ids: Any) -> tf.Tensor:
    return validation.keys_of(ids, table.options.key_dtype, "ids", table.options.name)


def norm_of(max_norm: Any) -> Any:
    """The argument `max_norm`: None, a Python number, or a scalar tensor of numbers.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is out of range, or a tensor of rank above 0.
    """
    if max_norm is None:
        return None
    if not tf.is_tensor(max_norm):
        return validation.positive_number(max_norm, "max_norm", most=MAX_NORM)
    # tf.is_tensor is also true of sparse and ragged tensors.
    dense = isinstance(max_norm, (tf.Tensor, tf.Variable))
    if not dense or not (max_norm.dtype.is_floating or max_norm.dtype.is_integer):
        raise TypeError(
            f"`max_norm` must be a number. Received: max_norm={validation.shown(max_norm)}"
        )
    if not max_norm.shape.is_compatible_with([]):
        raise ValueError(
            f"`max_norm` must be one number. Received: max_norm of shape {max_norm.shape}"
        )
    return max_norm


def norm_of_lookup(params: Params, max_norm: Any) -> Any:
    """The argument `max_norm` of a lookup. If None, the `max_norm` of an anchor in `params`."""
    if max_norm is not None:
        return max_norm
    (params,) = params if isinstance(params, (list, tuple)) else (params,)
    return params.max_norm if isinstance(params, Anchor) else None


def clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Rows, scaled down to an L2 norm of at most `max_norm`, in their own dtype.

    Raises:
        TypeError: If `max_norm` is not a number, or the rows are not floating.
        ValueError: If `max_norm` is out of range, or a tensor of rank above 0.
    """
    if max_norm is None:
        return rows
    if not rows.dtype.is_floating:
        raise TypeError(
            "`max_norm` must be None where rows are not floating. Received: "
            f"max_norm={validation.shown(max_norm)} for rows of dtype {rows.dtype.name}"
        )
    max_norm = norm_of(max_norm)
    # In float16 the square of 256 is infinite, and a row divided by an infinite norm is zeros.
    dtype = pooling_ops.compute_dtype(rows.dtype)
    short = tf.clip_by_norm(tf.cast(rows, dtype), tf.cast(max_norm, dtype), axes=[-1])
    return tf.cast(short, rows.dtype)


def token_of(table: Table, anchor: Anchor | None) -> tf.Tensor | None:
    """The token that makes a tape record a lookup; None if the table can't be trained."""
    # A frozen table has a token too, because a step that is traced now may run after it is
    # unfrozen.
    if anchor is None or not anchor.is_on_tapes or substitutes.are_used():
        return None
    options = table.options
    return anchor_tokens.token_of(anchor, options.key_dtype, dtype=options.value_dtype)


def gradient_token(variable: Variable) -> tf.Tensor | None:
    """The token of a lookup whose gradient goes to the variable's own anchor."""
    return token_of(variable.table, variable.anchor)
