# SPDX-License-Identifier: Apache-2.0
"""The tables of variables, layers and models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import keras

from tf_embed import validation
from tf_embed.table.table import Table
from tf_embed.variable.anchor import tables_of
from tf_embed.variable.variable import Variable

Source: TypeAlias = "Variable | keras.layers.Layer"


def sources_of(tables: Any, argument: str = "tables") -> list[Source]:
    """Returns an argument with one or several sources of tables as a list.

    Raises:
        TypeError: If an item is neither a Variable nor a layer.
    """
    kinds = (Variable, keras.layers.Layer)
    items = [tables] if isinstance(tables, kinds) else validation.items_of(tables, argument)
    for item in items:
        if not isinstance(item, kinds):
            raise TypeError(
                f"`{argument}` must be tf_embed.Variables or layers. Received: {argument}="
                f"{validation.shown(tables)}"
            )
    return items


def chosen_sources(given: Any, argument: str) -> list[Source] | None:
    """Returns an optional argument with sources of tables as a list, or None if it is None.

    Raises:
        TypeError: If an item is neither a Variable nor a layer.
        ValueError: If the list is empty.
    """
    if given is None:
        return None
    if sources := sources_of(given, argument):
        return sources
    raise ValueError(
        f"`{argument}` must have a Variable or a layer. Received: {argument}="
        f"{validation.shown(given)}"
    )


def tables_in(sources: Iterable[Source]) -> list[Table]:
    """Returns the tables of variables and of layers' weights, without duplicates."""
    found: dict[int, Table] = {}
    for source in sources:
        tables = [source.table] if isinstance(source, Variable) else tables_of(source)
        found.update((id(table), table) for table in tables)
    return list(found.values())
