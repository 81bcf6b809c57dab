# SPDX-License-Identifier: Apache-2.0
"""Turns of blocks that read rows of a table and write them back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def take_turn(handle: tf.Tensor) -> tf.Tensor:
    """Waits for the turn of a table, in order of arrival; a variant that holds it."""
    return _raw.tf_embed_take_turn(table=handle)


def end_turn(handle: tf.Tensor, turn: tf.Tensor) -> tf.Operation | None:
    """Ends a turn of `take_turn`. A turn also ends with the last tensor that holds it."""
    return _raw.tf_embed_end_turn(table=handle, turn=turn)


@contextlib.contextmanager
def turn_of(handle: tf.Tensor) -> Iterator[None]:
    """Runs a block while no other block has the turn of the table; see `Table.turn`."""
    turn = take_turn(handle)
    if tf.executing_eagerly():
        try:
            yield
        finally:  # a traceback may keep the tensor for long
            end_turn(handle, turn)
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    with tf.control_dependencies([turn]):
        yield
    # Every op that reads or writes the table is stateful. Others may run after the turn.
    block = graph.get_operations()[first:]
    with tf.control_dependencies([one for one in block if one.op_def.is_stateful]):
        end_turn(handle, turn)
