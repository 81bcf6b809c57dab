# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the tables of a model while it is traced for stock TensorFlow.

A model that is exported without tables looks up by TensorFlow's ops alone. Its code is the same: a
lookup asks here for its table's stand-in, and ops without a table ask whether to use `stock_ops`,
made of TensorFlow's ops. Nothing stands in unless a thread is in `using`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from tf_embed.ops.function_graphs import innermost_graph, outermost_graph

# A part of messages.
INLINE = (
    "call tf.config.run_functions_eagerly(True) before the export, and "
    "tf.config.run_functions_eagerly(False) after it, so that its code is traced in place."
)


class StandIn(Protocol):
    """A lookup in place of a table's. It has the arguments of `Table`."""

    def find(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows, keys.shape + [dim], and whether each key has a row."""

    def find_pooled(self, keys: tf.Tensor, pooling: Any, defaults: tf.Tensor | None) -> tf.Tensor:
        """A row for each bag of a `Pooling`."""


# Per thread, because other threads still look up in the tables themselves.
class _Local(threading.local):
    stand_in_of: Callable[[Any], StandIn] | None = None


_local = _Local()


@contextlib.contextmanager
def using(stand_in_of: Callable[[Any], StandIn]) -> Iterator[None]:
    """Lets stand-ins answer the lookups of the block."""
    before, _local.stand_in_of = _local.stand_in_of, stand_in_of
    try:
        yield
    finally:
        _local.stand_in_of = before


def are_used() -> bool:
    """Whether this thread is in `using`.

    Raises:
        ValueError: If it is, and traces a tf.function within another tf.function.
    """
    if _local.stand_in_of is None:
        return False
    _check_graph()
    return True


def of(table: Any) -> StandIn | None:
    """Returns the stand-in of a table; None if it looks up itself.

    Raises:
        ValueError: See `are_used`.
    """
    stand_in_of = _local.stand_in_of
    if stand_in_of is None:
        return None
    _check_graph()
    return stand_in_of(table)


def _check_graph() -> None:
    """Checks that only the functions that are exported are being traced.

    An inner tf.function would keep its trace. The model would then call it, and look up in
    stand-ins that are gone. A trace that fails is not kept.
    """
    if tf.executing_eagerly():
        return
    graph = innermost_graph()
    if graph is not outermost_graph():
        raise ValueError(
            "`model` must not look up in a tf.function that it calls, which would keep the trace "
            f"of the export: {INLINE} Received: the tf.function {graph.name!r}"
        )
