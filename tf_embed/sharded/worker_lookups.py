# SPDX-License-Identifier: Apache-2.0
"""Lookups in tables that are sharded over workers, and their exchanges.

A lookup of rows sends its distinct keys to their owners. A pooled lookup may also send bags: each
owner gets its part of every bag, and returns sums. Each worker picks the way that sends fewer
bytes, see `bag_exchange_ops.split_pooled`. Owners answer both ways in the same exchange, so workers
need not agree.

The gradients of rows go to the owners with the step. The gradients of sums return to the owner in
the backward pass, and the owner still has the keys. This takes a further exchange, which is skipped
if no worker sent bags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import bag_exchange_ops, pooling_ops, routing_ops
from tf_embed.ops.bag_exchange_ops import SplitPooled
from tf_embed.ops.exchange_ops import Part, PartType, Plan
from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.sharded import routing
from tf_embed.sharded.routing import Received
from tf_embed.sharded.workers import Channel
from tf_embed.table.lookups import Lookup
from tf_embed.table.table import Table

_ASKED, _BAG_KEYS, _SUMS = range(3)  # the counts of a pooled lookup in an exchange
_NUM_COUNTS = 3


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a lookup of rows.

    Attributes:
        lookup: The lookup.
        routed: Its distinct keys [u], worker by worker.
        places: The position in `routed` of each of its keys, int32.
        rows: The rows of `routed` [u, dim], without a gradient yet.
    """

    lookup: Lookup
    routed: tf.Tensor
    places: tf.Tensor
    rows: tf.Tensor

    def __call__(self, lookup: Lookup) -> tf.Tensor:
        """The rows of a lookup of the same keys, with their gradient."""
        noted = self.lookup.keys
        with tf.device("/CPU:0"):
            return routing_ops.routed_rows(
                lookup.keys,
                self.routed,
                self.rows,
                self.places,
                lookup.token,
                noted=None if lookup.keys is noted else noted,
                label=lookup.table.options.name,
            )


@dataclasses.dataclass(frozen=True)
class PooledAnswer:
    """The result of a pooled lookup.

    Attributes:
        lookup: The lookup.
        pooled: The pooled rows, the shape of the bags + [dim]. Their gradient goes to the token.
    """

    lookup: Lookup
    pooled: tf.Tensor

    def __call__(self, lookup: Lookup) -> tf.Tensor:
        """The pooled rows of a lookup of the same keys."""
        keys, noted = lookup.keys, self.lookup.keys
        if keys is noted:
            return self.pooled
        with tf.device("/CPU:0"):
            # tf.equal would raise if the shapes differ. This op gives False, and the message below
            # is raised.
            same = tf.raw_ops.Equal(x=keys, y=noted, incompatible_shape_error=False)
            # Lookups are matched by order only, so other ids would get wrong rows.
            check = tf.debugging.Assert(
                tf.reduce_all(same),
                [
                    f"The ids of a lookup in '{self.lookup.table.options.name}' must depend on "
                    "the inputs of the model alone, because the lookups of a step are made "
                    "together before it."
                ],
            )
            return validation.with_dependencies(self.pooled, check)


def look_up(lookups: Sequence[Lookup]) -> list[Answer | PooledAnswer]:
    """Looks up in sharded tables, with an exchange of keys and an exchange of rows for all."""
    answers: list[Answer | PooledAnswer] = []
    for some in _groups(lookups):
        answers += _look_up_together(some)
    return answers


def _groups(lookups: Sequence[Lookup]) -> Iterator[list[Lookup]]:
    """Yields the lookups in groups that an exchange can count."""
    group: list[Lookup] = []
    counted = 0
    for one in lookups:
        more = 1 if one.pooling is None else _NUM_COUNTS
        if counted + more > routing.MAX_TABLES:
            yield group
            group, counted = [], 0
        group.append(one)
        counted += more
    if group:
        yield group


def _look_up_together(lookups: Sequence[Lookup]) -> list[Answer | PooledAnswer]:
    channel = lookups[0].table.spread.reads.with_gradients()
    rows = _Rows([one for one in lookups if one.pooling is None], channel)
    pools = _Pools([one for one in lookups if one.pooling is not None], channel, rows.size)
    counts = tf.concat([*rows.counts, *pools.counts], 0)
    got = routing.to_owners(
        channel, counts, [*rows.parts, *pools.parts], [*rows.reply_types, *pools.reply_types]
    )
    exchange = _Exchange(channel, got, counts)
    reply = [
        *rows.reply(got.parts[: rows.size]),
        *pools.reply(got.parts[rows.size :], exchange),
    ]
    back = routing.reply(channel, got.plan, reply, counts)
    of_rows = iter(rows.answers(back[: rows.size]))
    of_pools = iter(pools.answers(back[rows.size :], exchange))
    return [next(of_rows) if one.pooling is None else next(of_pools) for one in lookups]


class _Rows:
    """Lookups of rows.

    Attributes:
        size: Number of lookups.
        counts: How many keys of each lookup go to each worker: a tensor [lookups, workers], or
            none.
        parts: The keys that are sent.
        reply_types: The types of the returned rows.
    """

    def __init__(self, lookups: Sequence[Lookup], channel: Channel) -> None:
        self._lookups = lookups
        self.size = len(lookups)
        self.counts: list[tf.Tensor] = []
        self.parts: list[Part] = []
        self.reply_types = [_row_type(one, number) for number, one in enumerate(lookups)]
        if lookups:
            self._routed = routing.route_tables(
                [one.keys for one in lookups],
                channel.workers.count,
                [(one.table.spread.sharding, one.table.options.name) for one in lookups],
            )
            self.counts = [self._routed.counts]
            self.parts = [Part(number, keys) for number, keys in enumerate(self._routed.keys)]

    def reply(self, keys: Sequence[tf.Tensor]) -> list[Part]:
        """The rows that the owner of keys sends back."""
        lookups = zip(self._lookups, self.reply_types, keys, strict=True)
        return [_row_part(one, row_type, some) for one, row_type, some in lookups]

    def answers(self, rows: Sequence[tf.Tensor]) -> list[Answer]:
        """The answers of the lookups, from the returned rows."""
        if not self._lookups:
            return []
        keys, places = self._routed.keys, self._routed.places
        return [Answer(*one) for one in zip(self._lookups, keys, places, rows, strict=True)]


class _Pools:
    """Pooled lookups.

    Args:
        first: The number of counts in the exchange before the counts of these lookups.

    Attributes:
        counts: For each lookup, how much of `split.asked`, `split.bag_keys` and `split.lengths`
            goes to each worker, [3, workers].
        parts: The tensors that are sent: these three tensors of all lookups, then the weights of
            the keys in bags.
        reply_types: The types of the returned rows and sums, lookup by lookup.
    """

    def __init__(self, lookups: Sequence[Lookup], channel: Channel, first: int) -> None:
        self._pools = [
            _Pool(one, one.pooling, _split(one, one.pooling, channel), first + _NUM_COUNTS * i)
            for i, one in enumerate(lookups)
            if one.pooling is not None
        ]
        self._weighted = [pool for pool in self._pools if pool.pooling.weights is not None]
        with tf.device("/CPU:0"):
            self._sent_weights = [pool.weights_of_bag_keys() for pool in self._weighted]
        self.counts = [pool.split.counts for pool in self._pools]
        self.parts = [part for pool in self._pools for part in pool.parts]
        self.parts += _weight_parts(self._weighted, self._sent_weights)
        self.reply_types = [one for pool in self._pools for one in (pool.row_type, pool.sum_type)]
        self._sums: list[tf.Tensor] = []

    def reply(self, got: Sequence[tf.Tensor], exchange: _Exchange) -> list[Part]:
        """The rows and sums that the owner sends back."""
        weights = iter(self._weights_at_owner(got[_NUM_COUNTS * len(self._pools) :], exchange))
        parts = []
        for i, pool in enumerate(self._pools):
            asked, keys, lengths = got[_NUM_COUNTS * i : _NUM_COUNTS * (i + 1)]
            of_keys = None if pool.pooling.weights is None else next(weights)
            # Kept for `answers`, which links them to the returned sums.
            self._sums.append(pool.sums_at_owner(keys, lengths, of_keys))
            parts.append(_row_part(pool.lookup, pool.row_type, asked))
            parts.append(pool.sum_part(self._sums[-1]))
        return parts

    def answers(self, back: Sequence[tf.Tensor], exchange: _Exchange) -> list[PooledAnswer]:
        """The answers of the lookups, from the returned parts.

        REQUIRES: reply() was called.
        """
        if not self._pools:
            return []
        # Rows and sums alternate in the reply, pool by pool.
        sums = self._sums_of_batch(back[1::2], exchange)
        with tf.device("/CPU:0"):
            return [
                PooledAnswer(pool.lookup, pool.joined(rows, some))
                for pool, rows, some in zip(self._pools, back[::2], sums, strict=True)
            ]

    def _sums_of_batch(self, sums: Sequence[tf.Tensor], exchange: _Exchange) -> list[tf.Tensor]:
        """The returned sums; their gradients go to the owners."""
        plan = exchange.plan_of([pool.sum_type for pool in self._pools])
        any_bags = exchange.has_any([pool.first + _SUMS for pool in self._pools])

        def sent(values: Sequence[tf.Tensor], send: Any) -> list[tf.Tensor]:
            pools = zip(self._pools, values, strict=True)
            return exchange.send_if(
                any_bags, send, plan, [pool.sum_part(one) for pool, one in pools]
            )

        return _linked(
            self._sums,
            sums,
            lambda values: sent(values, routing.reply),
            lambda values: sent(values, routing.gradients_of_reply),
        )

    def _weights_at_owner(self, got: Sequence[tf.Tensor], exchange: _Exchange) -> list[tf.Tensor]:
        """The received weights; their gradients go back."""
        if not self._weighted:
            return []
        numbers = [pool.first + _BAG_KEYS for pool in self._weighted]
        types = [
            PartType(number, weights.dtype, 1)
            for number, weights in zip(numbers, self._sent_weights, strict=True)
        ]
        plan, any_bags = exchange.plan_of(types), exchange.has_any(numbers)

        def sent(values: Sequence[tf.Tensor], send: Any) -> list[tf.Tensor]:
            parts = _weight_parts(self._weighted, values)
            return exchange.send_if(any_bags, send, plan, parts)

        return _linked(
            self._sent_weights,
            got,
            lambda values: sent(values, routing.gradients_of_reply),
            lambda values: sent(values, routing.reply),
        )


@dataclasses.dataclass(frozen=True)
class _Pool:
    """A pooled lookup.

    Attributes:
        lookup: The lookup.
        pooling: Its pooling.
        split: Its keys, worker by worker.
        first: The index of `split.asked` in the counts of the exchange.
    """

    lookup: Lookup
    pooling: Pooling
    split: SplitPooled
    first: int

    @property
    def parts(self) -> list[Part]:
        """The tensors that are sent, except weights."""
        tensors = (self.split.asked, self.split.bag_keys, self.split.lengths)
        return [Part(self.first + i, tensor) for i, tensor in enumerate(tensors)]

    @property
    def row_type(self) -> PartType:
        """The type of the returned rows."""
        return _row_type(self.lookup, self.first + _ASKED)

    @property
    def sum_type(self) -> PartType:
        """The type of the returned sums."""
        return _sum_type(self.lookup, self.first + _SUMS)

    def sum_part(self, sums: tf.Tensor) -> Part:
        """Sums, or their gradients, as they are sent."""
        sums = tf.ensure_shape(sums, [None, self.lookup.table.options.dim])
        return Part(self.first + _SUMS, sums, self.sum_type.wire_type)

    def weights_of_bag_keys(self) -> tf.Tensor:
        """The weight of each key in a bag, [k, 1]. REQUIRES: the lookup has weights."""
        return tf.gather(tf.reshape(self.pooling.weights, [-1, 1]), self.split.key_positions)

    def sums_at_owner(
        self, keys: tf.Tensor, lengths: tf.Tensor, weights: tf.Tensor | None
    ) -> tf.Tensor:
        """The sums of the bags received from all workers; their gradient goes to the token."""
        with tf.device("/CPU:0"):
            ends = tf.cumsum(tf.cast(lengths, tf.int64))
            splits = tf.concat([tf.zeros([1], tf.int64), ends], 0)
        weights = None if weights is None else tf.reshape(weights, [-1])
        pooling = Pooling((splits,), weights, "sum", None)
        return self.lookup.table.pool(dataclasses.replace(self.lookup, keys=keys, pooling=pooling))

    def joined(self, rows: tf.Tensor, sums: tf.Tensor) -> tf.Tensor:
        """The pooled rows, from the returned rows and sums. Either rows or sums are empty."""
        lookup, split = self.lookup, self.split
        keys = tf.gather(tf.reshape(lookup.keys, [-1]), split.place_positions)
        rows = routing_ops.routed_rows(keys, split.asked, rows, split.places, lookup.token)
        rows = tf.cast(rows, sums.dtype)
        if self.pooling.weights is not None:
            weights = tf.reshape(self.pooling.weights, [-1, 1])
            rows *= tf.gather(weights, split.place_positions)
        count = tf.reduce_prod(self.pooling.shape_of(lookup.keys))
        total = tf.math.unsorted_segment_sum(rows, split.place_bags, count)
        total += tf.math.unsorted_segment_sum(sums, split.sum_bags, count)
        return self.pooling.of_sums(lookup.keys, total)


def _row_type(lookup: Lookup, number: int) -> PartType:
    dtype = lookup.table.options.value_dtype
    return PartType(
        number, dtype, lookup.table.options.dim, lookup.table.spread.wire_type_of(dtype)
    )


def _sum_type(lookup: Lookup, number: int) -> PartType:
    dtype = pooling_ops.compute_dtype(lookup.table.options.value_dtype)
    return PartType(
        number, dtype, lookup.table.options.dim, lookup.table.spread.wire_type_of(dtype)
    )


def _row_part(lookup: Lookup, row_type: PartType, keys: tf.Tensor) -> Part:
    """The rows of keys that this worker owns."""
    # The base class looks up here, and does not send the keys again.
    rows, _ = Table.find(lookup.table, keys, training=lookup.training)
    return Part(row_type.table, rows, row_type.wire_type)


def _weight_parts(pools: Sequence[_Pool], weights: Sequence[tf.Tensor]) -> list[Part]:
    """Weights of keys in bags [k, 1], or their gradients, as they are sent."""
    return [
        Part(pool.first + _BAG_KEYS, tf.ensure_shape(one, [None, 1]))
        for pool, one in zip(pools, weights, strict=True)
    ]


def _split(lookup: Lookup, pooling: Pooling, channel: Channel) -> SplitPooled:
    """Splits the keys of a pooled lookup by owner."""
    workers, owner = channel.workers, lookup.table.spread.sharding.owner
    by_rule = isinstance(owner, str)
    sum_type = _sum_type(lookup, 0)
    with tf.device("/CPU:0"):
        return bag_exchange_ops.split_pooled(
            lookup.keys,
            tf.zeros([0], tf.int32) if by_rule else _owners_of(lookup, pooling, workers.count),
            pooling.bags,
            padding=pooling.padding,
            num_workers=workers.count,
            rank=workers.rank,
            owner_rule=owner if by_rule else "hash",
            row_bytes=_row_type(lookup, 0).row_bytes,
            sum_bytes=sum_type.row_bytes,
            weight_bytes=0 if pooling.weights is None else sum_type.dtype.size,
        )


def _owners_of(lookup: Lookup, pooling: Pooling, num_workers: int) -> tf.Tensor:
    """The worker of each key, by the user's function. Padding is not passed to the function."""
    sharding, name = lookup.table.spread.sharding, lookup.table.options.name
    keys = tf.reshape(lookup.keys, [-1])
    if pooling.padding is None:
        return routing.owners_of(keys, num_workers, sharding, name)
    places = tf.where(tf.logical_not(pooling.is_padding(keys)))
    owners = routing.owners_of(tf.gather_nd(keys, places), num_workers, sharding, name)
    return tf.scatter_nd(places, owners, tf.shape(keys, tf.int64))


class _Exchange:
    """An exchange of keys and of their rows, sums, weights and gradients.

    Args:
        got: The parts that this worker received.
        counts: How much this worker sent to each worker, [counts, workers].
    """

    def __init__(self, channel: Channel, got: Received, counts: tf.Tensor) -> None:
        self._channel = channel
        self._gathered = got.gathered
        self._counts = counts
        self._num_counts = int(counts.shape[0])

    def plan_of(self, types: Sequence[PartType]) -> Plan:
        """The plan of a further pass between the workers, for parts of these types."""
        return routing.plan_of(self._channel, self._gathered, self._num_counts, types)

    def has_any(self, numbers: Sequence[int]) -> tf.Tensor:
        """Whether any of these counts is positive on any worker, bool; the same on all workers."""
        workers = self._channel.workers.count
        with tf.device(self._channel.workers.device):
            # Each worker gathers its counts and, in the last row, the words of its messages.
            counts = tf.reshape(self._gathered, [workers, self._num_counts + 1, workers])
            return tf.reduce_any(tf.gather(counts, list(numbers), axis=1) > 0)

    def send_if(
        self,
        condition: tf.Tensor,
        send: Callable[..., list[tf.Tensor]],
        plan: Plan,
        parts: Sequence[Part],
    ) -> list[tf.Tensor]:
        """Sends parts, or returns empty parts if no worker has anything to send.

        Args:
            condition: Whether any worker has something to send.
            send: `routing.reply` or `routing.gradients_of_reply`.
            plan: The plan of the reply.
            parts: The parts to send.
        """

        # `condition` depends on gathered counts, so all workers take the same branch.
        def some() -> list[tf.Tensor]:
            return send(self._channel, plan, parts, self._counts)

        def none() -> list[tf.Tensor]:
            return [tf.zeros([0, part.tensor.shape[1]], part.tensor.dtype) for part in parts]

        values = tf.cond(condition, some, none)
        # tf.cond loses the static width.
        return [
            tf.ensure_shape(value, [None, part.tensor.shape[1]])
            for value, part in zip(values, parts, strict=True)
        ]


def _linked(
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    there: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    back: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Received tensors, differentiable with respect to the tensors that were sent.

    The gradient is sent back to the worker that sent the input. Its own gradient is sent in the
    first direction again, so gradients of any order work.

    Args:
        inputs: The tensors that were sent.
        outputs: The tensors that were received.
        there: Sends tensors with the shapes of `inputs`, in the direction of `inputs`.
        back: Sends tensors with the shapes of `outputs`, in the other direction.
    """

    @tf.custom_gradient
    def linked(*sent: tf.Tensor) -> Any:
        # The outputs were computed before. This function only gives the tape a path to the inputs.
        del sent

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            return _linked(upstream, back(upstream), back, there)

        return list(outputs), gradient

    return list(linked(*inputs))
