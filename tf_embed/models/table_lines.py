# SPDX-License-Identifier: Apache-2.0
"""`print_tables`: the numbers of a model's tables, a line for each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
from absl import logging

from tf_embed import validation
from tf_embed.table.table import Table
from tf_embed.variable.anchor import tables_of
from tf_embed.variable.columns import columns
from tf_embed.variable.memory_report import size_text
from tf_embed.variable.table_text import size_of

_HEAD = ("Table", "Rows", "Dim", "Weights", "Memory", "Disk")


def print_tables(
    model: keras.layers.Layer, *, print_fn: Callable[[str], Any] | None = None
) -> None:
    """Prints a line for each table of a model. Call it after `model.summary()`.

    A line has the rows of the table as they are now, their weights, and the bytes that the table
    takes, optimizer slots and index included. Keras's `summary` counts these weights at the layer,
    but not in its totals, which it computes from the shapes of variables: a table has no fixed
    shape. The `summary` of a `tf_embed.Model` prints these lines by itself.

    If tables are sharded over workers, only the rows of this worker are counted.

    Args:
        model: A Keras model or layer.
        print_fn: Takes the text, a str of several lines. Default: None, the text is printed, or
            logged if `keras.config.disable_interactive_logging` was called.

    Raises:
        TypeError: If `model` is not a Keras model or layer.

    Example:
        >>> import keras, numpy as np, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(4, name="items")
        >>> model = keras.Sequential([keras.Input([2], dtype="int64"), layer])
        >>> layer.variable.upsert([5, 7], np.ones([2, 4]))
        >>> texts = []
        >>> tf_embed.print_tables(model, print_fn=texts.append)
        >>> texts[0].splitlines()[2].split()[:4]
        ['items', '2', '4', '8']
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(
            f"`model` must be a Keras model or layer. Received: model={validation.shown(model)}"
        )
    tables = tables_of(model)
    text = _text_of(tables) if tables else " No tables."
    if print_fn is not None:
        print_fn(text)
    elif keras.config.is_interactive_logging_enabled():
        print(text)
    else:  # as `summary` does
        logging.info(text)


def _text_of(tables: Iterable[Table]) -> str:
    """A line for each table, aligned."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for table in tables:
        size, dim = size_of([table]), table.options.dim
        memory, disk = size_text(size.memory), size_text(size.disk) if size.disk else ""
        numbers = f"{size.rows:,}", f"{dim:,}", f"{size.rows * dim:,}"
        lines.append((table.options.name, *numbers, memory, disk))
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    return "\n ".join([" Rows of tables, not in Keras's totals:", *columns(lines)])
