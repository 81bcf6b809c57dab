# SPDX-License-Identifier: Apache-2.0
"""Lookups of several tables that share an exchange between workers.

A model looks up its tables separately. A fused call runs the model's code twice. First it runs it
in `recorded`, which records the lookups and returns zeros. Then it looks up all recorded keys in
one exchange. Finally it runs the code in `answered`, which returns the rows to each lookup.

A tf.function that this code calls keeps its trace, so a lookup in it exchanges its keys itself.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops.function_graphs import innermost_graph
from tf_embed.ops.pooled_gradient import Pooling


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A lookup in a sharded table.

    Attributes:
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


@dataclasses.dataclass
class _Recording:
    """A block of `recorded`.

    Attributes:
        graph: The graph of the function that it is in.
        lookups: The lookups so far.
        has_left: Whether a lookup was in another function.
    """

    graph: tf.Graph
    lookups: list[Lookup] = dataclasses.field(default_factory=list)
    has_left: bool = False


@dataclasses.dataclass(frozen=True)
class _Answers:
    """A block of `answered`.

    Attributes:
        graph: The graph of the function that it is in.
        queues: The answers of each table, by its id.
    """

    graph: tf.Graph
    queues: dict[int, collections.deque[Answer | PooledAnswer]]


# Per thread: lookups of other threads are neither recorded nor answered.
class _Local(threading.local):
    recording: _Recording | None = None
    answers: _Answers | None = None


_local = _Local()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lookup]]:
    """Records the lookups of the calls that the block makes by `call_to_record`."""
    before = _local.recording
    recording = _Recording(innermost_graph())
    _local.recording = recording
    try:
        yield recording.lookups
    finally:
        _local.recording = before


def call_to_record(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Calls a function, whose lookups return zeros. REQUIRES: in `recorded`.

    If it looks up in a tf.function that it calls, nothing of this call is recorded: all its lookups
    exchange keys themselves.

    Returns:
        Whether its lookups were recorded.
    """
    recording = _local.recording
    assert recording is not None
    count, recording.has_left = len(recording.lookups), False
    try:
        call(*args, **kwargs)
    except Exception:
        # AutoGraph and Keras replace our exceptions by others.
        if not recording.has_left:
            raise
        del recording.lookups[count:]
        return False
    return True


@contextlib.contextmanager
def answered(answers: Sequence[Answer | PooledAnswer]) -> Iterator[None]:
    """Returns `answers` to the lookups of the block, in order, table by table.

    Further lookups exchange keys themselves.
    """
    before = _local.answers
    queues: dict[int, collections.deque[Answer | PooledAnswer]] = collections.defaultdict(
        collections.deque
    )
    for answer in answers:
        # A queue for each table: its lookups are in order, between lookups of other tables.
        queues[id(answer.lookup.table)].append(answer)
    _local.answers = _Answers(innermost_graph(), queues)
    try:
        yield
    finally:
        _local.answers = before


def is_recording() -> bool:
    """Whether lookups are being recorded.

    Raises:
        RuntimeError: If they are, and a tf.function that the recorded call makes is being traced.
            Its trace must not return zeros later. A trace that fails is not kept.
    """
    recording = _local.recording
    if recording is None:
        return False
    if innermost_graph() is not recording.graph:
        recording.has_left = True
        raise RuntimeError("A lookup in a tf.function can't be recorded.")
    return True


def record(lookup: Lookup) -> None:
    """Records a lookup. REQUIRES: is_recording()."""
    assert _local.recording is not None
    _local.recording.lookups.append(lookup)


def answer_for(table: Any) -> Answer | PooledAnswer | None:
    """The answer of the next lookup in a table; None if there is none.

    The keys of that lookup must equal the recorded keys when the step runs.
    """
    answers = _local.answers
    if answers is None or innermost_graph() is not answers.graph:
        return None  # the trace of another tf.function must not refer to the answers of this step
    queue = answers.queues.get(id(table))
    return queue.popleft() if queue else None
