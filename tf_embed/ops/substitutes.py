# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the tables of a model while it is traced for stock TensorFlow.

A model that is exported without tables looks up by TensorFlow's ops alone. Its code is the same: a
lookup asks here for its table's stand-in, and the ops that have no table ask whether they are to be
made of TensorFlow's, `stock_ops`. Nothing stands in unless a thread is in `using`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf


class StandIn(Protocol):
    """A lookup in place of a table's. Arguments are those of `Table`."""

    def find(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows, keys.shape + [dim], and whether each key has one."""

    def find_pooled(
        self,
        keys: tf.Tensor,
        bags: tuple[tf.Tensor, ...],
        weights: tf.Tensor | None,
        combiner: str,
        padding: int | str | bytes | None,
        defaults: tf.Tensor | None,
    ) -> tf.Tensor:
        """A row for each bag."""


# Of a thread, because others go on looking up in the tables themselves.
class _OfThread(threading.local):
    stand_in_of: Callable[[Any], StandIn] | None = None


_of_thread = _OfThread()


@contextlib.contextmanager
def using(stand_in_of: Callable[[Any], StandIn]) -> Iterator[None]:
    """Lets stand-ins answer the lookups of the block.

    Args:
        stand_in_of: Gives the stand-in of a table.
    """
    before, _of_thread.stand_in_of = _of_thread.stand_in_of, stand_in_of
    try:
        yield
    finally:
        _of_thread.stand_in_of = before


def are_used() -> bool:
    """Whether this thread is in `using`."""
    return _of_thread.stand_in_of is not None


def of(table: Any) -> StandIn | None:
    """Returns the stand-in of a table; None if it looks up itself."""
    stand_in_of = _of_thread.stand_in_of
    return None if stand_in_of is None else stand_in_of(table)
