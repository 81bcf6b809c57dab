# SPDX-License-Identifier: Apache-2.0
"""Progress of saves and loads: the argument `progress`, and the calls that it requests.

A save is one op. A thread reads the table's count of saved rows while the op runs. A load is a loop
over blocks, which counts their rows itself.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import row_file_ops, whole_table_ops
from tf_embed.table.table import Table

# The argument `progress` of public functions.
Progress: TypeAlias = bool | Callable[[int, int], object] | None
# Takes the number of finished rows and the number of all rows.
Tell: TypeAlias = Callable[[int, int], object]

_SECONDS_BETWEEN_CALLS = 0.1


def calls_of(progress: Any, *, prints: bool = True, tables: int = 1) -> RowCalls | None:
    """Returns the progress calls for an argument `progress`, or None if it requests none.

    Args:
        prints: Whether this process prints the progress bar, if one is requested.
        tables: Number of tables that load rows from the same files.

    Raises:
        TypeError: If `progress` is neither a bool nor callable with two numbers.
        ValueError: If it requests calls in a graph.
    """
    if progress is None:
        return None
    tell: Tell | None
    if isinstance(progress, (bool, int, np.bool_, np.integer)):
        tell = _Bar() if validation.flag(progress, "progress") else None
    else:
        tell = _function_of_two(progress)
    if tell is not None and not tf.executing_eagerly():
        raise ValueError(
            "`progress` must be None in a graph, which calls no Python function while it runs. "
            f"Received: progress={validation.shown(progress)}"
        )
    if tell is None or (isinstance(tell, _Bar) and not prints):
        return None
    return RowCalls(tell, tables)


def _function_of_two(progress: Any) -> Tell:
    if callable(progress) and not isinstance(progress, type):
        try:
            inspect.signature(progress).bind(0, 0)
            return progress
        except ValueError:  # a C function, which has no signature
            return progress
        except TypeError:
            pass
    raise TypeError(
        "`progress` must be None, a bool, or a function of two numbers. Received: "
        f"progress={validation.shown(progress)}"
    )


class RowCalls:
    """The calls of a save or load. An error that a call raises is kept until the end.

    Only one thread at a time may use it.

    Args:
        tables: Number of tables that load rows from the same files.
    """

    def __init__(self, tell: Tell, tables: int = 1) -> None:
        self._tell = tell
        self._tables = tables
        self._total: int | None = None
        self._done = 0
        self._told = -1
        self._next_time = 0.0
        self._error: BaseException | None = None

    def expect(self, rows: int) -> None:
        """Sets the number of all rows for each table, unless it is known."""
        if self._total is None:
            self._total = rows * self._tables
            self.update(0)

    def add(self, rows: int) -> None:
        """Adds rows that are done."""
        self.update(self._done + rows)

    def update(self, done: int) -> None:
        """Sets the number of rows that are done. Calls the function, unless it was just called."""
        assert self._total is not None
        self._done = done
        now = time.monotonic()
        # `end` makes the last call.
        if self._told < done < self._total and now >= self._next_time:
            self._next_time = now + _SECONDS_BETWEEN_CALLS
            self._told = done
            self._call(done, self._total)

    def end(self) -> None:
        """Makes the last call, because all rows are done.

        Raises:
            BaseException: If a call raised it.
        """
        self._call(self._done, self._done)
        if self._error is not None:
            raise self._error

    def _call(self, done: int, total: int) -> None:
        if self._error is None:
            try:
                self._tell(done, total)
            except BaseException as error:  # also SystemExit, which must not lose rows
                self._error = error


@contextlib.contextmanager
def watched(calls: RowCalls | None, tables: Sequence[Table]) -> Iterator[None]:
    """Makes the calls of a save, except the last call, while the block writes its rows.

    Args:
        calls: The calls. None: do nothing.
        tables: The tables, each with a resource.
    """
    if calls is None:
        yield
        return
    over = threading.Event()
    with contextlib.ExitStack() as at_end, contextlib.ExitStack() as turns:
        # In a fixed order, so that two saves of some tables never wait for each other in a circle.
        for table in sorted(tables, key=lambda one: one.number):
            turns.enter_context(table.save_turn)  # otherwise rows of another save would be counted
        before = _rows_saved(tables)
        calls.expect(sum(int(whole_table_ops.size(table.resource_handle, -1)) for table in tables))
        thread = threading.Thread(
            target=_watch, args=(calls, tables, before, over), name="progress of a save"
        )
        thread.start()
        # After the turns are released, so that a call that saves the table itself can end.
        at_end.callback(thread.join)
        at_end.callback(over.set)
        yield
        saved = _rows_saved(tables) - before
    calls.update(saved)


def _watch(calls: RowCalls, tables: Sequence[Table], before: int, over: threading.Event) -> None:
    """Reports the rows that are saved, until the save is over."""
    while not over.wait(_SECONDS_BETWEEN_CALLS):
        try:
            saved = _rows_saved(tables) - before
        except tf.errors.OpError:  # such as a lost server, which the save itself reports
            return
        calls.update(saved)


def _rows_saved(tables: Sequence[Table]) -> int:
    return sum(int(row_file_ops.rows_saved(table.resource_handle)) for table in tables)


class _Bar:
    """A progress bar, as Keras prints it."""

    def __init__(self) -> None:
        self._bar: keras.utils.Progbar | None = None

    def __call__(self, done: int, total: int) -> None:
        if total == 0:
            return
        if self._bar is None:
            self._bar = keras.utils.Progbar(total, unit_name="row")
        self._bar.target = total
        self._bar.update(done, finalize=done == total)
