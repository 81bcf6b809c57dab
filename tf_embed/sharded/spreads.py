# SPDX-License-Identifier: Apache-2.0
"""The spreads of tables whose rows are in several processes, or on several devices."""

from __future__ import annotations

import abc
from collections.abc import Callable

import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import exchange_ops
from tf_embed.ops.exchange_ops import Part, PartType, Sent
from tf_embed.sharded import routing
from tf_embed.sharded.all_workers import AllWorkers
from tf_embed.sharded.device_shards import DeviceShards
from tf_embed.sharded.servers import Servers
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.workers import Channel, Workers
from tf_embed.table.collective_calls import CollectiveCalls
from tf_embed.table.spread import Spread


class Sharded(Spread, abc.ABC):
    """Rows are sharded over several processes or devices."""

    @abc.abstractmethod
    def route(self, keys: tf.Tensor) -> routing.Routed:
        """Groups keys by owner."""

    @abc.abstractmethod
    def owners_of(self, keys: tf.Tensor) -> tf.Tensor:
        """The number of the process or device that owns each key, flattened, int32."""

    def _owns(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.equal(self.owners_of(keys), self.rank)


class AcrossDevices(Sharded):
    """Rows are sharded over several GPUs of this process.

    Args:
        shards: The shards of the table, and their devices.
    """

    def __init__(self, shards: DeviceShards) -> None:
        self.count = len(shards.devices)
        self.where = f"on {' and '.join(shards.devices)}"
        self._shards = shards

    @override
    def route(self, keys: tf.Tensor) -> routing.Routed:
        with tf.device("/CPU:0"):
            owners = None if self._shards.are_remainders else self.owners_of(keys)
        return routing.route_to(keys, self.count, owners)

    @override
    def owners_of(self, keys: tf.Tensor) -> tf.Tensor:
        return self._shards.devices_of_keys(tf.reshape(keys, [-1]))

    @override
    def check_export(self, what: str, table: str) -> None:
        raise ValueError(
            f"The table of {table!r} is {self.where}, and {what} is of one device: save the "
            "weights, load them in a model whose `devices` name one, and export there."
        )


class OnDevice(AcrossDevices):
    """The part of the device `rank`."""

    owns: Callable[[tf.Tensor], tf.Tensor]

    def __init__(self, shards: DeviceShards, rank: int) -> None:
        super().__init__(shards)
        self.rank = rank
        self.owns = self._owns


class AcrossProcesses(Sharded):
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

    @override
    def route(self, keys: tf.Tensor) -> routing.Routed:
        return routing.route(keys, self.count, self.sharding, self._table)

    @override
    def owners_of(self, keys: tf.Tensor) -> tf.Tensor:
        return routing.owners_of(keys, self.count, self.sharding, self._table)


class AcrossServers(AcrossProcesses):
    """Rows are sharded over parameter servers."""

    steps_may_repeat = True  # the coordinator repeats a step whose end it has not seen

    def __init__(self, servers: Servers, sharding: WorkerSharding, table: str) -> None:
        super().__init__(servers, sharding, table)
        self.servers = servers
        self.where = f"on {self.count} servers"


class OnServer(AcrossServers):
    """The part of the parameter server `rank`."""

    owns: Callable[[tf.Tensor], tf.Tensor]

    def __init__(self, servers: Servers, sharding: WorkerSharding, table: str, rank: int) -> None:
        super().__init__(servers, sharding, table)
        self.rank = rank
        self.owns = self._owns


class AcrossWorkers(AcrossProcesses):
    """Rows are sharded over the workers of a strategy, and this process is a worker.

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
