# SPDX-License-Identifier: Apache-2.0
"""Full and incremental snapshots of tables, written while training continues."""

from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.snapshots.pending import PendingSnapshot
from tf_embed.snapshots.snapshots import Snapshots

__all__ = ["PendingSnapshot", "SnapshotInfo", "Snapshots"]
