# SPDX-License-Identifier: Apache-2.0
"""SOK's functions on tables.

A table is a `Variable`, a layer with a `Variable`, or the trainable variable of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.layers.table_layer import TableLayer
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.lookup import table_and_anchor
from tf_embed.variable.row_arguments import RowArguments
from tf_embed.variable.sparse_lookup import embedding_lookup_sparse
from tf_embed.variable.variable import Variable


def table_of(var: Any, argument: str) -> Table:
    """The table of a Variable, of a layer, or of the trainable variable of either.

    Raises:
        TypeError: If `var` has no table.
    """
    return table_and_anchor(_variable_of(var), argument)[0]


def _variable_of(var: Any) -> Any:
    return var.variable if isinstance(var, TableLayer) else var


def Init(global_batch_size: int) -> None:  # noqa: N802 - SOK's name
    """Checks the global batch size. There is nothing to initialize.

    Args:
        global_batch_size: Number of samples in a step, over all replicas.

    Raises:
        TypeError: If it is not an int.
        ValueError: If it is not positive, or not a multiple of the number of replicas.

    Example:
        >>> from tf_embed import sok
        >>> sok.Init(global_batch_size=1024)
    """
    size = validation.int_in(global_batch_size, "global_batch_size")
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if size % replicas:
        raise ValueError(
            f"`global_batch_size` must be a multiple of the number of replicas, {replicas}. "
            f"Received: global_batch_size={size}"
        )


def lookup_sparse(
    params: Any, sp_ids: Any, sp_weights: Any = None, combiners: Any = None
) -> tf.Tensor | list[tf.Tensor]:
    """Looks up the rows of sparse ids in one or several tables and pools them, differentiably.

    Each table is looked up separately.

    Args:
        params: A table, or a list of tables.
        sp_ids: A tf.SparseTensor or tf.RaggedTensor [batch, ...]; for a list of tables, a list of
            these.
        sp_weights: None, or the weights of the ids, in the container of `sp_ids`; for a list, a
            list of these.
        combiners: "sum", "mean" or "sqrtn"; for a list, a list of these. Default: None, "mean".

    Returns:
        [batch, dim]; for a list of tables, a list.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If lists have different lengths, or a combiner is unknown.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> from tf_embed import sok
        >>> users = tf_embed.Variable(dim=1, initializer=2.0, name="users")
        >>> ids = tf.sparse.SparseTensor([[0, 0], [0, 1]], tf.constant([5, 6], tf.int64), [1, 2])
        >>> sok.lookup_sparse([users, users], [ids, ids], combiners=["sum", "mean"])[0].numpy()
        array([[4.]], dtype=float32)
    """
    if not isinstance(params, (list, tuple)):
        combiner = "mean" if combiners is None else combiners
        return embedding_lookup_sparse(_variable_of(params), sp_ids, sp_weights, combiner=combiner)
    count = len(params)
    ids = _list_of(sp_ids, "sp_ids", count)
    weights = [None] * count if sp_weights is None else _list_of(sp_weights, "sp_weights", count)
    names = ["mean"] * count if combiners is None else _list_of(combiners, "combiners", count)
    return [
        embedding_lookup_sparse(_variable_of(one), some_ids, some_weights, combiner=combiner)
        for one, some_ids, some_weights, combiner in zip(params, ids, weights, names, strict=True)
    ]


def _list_of(value: Any, argument: str, count: int) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise ValueError(
            f"`{argument}` must be a list of {count}, one for each of `params`. Received: "
            f"{argument}={validation.shown(value)}"
        )
    return list(value)


def filter_variables(variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Separates tables from other variables.

    Args:
        variables: A list of variables, such as `model.trainable_variables`.

    Returns:
        The variables that are tables, or stand for a table, and the other variables, in order.

    Raises:
        TypeError: If `variables` is not a list or a tuple of variables.

    Example:
        >>> import keras, tf_embed
        >>> from tf_embed import sok
        >>> table, bias = tf_embed.Variable(dim=1), keras.Variable([0.0])
        >>> tables, others = sok.filter_variables([bias, table])
        >>> tables[0] is table, others[0] is bias
        (True, True)
    """
    variables = validation.items_of(variables, "variables")
    for var in variables:
        if not isinstance(var, (Variable, keras.Variable, tf.Variable)):
            raise TypeError(
                "`variables` must be variables of Keras, TensorFlow or tf_embed. Received: "
                f"{validation.shown(var)}"
            )
    tables = [isinstance(var, (Anchor, Variable)) for var in variables]
    return (
        [var for var, is_table in zip(variables, tables, strict=True) if is_table],
        [var for var, is_table in zip(variables, tables, strict=True) if not is_table],
    )


def export(var: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Copies the keys and rows of a table on this worker, in no particular order.

    Args:
        var: A table.

    Returns:
        Keys [n] and rows [n, dim].

    Raises:
        TypeError: If `var` is not a table.

    Example:
        >>> import tf_embed
        >>> from tf_embed import sok
        >>> v = tf_embed.Variable(dim=1)
        >>> sok.assign(v, [5], [[0.5]])
        >>> keys, rows = sok.export(v)
        >>> keys.numpy().tolist(), rows.numpy().tolist()
        ([5], [[0.5]])
    """
    exported = table_of(var, "var").export(with_slots=False, with_policy=False)
    return exported.keys, exported.values


def assign(var: Any, indices: Any, values: Any) -> tf.Operation | None:
    """Writes rows. If the table is sharded, all workers must call it, each with any rows.

    Args:
        var: A table.
        indices: Keys [n].
        values: Rows [n, dim].

    Returns:
        The operation in a graph, None in eager execution.

    Raises:
        TypeError: If `var` is not a table, or a dtype differs from the table's.
        ValueError: If the shapes do not match.

    Example:
        >>> import tf_embed
        >>> from tf_embed import sok
        >>> v = tf_embed.Variable(dim=1)
        >>> sok.assign(v, [5, 6], [[0.5], [1.5]])
        >>> v.lookup([6]).numpy().tolist()
        [[1.5]]
    """
    table = table_of(var, "var")
    arguments = RowArguments(table.options)
    keys = arguments.keys(indices)
    return table.insert_or_assign(keys, arguments.rows(keys, values, "values"))
