# SPDX-License-Identifier: Apache-2.0
"""Lookups, and lookups of several tables that are made together.

A model looks up its tables one by one. A step runs the model's code twice. First it runs it in
`recorded`, which records the lookups and returns zeros. Then it looks up all recorded keys
together. Finally it runs the code in `answered`, which returns the rows to each lookup.

A tf.function that this code calls keeps its trace, so a lookup in it is made by itself.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_embed.ops import pooling_ops
from tf_embed.ops.function_graphs import innermost_graph
from tf_embed.ops.pooled_gradient import Pooling


@dataclasses.dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup of rows, or of rows that are pooled. It changes no row.

    The result is rows, keys.shape + [dim], or a row for each bag, the shape of the bags + [dim], of
    `pooling_ops.compute_dtype`.

    Attributes:
        table: The table.
        keys: The keys, any shape.
        training: Whether this counts as a use of the rows, if the table keeps statistics.
        pooling: The pooling of the rows; None for a lookup of rows.
        token: The target of the gradient of the rows, see `gradient_ops.token`; or None.
        defaults: Rows of absent keys, [dim] or keys.shape + [dim]; None for initial rows.
    """

    table: Any
    keys: tf.Tensor
    training: bool
    pooling: Pooling | None = None
    token: tf.Tensor | None = None
    defaults: tf.Tensor | None = None

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors that the result depends on."""
        pooling = self.pooling
        of_pooling = [] if pooling is None else [*pooling.bags, pooling.weights]
        tensors = [self.keys, self.defaults, *of_pooling]
        return [tensor for tensor in tensors if tensor is not None]

    def zeros(self) -> tf.Tensor:
        """Zeros of the shape and the dtype of the result."""
        options, pooling = self.table.options, self.pooling
        if pooling is not None:
            shape = tf.concat([pooling.shape_of(self.keys), [options.dim]], 0)
            return tf.zeros(shape, pooling_ops.compute_dtype(options.value_dtype))
        zeros = tf.zeros(tf.concat([tf.shape(self.keys), [options.dim]], 0), options.value_dtype)
        return tf.ensure_shape(zeros, self.keys.shape.concatenate([options.dim]))


# From the lookup of the step to its result. Its keys equal the recorded keys.
Answer: TypeAlias = Callable[[Lookup], tf.Tensor]


class EnoughRun(BaseException):
    """Ends code that runs for its first effects only. Not an error, so that nothing handles it."""


class Recording:
    """A block of `recorded`.

    Attributes:
        function: The graph of the function that it is in.
        graph: The graph that it is in: of the function, or of a loop or a condition in it.
        lookups: The lookups so far.
        graphs: For each of them, the graph that it is in.
        enough: The number of lookups after which the block ends; None: it does not.
        zeros: The results that depend on rows.
        has_left: Whether a lookup was in another function.
    """

    def __init__(self, enough: int | None) -> None:
        self.function = innermost_graph()
        self.graph = tf.compat.v1.get_default_graph()
        self.lookups: list[Lookup] = []
        self.graphs: list[tf.Graph] = []
        self.enough = enough
        self.has_left = False
        self.zeros: list[tf.Tensor] = []

    def add(self, lookup: Lookup) -> tf.Tensor:
        """Records a lookup and returns zeros."""
        self.lookups.append(lookup)
        self.graphs.append(tf.compat.v1.get_default_graph())
        if len(self.lookups) == self.enough:
            raise EnoughRun
        self.zeros.append(lookup.zeros())
        return self.zeros[-1]

    def unknown(self, spec: Any) -> tf.Tensor:
        """A stand-in for an output that depends on rows, of the dtype and the shape of `spec`."""
        zeros = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
        self.zeros.append(tf.raw_ops.PlaceholderWithDefault(input=zeros, shape=spec.shape))
        return self.zeros[-1]

    def depends_on_rows(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Whether tensors depend on the result of a recorded lookup. REQUIRES: in a graph."""
        zeros = {tensor.op for tensor in self.zeros}
        return any(op in zeros for op in self._ops_behind(tensors))

    def depends_on_variables(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Whether tensors depend on variables. REQUIRES: in a graph."""
        return any(op.type == "ReadVariableOp" for op in self._ops_behind(tensors))

    def _ops_behind(self, tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
        """The ops of this graph that tensors depend on."""
        seen: set[tf.Operation] = set()
        # An eager tensor has `numpy`, and no graph.
        of_graphs = [tensor for tensor in tensors if not hasattr(tensor, "numpy")]
        ops = [tensor.op for tensor in of_graphs if tensor.graph is self.graph]
        while ops:
            op = ops.pop()
            if op not in seen:
                seen.add(op)
                ops += [tensor.op for tensor in op.inputs]
        return seen


@dataclasses.dataclass(frozen=True)
class _Answers:
    """A block of `answered`.

    Attributes:
        graph: The graph of the function that it is in.
        queues: The answers of each table, by its id.
    """

    graph: tf.Graph
    queues: dict[int, collections.deque[Answer | None]]


# Per thread: lookups of other threads are neither recorded nor answered.
class _Local(threading.local):
    recording: Recording | None = None
    answers: _Answers | None = None


_local = _Local()


@contextlib.contextmanager
def recorded(enough: int | None = None) -> Iterator[Recording]:
    """Records the lookups of the block that `call_to_record` makes.

    Args:
        enough: The number of lookups after which the block ends; None: it does not.
    """
    before = _local.recording
    recording = _local.recording = Recording(enough)
    try:
        with contextlib.suppress(EnoughRun):  # the end of the block, not a failure
            yield recording
    finally:
        _local.recording = before


def call_to_record(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Calls a function, whose lookups return zeros. REQUIRES: in `recorded`.

    If it looks up in a tf.function that it calls, nothing of this call is recorded: all its lookups
    are made by themselves.

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
        del recording.lookups[count:], recording.graphs[count:]
        return False
    return True


@contextlib.contextmanager
def answered(recorded: Sequence[Lookup], answers: Sequence[Answer | None]) -> Iterator[None]:
    """Answers the lookups of the block in order, table by table.

    Args:
        recorded: The lookups that were recorded.
        answers: For each, a function from the lookup in the block to its result. None: the lookup
            is made by itself.
    """
    before = _local.answers
    queues: dict[int, collections.deque[Answer | None]] = collections.defaultdict(collections.deque)
    for lookup, answer in zip(recorded, answers, strict=True):
        # A queue for each table: its lookups are in order, between lookups of other tables.
        queues[id(lookup.table)].append(answer)
    _local.answers = _Answers(innermost_graph(), queues)
    try:
        yield
    finally:
        _local.answers = before


def recording() -> Recording | None:
    """The recording of the block, if lookups are recorded.

    Raises:
        RuntimeError: If they are, and a tf.function that the recorded call makes is being traced.
            Its trace must not return zeros later. A trace that fails is not kept.
    """
    found = _local.recording
    if found is not None and innermost_graph() is not found.function:
        found.has_left = True
        raise RuntimeError("A lookup in a tf.function can't be recorded.")
    return found


def answer_of(lookup: Lookup) -> tf.Tensor | None:
    """Zeros if lookups are recorded, or the answer of a recorded lookup; None if there is none."""
    found = recording()
    if found is not None:
        return found.add(lookup)
    answers = _local.answers
    if answers is None or innermost_graph() is not answers.graph:
        return None  # the trace of another tf.function must not refer to the answers of this step
    queue = answers.queues.get(id(lookup.table))
    answer = queue.popleft() if queue else None
    return None if answer is None else answer(lookup)
