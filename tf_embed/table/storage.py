# SPDX-License-Identifier: Apache-2.0
"""`GpuStorage`: in which memory, and in how much of it, the rows of a table on a GPU are."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import Config

_NO_BOUND = -1  # as the op that makes a table takes None


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True)
class GpuStorage(Config):
    """Bounds on the memory of a table that is on a GPU; one on the CPU makes nothing of them.

    A row lies in the GPU's memory, as long as the bounds leave room there, or else in memory of the
    host, pinned, which the GPU reads and writes over the bus; it stays where it came. So a table
    may be larger than the card. The index from keys to rows is always in the GPU's memory, and
    takes 30 to 60 bytes for each row of both.

    A new row that no bound leaves room for takes the place of another, by the `eviction` of the
    table's `TablePolicy`, whether that one has a `max_rows` or not; without a policy it is refused
    and counted in `Variable.stats()`. Of a variable's shards each has its part of each bound.

    Tables take memory from the GPU's driver. TensorFlow leaves nearly none there unless
    `tf.config.experimental.set_memory_growth` was called for the GPU, before it is used.

    Args:
        max_bytes: Bytes of the GPU's memory, for index and rows. Default: what the GPU has.
        max_row_bytes: Bytes of it for rows alone, with slots and statistics. 0: all rows are on the
            host. Default: no bound of their own.
        max_host_bytes: Bytes of the host's memory for the rows that find no more room on the GPU.
            None: what the host has. It needs one of the other two, so that rows leave room for the
            index. Default: 0, none.

    Raises:
        TypeError: An argument is no int.
        ValueError: An argument is out of range, or there is no place for any row.

    Example:
        >>> import tf_embed
        >>> on_host = tf_embed.GpuStorage(max_row_bytes=0, max_host_bytes=None)
        >>> v = tf_embed.Variable(dim=2, initializer=1.0, storage=on_host)
        >>> v.lookup([5]).numpy().tolist()
        [[1.0, 1.0]]
    """

    max_bytes: int | None = None
    max_row_bytes: int | None = None
    max_host_bytes: int | None = 0

    def __post_init__(self) -> None:
        for name, least in (("max_bytes", 1), ("max_row_bytes", 0), ("max_host_bytes", 0)):
            if getattr(self, name) is not None:
                validation.positive_int(getattr(self, name), name, least=least)
        if self.max_host_bytes == 0:
            needed = "above 0, or None, where `max_row_bytes` is 0"
            self._check("max_host_bytes", needed, self.max_row_bytes != 0)
        elif self.max_bytes is None and self.max_row_bytes is None:
            raise ValueError(
                "`max_row_bytes` must say what rows may take of the GPU's memory before they go to "
                f"the host's. Received: max_row_bytes=None, max_host_bytes={self.max_host_bytes}"
            )

    @property
    def is_bounded(self) -> bool:
        """Whether there may be no room for a row though there is memory."""
        on_host = self.max_row_bytes is not None and self.max_host_bytes is not None
        return on_host or self.max_bytes is not None

    def attributes(self) -> dict[str, int]:
        """As the op that makes a table takes it."""
        bounds: dict[str, Any] = {
            "gpu_total_bytes": self.max_bytes,
            "gpu_bytes": self.max_row_bytes,
            "host_bytes": self.max_host_bytes,
        }
        return {name: _NO_BOUND if one is None else int(one) for name, one in bounds.items()}
