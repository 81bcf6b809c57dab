# SPDX-License-Identifier: Apache-2.0
"""Moments of tables that keep track of changes: each is known by the number of a save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.table.table import Table


def drop(
    tables: Sequence[Table], gone: Sequence[SnapshotInfo], left: Iterable[SnapshotInfo] = ()
) -> None:
    """Says that nothing will be saved since the moments of snapshots any more.

    Tables know of 64 at most. They remember each key that left since the oldest one.

    Args:
        tables: The tables of the snapshots, in their order.
        gone: The snapshots. One of another number of tables, or of a moment that the tables do not
            know of, is passed over.
        left: The snapshots that are still there. A fold shows the moment of the snapshot that it
            was made of, which then stays known. Default: none.
    """
    known = {saved.save for info in left for saved in info.tables}
    for info in gone:
        if len(info.tables) != len(tables):
            continue
        for table, saved in zip(tables, info.tables, strict=True):
            if saved.save in known or not table.options.tracks_changes:
                continue
            for part in table.parts:
                with tf.device(part.options.device):
                    snapshot_ops.drop_snapshot(part.resource_handle, saved.save)
