# SPDX-License-Identifier: Apache-2.0
"""`WorkerTable`: a table whose rows are spread over the workers of a cluster.

Each worker has a table with the rows that it owns. An operation sends its keys to their owners.
Each owner runs it on its own table, on the keys of all workers in order, from worker 0. All workers
must therefore call the same operations in the same order, with batches of any sizes.

Operations on the whole table, such as `export` and `clear`, use only the rows of this worker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed import _library, callers
from tf_embed.ops import pooling_ops, routing_ops
from tf_embed.ops.exchange_ops import Part, PartType
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.sharded import routing
from tf_embed.sharded.routed_table import RoutedTable, share_of_options
from tf_embed.sharded.spreads import AcrossWorkers
from tf_embed.sharded.worker_lookups import look_up
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.worker_shares import agreed, share_of
from tf_embed.sharded.workers import Workers
from tf_embed.table import admission_counts
from tf_embed.table.lookups import Lookup
from tf_embed.table.policies import MAX_ROWS, STATISTICS
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions


class WorkerTable(RoutedTable):
    """A table that is sharded over workers.

    Args:
        options: The options of this worker's table.
        sharding: The distribution of rows over them.

    Raises:
        ValueError: If a worker has another table, or another build of the library.
    """

    _advice = ' distribution="local" gives each worker a table of its own.'
    spread: AcrossWorkers

    def __init__(self, options: TableOptions, workers: Workers, sharding: WorkerSharding) -> None:
        self.spread = AcrossWorkers(workers, sharding, options.name)
        # A collective call before the table exists: if workers differ, all of them raise.
        seed = _agree(options, self.spread)
        initializer = dataclasses.replace(options.initializer, seed=seed)
        share = share_of_options(options, workers.rank, workers.count, "worker")
        super().__init__(dataclasses.replace(share, initializer=initializer))

    # Verbs that read.

    @override
    def find(
        self,
        keys: tf.Tensor,
        defaults: tf.Tensor | None = None,
        token: tf.Tensor | None = None,
        *,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        options = self.options
        routed = self.spread.route(keys)
        wire = self.spread.wire_type_of(options.value_dtype)
        types = [PartType(0, options.value_dtype, options.dim, wire), PartType(0, tf.bool)]
        sent = [Part(0, routed.keys)]
        got = routing.to_owners(self.spread.reads, [routed.counts], sent, types)
        rows, exists = super().find(got.parts[0], training=training)
        parts = [Part(0, rows, wire), Part(0, exists)]
        rows, exists = routing.reply(self.spread.reads, got.plan, parts, [routed.counts])
        rows = routing_ops.routed_rows(keys, routed.keys, rows, routed.places, token)
        exists = routed.of_batch(exists)
        rows = self._with_defaults(rows, exists, defaults)
        return self._with_shape(rows, keys), exists

    @override
    def joins(self, lookup: Lookup) -> bool:
        # With `defaults` a lookup must know which keys exist. A sum of many rows may overflow
        # float16, although each row fits.
        is_wide = lookup.pooling is None or self.spread.sharding.wire_dtype != "float16"
        return lookup.defaults is None and is_wide

    @override
    def _look_up(self, lookup: Lookup) -> tf.Tensor:
        """Pools rows at their owners if that sends less."""
        if not self.joins(lookup):
            return super()._look_up(lookup)
        (answer,) = look_up([lookup])
        return answer(lookup)

    @override
    def read_slots(
        self, keys: tf.Tensor, rule: str | ExternalRule, initial_value: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)
        # A message has rows of a known width, which a lookup without keys gives while tracing.
        with tf.init_scope():
            none = tf.zeros([0], self.options.key_dtype)
            width = int(super().read_slots(none, rule, initial_value)[0].shape[-1])
        types = [PartType(0, self.options.slot_dtype, width), PartType(0, tf.bool)]
        got = routing.to_owners(self.spread.reads, [routed.counts], [Part(0, routed.keys)], types)
        slots, exists = super().read_slots(got.parts[0], rule, initial_value)
        parts = [Part(0, tf.ensure_shape(slots, [None, width])), Part(0, exists)]
        slots, exists = routing.reply(self.spread.reads, got.plan, parts, [routed.counts])
        return routed.of_batch(slots), routed.of_batch(exists)

    @override
    def row_statistics(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)
        width = len(STATISTICS)
        types = [PartType(0, tf.int64, width), PartType(0, tf.bool)]
        got = routing.to_owners(self.spread.reads, [routed.counts], [Part(0, routed.keys)], types)
        statistics, exists = super().row_statistics(got.parts[0])
        parts = [Part(0, tf.ensure_shape(statistics, [None, width])), Part(0, exists)]
        statistics, exists = routing.reply(self.spread.reads, got.plan, parts, [routed.counts])
        return routed.of_batch(statistics), routed.of_batch(exists)

    @override
    def size(self, shard: int = -1) -> tf.Tensor:
        # A shard belongs to this worker only, and needs no collective.
        if shard >= 0:
            return super().size(shard)
        return tf.reduce_sum(self.spread.numbers(super().size()))

    # Verbs that write.

    @override
    def find_or_insert(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None, *, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        options = self.options
        routed = self.spread.route(keys)
        sent = [Part(0, routed.keys)]
        if defaults is not None:
            shape = tf.concat([tf.shape(keys), [options.dim]], 0)
            rows = tf.reshape(tf.broadcast_to(defaults, shape), [-1, options.dim])
            sent.append(Part(0, routed.first(rows)))
        types = [PartType(0, options.value_dtype, options.dim), PartType(0, tf.bool)]
        got = routing.to_owners(self.spread.writes, [routed.counts], sent, types)
        rows, exists = super().find_or_insert(*got.parts, training=training)
        parts = [Part(0, rows), Part(0, exists)]
        rows, exists = routing.reply(self.spread.writes, got.plan, parts, [routed.counts])
        return self._with_shape(routed.of_batch(rows), keys), routed.of_batch(exists)

    @override
    def insert_or_assign(
        self, keys: tf.Tensor, values: tf.Tensor, distinct: bool = False
    ) -> tf.Operation | None:
        routed = self.spread.route(keys)
        rows = routed.last(tf.reshape(values, [-1, self.options.dim]))
        sent = [Part(0, routed.keys), Part(0, tf.ensure_shape(rows, [None, self.options.dim]))]
        got = routing.to_owners(self.spread.writes, [routed.counts], sent)
        # Not `distinct`: several workers may send the same key, and the last of them wins.
        return super().insert_or_assign(got.parts[0], got.parts[1])

    @override
    def accum(
        self, keys: tf.Tensor, old_values: tf.Tensor, new_values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Operation | None:
        dim = self.options.dim
        order, counts = self.spread.route(keys).each()  # each difference is added
        sent = [Part(0, tf.gather(tf.reshape(keys, [-1]), order))]
        for values in (old_values, new_values):
            rows = tf.gather(tf.reshape(values, [-1, dim]), order)
            sent.append(Part(0, tf.ensure_shape(rows, [None, dim])))
        sent.append(Part(0, tf.gather(tf.reshape(exists, [-1]), order)))
        got = routing.to_owners(self.spread.writes, [counts], sent)
        return super().accum(*got.parts)

    @override
    def erase(self, keys: tf.Tensor) -> tf.Operation | None:
        routed = self.spread.route(keys)
        got = routing.to_owners(self.spread.writes, [routed.counts], [Part(0, routed.keys)])
        return super().erase(got.parts[0])

    @override
    def prefetch(self, keys: tf.Tensor) -> tf.Operation | None:
        """Uses a separate channel, so a thread beside the steps may call it, on all workers."""
        routed = self.spread.route(keys)
        got = routing.to_owners(self.spread.ahead, [routed.counts], [Part(0, routed.keys)])
        return super().prefetch(got.parts[0])

    @override
    def restrict(
        self, num_reserved: tf.Tensor, order: str, trigger: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Each worker keeps a share in proportion to its rows."""
        # Any size is above -1, so without a trigger the condition below always holds.
        limit = tf.constant(-1, tf.int64) if trigger is None else trigger
        mine = tf.stack([super().size(), num_reserved, limit])
        # All workers take the same branch, because they have the same numbers.
        sizes, reserved, limit = agreed(self.spread.triples(mine), self.options.name)
        return tf.cond(
            tf.reduce_sum(sizes) > limit,
            lambda: self._restrict(sizes, reserved, order),
            lambda: tf.constant(0, tf.int64),
        )

    def _restrict(self, sizes: tf.Tensor, num_reserved: tf.Tensor, order: str) -> tf.Tensor:
        """Restricts the table of this worker. `sizes` [workers] are the rows of all workers."""
        policy, removed = self.options.policy, tf.constant(0, tf.int64)
        if policy is not None and policy.ttl_seconds is not None:  # expired rows have no share
            removed = super().restrict(tf.constant(MAX_ROWS, tf.int64), order)
            # Counted after the expired rows have left.
            with tf.control_dependencies([removed]):
                size = super().size()
            sizes = self.spread.numbers(size)
        removed += super().restrict(share_of(self.spread.rank, num_reserved, sizes), order)
        return tf.reduce_sum(self.spread.numbers(removed))

    @override
    def set_scores(self, keys: tf.Tensor, scores: tf.Tensor) -> tf.Operation | None:
        routed = self.spread.route(keys)
        numbers = routed.last(tf.reshape(scores, [-1, 1]))
        sent = [Part(0, routed.keys), Part(0, tf.ensure_shape(numbers, [None, 1]))]
        got = routing.to_owners(self.spread.writes, [routed.counts], sent)
        return super().set_scores(got.parts[0], tf.reshape(got.parts[1], [-1]))

    # Saving. Each file of Keras and each checkpoint has the rows of all workers.

    def export_all(self, *, with_slots: bool = True, with_policy: bool = True) -> Exported:
        """The rows of all workers, on each of them. All workers must call this."""
        if with_policy:
            self._check_counts()
        mine = self.export(with_slots=with_slots, with_policy=with_policy)
        matrices = {
            name: tf.ensure_shape(getattr(mine, name), [None, None])
            for name in ("values", "slots", "statistics")
        }
        parts = [mine.keys, *matrices.values()]
        keys, *rest = self.spread.gather(parts)
        if with_policy and self._counts_keys:
            mine = mine._replace(policy=admission_counts.gathered(mine.policy, self.spread.gather))
        return mine._replace(keys=keys, **dict(zip(matrices, rest, strict=True)))

    @override
    def import_(self, saved: Exported) -> tf.Operation | None:
        return super().import_(self._owned(saved, self.spread.owns))

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with_all = callers.saves_all(self.options.name)
        return self.export_all(with_slots=with_all, with_policy=with_all)._asdict()


def _agree(options: TableOptions, spread: AcrossWorkers) -> int:
    """Compares the options of all workers, and returns the seed of worker 0. A collective call.

    Raises:
        ValueError: If the options, or the builds of the library, differ.
    """
    sharding, policy = spread.sharding, options.policy
    mine = json.dumps(
        {
            "table": options.name,
            "rows": options.kind,
            "shards": options.num_shards,
            "initializer": [options.initializer.kind, *options.initializer.values],
            "policy": None if policy is None else repr(dataclasses.replace(policy, score_fn=None)),
            "score_fn": None if policy is None else _name_of(policy.score_fn),
            "owner": _name_of(sharding.owner),
            "wire_dtype": sharding.wire_dtype,
            "number": spread.reads.number,
            "library": _library.build(),
        }
    )
    texts = spread.workers.gather_texts(f"{options.initializer.seed} {_shortened(mine)}", sharding)
    seeds, kinds = zip(*(text.split(" ", 1) for text in texts), strict=True)
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                "All workers must make the same tables in the same order, with the same build of "
                f"the library. Received: worker 0 makes {kinds[0]}, worker {rank} makes {kind}"
            )
    return int(seeds[0])


def _name_of(rule: Any) -> str | None:
    """A rule, or the name of a function, because the repr of a function has an address."""
    is_named = rule is None or isinstance(rule, str)
    return rule if is_named else getattr(rule, "__name__", type(rule).__name__)


def _shortened(text: str) -> str:
    """A text of at most 3 KiB, with a hash of the whole text if it was longer."""
    data = text.encode()
    # `gather_texts` has room for 4 KiB.
    if len(data) <= 3072:
        return text
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{data[:3000].decode(errors='ignore')}... ({digest})"


def gradients_to_owners(
    tables: Sequence[Table | None], keys: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Sends the gradients of all tables together to the workers that own their rows.

    Args:
        tables: The tables, or None. Tables that are not sharded keep their gradients.
        keys: For each table, [n].
        gradients: For each table, [n, dim].

    Returns:
        Keys and gradients that this worker applies, by table. Keys may repeat, because several
        workers send them.
    """
    keys, gradients = list(keys), list(gradients)
    collective = [i for i, one in enumerate(tables) if one is not None and one.spread.is_collective]
    for first in range(0, len(collective), routing.MAX_TABLES):
        some = collective[first : first + routing.MAX_TABLES]
        owned: list[Any] = [tables[i] for i in some]
        routed = routing.route_gradients(
            [keys[i] for i in some],
            [_gradient_of(table, gradients[i]) for table, i in zip(owned, some, strict=True)],
            owned[0].spread.count,
            [(table.spread.sharding, table.options.name) for table in owned],
        )
        parts = []
        for number, table in enumerate(owned):
            sums = routed.sums[number]
            parts.append(Part(number, routed.keys[number]))
            parts.append(Part(number, sums, table.spread.wire_type_of(sums.dtype)))
        got = routing.to_owners(owned[0].spread.writes, routed.counts, parts)
        for number, i in enumerate(some):
            keys[i], gradients[i] = got.parts[2 * number : 2 * number + 2]
    return keys, gradients


def _gradient_of(table: Table, gradients: tf.Tensor) -> tf.Tensor:
    """Gradients [n, dim] whose sums have the dtype in which the table's rule computes."""
    options = table.options
    wide = pooling_ops.compute_dtype(options.value_dtype)
    if pooling_ops.compute_dtype(gradients.dtype) != wide:
        gradients = tf.cast(gradients, wide)
    return tf.reshape(gradients, [-1, options.dim])
