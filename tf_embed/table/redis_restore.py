# SPDX-License-Identifier: Apache-2.0
"""Checks and restores of a table whose rows are shared with other processes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed.ops.whole_table_ops import Exported
from tf_embed.table import expiry
from tf_embed.table.loaded_slots import left_out, loads_slots
from tf_embed.table.table_options import TableOptions


def check_copy(options: TableOptions) -> None:
    """Refuses a copy of a table.

    Raises:
        ValueError: If it would have the same rows.
    """
    if options.redis is not None:
        raise ValueError(
            f"The table of {options.name!r} is in Redis and can't be copied: a copy would have the "
            "same rows. Make another variable with another `table` of its RedisServer."
        )


def restore(table: Any, saved: Exported) -> Any:
    """Replaces the rows of a table by saved rows, unless its server is set to keep its rows."""
    redis = table.options.redis
    # In a graph this is the table of a SavedModel, which is in memory.
    if redis is not None and redis.restore == "if_empty" and tf.executing_eagerly():
        rows = int(table.size())
        if rows:
            # The user requested this by `restore="if_empty"`: no row is lost in Redis.
            logging.warning(
                "%r keeps its %d rows in Redis: the %d saved ones are not restored. Say "
                'RedisServer(restore="always") to replace them.',
                table.options.name,
                rows,
                saved.keys.shape[0],
            )
            return None
    if not loads_slots():
        saved = left_out(saved, table.options.slot_dtype)
    imported = table.import_(saved)
    expiry.warn_of_expired(table)
    return imported
