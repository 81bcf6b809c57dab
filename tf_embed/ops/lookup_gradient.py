# SPDX-License-Identifier: Apache-2.0
"""The gradient of a lookup.

For the anchor, the variable that stands for a table on a gradient tape, it is a tf.IndexedSlices of
the keys and the gradients of their rows. TensorFlow can't carry slices out of a loop or a condition
of a graph: it turns them into tensors of the anchor's shape, which has no rows. So a lookup in a
graph takes a *token*, made of the anchor's value outside of all loops and conditions. Within them,
the token's gradient is a variant that TensorFlow can add and zero, see cc/tf/row_gradients.h;
outside, it becomes slices again.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed.ops import gradient_ops

# Graphs of loops and conditions. TensorFlow has no public names for them, so tests check the names
# of their classes. In a loop of an unknown class, gradients are refused.
_CONTROL_FLOW = ("WhileBodyFuncGraph", "CondBranchFuncGraph")


def token_of(
    anchor: Any, key_dtype: tf.DType, rows: int = -1, dtype: tf.DType | None = None
) -> tf.Tensor:
    """Returns the token that a lookup takes so that its gradient reaches the anchor.

    Args:
        anchor: The tf.Variable [0, dim]. Its value is used, because a tape does not record its
            handle.
        key_dtype: Dtype of the table's keys.
        rows: Number of rows, for the shape of the gradient; -1 if the table has none.
        dtype: Dtype of the table's rows. Default: the anchor's.
    """

    def value() -> tf.Tensor:
        tensor = tf.convert_to_tensor(anchor)
        return tensor if dtype is None else tf.cast(tensor, dtype)

    if tf.executing_eagerly():
        return value()
    # The token must be made outside of all loops and conditions.
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _CONTROL_FLOW:
        graph = graph.outer_graph
    with graph.as_default():
        return gradient_ops.token(value(), key_dtype=key_dtype, rows=rows)


class RowSlices(tf.IndexedSlices):
    """Gradients of rows at their keys, which TensorFlow must not convert to a tensor.

    If slices cross the boundary of a tf.function or are added to others, TensorFlow turns them into
    plain tf.IndexedSlices. These have no dense form either: their dense_shape has -1 rows, which
    TensorFlow rejects. With 0 rows, as the anchor has, it would silently drop negative keys.
    """


def _row_slices(keys: tf.Tensor, values: tf.Tensor, dim: int, rows: int = -1) -> tf.IndexedSlices:
    """The gradient of a table, which has a dense form if the table has a fixed number of rows."""
    if rows >= 0:
        return tf.IndexedSlices(values, keys, tf.constant([rows, dim], tf.int64))
    if keys.dtype == tf.uint64:
        keys = tf.bitcast(keys, tf.int64)  # TensorFlow merges indices of int32 and int64 only
    elif keys.dtype == tf.uint32:
        keys = tf.cast(keys, tf.int64)
    # int32, as TensorFlow makes it for the branch of a tf.cond that looks nothing up.
    return RowSlices(values, keys, tf.constant([-1, dim], tf.int32))


@tf.RegisterGradient("TfEmbedFind")
def _find_gradient(op: tf.Operation, values_gradient: Any, exists_gradient: Any) -> list[Any]:
    """For the token, the gradients of the rows at their keys; for other inputs, none."""
    del exists_gradient
    # Without a token no gradient is wanted, as in `Variable.lookup`.
    if not op.get_attr("num_tokens"):
        return [None] * len(op.inputs)
    return _link_rows_gradient(op, values_gradient)


@tf.RegisterGradient("TfEmbedLinkRows")
def _link_rows_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """The same for an op whose last input is the token."""
    *others, token = op.inputs
    dim = op.get_attr("dim")
    # If an input of the forward op is returned unchanged, a tape outside the tf.function breaks.
    keys = tf.identity(tf.reshape(op.inputs[1], [-1]))
    values = tf.reshape(gradient, [-1, dim])
    return [None] * len(others) + [gradient_of_token(token, keys, values, dim)]


def gradient_of_token(
    token: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    dim: int,
    packed: bool = False,
    rows: int = -1,
) -> Any:
    """Returns the gradient of a lookup's token: slices, or in a loop a tensor that becomes slices.

    Args:
        token: The token of the lookup.
        keys: [n].
        values: The gradients of their rows, [n, dim].
        dim: Number of weights in a row.
        packed: See gradient_ops.row_gradients.
        rows: As in `token_of`.
    """
    if _is_of_this_graph(token):
        return _row_slices(keys, values, dim, rows)
    return gradient_ops.row_gradients(keys, values, packed)


@tf.RegisterGradient("TfEmbedToken")
def _token_gradient(op: tf.Operation, gradient: Any) -> Any:
    """For the anchor, the slices of a lookup, or the slices that a loop has added up."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient
    dim = op.get_attr("dim")
    keys, values = gradient_ops.unpack_row_gradients(
        gradient,
        key_dtype=op.get_attr("key_dtype"),
        value_dtype=op.get_attr("value_dtype"),
        dim=dim,
    )
    return _row_slices(keys, values, dim, op.get_attr("rows"))


@tf.RegisterGradient("TfEmbedRowGradients")
@tf.RegisterGradient("TfEmbedUnpackRowGradients")
def _second_gradient(op: tf.Operation, *gradients: Any) -> None:
    raise ValueError(
        "The gradient of a gradient of a dynamic embedding can't pass a loop or a condition of a "
        "graph, such as tf.while_loop, tf.map_fn or tf.cond, with both tapes outside. Look up the "
        "ids before it (a lookup takes ids of any rank). Received: the gradient of "
        f"{op.type}"
    )


def is_skipped(op: tf.Operation, index: int) -> bool:
    """Whether a tape does not need the gradient of an input.

    TensorFlow's own gradient functions read the same attribute. Without it, all may be needed.
    """
    return index in (getattr(op, "skip_input_indices", None) or ())


def _is_of_this_graph(token: tf.Tensor) -> bool:
    """Whether the gradient of a token needs to cross no loop or condition.

    True in eager execution, for a token made in the graph of the lookup, and if the tape is in the
    same loop as the lookup.
    """
    # Eager tensors have no graph.
    if not hasattr(token, "graph"):
        return True
    return token.op.type == "TfEmbedToken" or token.graph is tf.compat.v1.get_default_graph()


def _refuse_dense(
    slices: RowSlices, dtype: Any = None, name: Any = None, as_ref: Any = False
) -> Any:
    """Converts to a tensor, for tf.convert_to_tensor."""
    del dtype, name, as_ref
    raise TypeError(
        "The gradient of a dynamic embedding can't be made a tensor: it is a tf.IndexedSlices of "
        "keys and rows, and a table has no number of rows that a tensor could have. Work on its "
        "`values`; for a jacobian, watch the rows that a lookup gave and differentiate by them; "
        "look up outside of tf.recompute_grad, keras.remat and a tf.function that a loop calls. "
        f"Received: {slices}"
    )


# Before TensorFlow's own conversion of slices, which has the priority 100.
tf.register_tensor_conversion_function(RowSlices, _refuse_dense, priority=50)
