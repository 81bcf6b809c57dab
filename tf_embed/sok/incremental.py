# SPDX-License-Identifier: Apache-2.0
"""SOK's dump of the rows that were used since a time."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.sok.functions import table_of
from tf_embed.table.policies import STATISTICS
from tf_embed.table.table import Table

_TIME = "last_time_ms"


def incremental_model_dump(vars: Any, time_threshold: Any, sess: Any = None) -> tuple[Any, Any]:
    """Copies the keys and rows that were used at a time or later.

    They include all rows that changed since then. A use is a training step, an `upsert`, an
    `accum`, or a lookup with `training=True`. Evicted and removed rows are not reported. The table
    must keep the time of each row: its policy has `eviction="ttl"` or `ttl_seconds`. If a table is
    sharded, all workers must call it, and each gets the rows of all workers. The whole table is
    copied before rows are selected, which needs memory. It runs in eager execution.

    Args:
        vars: A table, or a list of tables.
        time_threshold: A datetime.datetime; without a time zone it is in UTC. Clocks of workers
            differ, so set it a few seconds early.
        sess: Has no effect. Default: None.

    Returns:
        Keys [n] and rows [n, dim] as NumPy arrays; for a list of tables, a list of each.

    Raises:
        TypeError: If `vars` is not a table, or `time_threshold` not a datetime.
        ValueError: If a table does not keep times.

    Example:
        >>> import datetime, tf_embed
        >>> from tf_embed import sok
        >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="ttl"))
        >>> v.upsert([1], [[0.5]])
        >>> since = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        >>> v.set_clock(time_ms=1000 * int(since.timestamp()) + 5000)
        >>> v.upsert([2], [[1.5]])
        >>> keys, rows = sok.incremental_model_dump(v, since)
        >>> keys.tolist(), rows.tolist()
        ([2], [[1.5]])
    """
    del sess
    if not isinstance(time_threshold, datetime.datetime):
        raise TypeError(
            "`time_threshold` must be a datetime.datetime. Received: time_threshold="
            f"{validation.shown(time_threshold)}"
        )
    if time_threshold.tzinfo is None:
        time_threshold = time_threshold.replace(tzinfo=datetime.timezone.utc)
    epoch = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    since = (time_threshold - epoch) // datetime.timedelta(milliseconds=1)
    is_several = isinstance(vars, (list, tuple))
    tables = [table_of(one, "vars") for one in (vars if is_several else [vars])]
    for table in tables:
        if _TIME not in table.options.statistics:
            raise ValueError(
                f"`vars` must keep the times of rows: make {table.options.name!r} with "
                'policy=tf_embed.TablePolicy(eviction="ttl"). Received: policy='
                f"{table.options.policy}"
            )
    dumped = [_rows_since(table, since) for table in tables]
    if not is_several:
        return dumped[0]
    return [keys for keys, _ in dumped], [rows for _, rows in dumped]


def _rows_since(table: Table, since: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that were used at that time, in milliseconds since 1970, or later."""
    exported = table.export(with_slots=False)
    kept = int(exported.policy[2])  # bits of STATISTICS; a column for each
    # Columns are in the order of their bits.
    column = (kept & (STATISTICS[_TIME] - 1)).bit_count()
    times = exported.statistics[:, column].numpy()
    chosen = np.flatnonzero(times >= since)
    rows = tf.ensure_shape(tf.gather(exported.values, chosen), [None, table.options.dim])
    keys, rows = table.spread.gather([tf.gather(exported.keys, chosen), rows])
    return keys.numpy(), rows.numpy()
