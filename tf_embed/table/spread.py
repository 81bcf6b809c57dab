# SPDX-License-Identifier: Apache-2.0
"""`Spread`: the processes and devices that have the rows of a table.

Each table has a spread. Code that depends on the location of rows asks the spread, and so needs no
case for each class of table. The spreads over several processes or GPUs are in
`sharded/spreads.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.table.collective_calls import CollectiveCalls, OneProcess


class Spread:
    """The processes that have the rows of a table, and the part of this object's table.

    Attributes:
        group: The processes, an object that tables of the same processes share. None: the rows are
            in this process.
        count: Number of processes, or of devices if the rows are on several devices of this
            process. Each writes its own row files.
        rank: The number of the process or device that has the rows of this object's table.
        where: The location of the rows, for messages: "on 2 servers".
        owns: A function of keys [n] that returns bool [n]: the keys whose rows are in this object's
            table. None: all keys.
        reads: The channel of lookups. None: a lookup is no collective call.
        steps_may_repeat: Whether a step may run twice, so that it must be a single op with a token.
    """

    group: Any = None
    count: int = 1
    rank: int = 0
    where: str = ""
    owns: Callable[[tf.Tensor], tf.Tensor] | None = None
    reads: Any = None
    steps_may_repeat = False

    @property
    def is_collective(self) -> bool:
        """Whether all processes must call the table's operations together, in the same order."""
        return self.reads is not None

    def new_calls(self) -> CollectiveCalls:
        """Returns calls that succeed in all processes that call them, or raise in all."""
        return OneProcess()

    def barrier(self) -> None:
        """Waits, in eager execution, until all processes that call operations are here."""

    def gather(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Joins the rows of all calling processes, part by part; each part [n] or [n, known]."""
        return parts

    def largest(self, number: tf.Tensor) -> tf.Tensor:
        """The largest of a number that each calling process has, float64 scalar."""
        return tf.cast(number, tf.float64)

    def check_export(self, what: str, table: str) -> None:
        """Refuses an export of a model if it would not have all rows.

        Args:
            what: The export, for the message: "a SavedModel".
            table: The name of the table.

        Raises:
            ValueError: If rows are in other processes.
        """
        raise ValueError(
            f"The table of {table!r} is {self.where}, and {what} is of one process: save the model "
            "as a .keras file or its weights, load them in a process without a strategy, and "
            "export there."
        )


class Local(Spread):
    """All rows are in this process."""

    where = "in this process"

    @override
    def check_export(self, what: str, table: str) -> None:
        pass
