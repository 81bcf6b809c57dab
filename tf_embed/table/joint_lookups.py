# SPDX-License-Identifier: Apache-2.0
"""Lookups of several tables that share an exchange between workers.

The code of a model looks its tables up one by one. So a call first runs that code with `recorded`,
which notes what is looked up and gives zeros; then it looks all of it up together; then it runs the
code again with `answered`, which gives each lookup what it would have found.
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
        keys: What is looked up, any shape.
        training: Whether it is a use of the rows.
        pooling: How rows are pooled; None: they are not.
        token: What the gradient of a pooled lookup goes to, if any.
    """

    table: Any
    keys: tf.Tensor
    training: bool
    pooling: Pooling | None = None
    token: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a lookup found.

    Attributes:
        lookup: The lookup.
        routed: Its distinct keys [u], worker by worker.
        places: Where each of its keys is among them, int32.
        rows: Their rows [u, dim], which no gradient reaches yet.
    """

    lookup: Lookup
    routed: tf.Tensor
    places: tf.Tensor
    rows: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PooledAnswer:
    """What a pooled lookup found.

    Attributes:
        lookup: The lookup.
        pooled: The pooled rows, the shape of the bags + [dim]. Their gradient goes to the token.
    """

    lookup: Lookup
    pooled: tf.Tensor


class _OfThread(threading.local):
    recorded: list[Lookup] | None = None
    answers: dict[int, collections.deque[Answer | PooledAnswer]] | None = None


_of_thread = _OfThread()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lookup]]:
    """Notes the lookups of the block, which find zeros."""
    before = _of_thread.recorded
    lookups: list[Lookup] = []
    _of_thread.recorded = lookups
    try:
        yield lookups
    finally:
        _of_thread.recorded = before


@contextlib.contextmanager
def answered(answers: Sequence[Answer | PooledAnswer]) -> Iterator[None]:
    """Gives the lookups of the block in each table what `answers` has for it, in their order.

    Lookups beyond that exchange keys themselves.
    """
    before = _of_thread.answers
    queues: dict[int, collections.deque[Answer | PooledAnswer]] = collections.defaultdict(
        collections.deque
    )
    for answer in answers:
        queues[id(answer.lookup.table)].append(answer)
    _of_thread.answers = queues
    try:
        yield
    finally:
        _of_thread.answers = before


def is_recording() -> bool:
    """Whether lookups are noted now."""
    return _of_thread.recorded is not None


def record(lookup: Lookup) -> None:
    """Notes a lookup. REQUIRES: is_recording()."""
    assert _of_thread.recorded is not None
    _of_thread.recorded.append(lookup)


def answer_for(table: Any) -> Answer | PooledAnswer | None:
    """What the next lookup in a table has found already; None if it is to be looked up.

    When the step runs, what is looked up must be what was noted.

    Args:
        table: The table.
    """
    queue = (_of_thread.answers or {}).get(id(table))
    return queue.popleft() if queue else None
