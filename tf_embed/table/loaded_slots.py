# SPDX-License-Identifier: Apache-2.0
"""The choice whether loads include the optimizer slots of rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tf_embed.ops.whole_table_ops import Exported


# Per thread, because loads of other threads must not change.
class _Local(threading.local):
    without = False


_local = _Local()


@contextlib.contextmanager
def load_without_slots() -> Iterator[None]:
    """Makes loads in the block leave out the optimizer slots of rows.

    For a process that only predicts with a trained model. With Adam, a float32 row then takes a
    third of the memory. It applies to tables of all kinds that this thread loads with
    `keras.models.load_model` and `load_weights`, tf.train.Checkpoint,
    `Variable.load_rows`, and `Snapshots.load`. SavedModels, and the files that a
    `serving.Follower` reads, have no slots anyway.

    Everything else is loaded, including the number of steps. If a table is trained after such a
    load, its slots are re-initialized. A checkpoint that waits for a table is loaded when the table
    is made, so make it in the block too. Workers with a sharded table must all use the block.

    Yields:
        None.

    Example:
        >>> import tempfile, tf_embed
        >>> trained = tf_embed.layers.DynamicEmbedding(2, optimizer="adam")
        >>> trained.build()
        >>> trained.variable.upsert([1], [[1.0, 2.0]])
        >>> folder = tempfile.mkdtemp()
        >>> trained.variable.save_rows(folder, file_name="items")
        >>> served = tf_embed.Variable(dim=2)
        >>> with tf_embed.load_without_slots():
        ...     served.load_rows(folder, file_name="items")
        >>> served.memory_report().slot_bytes
        0
    """
    before, _local.without = _local.without, True
    try:
        yield
    finally:
        _local.without = before


def loads_slots() -> bool:
    """Whether a load by this thread includes slots."""
    return not _local.without


def left_out(saved: Exported, slot_dtype: tf.DType) -> Exported:
    """Saved rows without their slots, as a table without an optimizer would have saved them."""
    meta = saved.meta
    # As in cc/core/files/table_meta.h: no rule, no slots in a row, and no groups of slots.
    none = tf.zeros([2], tf.int64)
    return saved._replace(
        slots=tf.zeros([tf.shape(saved.keys)[0], 0], slot_dtype),
        meta=tf.concat([meta[:3], none, meta[5:7], none], 0),
    )
