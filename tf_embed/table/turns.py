# SPDX-License-Identifier: Apache-2.0
"""Turns of blocks that read rows of a table and write them back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_embed.ops import turn_ops


@contextlib.contextmanager
def turn_of(handle: tf.Tensor) -> Iterator[None]:
    """Runs a block while no other block has the turn of the table; see `Table.turn`.

    Args:
        handle: The table.
    """
    turn = turn_ops.take_turn(handle)
    if tf.executing_eagerly():
        try:
            yield
        finally:  # a traceback may keep the tensor for long
            turn_ops.end_turn(handle, turn)
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    with tf.control_dependencies([turn]):
        yield
    # Every op that reads or writes the table is stateful. Others may run after the turn.
    block = graph.get_operations()[first:]
    with tf.control_dependencies([one for one in block if one.op_def.is_stateful]):
        turn_ops.end_turn(handle, turn)
