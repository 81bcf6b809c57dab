# SPDX-License-Identifier: Apache-2.0
"""Lookups that take part in gradients."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import (
    lookup_gradient,
    pooled_gradient,  # noqa: F401  registers gradients
    substitutes,
    table_ops,
)
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.variable import Variable

# What lookups take: a variable, or an anchor of its table, in a list of one or alone.
Params: TypeAlias = Any

# Rows are multiplied with it, and their squares summed, in float32.
MAX_NORM = 1e19


def embedding_lookup(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """Looks up rows, differentiably.

    The gradient of `params.trainable_variables` is a tf.IndexedSlices: its indices are the ids
    (int64 of the same bits for uint64 ids, int64 for uint32), its values the gradients of their
    rows. An optimizer that knows dynamic tables, `tf_embed.DynamicEmbeddingOptimizer`, takes it
    from there. Ids may repeat, and one variable may be looked up many times in a step: gradients of
    equal ids are summed.

    A lookup may stand in the loops, maps and conditions of TensorFlow and Keras, in a tf.function,
    or in a tf.data pipeline; the tape may be inside or outside.

    The gradient has no dense form, for a table has no number of rows, so what makes a tensor of it
    is refused: dense ops such as tf.norm (take them of its `values`), tape.jacobian (take it with
    respect to the rows), tf.recompute_grad, keras.remat, and a tf.function that a loop of a graph
    calls, where it does the lookup and the tape is outside. Where TensorFlow added up or carried
    the slices before, it is TensorFlow that refuses: "num_segments == -1".

    Args:
        params: The variable; or its anchor or a `tf_embed.tfra.shadow_ops.ShadowVariable` of it, to
            which the gradient goes then; or a list of one of these.
        ids: Integers, or strings, of any shape.
        partition_strategy: Accepted for the sake of old code. The variable's partitioner decides.
        name: Name of the operation, and nothing more: a variable has one anchor, whatever its
            lookups are called.
        validate_indices: Accepted for the sake of old code. Every id is valid.
        max_norm: None, or the L2 norm to which longer rows are scaled down, as
            tf.nn.embedding_lookup does: in the result, and differentiably. Stored rows stay. Above
            0 and at most 1e19.
        return_trainable: Whether to give also what to take gradients of.
        training: Whether this is a use of the rows, where a policy counts them; a step of an
            optimizer on them is one anyway.

    Returns:
        Rows, ids.shape + [dim]. Ids that have no row get their initial row; nothing is inserted.
        With `return_trainable` a pair, of these and of the variable's anchor, or of the
        ShadowVariable.

    Raises:
        TypeError: `params` is no variable, `ids` are of a wrong dtype, `training` is a tensor, or
            `max_norm` is no number or is for rows that are not floating.
        ValueError: `max_norm` is out of range, or there are several `params`.

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
    del partition_strategy, validate_indices
    table, anchor = table_and_anchor(params)
    with validation.name_scope(name, "embedding_lookup"):
        keys = _keys(table, ids)
        token = token_of(table, anchor)
        rows = clipped(table.rows(keys, token=token, training=training), max_norm)
    return (rows, anchor) if validation.flag(return_trainable, "return_trainable") else rows


def embedding_lookup_unique(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """Looks up rows, those of equal ids once. Gives what `embedding_lookup` gives.

    Which of the two is faster depends on how much ids repeat. `embedding_lookup` needs no distinct
    ids: the table brings the gradients of equal ones together itself. Where what follows can go on
    with distinct rows, `unique_rows` saves the most.

    Args:
        params: As in `embedding_lookup`, and so are all others.

    Returns:
        As `embedding_lookup`.

    Raises:
        TypeError, ValueError: As `embedding_lookup`.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> tf_embed.embedding_lookup_unique(v, [[7, 7], [8, 7]])[..., 0].numpy().tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    del partition_strategy, validate_indices
    _, anchor = table_and_anchor(params)
    with validation.name_scope(name, "embedding_lookup_unique"):
        distinct, inverse = unique_rows(params, ids, training=training)
        rows = tf.gather(clipped(distinct, max_norm), inverse)
    return (rows, anchor) if validation.flag(return_trainable, "return_trainable") else rows


def unique_rows(
    params: Params, ids: Any, name: str | None = None, training: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up the row of each distinct id once, differentiably.

    `tf.gather(rows, inverse)` is what `embedding_lookup` gives. Where ids repeat much, as popular
    items do, this is less memory and less work for whatever can go on with distinct rows: a
    projection of the rows, attention over them, a sampled softmax, or rows sent elsewhere. The
    gradient is that of `embedding_lookup`, with distinct ids as its indices.

    Args:
        params: As in `embedding_lookup`.
        ids: Integers, or strings, of any shape.
        name: Name of the operation.
        training: As in `embedding_lookup`.

    Returns:
        rows: [u, dim], those of the distinct ids in the order in which they first come. Ids that
            have no row get their initial row; nothing is inserted.
        inverse: int32, ids.shape; which of the rows belongs to each id.

    Raises:
        TypeError: `params` is no variable, `ids` are of a wrong dtype, or `training` is a tensor.

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
    table, anchor = table_and_anchor(params)
    with validation.name_scope(name, "unique_rows"):
        keys = _keys(table, ids)
        distinct, inverse = table_ops.unique_keys(keys, table.resource_handle)
        token = token_of(table, anchor)
        return table.rows(distinct, token=token, training=training), inverse


def table_and_anchor(params: Params, argument: str = "params") -> tuple[Table, Anchor | None]:
    """The table that is looked up in, and what the gradient of that goes to.

    Raises:
        TypeError: There is no variable.
        ValueError: There are several.
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
    return validation.tensor_of(ids, table.options.key_dtype, "ids", table.options.name)


def norm_of(max_norm: Any) -> Any:
    """The argument `max_norm`: None, a Python number, or a scalar tensor of numbers.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of range, or a tensor with axes.
    """
    if max_norm is None:
        return None
    if not tf.is_tensor(max_norm):
        return validation.positive_number(max_norm, "max_norm", most=MAX_NORM)
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


def clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Rows of an L2 norm of at most `max_norm`, in the dtype that they have.

    Raises:
        TypeError: It is no number, or the rows are none of floating numbers.
        ValueError: It is out of range, or a tensor with axes.
    """
    if max_norm is None:
        return rows
    if not rows.dtype.is_floating:
        raise TypeError(
            "`max_norm` must be None where rows are not floating. Received: "
            f"max_norm={validation.shown(max_norm)} for rows of dtype {rows.dtype.name}"
        )
    max_norm = norm_of(max_norm)
    # In float16 the square of 256 is infinite, and a row that is divided by such a norm is zeros.
    dtype = table_ops.compute_dtype(rows.dtype)
    short = tf.clip_by_norm(tf.cast(rows, dtype), tf.cast(max_norm, dtype), axes=[-1])
    return tf.cast(short, rows.dtype)


def token_of(table: Table, anchor: Anchor | None) -> tf.Tensor | None:
    """What a lookup takes so that a tape sees it; None where nothing can be trained."""
    # A frozen table's too: the step that is traced now may run when it is frozen no longer.
    if anchor is None or not anchor.is_on_tapes or substitutes.are_used():
        return None
    options = table.options
    return lookup_gradient.token_of(anchor.value, options.key_dtype, dtype=options.value_dtype)


def gradient_token(variable: Variable) -> tf.Tensor | None:
    """The token of a lookup whose gradient goes to the variable's own anchor."""
    return token_of(variable.table, variable.anchor)
