# SPDX-License-Identifier: Apache-2.0
"""`TrainerSet`: the trainers of a table, which threads add and read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class TrainerSet:
    """A set that does not keep its members alive. It may be added to while it is iterated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, trainer: Any) -> None:
        """Adds a trainer."""
        with self._lock:
            self._members.add(trainer)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def forget(self, keys: tf.Tensor | None = None) -> None:
        """Drops the gradients that wait for their step, before their rows are removed.

        Otherwise the step would insert the rows again.

        Args:
            keys: The keys. None: all.
        """
        accumulators = [one.accumulator for one in self if one.accumulator is not None]
        for accumulator in accumulators:
            if keys is None:
                accumulator.clear()
            else:
                accumulator.erase(keys)
