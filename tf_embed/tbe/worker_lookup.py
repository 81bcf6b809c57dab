# SPDX-License-Identifier: Apache-2.0
"""`WorkerLookup`: one lookup in all tables of a layer that are sharded over workers.

Each owner gets the bags of all workers, limited to the keys that it owns, and looks them up as a
layer in one process does. Its step works as in one process too: it has the batch, and receives the
gradients of the values that it sent.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerLookup:
    """Looks bags up in all tables, differentiably. All workers must call it.

    Attributes:
        channel: The channel of lookups.
        name: The name of a table, for messages.
        dims: Dim of each table.
        owned: The owner's lookup, which sums. Its features are the tables in order, once for each
            worker.
        combiner: How rows are pooled, "sum" or "mean".
        max_gradient: The bound for clipping each gradient of a value; 0: no clipping.
    """

    channel: Channel
    name: str
    dims: Sequence[int]
    owned: PooledLookup
    combiner: str
    max_gradient: float

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
                dims=self.dims,
                combiner=self.combiner,
                max_gradient=self.max_gradient,
            )

    def _split(self, bags: Bags) -> Split:
        workers, sharding = self.channel.workers, self.channel.sharding
        owner = sharding.owner
        with tf.device("/CPU:0"):
            owners = tf.zeros([0], tf.int32)
            if not isinstance(owner, str):
                owners = routing.owners_of(bags.indices, workers.count, sharding, self.name)
            return bag_exchange_ops.split_bags(
                bags,
                owners,
                dims=self.dims,
                num_workers=workers.count,
                rank=workers.rank,
                owner_rule=owner if isinstance(owner, str) else "hash",
                # A sum of many rows may overflow float16 even if no row does.
                ask_by="keys" if sharding.wire_dtype == "float16" else "less",
                bytes_of_number=4 if sharding.wire_dtype is None else 2,
            )

    def _values(self, split: Split, training: bool) -> tf.Tensor:
        """Returns the values that the owners pooled for this worker."""
        wire = self.channel.sharding.wire_dtype or SAME
        counts, channel = split.counts, self.channel.with_gradients()
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
        num_workers, num_tables = self.channel.workers.count, len(self.dims)
        bags = tf.ensure_shape(tf.cast(bags, tf.int64), [num_workers * num_tables])
        ends = tf.cumsum(tf.cast(lengths, tf.int64))
        offsets = tf.concat([tf.zeros([1], tf.int64), ends], 0)
        dims = tf.constant([*self.dims] * num_workers, tf.int64)
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
        return self.owned.find(received, pieces, tf.reduce_sum(sizes), training)


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
            members=members,
            feature_tables=feature_tables,
            dims=dims,
            combiner=combiner,
            max_gradient=max_gradient,
            anchor=anchor,
            trainer=trainer,
        )
    owned = PooledLookup(
        members=members,
        # Bags arrive worker by worker, and within a worker table by table.
        feature_tables=[*range(len(members))] * channel.workers.count,
        dims=dims,
        combiner="sum",
        # The worker with the batch clips, before it sends gradients to the owners.
        max_gradient=0.0,
        anchor=anchor,
        trainer=trainer,
    )
    return WorkerLookup(
        channel=channel,
        name=first.options.name,
        dims=dims,
        owned=owned,
        combiner=combiner,
        max_gradient=max_gradient,
    )
