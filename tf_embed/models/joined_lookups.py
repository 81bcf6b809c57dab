# SPDX-License-Identifier: Apache-2.0
"""Lookups of a model's call that are made together.

The layers of a model look up one by one. A step calls the model twice: first to record the lookups,
then for its outputs, with the lookups made in between. The first call ends at the last lookup, and
TensorFlow drops the rest of it, because nothing uses it.

A lookup is made by itself if its ids depend on rows, such as the ids of a search among them, or if
its table can't join others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed.layers import step_outputs
from tf_embed.models.step_report import StepLookup
from tf_embed.models.survey import Survey, survey
from tf_embed.sharded import worker_lookups
from tf_embed.table import joined as joined_tables
from tf_embed.table import lookups
from tf_embed.table.lookups import Answer, EnoughRun, Lookup, Recording


# Per thread, because several models may train in one process.
class _Local(threading.local):
    model: Any = None
    # The survey of the model's calls in this step. A step may be traced twice.
    survey: Survey | None = None


_local = _Local()


class NotCompiledError(Exception):
    """XLA can't compile the dense part of a model. The message says why."""


@contextlib.contextmanager
def step_of(model: keras.Model | None) -> Iterator[None]:
    """Joins the lookups of the calls of a model in the block, which is traced in a graph."""
    before = _local.model, _local.survey
    if model is not _local.model:
        _local.model, _local.survey = model, None
    try:
        yield
    finally:
        _local.model, _local.survey = before


def surveyed(call: Callable[[], Any]) -> Survey:
    """The survey of a call of the step's model. REQUIRES: in `step_of`, the first time not in a
    keras.StatelessScope, in which the traces of the model's own tf.functions would not be whole.
    """
    if _local.survey is None:
        with step_of(None):
            found = survey(call)
        _local.survey = found
    return _local.survey


@contextlib.contextmanager
def joined(model: keras.Model, call: Callable[[], Any]) -> Iterator[list[StepLookup]]:
    """Makes the lookups of a model's call together, if a step makes the call.

    They are made within the call, not before the step, so that a tape sees them.

    Args:
        call: Makes the call of the block. Its state changes are undone.

    Yields:
        The lookups of the call, for a report.
    """
    if _local.model is not model or tf.executing_eagerly() or step_outputs.are_given():
        yield []
        return
    found = surveyed(call)
    _prepare_outputs(found)
    with step_of(None):  # the model may be called within its call
        if found.obstacle is not None or len(found.tables) < 2:
            reason = found.obstacle or "it is the only lookup"
            yield [StepLookup(table, reason) for table in found.tables]
            return
        # The outputs of this call are for nobody.
        recorded = lookups.recorded(enough=len(found.tables))
        with keras.StatelessScope(), step_outputs.collected(), recorded as recording:
            call()
        reasons = [_reason_apart(recording, number) for number in range(len(found.tables))]
        pairs = list(zip(recording.lookups, reasons, strict=True))
        together = [lookup for lookup, reason in pairs if reason is None]
        with answered(recording.lookups, together):
            yield [StepLookup(lookup.table.options.name, reason) for lookup, reason in pairs]


def _prepare_outputs(found: Survey) -> None:
    """Ends a collection of outputs after the last.

    Raises:
        NotCompiledError: If there is a collection, and the outputs are not all that XLA needs.
    """
    collection = step_outputs.collection()
    if collection is None:
        return
    if found.obstacle is not None:
        raise NotCompiledError(found.obstacle)
    if found.looks_up_outside:
        raise NotCompiledError("a lookup is outside of a layer with tables")
    collection.enough = found.num_outputs
    if found.num_outputs == 0:
        raise EnoughRun


@contextlib.contextmanager
def answered(recorded: Sequence[Lookup], together: Sequence[Lookup]) -> Iterator[None]:
    """Makes some recorded lookups together, and answers the lookups of the block by them."""
    found = dict(zip(map(id, together), _look_up(together), strict=True))
    with lookups.answered(recorded, [found.get(id(lookup)) for lookup in recorded]):
        yield


def _look_up(together: Sequence[Lookup]) -> list[Answer | None]:
    """Makes lookups together."""
    collective = [one for one in together if one.table.spread.is_collective]
    of_workers = iter(worker_lookups.look_up(collective))
    here = [one for one in together if not one.table.spread.is_collective]
    of_here = iter(joined_tables.look_up(here))
    return [next(of_workers if one.table.spread.is_collective else of_here) for one in together]


def _reason_apart(recording: Recording, number: int) -> str | None:
    """The reason for which a lookup can't be made together with others."""
    lookup = recording.lookups[number]
    if not lookup.table.joins(lookup):
        return "its table looks up by itself"
    if recording.graphs[number] is not recording.graph:
        return "it is in a loop or a condition"
    if recording.depends_on_rows(lookup.tensors):
        return "its ids depend on rows"
    weights = None if lookup.pooling is None else lookup.pooling.weights
    is_collective = lookup.table.spread.is_collective
    if weights is not None and is_collective and recording.depends_on_variables([weights]):
        # Workers exchange them, and their gradient would pass the call that records them.
        return "the weights of its ids depend on variables"
    return None
