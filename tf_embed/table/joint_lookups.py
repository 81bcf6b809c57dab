# SPDX-License-Identifier: Apache-2.0
"""Lookups of several tables that share an exchange between workers.

A model looks up its tables one by one. A joint call runs the model's code twice. First it runs it
in `recorded`, which records the lookups and returns zeros. Then it looks up all recorded keys in
one exchange. Last it runs the code in `answered`, which returns the rows to each lookup.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops.pooled_gradient import Pooling


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A lookup in a sharded table.

    Attributes:
        table: The table.
        keys: The keys, any shape.
        training: Whether it counts as a use of the rows.
        pooling: The pooling of the rows; None for a lookup of rows.
        token: The target of the gradient of a pooled lookup, if any.
    """

    table: Any
    keys: tf.Tensor
    training: bool
    pooling: Pooling | None = None
    token: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a lookup of rows.

    Attributes:
        lookup: The lookup.
        routed: Its distinct keys [u], worker by worker.
        places: The position in `routed` of each of its keys, int32.
        rows: The rows of `routed` [u, dim], without a gradient yet.
    """

    lookup: Lookup
    routed: tf.Tensor
    places: tf.Tensor
    rows: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PooledAnswer:
    """The result of a pooled lookup.

    Attributes:
        lookup: The lookup.
        pooled: The pooled rows, the shape of the bags + [dim]. Their gradient goes to the token.
    """

    lookup: Lookup
    pooled: tf.Tensor


# Of a thread: other threads look up meanwhile, neither recorded nor answered.
class _OfThread(threading.local):
    recorded: list[Lookup] | None = None
    answers: dict[int, collections.deque[Answer | PooledAnswer]] | None = None


_of_thread = _OfThread()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lookup]]:
    """Records the lookups of the block, which return zeros."""
    before = _of_thread.recorded
    lookups: list[Lookup] = []
    _of_thread.recorded = lookups
    try:
        yield lookups
    finally:
        _of_thread.recorded = before


@contextlib.contextmanager
def answered(answers: Sequence[Answer | PooledAnswer]) -> Iterator[None]:
    """Returns `answers` to the lookups of the block, in order, table by table.

    Further lookups exchange keys themselves.
    """
    before = _of_thread.answers
    queues: dict[int, collections.deque[Answer | PooledAnswer]] = collections.defaultdict(
        collections.deque
    )
    for answer in answers:
        # One queue for each table: its own lookups come in order, those of other tables in between.
        queues[id(answer.lookup.table)].append(answer)
    _of_thread.answers = queues
    try:
        yield
    finally:
        _of_thread.answers = before


def is_recording() -> bool:
    """Whether lookups are being recorded."""
    return _of_thread.recorded is not None


def record(lookup: Lookup) -> None:
    """Records a lookup. REQUIRES: is_recording()."""
    assert _of_thread.recorded is not None
    _of_thread.recorded.append(lookup)


def answer_for(table: Any) -> Answer | PooledAnswer | None:
    """The answer of the next lookup in a table; None if there is none.

    The keys of that lookup must equal the recorded keys when the step runs.

    Args:
        table: The table.
    """
    queue = (_of_thread.answers or {}).get(id(table))
    return queue.popleft() if queue else None
