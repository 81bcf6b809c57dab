# SPDX-License-Identifier: Apache-2.0
"""`Shard`: a view of a shard of a table."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_embed.table.table import Table


@dataclasses.dataclass(frozen=True)
class Shard:
    """A view of a shard of a table.

    Attributes:
        table: The table that holds it.
        index: The number of the shard, from 0.
        device: The device of the shard.
    """

    table: Table
    index: int
    device: str

    @property
    def name(self) -> str:
        """The variable's name and the shard's number."""
        return f"{self.table.options.name}/{self.index}"

    def size(self) -> tf.Tensor:
        """Number of keys; int64 scalar."""
        return self.table.size(self.index)
