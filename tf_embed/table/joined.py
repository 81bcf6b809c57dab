# SPDX-License-Identifier: Apache-2.0
"""Lookups and steps of several tables of this process, by one op."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import each_table_ops
from tf_embed.ops.each_table_ops import PooledLookup, RowLookup, RowStep
from tf_embed.table.lookups import Answer, Lookup

T = TypeVar("T")


def look_up(lookups: Sequence[Lookup]) -> list[Answer | None]:
    """Makes lookups together: all of rows by one op, and all pooled ones by another."""
    answers: dict[int, Answer] = {}
    for pooled in (False, True):
        some = [one for one in lookups if (one.pooling is not None) == pooled]
        for group in _groups(some, lambda lookup: lookup.table):
            if len(group) > 1:
                find = _find_pooled if pooled else _find
                answers.update(zip(map(id, group), find(group), strict=True))
    return [answers.get(id(lookup)) for lookup in lookups]


def _groups(items: Sequence[T], table_of: Callable[[T], Any]) -> list[list[T]]:
    """The items whose tables one op can serve: of one device and, on a GPU, one width of keys."""
    groups: dict[Any, list[T]] = collections.defaultdict(list)
    for item in items:
        options = table_of(item).options
        groups[options.device, options.is_on_gpu and options.key_dtype.size].append(item)
    return list(groups.values())


def _find(lookups: Sequence[Lookup]) -> list[Answer]:
    of_op = []
    for lookup in lookups:
        handle, keys, owners, defaults = lookup.table.inputs_of(lookup)
        dim = lookup.table.options.dim
        of_op.append(RowLookup(handle, keys, owners, defaults, dim, _notes_uses(lookup)))

    def answer(of_op: RowLookup, rows: tf.Tensor) -> Answer:
        def linked(lookup: Lookup) -> tf.Tensor:
            if lookup.token is None:
                return rows
            return each_table_ops.link_rows(of_op, rows, lookup.token)

        return linked

    return list(map(answer, of_op, each_table_ops.find_each(of_op)))


def _find_pooled(lookups: Sequence[Lookup]) -> list[Answer]:
    of_op = []
    for lookup in lookups:
        options, pooling = lookup.table.options, lookup.pooling
        assert pooling is not None  # because they are pooled
        handle, keys, owners, defaults = lookup.table.inputs_of(lookup)
        of_op.append(
            PooledLookup(
                handle,
                keys,
                owners,
                defaults,
                bags=pooling.bags,
                weights=pooling.weights,
                value_dtype=options.value_dtype,
                dim=options.dim,
                combiner=pooling.combiner,
                padding=pooling.padding,
                training=_notes_uses(lookup),
            )
        )

    def answer(of_op: PooledLookup, pooled: tf.Tensor) -> Answer:
        def linked(lookup: Lookup) -> tf.Tensor:
            # Not the recorded weights: in a step, their gradient would pass a second copy of what
            # computes them.
            weights = None if lookup.pooling is None else lookup.pooling.weights
            of_step = dataclasses.replace(of_op, weights=weights)
            return each_table_ops.link_pooled(of_step, pooled, lookup.token)

        return linked

    return [answer(*one) for one in each_table_ops.find_pooled_each(of_op)]


def _notes_uses(lookup: Lookup) -> bool:
    return validation.is_training(lookup.training) and lookup.table.options.notes_uses


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step that waits.

    Attributes:
        table: The table.
        of_op: The step, for the op of many tables.
        alone: Makes the step by the op of a single table.
    """

    table: Any
    of_op: RowStep
    alone: Callable[[], Any]


class _Block:
    """A block of `joined_steps`."""

    def __init__(self) -> None:
        self.graph = tf.compat.v1.get_default_graph()
        self.steps: list[_Step] = []
        self.shared: dict[int, Any] = {}

    def make_steps(self) -> None:
        """Makes the steps that wait."""
        steps, self.steps = self.steps, []
        for group in _groups(steps, lambda step: step.table):
            if len(group) == 1:
                group[0].alone()
            else:
                each_table_ops.apply_each([step.of_op for step in group])


# Per thread: steps of other threads do not join.
class _Local(threading.local):
    block: _Block | None = None


_local = _Local()


@contextlib.contextmanager
def joined_steps() -> Iterator[None]:
    """Makes the steps of the block together at its end, by one op."""
    before, _local.block = _local.block, _Block()
    try:
        yield
        # Not reached if the block raises: a step that failed trains none of its tables.
        _local.block.make_steps()
    finally:
        _local.block = before


def _block_here() -> _Block | None:
    """The block of `joined_steps`, except in a condition or a loop of a graph in it."""
    block = _local.block
    return block if block and block.graph is tf.compat.v1.get_default_graph() else None


@contextlib.contextmanager
def outside_conditions() -> Iterator[None]:
    """Makes ops in the graph of the block of `joined_steps`, also in a condition in it.

    For numbers of a step on the host. After the start of a condition, or of a turn, they would wait
    for a GPU.
    """
    block = _local.block
    if block is None or tf.executing_eagerly():
        yield
        return
    with block.graph.as_default(), tf.control_dependencies(None):
        yield


def shared(owner: Any, make: Callable[[], T]) -> T:
    """The result of `make` for an object, made once in a block of `joined_steps`."""
    block = _local.block
    if block is None:
        return make()
    if id(owner) not in block.shared:
        with outside_conditions():
            block.shared[id(owner)] = make()
    return block.shared[id(owner)]


def join_step(
    table: Any, arguments: dict[str, Any], trained: tf.Tensor | None, alone: Callable[[], Any]
) -> bool:
    """Leaves a step to the end of the block of `joined_steps`.

    Args:
        arguments: The arguments of the op of a single table.
        trained: Whether to make the step, a bool scalar. None: true.
        alone: Makes the step by that op.

    Returns:
        Whether it is left. False outside of a block.
    """
    block = _block_here()
    if block is None:  # a step in a condition or a loop is made there
        return False
    if any(step.table is table for step in block.steps):
        block.make_steps()  # an op makes one step of a table
    if trained is None:
        with tf.device("/CPU:0"):
            trained = tf.constant(True)
    names = {"table": "handle"}
    of_op = {names.get(name, name): one for name, one in arguments.items() if name != "scores"}
    block.steps.append(_Step(table, RowStep(**of_op, trained=trained), alone))
    return True
