# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

from tf_embed.callbacks.backup_and_restore import BackupAndRestore
from tf_embed.callbacks.publish import Publish
from tf_embed.callbacks.snapshot import Snapshot
from tf_embed.callbacks.table_metrics import TableMetrics
from tf_embed.callbacks.table_projector import TableProjector

__all__ = ["BackupAndRestore", "Publish", "Snapshot", "TableMetrics", "TableProjector"]
