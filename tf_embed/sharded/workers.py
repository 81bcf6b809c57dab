# SPDX-License-Identifier: Apache-2.0
"""`Workers`: the workers of a strategy, and the collectives between them.

The collectives are TensorFlow's, public raw ops. Three things about them shape this module. All
workers must call each of them, with the same keys. TensorFlow permanently records the shape of an
instance key and fails on another shape, so each shape has its own key. Two concurrent collectives
must not have the same key, so the collectives of a channel take a resource, by which a tf.function
orders them as in its code.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.ops import watch_ops
from tf_embed.sharded import strategies
from tf_embed.sharded.worker_sharding import WorkerSharding

# The group key of all our collectives. TensorFlow's strategies count their groups from 1.
_GROUP_KEY = 0x7E3BED
# Instance keys of a channel: for counts, then for messages by length, and so on.
_KEYS_OF_CHANNEL = 1024
MAX_CHANNELS = 2**31 // _KEYS_OF_CHANNEL - 1
_SHORT = 4096  # bytes of a text that workers compare


class Channel:
    """A series of consecutive exchanges: of lookups, or of steps, of some tables.

    Args:
        number: The number of the channel among their channels.
        sharding: The time-out, and the implementation of the collectives.
    """

    def __init__(self, workers: Workers, number: int, sharding: WorkerSharding) -> None:
        self.workers = workers
        self.number = number
        self.sharding = sharding
        # It outlives a graph that is being traced.
        with tf.init_scope(), tf.device(workers.device):
            # Its value does not matter. It is named by the process only, so no strategy mirrors it.
            self._order = tf.raw_ops.VarHandleOp(
                dtype=tf.int32, shape=[], shared_name=f"tf_embed/channel_{number}"
            )

    def with_gradients(self) -> Channel:
        """A copy of this channel that gradients of ops of the current graph can use too.

        The gradient of a loop finds only resources that are inputs of the loop.
        """
        if tf.executing_eagerly():
            return self
        channel = copy.copy(self)
        channel._order = tf.identity(self._order).op.inputs[0]  # as the graph captures it
        return channel

    def all_gather(self, vector: tf.Tensor, key: int | tf.Tensor = 0) -> tf.Tensor:
        """The vectors of all workers, concatenated.

        Args:
            vector: [n], with the same n for a key.
            key: From 0, less than 1024.
        """
        with self._watched() as (watch, arguments):
            gathered = tf.raw_ops.CollectiveGatherV2(input=vector, **arguments(key))
            return watch_ops.end_watch(watch, gathered)

    def all_to_all(self, messages: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The messages of all workers to this worker, from worker 0.

        Args:
            messages: A message to each worker, int32 [workers, words], with the same length for a
                key.
            key: From 0, less than 1024.
        """
        workers = self.workers
        with self._watched() as (watch, arguments):
            if workers.places is not None:
                messages = tf.gather(messages, workers.ranks)
            got = tf.raw_ops.CollectiveAllToAllV2(input=messages, **arguments(key))
            got = watch_ops.end_watch(watch, got)
            return got if workers.places is None else tf.gather(got, workers.places)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[tuple[tf.Tensor, Callable[[int | tf.Tensor], dict[str, Any]]]]:
        """A watch that begins before the collective in the block, and the collective's arguments.

        TensorFlow's own time-out would keep a thread for each collective until its time is over.
        """
        with tf.device(self.workers.device):
            watch, _ = watch_ops.start_watch(
                self.sharding.timeout_seconds, f"exchange {self.number} of sharded tables"
            )
            with tf.control_dependencies([watch]):
                yield watch, self._arguments

    def _arguments(self, key: int | tf.Tensor) -> dict[str, Any]:
        return {
            "group_size": tf.constant(self.workers.count),
            "group_key": tf.constant(_GROUP_KEY),
            "instance_key": tf.constant(self.number * _KEYS_OF_CHANNEL) + key,
            "ordering_token": [self._order],
            "communication_hint": self.sharding.communication_hint,
        }


class Workers:
    """The workers of a MultiWorkerMirroredStrategy, one replica each.

    Args:
        sharding: How long to wait for the others.

    Attributes:
        count: How many there are.
        rank: The number of this worker; the chief is 0.
        device: The CPU of this worker, on which messages are packed.
        places: The position of each worker in a collective. None: the order of their numbers.
        ranks: The worker at each position.
    """

    def __init__(self, strategy: tf.distribute.Strategy, sharding: WorkerSharding) -> None:
        resolver = strategy.cluster_resolver
        chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
        self.count = strategies.worker_count(strategy)
        self.rank = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
        if strategy.num_replicas_in_sync != self.count:
            raise ValueError(
                "Tables that are sharded over workers need one replica for each worker: let each "
                "worker see one device. Received: a MultiWorkerMirroredStrategy of "
                f"{strategy.num_replicas_in_sync} replicas on {self.count} workers"
            )
        self.device = f"/job:{resolver.task_type}/replica:0/task:{resolver.task_id}/device:CPU:0"
        self.places: tf.Tensor | None = None
        self.ranks: tf.Tensor | None = None
        self._next_channel = 0
        # TensorFlow orders the workers of a collective by itself. The first collective finds that
        # order.
        first = self._new_channel(sharding)
        with tf.init_scope():
            gathered = first.all_gather(tf.constant([self.rank]))
            ranks = gathered.numpy().tolist()
        if ranks != list(range(self.count)):
            self.places = tf.constant(np.argsort(ranks).astype(np.int32))
            self.ranks = tf.constant(ranks, tf.int32)

    def new_channels(self, count: int, sharding: WorkerSharding) -> list[Channel]:
        """Makes channels. All workers must make the same channels, in the same order."""
        return [self._new_channel(sharding) for _ in range(count)]

    def _new_channel(self, sharding: WorkerSharding) -> Channel:
        number = self._next_channel
        if number > MAX_CHANNELS:
            raise ValueError(
                "A process may make at most half a million tables that are sharded over workers."
            )
        self._next_channel += 1
        return Channel(self, number, sharding)

    def gather_texts(
        self, text: str, sharding: WorkerSharding, channel: Channel | None = None
    ) -> list[str]:
        """The texts of all workers, of at most 4 KiB each, now. All workers must call this.

        Args:
            sharding: How long to wait for the others.
            channel: The channel to use. Default: the channel in which tables are compared.
        """
        if channel is None:
            channel = Channel(self, 0, sharding)  # with the time-out of this call
        data = text.encode(errors="replace")[: _SHORT - 4]
        padded = len(data).to_bytes(4, "little") + data.ljust(_SHORT - 4, b"\0")
        with tf.init_scope():
            words = tf.constant(np.frombuffer(padded, np.int32))
            # Key 0 of the first channel is for the ranks, which have another shape.
            gathered = channel.all_gather(words, key=1).numpy().tobytes()
        texts = [gathered[at : at + _SHORT] for at in range(0, len(gathered), _SHORT)]
        lengths = [int.from_bytes(one[:4], "little") for one in texts]
        decoded = [
            one[4 : 4 + length].decode(errors="replace")
            for one, length in zip(texts, lengths, strict=True)
        ]
        return [decoded[place] for place in self._places()]

    def _places(self) -> Sequence[int]:
        return range(self.count) if self.places is None else self.places.numpy().tolist()


# Weak, so that an entry is freed with its strategy.
_workers: weakref.WeakKeyDictionary[tf.distribute.Strategy, Workers] = weakref.WeakKeyDictionary()


def workers_of_scope(sharding: WorkerSharding) -> Workers | None:
    """The workers of the current scope's strategy; None if there is one worker, or no strategy.

    Args:
        sharding: How long to wait for the others.

    Raises:
        ValueError: If a worker has several replicas.
    """
    if not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    if strategies.worker_count(strategy) == 1:
        return None
    if strategy not in _workers:
        _workers[strategy] = Workers(strategy, sharding)
    return _workers[strategy]
