# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

from tf_embed.callbacks.publish import Publish
from tf_embed.callbacks.snapshot import Snapshot
from tf_embed.callbacks.table_metrics import TableMetrics

__all__ = ["Publish", "Snapshot", "TableMetrics"]
