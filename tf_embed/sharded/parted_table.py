# SPDX-License-Identifier: Apache-2.0
"""`PartedTable`: a table of several parts, each a `Table` on a device.

The calling process groups the keys of an operation by part, and the operation runs on each part
with its keys. TensorFlow copies the tensors that cross devices. Keys are grouped on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.sharded.routed_table import RoutedTable
from tf_embed.sharded.spreads import Sharded
from tf_embed.sharded.worker_shares import share_of
from tf_embed.table import admission_counts
from tf_embed.table.policies import MAX_ROWS
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions


class PartedTable(RoutedTable):
    """A table of several parts.

    Subclasses implement `find` and `apply`, which move most of the bytes.

    Args:
        options: The options of the whole table.
        parts: The part of each process or device.
    """

    spread: Sharded

    def __init__(self, options: TableOptions, parts: Sequence[Table]) -> None:
        self._parts = tuple(parts)
        super().__init__(options)

    def _create_resource(self) -> tf.Tensor:
        return self._parts[0].resource_handle  # it has no handle itself

    @property
    def parts(self) -> tuple[Table, ...]:
        """The table of each process or device."""
        return self._parts

    # Verbs with keys.

    @override
    def find_or_insert(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None, *, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        dim, routed = self.options.dim, self.spread.route(keys)
        sent = [routed.keys]
        if defaults is not None:
            shape = tf.concat([tf.shape(keys), [dim]], 0)
            sent.append(routed.first(tf.reshape(tf.broadcast_to(defaults, shape), [-1, dim])))

        def find(part: Table, some: tf.Tensor, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return part.find_or_insert(some, *rows, training=training)

        rows, exists = self._joined(find, routed.counts, sent)
        return self._with_shape(routed.of_batch(rows), keys), routed.of_batch(exists)

    @override
    def insert_or_assign(
        self, keys: tf.Tensor, values: tf.Tensor, distinct: bool = False
    ) -> tf.Operation | None:
        routed = self.spread.route(keys)
        rows = routed.last(self._rows_of(keys, values))

        def assign(part: Table, some: tf.Tensor, rows: tf.Tensor) -> Any:
            # Routing has made the keys distinct.
            return part.insert_or_assign(some, rows, distinct=True)

        return self._done(assign, routed.counts, [routed.keys, rows])

    @override
    def accum(
        self, keys: tf.Tensor, old_values: tf.Tensor, new_values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Operation | None:
        routed, order, counts = self._each(keys)  # each difference is added
        sent = [routed]
        sent += [tf.gather(self._rows_of(keys, one), order) for one in (old_values, new_values)]
        sent.append(tf.gather(tf.reshape(exists, [tf.size(keys)]), order))
        return self._done(lambda part, *some: part.accum(*some), counts, sent)

    @override
    def read_slots(
        self, keys: tf.Tensor, rule: str | ExternalRule, initial_value: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)

        def read(part: Table, some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return part.read_slots(some, rule, initial_value)

        slots, exists = self._joined(read, routed.counts, [routed.keys])
        return routed.of_batch(slots), routed.of_batch(exists)

    @override
    def row_statistics(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)
        numbers, exists = self._joined(
            lambda part, some: part.row_statistics(some), routed.counts, [routed.keys]
        )
        return routed.of_batch(numbers), routed.of_batch(exists)

    @override
    def set_scores(self, keys: tf.Tensor, scores: tf.Tensor) -> tf.Operation | None:
        routed = self.spread.route(keys)
        sent = [routed.keys, routed.last(tf.reshape(scores, [tf.size(keys)]))]
        return self._done(lambda part, *some: part.set_scores(*some), routed.counts, sent)

    @override
    def prefetch(self, keys: tf.Tensor) -> tf.Operation | None:
        routed = self.spread.route(keys)
        return self._done(lambda part, some: part.prefetch(some), routed.counts, [routed.keys])

    @override
    def erase(self, keys: tf.Tensor) -> tf.Operation | None:
        routed = self.spread.route(keys)
        return self._done(lambda part, some: part.erase(some), routed.counts, [routed.keys])

    # Verbs of the whole table.

    @override
    def clear(self) -> tf.Operation | None:
        self.wait_until_written()
        return self._on_all(lambda part: part.clear())

    @override
    def shrink(self) -> tf.Operation | None:
        return self._on_all(lambda part: part.shrink())

    @override
    def size(self, shard: int = -1) -> tf.Tensor:
        """Sums the rows of all parts, or the rows of a shard of each part."""
        return tf.reduce_sum(tf.stack(self._of_all(lambda part: part.size(shard))))

    @override
    def export(self, *, with_slots: bool = True, with_policy: bool = True) -> Exported:
        """Joins the rows of the parts. The rows of each part are a consistent snapshot."""
        if with_policy:
            self._check_counts()
        exported = self._of_all(
            lambda part: part.export(with_slots=with_slots, with_policy=with_policy)
        )
        first = exported[0]
        with tf.device("/CPU:0"):  # a GPU may have no room for all rows twice
            policy = first.policy
            if with_policy and self._counts_keys:
                policy = admission_counts.joined([one.policy for one in exported])
            return first._replace(
                keys=tf.concat([one.keys for one in exported], 0),
                values=tf.concat([one.values for one in exported], 0),
                slots=tf.concat([one.slots for one in exported], 0),
                statistics=tf.concat([one.statistics for one in exported], 0),
                policy=policy,
            )

    # `export` has the rows of all parts already.
    export_all = export

    @override
    def import_(self, saved: Exported) -> tf.Operation | None:
        self.wait_until_written()
        done = []
        for part in self._parts:
            assert part.spread.owns is not None
            with tf.device("/CPU:0"):
                owned = self._owned(saved, part.spread.owns)
            with tf.device(part.options.device):
                done.append(part.import_(owned))
        return _grouped(done)

    @override
    def restrict(
        self, num_reserved: tf.Tensor, order: str, trigger: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Each part keeps a share in proportion to its rows."""
        if trigger is None:
            return self._restrict(num_reserved, order)
        return tf.cond(
            self.size() > trigger,
            lambda: self._restrict(num_reserved, order),
            lambda: tf.constant(0, tf.int64),
        )

    def _restrict(self, num_reserved: tf.Tensor, order: str) -> tf.Tensor:
        policy, removed = self.options.policy, []
        if policy is not None and policy.ttl_seconds is not None:  # expired rows have no share
            everything = tf.constant(MAX_ROWS, tf.int64)
            removed = self._of_all(lambda part: part.restrict(everything, order))
        # Sizes are read after expired rows have left.
        with tf.control_dependencies(removed):
            sizes = tf.stack(self._of_all(lambda part: part.size()))
        for number, part in enumerate(self._parts):
            share = share_of(number, num_reserved, sizes)
            with tf.device(part.options.device):
                removed.append(part.restrict(share, order))
        return tf.add_n(removed)

    @override
    def export_scores(self, order: str, split_size: int) -> tuple[tf.Tensor, tf.Tensor]:
        both = self._of_all(lambda part: part.export_scores(order, split_size))
        keys, scores = zip(*both, strict=True)
        return tf.concat(keys, 0), tf.concat(scores, 0)

    # Helpers.

    def _rows_of(self, keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """The rows of a batch [n, dim]. The op fails if there is not a row for each key."""
        return tf.reshape(rows, tf.stack([tf.size(keys), self.options.dim]))

    def _each(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The keys of a batch part by part, duplicates included.

        Returns:
            Keys [n], their positions in the batch [n], and how many each part owns.
        """
        order, counts = self.spread.route(keys).each()
        with tf.device("/CPU:0"):
            return tf.gather(tf.reshape(keys, [-1]), order), order, counts

    def _by_part(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> list[Any]:
        """Calls `verb` on each part: part 0 gets the first `counts[0]` rows of `sent`, etc.

        Args:
            sent: Keys, and rows of them.
        """
        count = len(self._parts)
        with tf.device("/CPU:0"):  # where keys were grouped
            pieces = [tf.split(sent[0], counts, num=count)]
        pieces += [tf.split(one, counts, num=count) for one in sent[1:]]
        results = []
        for part, some in zip(self._parts, zip(*pieces, strict=True), strict=True):
            with tf.device(part.options.device):
                results.append(verb(part, *some))
        return results

    def _joined(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        results = self._by_part(verb, counts, sent)
        return [tf.concat(some, 0) for some in zip(*results, strict=True)]

    def _done(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> tf.Operation | None:
        return _grouped(self._by_part(verb, counts, sent))

    def _of_all(self, verb: Callable[[Table], Any]) -> list[Any]:
        results = []
        for part in self._parts:
            with tf.device(part.options.device):
                results.append(verb(part))
        return results

    def _on_all(self, verb: Callable[[Table], Any]) -> tf.Operation | None:
        return _grouped(self._of_all(verb))


def _grouped(done: Sequence[tf.Operation | None]) -> tf.Operation | None:
    return None if tf.executing_eagerly() else tf.group(*done)
