# SPDX-License-Identifier: Apache-2.0
"""Moments of tables that keep track of changes: each is known by the number of a save."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.table.table import Table


def drop(tables: Sequence[Table], info: SnapshotInfo) -> None:
    """Says that nothing will be saved since a moment any more.

    Tables know of 64 at most. They remember each key that left since the oldest one.

    Args:
        tables: The tables of the snapshot, in its order.
        info: The snapshot. One that the tables do not know of is passed over.
    """
    for table, saved in zip(tables, info.tables, strict=True):
        for part in table.parts:
            if table.options.tracks_changes:
                with tf.device(part.options.device):
                    snapshot_ops.drop_snapshot(part.resource_handle, saved.save)
