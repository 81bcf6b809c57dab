# SPDX-License-Identifier: Apache-2.0
"""`Spread`: the processes that have the rows of a table.

Each table has a spread. Code that depends on the location of rows asks the spread, and so needs no
case for each class of table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.exchange import routing
from tf_embed.exchange.collective_calls import AllWorkers, CollectiveCalls, OneProcess
from tf_embed.exchange.servers import Servers
from tf_embed.exchange.worker_sharding import WorkerSharding
from tf_embed.exchange.workers import Channel, Workers
from tf_embed.ops import exchange_ops
from tf_embed.ops.exchange_ops import Part, PartType, Sent


class Spread:
    """The processes that have the rows of a table, and the part of this object's table.

    Attributes:
        group: The processes, an object that tables of the same processes share. None: the rows are
            in this process.
        count: Number of processes.
        rank: The number of the process that has the rows of this object's table.
        where: The location of the rows, for messages: "on 2 servers".
        owns: A function of keys [n] that returns bool [n]: the keys whose rows are in this object's
            table. None: all keys.
        reads: The channel of lookups. None: a lookup is no collective call.
        steps_may_repeat: Whether a step may run twice, so that it must be a single op with a token.
    """

    group: Workers | Servers | None = None
    count: int = 1
    rank: int = 0
    where: str = ""
    owns: Callable[[tf.Tensor], tf.Tensor] | None = None
    reads: Channel | None = None
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

    def place_of_save(self, proc_size: Any, proc_rank: Any, table: str) -> tuple[Any, Any]:
        """The number of processes that save a table, and the number of this process.

        Args:
            proc_size, proc_rank: Both numbers if a caller gives them, or None.
            table: The name of the table.

        Raises:
            ValueError: If a given number differs from the number of the spread.
        """
        known = {"proc_size": self.count, "proc_rank": self.rank}
        for argument, value in {"proc_size": proc_size, "proc_rank": proc_rank}.items():
            if value is None:
                continue
            if validation.int_in(value, argument, least=0) != known[argument]:
                raise ValueError(
                    f"`{argument}` must be {known[argument]} or left out, because {table!r} is "
                    f"{self.where}. Received: {argument}={validation.shown(value)}"
                )
        return self.count, self.rank


class Local(Spread):
    """All rows are in this process."""

    where = "in this process"

    @override
    def place_of_save(self, proc_size: Any, proc_rank: Any, table: str) -> tuple[Any, Any]:
        # Separate tables of several processes may be saved as parts of a single table.
        return 1 if proc_size is None else proc_size, 0 if proc_rank is None else proc_rank


class _Sharded(Spread):
    """Rows are sharded over several processes.

    Args:
        group: The processes.
        sharding: How rows are spread over them.
        table: The name of the table.
    """

    def __init__(self, group: Workers | Servers, sharding: WorkerSharding, table: str) -> None:
        self.group = group
        self.count = group.count
        self.sharding = sharding
        self._table = table

    def route(self, keys: tf.Tensor) -> routing.Routed:
        """Groups keys by owner."""
        return routing.route(keys, self.count, self.sharding, self._table)

    def _owns(self, keys: tf.Tensor) -> tf.Tensor:
        owners = routing.owners_of(keys, self.count, self.sharding, self._table)
        return tf.equal(owners, self.rank)


class AcrossServers(_Sharded):
    """Rows are sharded over parameter servers.

    Args:
        servers: The servers.
        sharding: How rows are spread over them.
        table: The name of the table.
    """

    steps_may_repeat = True  # the coordinator repeats a step whose end it has not seen

    def __init__(self, servers: Servers, sharding: WorkerSharding, table: str) -> None:
        super().__init__(servers, sharding, table)
        self.servers = servers
        self.where = f"on {self.count} servers"


class OnServer(AcrossServers):
    """The part of a parameter server.

    Args:
        servers: The servers.
        sharding: How rows are spread over them.
        table: The name of the table.
        rank: The server.
    """

    owns: Callable[[tf.Tensor], tf.Tensor]

    def __init__(self, servers: Servers, sharding: WorkerSharding, table: str, rank: int) -> None:
        super().__init__(servers, sharding, table)
        self.rank = rank
        self.owns = self._owns


class AcrossWorkers(_Sharded):
    """Rows are sharded over the workers of a strategy, and this process is a worker.

    Args:
        workers: The workers.
        sharding: How rows are spread over them.
        table: The name of the table.

    Attributes:
        writes: The channel of gradients.
        ahead: The channel of prefetches, which a thread may call beside the steps.
    """

    owns: Callable[[tf.Tensor], tf.Tensor]
    reads: Channel

    def __init__(self, workers: Workers, sharding: WorkerSharding, table: str) -> None:
        super().__init__(workers, sharding, table)
        self.workers = workers
        self.rank = workers.rank
        self.where = f"sharded over {self.count} workers"
        self.owns = self._owns
        # A channel runs its exchanges in order.
        self.reads, self.writes, self._saves, self.ahead = workers.new_channels(4, sharding)

    @override
    def new_calls(self) -> CollectiveCalls:
        return AllWorkers(self.workers, self.sharding)

    def wire_type_of(self, dtype: tf.DType) -> str:
        """The encoding of rows, or gradients, of a dtype in a message."""
        narrow = self.sharding.wire_dtype if dtype == tf.float32 else None
        return narrow or exchange_ops.SAME

    # TensorFlow keeps the shape of a collective's key forever, so each shape that the channel of
    # saves sends has its own key: 2 to 7, and from 8 on the keys of `gather`.

    @override
    def barrier(self) -> None:
        if tf.executing_eagerly():
            self._saves.all_gather(tf.zeros([1], tf.int32), key=5)

    @override
    def largest(self, number: tf.Tensor) -> tf.Tensor:
        numbers = self._saves.all_gather(tf.reshape(tf.cast(number, tf.float64), [1]), key=7)
        return tf.reduce_max(numbers)

    def numbers(self, number: tf.Tensor) -> tf.Tensor:
        """A number of each worker, int64 [workers]."""
        return self._by_rank(self._saves.all_gather(tf.reshape(number, [1]), key=2))

    def triples(self, numbers: tf.Tensor) -> tf.Tensor:
        """Three numbers of each worker, int64 [workers, 3]."""
        return self._by_rank(tf.reshape(self._saves.all_gather(numbers, key=6), [-1, 3]))

    def _by_rank(self, rows: tf.Tensor) -> tf.Tensor:
        # A gather has the workers in another order than their ranks.
        return rows if self.workers.places is None else tf.gather(rows, self.workers.places)

    @override
    def gather(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        channel, gathered = self._saves, []
        with tf.device(self.workers.device):
            for part in parts:
                width = 0 if part.shape.rank == 1 else int(part.shape[1] or 0)
                # Rows of width 0 need no message, but their count is still the sum over all
                # workers.
                if part.shape.rank == 2 and width == 0:
                    rows = tf.reduce_sum(channel.all_gather(tf.shape(part)[:1], key=3))
                    gathered.append(tf.zeros([rows, 0], part.dtype))
                    continue
                count = tf.shape(part)[:1]
                sent = Sent([Part(0, part)], count[tf.newaxis])
                words = exchange_ops.message_words(sent)
                both = channel.all_gather(tf.concat([count, words], 0), key=4)
                both = tf.transpose(tf.reshape(both, [-1, 2]))
                # Lengths are powers of two, each with its own key.
                log = tf.cast(
                    tf.math.ceil(
                        tf.math.log(tf.cast(tf.reduce_max(both[1]) + 1, tf.float64))
                        / tf.math.log(tf.constant(2.0, tf.float64))
                    ),
                    tf.int32,
                )
                capacity = tf.bitwise.left_shift(tf.constant(1, tf.int64), tf.cast(log, tf.int64))
                message = exchange_ops.pack_messages(sent, capacity)
                got = channel.all_gather(message, key=8 + log)
                (rows,) = exchange_ops.unpack_messages(
                    got, both[:1], [PartType(0, part.dtype, width)]
                )
                gathered.append(rows)
        return gathered
