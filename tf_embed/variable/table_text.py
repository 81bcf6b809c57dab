# SPDX-License-Identifier: Apache-2.0
"""The texts about a table in the `repr` of a variable and of a layer, and its numbers there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tf_embed.table.table import Table
from tf_embed.variable.memory_report import memory_report, size_text

# Tiers whose bytes are not of this process's memory.
_OUTSIDE = ("disk", "redis")


def kind_text(table: Table) -> list[str]:
    """The texts of the dim, the dtypes and the placement of a table."""
    options = table.options
    texts = [
        f"dim={options.dim}",
        f"key_dtype={options.key_dtype.name}",
        f"value_dtype={options.value_dtype.name}",
        f"device={options.device_text}",
    ]
    if options.num_shards > 1:
        texts.append(f"shards={options.num_shards}")
    if table.spread.group is not None:
        texts.append(table.spread.where)
    return texts


def options_text(table: Table) -> list[str]:
    """The texts of a table's policy, storage and optimizer, if it has them."""
    options = table.options
    texts = [] if options.policy is None else [f"policy={options.policy!r}"]
    if options.storage is not None:
        texts.append(f"storage={options.storage!r}")
    names = {type(trainer.optimizer).__name__ for trainer in table.trainers}
    if names:
        texts.append(f"optimizer={' and '.join(sorted(names))}")
    elif isinstance(table.rule, str):  # restored, but not trained yet
        texts.append(f"optimizer={table.rule}")
    return texts


@dataclasses.dataclass(frozen=True)
class Size:
    """The rows of tables in this process, or on their servers, and the bytes that they take.

    Attributes:
        rows: Number of rows.
        memory: Bytes of memory.
        disk: Bytes outside of memory: of files, or on a Redis server.
    """

    rows: int
    memory: int
    disk: int


def size_of(tables: Iterable[Table]) -> Size:
    """Measures tables. Not a collective call: a table over workers has the rows of this worker."""
    rows, memory, disk = 0, 0, 0
    for table in tables:
        report = memory_report(table)
        rows += report.rows
        memory += report.index_bytes + report.slack_bytes
        for tier in report.tiers:
            if tier.name in _OUTSIDE:
                disk += tier.bytes
            else:
                memory += tier.bytes
    return Size(rows, memory, disk)


def rows_here(table: Table) -> int:
    """The rows of a table. Not a collective call, as `size_of`."""
    with tf.init_scope():
        return sum(int(Table.size(part)) for part in table.parts)


def size_texts(tables: Iterable[Table]) -> list[str]:
    """The rows of tables and the bytes that they take; nothing in a graph.

    A `repr` must neither wait nor be a collective call, so no other process is asked. Tables on
    servers have no text, and a table that is sharded over workers has the rows of this worker.
    """
    tables = list(tables)
    if not tf.executing_eagerly() or any(table.outlives_process for table in tables):
        return []
    try:
        size = size_of(tables)
    except tf.errors.OpError:  # a table is gone, or its device is lost
        return ["rows=unknown"]
    is_part = any(table.spread.is_collective and table.spread.count > 1 for table in tables)
    here = " on this worker" if is_part else ""
    texts = [f"rows={size.rows:,}{here}", f"memory={size_text(size.memory)}"]
    return [*texts, f"disk={size_text(size.disk)}"] if size.disk else texts
