# SPDX-License-Identifier: Apache-2.0
"""The options of tables and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_embed import validation
from tf_embed.one_embedding.initializers import WeightInitializer, make_normal_initializer

# The initializer of a layer that has neither tables nor an initializer.
DEFAULT_INITIALIZER = make_normal_initializer(mean=0.0, std=0.05)


def make_column_options(initializer: dict[str, Any]) -> dict[str, Any]:
    """Makes the options of a column, a part of each row of a table.

    Args:
        initializer: The dict of an initializer, such as `make_normal_initializer` returns.

    Returns:
        A dict for the list that `make_table_options` takes.

    Raises:
        ValueError: If `initializer` is not such a dict.

    Example:
        >>> from tf_embed import one_embedding
        >>> one_embedding.make_column_options(one_embedding.make_constant_initializer(1.0))
        {'initializer': {'type': 'constant', 'value': 1.0}}
    """
    WeightInitializer.of(initializer, "initializer")
    return {"initializer": initializer}


def make_table_options(param: dict[str, Any] | list[dict[str, Any]]) -> dict[str, Any]:
    """Makes the options of a table.

    Args:
        param: The dict of the initializer of the whole row, or a list with the dict of
            `make_column_options` for each column.

    Returns:
        A dict for the argument `tables` of the layers.

    Raises:
        ValueError: If `param` is neither, or the list is empty.

    Example:
        >>> from tf_embed import one_embedding
        >>> ones = one_embedding.make_constant_initializer(1.0)
        >>> one_embedding.make_table_options(ones)
        {'initializer': {'type': 'constant', 'value': 1.0}}
        >>> table = one_embedding.make_table([one_embedding.make_column_options(ones)] * 2)
        >>> len(table["columns"])
        2
    """
    if isinstance(param, dict):
        WeightInitializer.of(param, "param")
        return {"initializer": param}
    if isinstance(param, list) and param:
        for number, column in enumerate(param):
            _initializer_in(column, f"param[{number}]")
        return {"columns": list(param)}
    raise ValueError(
        "`param` must be a dict, the initializer of the rows, or a list of what "
        f"make_column_options gives. Received: param={validation.shown(param)}"
    )


make_table = make_table_options


def initializers_of(
    tables: Sequence[Any] | None, default_initializer: Any, num_columns: int
) -> list[list[WeightInitializer]]:
    """The initializers of the columns of each table.

    Args:
        tables: The user's argument: None, or a list of dicts of `make_table_options`.
        default_initializer: The user's argument, for `tables=None`.

    Raises:
        TypeError: If `tables` is not a list.
        ValueError: If a table is not such a dict, or has a wrong number of columns.
    """
    if tables is None:
        given = DEFAULT_INITIALIZER if default_initializer is None else default_initializer
        return [[WeightInitializer.of(given, "default_initializer")] * num_columns]
    if default_initializer is not None:
        WeightInitializer.of(default_initializer, "default_initializer")
    given = validation.items_of(tables, "tables")
    if not given:
        raise ValueError("`tables` must have at least one table. Received: tables=[]")
    return [_columns_of(table, f"tables[{i}]", num_columns) for i, table in enumerate(given)]


def _columns_of(table: Any, argument: str, num_columns: int) -> list[WeightInitializer]:
    """The initializers of a table's columns. One for the whole row applies to each column."""
    if not isinstance(table, dict) or set(table) not in ({"initializer"}, {"columns"}):
        raise ValueError(
            f"`{argument}` must be what make_table_options gives. Received: "
            f"{argument}={validation.shown(table)}"
        )
    if "initializer" in table:
        return [_initializer_in(table, argument)] * num_columns
    columns = table["columns"]
    if not isinstance(columns, (list, tuple)) or len(columns) != num_columns:
        raise ValueError(
            f"`{argument}` must have options for each of {num_columns} columns. Received: "
            f"{argument}={validation.shown(table)}"
        )
    return [_initializer_in(one, f"{argument}['columns'][{i}]") for i, one in enumerate(columns)]


def _initializer_in(options: Any, argument: str) -> WeightInitializer:
    if not isinstance(options, dict) or set(options) != {"initializer"}:
        raise ValueError(
            f"`{argument}` must be what make_column_options gives. Received: "
            f"{argument}={validation.shown(options)}"
        )
    return WeightInitializer.of(options["initializer"], argument)
