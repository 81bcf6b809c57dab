# SPDX-License-Identifier: Apache-2.0
"""`WorkerLookup`: one lookup in all tables of a layer that are sharded over workers.

Each owner gets the bags of all workers, limited to the keys that it owns, and looks them up as a
layer in one process does. Its step works as in one process too: it has the batch, and receives the
gradients of the values that it sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops import bag_exchange_ops
from tf_embed.ops.bag_exchange_ops import Bags, Split
from tf_embed.ops.exchange_ops import SAME, Part, PartType
from tf_embed.sharded import routing
from tf_embed.sharded.workers import Channel
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.inputs import Batch
from tf_embed.tbe.pooled_lookup import PooledLookup
from tf_embed.tbe.table_specs import Member
from tf_embed.variable.anchor import Anchor

_KEYS, _BAGS, _TABLES, _VALUES = range(4)  # the counts of an exchange


class WorkerLookup:
    """Looks bags up in all tables, differentiably. All workers must call it.

    Args:
        channel: The channel of lookups.
        name: The name of a table, for messages.
        dims: Dim of each table.
        owned: The owner's lookup, which sums. Its features are the tables in order, once for each
            worker.
        combiner: How rows are pooled, "sum" or "mean".
        max_gradient: The bound for clipping each gradient of a value; 0: no clipping.
    """

    def __init__(
        self,
        channel: Channel,
        name: str,
        dims: Sequence[int],
        owned: PooledLookup,
        *,
        combiner: str,
        max_gradient: float,
    ) -> None:
        self._channel = channel
        self._name = name
        self._dims = list(dims)
        self._sharding = channel.sharding
        self._owned = owned
        self._combiner = combiner
        self._max_gradient = max_gradient

    def find(self, batch: Batch, pieces: tf.Tensor, size: tf.Tensor, training: bool) -> tf.Tensor:
        """The values of all bags of this worker; arguments as in `PooledLookup.find`."""
        bags = Bags(batch.indices, batch.offsets, pieces, size, batch.weights)
        split = self._split(bags)
        values = self._values(split, training)
        with tf.device("/CPU:0"):
            return bag_exchange_ops.join_bags(
                values,
                split,
                bags,
                dims=self._dims,
                combiner=self._combiner,
                max_gradient=self._max_gradient,
            )

    def _split(self, bags: Bags) -> Split:
        workers, owner = self._channel.workers, self._sharding.owner
        with tf.device("/CPU:0"):
            owners = tf.zeros([0], tf.int32)
            if not isinstance(owner, str):
                owners = routing.owners_of(bags.indices, workers.count, self._sharding, self._name)
            return bag_exchange_ops.split_bags(
                bags,
                owners,
                dims=self._dims,
                num_workers=workers.count,
                rank=workers.rank,
                owner_rule=owner if isinstance(owner, str) else "hash",
                # A sum of many rows may overflow float16 even if no row does.
                ask_by="keys" if self._sharding.wire_dtype == "float16" else "less",
                bytes_of_number=4 if self._sharding.wire_dtype is None else 2,
            )

    def _values(self, split: Split, training: bool) -> tf.Tensor:
        """Returns the values that the owners pooled for this worker."""
        wire = self._sharding.wire_dtype or SAME
        counts, channel = split.counts, self._channel.with_gradients()
        sent = [Part(_KEYS, split.keys), Part(_BAGS, split.lengths), Part(_TABLES, split.bags)]
        types = [PartType(_VALUES, tf.float32, wire_type=wire)]
        got = routing.to_owners(channel, counts, sent, types)
        keys, lengths, bags = got.parts
        pooled = self._pooled(keys, lengths, bags, training)

        @tf.custom_gradient
        def replied(values: tf.Tensor) -> Any:
            """Sends values back to all workers, which return their gradients."""

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                part = Part(_VALUES, upstream, wire)
                (of_values,) = routing.gradients_of_reply(channel, got.plan, [part], counts)
                return of_values

            part = Part(_VALUES, values, wire)
            (of_this,) = routing.reply(channel, got.plan, [part], counts)
            return of_this, gradient

        return replied(pooled)

    def _pooled(
        self, keys: tf.Tensor, lengths: tf.Tensor, bags: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """The sums of the bags from all workers, side by side."""
        num_workers, num_tables = self._channel.workers.count, len(self._dims)
        bags = tf.ensure_shape(tf.cast(bags, tf.int64), [num_workers * num_tables])
        ends = tf.cumsum(tf.cast(lengths, tf.int64))
        offsets = tf.concat([tf.zeros([1], tf.int64), ends], 0)
        dims = tf.constant(self._dims * num_workers, tf.int64)
        sizes = bags * dims
        pieces = tf.stack(
            [
                tf.constant([*range(num_tables)] * num_workers, tf.int64),
                tf.cumsum(bags, exclusive=True),
                bags,
                tf.cumsum(sizes, exclusive=True),
                dims,
            ],
            axis=1,
        )
        received = Batch(keys, offsets, None, bags)
        return self._owned.find(received, pieces, tf.reduce_sum(sizes), training)


def new_lookup(
    members: Sequence[Member],
    feature_tables: Sequence[int],
    dims: Sequence[int],
    *,
    combiner: str,
    max_gradient: float,
    anchor: Anchor | None,
    trainer: BatchTrainer | None,
) -> PooledLookup | WorkerLookup:
    """A lookup in tables of this process, or in tables that are sharded over workers.

    Args:
        members: The tables; all sharded or all unsharded.
        feature_tables, dims, combiner, max_gradient, anchor, trainer: See `PooledLookup`.
    """
    first = members[0].table.table
    channel = first.spread.reads
    if channel is None:
        return PooledLookup(
            members,
            feature_tables,
            dims,
            combiner=combiner,
            max_gradient=max_gradient,
            anchor=anchor,
            trainer=trainer,
        )
    owned = PooledLookup(
        members,
        # Bags arrive worker by worker, and within a worker table by table.
        [*range(len(members))] * channel.workers.count,
        dims,
        combiner="sum",
        # The worker with the batch clips, before it sends gradients to the owners.
        max_gradient=0.0,
        anchor=anchor,
        trainer=trainer,
    )
    name = first.options.name
    return WorkerLookup(channel, name, dims, owned, combiner=combiner, max_gradient=max_gradient)
