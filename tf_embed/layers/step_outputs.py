# SPDX-License-Identifier: Apache-2.0
"""Outputs of layers with tables, computed before the rest of a model.

XLA has no tables. So a compiled step runs the code of the model twice: first outside of XLA in
`collected`, where layers with tables look up, and then in the compiled function in `given`, where
each of their calls returns its output of the first run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed.table import lookups
from tf_embed.table.lookups import EnoughRun


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a call of a layer.

    Attributes:
        layer: The layer.
        value: The output.
        graph: The graph of the call: of a function, a loop or a condition.
    """

    layer: Any
    value: Any
    graph: tf.Graph = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)


@dataclasses.dataclass
class Collection:
    """A block of `collected`.

    Attributes:
        outputs: The outputs so far, in order.
        enough: The number of outputs after which the block ends; None: it does not.
        num_lookups: The number of lookups that these layers have recorded.
    """

    outputs: list[Output] = dataclasses.field(default_factory=list)
    enough: int | None = None
    num_lookups: int = 0


# Per thread, because other threads call layers too.
class _Local(threading.local):
    collection: Collection | None = None
    given: Iterator[Output] | None = None
    are_for_xla: bool = False


_local = _Local()


@contextlib.contextmanager
def collected() -> Iterator[Collection]:
    """Collects the outputs of the layers with tables that the block calls."""
    before, _local.collection = _local.collection, Collection()
    try:
        with contextlib.suppress(EnoughRun):  # the end of the block, not a failure
            yield _local.collection
    finally:
        _local.collection = before


def collection() -> Collection | None:
    """The block of `collected` that the thread is in."""
    return _local.collection


@contextlib.contextmanager
def given(outputs: Sequence[Output]) -> Iterator[None]:
    """Gives outputs to the layers with tables that the block calls, in order."""
    before, _local.given = _local.given, iter(outputs)
    try:
        yield
    finally:
        _local.given = before


def are_given() -> bool:
    """Whether layers with tables are given their outputs, and look nothing up."""
    return _local.given is not None


@contextlib.contextmanager
def for_xla() -> Iterator[None]:
    """Says in the block that layers with tables leave their model to XLA."""
    before, _local.are_for_xla = _local.are_for_xla, True
    try:
        yield
    finally:
        _local.are_for_xla = before


def are_for_xla() -> bool:
    """Whether the thread is in `for_xla`."""
    return _local.are_for_xla


def given_in_step(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `call` of a layer with tables, or a method of it, whose output a step may give."""

    @functools.wraps(call)
    def call_or_given(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _local.given is not None:
            return _next_output(self)
        collection = _local.collection
        if collection is None:
            return call(self, *args, **kwargs)
        # Layers that this layer calls, such as its tables, are a part of it.
        _local.collection, before = None, _num_recorded()
        try:
            collection.outputs.append(Output(self, _output(call, self, *args, **kwargs)))
        finally:
            _local.collection = collection
        collection.num_lookups += _num_recorded() - before
        if len(collection.outputs) == collection.enough:
            raise EnoughRun
        return collection.outputs[-1].value

    return call_or_given


def _next_output(layer: Any) -> Any:
    assert _local.given is not None  # because outputs are given
    output = next(_local.given, None)
    if output is None or output.layer is not layer:
        raise RuntimeError(
            f"{layer.name!r} must be called in the same order each time the code of its model "
            "runs, because a compiled step runs it twice: compile with jit_compile=False."
        )
    return output.value


def _num_recorded() -> int:
    recording = lookups.recording()
    return 0 if recording is None else len(recording.lookups)


def _output(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    recording = None if layer._records_lookups else lookups.recording()
    if recording is None:
        return call(layer, *args, **kwargs)
    return keras.tree.map_structure(recording.unknown, layer.compute_output_spec(*args, **kwargs))
