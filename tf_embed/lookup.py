"""Lookups that take part in gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import (
    arguments,
    lookup_gradient,
    ops,
    pooled_gradient,  # noqa: F401  registers gradients
)
from tf_embed.variable import Variable


def embedding_lookup(
    params: Variable, ids: Any, name: str | None = None, training: bool = False
) -> tf.Tensor:
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
        params: The variable.
        ids: Integers, or strings, of any shape.
        name: Name of the operation.
        training: Whether this is a use of the rows, where a policy counts them; a step of an
            optimizer on them is one anyway.

    Returns:
        Rows, ids.shape + [dim]. Ids that have no row get their initial row; nothing is inserted.

    Raises:
        TypeError: `params` is no variable, or `ids` are of a wrong dtype.

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
    with arguments.scope(name, "embedding_lookup"):
        keys = _keys(params, ids)
        rows, _ = params.table.find(keys, token=gradient_token(params), training=training)
        return rows


def unique_rows(
    params: Variable, ids: Any, name: str | None = None, training: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up the row of each distinct id once, differentiably.

    `tf.gather(rows, inverse)` is what `embedding_lookup` gives. Where ids repeat much, as popular
    items do, this is less memory and less work for whatever can go on with distinct rows: a
    projection of the rows, attention over them, a sampled softmax, or rows sent elsewhere. The
    gradient is that of `embedding_lookup`, with distinct ids as its indices.

    Args:
        params: The variable.
        ids: Integers, or strings, of any shape.
        name: Name of the operation.
        training: As in `embedding_lookup`.

    Returns:
        rows: [u, dim], those of the distinct ids in the order in which they first come. Ids that
            have no row get their initial row; nothing is inserted.
        inverse: int32, ids.shape; which of the rows belongs to each id.

    Raises:
        TypeError: `params` is no variable, or `ids` are of a wrong dtype.

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
    with arguments.scope(name, "unique_rows"):
        distinct, inverse = ops.unique_keys(_keys(params, ids))
        rows, _ = params.table.find(distinct, token=gradient_token(params), training=training)
        return rows, inverse


def _keys(params: Variable, ids: Any) -> tf.Tensor:
    if not isinstance(params, Variable):
        raise TypeError(f"`params` must be a tf_embed.Variable. Received: params={params!r}")
    return arguments.tensor_of(ids, params.key_dtype, "ids", params.name)


def gradient_token(variable: Variable) -> tf.Tensor | None:
    """What a lookup takes so that a tape sees it; None where nothing can be trained."""
    # A frozen table's too: the step that is traced now may run when it is frozen no longer.
    if variable.anchor is None:
        return None
    return lookup_gradient.token_of(variable.anchor.value, variable.key_dtype)
