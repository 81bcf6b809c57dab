# SPDX-License-Identifier: Apache-2.0
"""`FollowedTable`: a table that adopts the published states of another table."""

from __future__ import annotations

import tensorflow as tf

from tf_embed.ops import published_row_ops, row_file_ops
from tf_embed.ops.published_row_ops import PublishedRows
from tf_embed.snapshots.manifest import TableFiles
from tf_embed.table import sharding
from tf_embed.table.table import Table
from tf_embed.variable.row_statistics import stats_of

# Memory is freed once the removed rows outnumber both the present rows and this minimum.
_FEW_ROWS = 1024


class FollowedTable:
    """A table that follows the published states of another table.

    Args:
        table: The table. REQUIRES: no other writer.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._left = 0  # rows removed since memory was freed

    def open(self, folder: str, files: TableFiles) -> PublishedRows:
        """Opens a publication, and checks every byte of it. Changes nothing.

        Raises:
            tf.errors.OpError: If files are damaged, missing, or of another kind of table.
        """
        with tf.device(self.table.options.device):
            return published_row_ops.open_published_rows(
                self.table.resource_handle, folder, files.file_name, files.save
            )

    def take(self, opened: PublishedRows) -> None:
        """Removes the rows that are no longer published, and writes the published rows.

        Concurrent lookups get the old or the new row of each key.

        Raises:
            ValueError: If the table has no room for all rows.
            tf.errors.OpError: If files can't be read any more. Some rows may then be new.
        """
        table = self.table
        before = stats_of(table)
        with tf.device(table.options.device):
            left = published_row_ops.begin_published_rows(
                table.resource_handle, opened.rows, key_dtype=table.options.key_dtype
            )
            if len(left):
                table.erase(left)
            for block in range(int(opened.num_blocks)):
                self._load(opened, tf.constant(block, tf.int64))
        after = stats_of(table)
        if lost := after["evicted"] - before["evicted"]:
            raise ValueError(
                f"{table.options.name!r} must have room for all rows that were published: leave "
                f"the bounds out of its policy and storage. Received: {table.options.policy}, "
                f"which evicted {lost} rows"
            )
        self._left += len(left)
        if self._left > max(_FEW_ROWS, after["rows"]):
            table.shrink()
            self._left = 0

    def _load(self, opened: PublishedRows, block: tf.Tensor) -> None:
        options, handle = self.table.options, self.table.resource_handle
        # Without owners the table chooses the shards itself.
        owners = tf.zeros([0], tf.int32)
        if options.num_shards > 1 and options.partition_fn is not sharding.default_partition_fn:
            keys = row_file_ops.saved_keys(handle, opened.rows, block, key_dtype=options.key_dtype)
            owners = sharding.owners(keys, options.num_shards, options.partition_fn, options.name)
        row_file_ops.load_saved_rows(handle, opened.rows, block, owners)
