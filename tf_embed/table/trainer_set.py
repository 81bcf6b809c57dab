# SPDX-License-Identifier: Apache-2.0
"""`TrainerSet`: the trainers of a table, which threads add and look at."""

from __future__ import annotations

import contextlib
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

    @contextlib.contextmanager
    def forgetting(self, keys: tf.Tensor | None = None) -> Iterator[None]:
        """Drops the gradients that wait for their step, together with the removal of their rows.

        Otherwise the step would bring the rows back. The block removes the rows.

        Args:
            keys: The keys. None: all.
        """
        waiting = [one for one in self if one.accumulator is not None]
        if not waiting:
            yield
            return
        # No step may take the gradients out in between.
        with waiting[0].table.turn():
            for trainer in waiting:
                if keys is None:
                    trainer.accumulator.clear()
                else:
                    trainer.accumulator.erase(keys)
            yield
