# SPDX-License-Identifier: Apache-2.0
"""Sends keys to the workers that own them, and rows back.

An exchange serves any number of tables at once. It takes one all-gather of the number of keys for
each worker, and one all-to-all of keys and their rows. A reply takes another all-to-all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import exchange_ops, routing_ops
from tf_embed.ops.exchange_ops import NUM_CAPACITIES, Part, PartType, Plan, Sent
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.workers import Channel

# Keys of collectives within a channel.
_COUNTS = 0  # plus the number of tables, because the shape of the counts depends on it
MAX_TABLES = NUM_CAPACITIES - 1
_MESSAGES = NUM_CAPACITIES
_REPLIES = 2 * NUM_CAPACITIES


@dataclasses.dataclass(frozen=True)
class Routed:
    """The keys of a batch, worker by worker.

    Attributes:
        keys: Distinct keys [u].
        places: The position in `keys` of each key of the batch, int32, of the batch's shape.
        counts: How many distinct keys each worker owns, int32 [workers].
    """

    keys: tf.Tensor
    places: tf.Tensor
    counts: tf.Tensor

    def of_batch(self, rows: tf.Tensor) -> tf.Tensor:
        """Expands the rows of distinct keys to the keys of the batch. Differentiable."""
        return tf.gather(rows, self.places)

    def last(self, rows: tf.Tensor) -> tf.Tensor:
        """Selects, for each distinct key, the row of its last position in the batch.

        Args:
            rows: [size of the batch, ...].
        """
        with tf.device("/CPU:0"):  # as the places
            places = tf.reshape(self.places, [-1])
            size = tf.shape(self.keys)[0]
            last = tf.math.unsorted_segment_max(tf.range(tf.size(places)), places, size)
        return tf.gather(rows, last)

    def first(self, rows: tf.Tensor) -> tf.Tensor:
        """The same for the first position."""
        places = tf.reshape(self.places, [-1])
        size = tf.shape(self.keys)[0]
        return tf.gather(
            rows, tf.math.unsorted_segment_min(tf.range(tf.size(places)), places, size)
        )

    def sums(self, rows: tf.Tensor) -> tf.Tensor:
        """Sums the rows of equal keys, in the order of the batch, for each distinct key."""
        places = tf.reshape(self.places, [-1])
        return tf.math.unsorted_segment_sum(rows, places, tf.shape(self.keys)[0])

    def each(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Orders the batch by worker, duplicates included, and counts the keys of each worker.

        Returns:
            Positions in the batch [n], and counts, int32 [workers].
        """
        with tf.device("/CPU:0"):  # as the places
            places = tf.reshape(self.places, [-1])
            # `keys` are worker by worker, so the position of a key tells its owner.
            owners = tf.searchsorted(tf.cumsum(self.counts), places, side="right")
            # In the order of the batch, in which equal keys take effect.
            parts = tf.dynamic_partition(tf.range(tf.size(places)), owners, self.counts.shape[0])
            return tf.concat(parts, 0), tf.stack([tf.size(one) for one in parts])


def route(keys: tf.Tensor, num_workers: int, sharding: WorkerSharding, name: str) -> Routed:
    """Groups the keys of a batch, of any shape, by owner."""
    with tf.device("/CPU:0"):
        return _route(keys, **_owners([keys], num_workers, [(sharding, name)]))


def route_to(keys: tf.Tensor, num_owners: int, owners: tf.Tensor | None) -> Routed:
    """Groups the keys of a batch, of any shape, by given owners.

    Args:
        owners: The owner of each key, flattened, int32. None: the remainder.
    """
    with tf.device("/CPU:0"):
        chosen = tf.zeros([0], tf.int32) if owners is None else owners
        return _route(keys, owners=[chosen], num_workers=num_owners, owner_rules=["remainder"])


def _route(keys: tf.Tensor, **owners: Any) -> Routed:
    # The op has a kernel for the CPU only.
    (routed,), (places,), counts = routing_ops.route_keys([keys], **owners)
    return Routed(routed, places, tf.reshape(counts, [owners["num_workers"]]))


@dataclasses.dataclass(frozen=True)
class RoutedTables:
    """The keys of batches of some tables, worker by worker.

    Attributes:
        keys: For each table, distinct keys [u].
        places: For each table, the position in `keys` of each key of its batch, int32.
        counts: How many distinct keys each worker owns, int32 [tables, workers].
    """

    keys: list[tf.Tensor]
    places: list[tf.Tensor]
    counts: tf.Tensor


def route_tables(
    keys: Sequence[tf.Tensor], num_workers: int, shardings: Sequence[tuple[WorkerSharding, str]]
) -> RoutedTables:
    """Groups the keys of batches of some tables by owner.

    Args:
        keys: The keys of each table, any shape.
        shardings: The sharding of each table, and the table's name for messages.
    """
    with tf.device("/CPU:0"):
        return RoutedTables(*routing_ops.route_keys(keys, **_owners(keys, num_workers, shardings)))


@dataclasses.dataclass(frozen=True)
class RoutedGradients:
    """The gradients of some tables, worker by worker.

    Attributes:
        keys: For each table, distinct keys [u].
        sums: For each table, the summed gradient of each distinct key, [u, dim].
        counts: How many keys each worker owns, int32 [tables, workers].
    """

    keys: list[tf.Tensor]
    sums: list[tf.Tensor]
    counts: tf.Tensor


def route_gradients(
    keys: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    num_workers: int,
    shardings: Sequence[tuple[WorkerSharding, str]],
) -> RoutedGradients:
    """Groups the gradients of some tables by owner.

    Args:
        keys: For each table, [n].
        gradients: For each table, [n, dim].
        shardings: As in `route_tables`.
    """
    with tf.device("/CPU:0"):
        return RoutedGradients(
            *routing_ops.route_gradients(keys, gradients, **_owners(keys, num_workers, shardings))
        )


def _owners(
    keys: Sequence[tf.Tensor], num_workers: int, shardings: Sequence[tuple[WorkerSharding, str]]
) -> dict[str, Any]:
    """The arguments of the routing ops that determine the owner of each key."""
    # No owners leave the choice to the rule.
    by_rule = tf.zeros([0], tf.int32)
    owners, rules = [], []
    for some, (sharding, name) in zip(keys, shardings, strict=True):
        has_rule = isinstance(sharding.owner, str)
        rules.append(sharding.owner if has_rule else "hash")
        owners.append(by_rule if has_rule else owners_of(some, num_workers, sharding, name))
    return {"owners": owners, "num_workers": num_workers, "owner_rules": rules}


def owners_of(keys: tf.Tensor, num_workers: int, sharding: WorkerSharding, name: str) -> tf.Tensor:
    """The worker that owns each key, flattened, int32."""
    if isinstance(sharding.owner, str):
        routed = route(keys, num_workers, sharding, name)
        places = tf.reshape(routed.places, [-1])
        # Distinct keys are worker by worker, so the position of a key tells its owner.
        return tf.searchsorted(tf.cumsum(routed.counts), places, side="right")
    flat = tf.reshape(keys, [-1])
    owners = validation.call_of(sharding.owner, "owner", name, flat, num_workers)
    owners = validation.as_tensor(owners, "owner(keys, workers)", name)
    if owners.dtype not in (tf.int32, tf.int64):
        raise TypeError(
            f"`owner` of {name!r} must give int32 or int64. Received: dtype={owners.dtype.name}"
        )
    if not flat.shape.is_compatible_with(owners.shape):
        raise ValueError(
            f"`owner` of {name!r} must give one worker for each key, shape {flat.shape}. Received: "
            f"shape={owners.shape}"
        )
    is_worker = tf.logical_and(owners >= 0, owners < num_workers)
    message = f"`owner` of {name!r} must give workers from 0 to {num_workers - 1}. Received:"
    check = tf.debugging.Assert(tf.reduce_all(is_worker), [message, owners], summarize=20)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.cast(owners, tf.int32)


@dataclasses.dataclass(frozen=True)
class Received:
    """The parts that this worker received as the owner of their keys.

    Attributes:
        parts: The parts, in the order of the workers that sent them.
        plan: The plan that all workers agreed on, for the reply.
        gathered: The counts of all workers, for `plan_of`.
    """

    parts: list[tf.Tensor]
    plan: Plan
    gathered: tf.Tensor


def plan_of(
    channel: Channel, gathered: tf.Tensor, num_tables: int, reply_parts: Sequence[PartType]
) -> Plan:
    """The plan of a reply, from the counts of all workers.

    Args:
        channel: The channel that the keys took.
        gathered: The counts of each worker, [tables, workers], and the words of its messages,
            [workers]; flattened.
        reply_parts: The types of the parts in the reply.
    """
    with tf.device(channel.workers.device):
        return exchange_ops.plan_exchange(
            gathered,
            num_workers=channel.workers.count,
            num_tables=num_tables,
            rank=channel.workers.rank,
            reply_parts=reply_parts,
        )


def to_owners(
    channel: Channel,
    counts: tf.Tensor | Sequence[tf.Tensor],
    parts: Sequence[Part],
    reply_parts: Sequence[PartType] = (),
) -> Received:
    """Sends keys, and the rows of these keys, to their owners. All workers must call this.

    Args:
        channel: The channel to the owners.
        counts: How many keys of each table go to each worker, int32 [tables, workers], or a list
            of the rows of that matrix. At most `MAX_TABLES` tables.
        parts: The keys, and matrices of rows, of the tables.
        reply_parts: The types of the parts of the reply. Default: no reply.
    """
    workers = channel.workers
    num_tables = len(counts) if isinstance(counts, Sequence) else int(counts.shape[0])
    # Messages are words in host memory.
    with tf.device(workers.device):
        sent = Sent(parts, _matrix(counts), workers.rank)
        words = exchange_ops.message_words(sent)
        gathered = channel.all_gather(
            tf.concat([tf.reshape(sent.counts, [-1]), words], 0), key=_COUNTS + num_tables
        )
        # The plan is ordered by rank.
        if workers.places is not None:
            by_place = tf.reshape(gathered, [workers.count, -1])
            gathered = tf.reshape(tf.gather(by_place, workers.places), [-1])
        plan = plan_of(channel, gathered, num_tables, reply_parts)
        messages = exchange_ops.pack_messages(sent, plan.capacity)
        got = channel.all_to_all(messages, _MESSAGES + plan.number)
        received = exchange_ops.unpack_messages(got, plan.received, _types(parts), sent)
        return Received(received, plan, gathered)


def reply(
    channel: Channel,
    plan: Plan,
    parts: Sequence[Part],
    counts: tf.Tensor | Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Replies to received keys with rows, and returns the rows for the keys that were sent.

    Args:
        plan: The plan that the keys were received with.
        parts: Matrices of rows, in the order of the received keys.
        counts: The counts that the keys were sent with.

    Returns:
        Matrices of rows, in the order of the sent keys.
    """
    return _reply(channel, plan, parts, plan.received, _matrix(counts))


def gradients_of_reply(
    channel: Channel,
    plan: Plan,
    parts: Sequence[Part],
    counts: tf.Tensor | Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Sends the gradients of the results of `reply` back to the workers that replied.

    Returns:
        The gradients of the `parts` of `reply`.
    """
    return _reply(channel, plan, parts, _matrix(counts), plan.received)


def _reply(
    channel: Channel, plan: Plan, parts: Sequence[Part], sent: tf.Tensor, received: tf.Tensor
) -> list[tf.Tensor]:
    """Sends `sent[table, worker]` rows to each worker, and gets `received[table, worker]` rows."""
    with tf.device(channel.workers.device):
        reply = Sent(parts, sent, channel.workers.rank)
        messages = exchange_ops.pack_messages(reply, plan.reply_capacity)
        got = channel.all_to_all(messages, _REPLIES + plan.reply_number)
        return exchange_ops.unpack_messages(got, received, _types(parts), reply)


def _matrix(counts: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack(list(counts)) if isinstance(counts, Sequence) else counts


def _types(parts: Sequence[Part]) -> list[PartType]:
    return [
        PartType(
            part.table,
            part.tensor.dtype,
            part.tensor.shape[1] if part.tensor.shape.rank == 2 else 0,
            part.wire_type,
        )
        for part in parts
    ]
