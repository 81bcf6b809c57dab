# SPDX-License-Identifier: Apache-2.0
"""`ServerTable`: a table whose rows are on the parameter servers of a cluster.

Each server has a table with the rows that it owns. The calling process groups the keys of an
operation by owner, and the operation runs on each server with the server's keys. Several workers
may call operations at once: each is one op on a server, so it changes a row atomically.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import pooling_ops, routing_ops
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.sharded.routed_table import RoutedTable, share_of_options
from tf_embed.sharded.servers import Servers
from tf_embed.sharded.spreads import AcrossServers, OnServer
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.worker_shares import share_of
from tf_embed.table import admission_counts, step_tokens
from tf_embed.table.placement import CPU
from tf_embed.table.policies import MAX_ROWS
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions


class ServerPart(Table):
    """The rows of a table on a server.

    Args:
        options: The options of this part; `device` is the CPU of the server.
        spread: The servers, and the server of this part.
        name_on_server: The resource name on the server. An existing part is used again.
    """

    spread: OnServer

    def __init__(self, options: TableOptions, spread: OnServer, name_on_server: str) -> None:
        self.spread = spread
        self._name_on_server = name_on_server
        self._was_kept = False  # by this process
        super().__init__(options)

    @override
    def _name_of_resource(self) -> str:
        return self._name_on_server

    @property
    def is_kept(self) -> bool:
        """Whether `keep` was called for this part, by this process or an earlier chief."""
        return self._was_kept or (self.spread.servers.is_named and self._is_kept_by_server())

    def keep(self) -> None:
        """Makes the server keep the rows until it ends, if a later chief may find them.

        Otherwise they would be lost with the chief: TensorFlow drops a process's resources on a
        server ten minutes after its last contact with the process.
        """
        if self.spread.servers.is_named and not self._is_kept_by_server():
            with tf.init_scope(), tf.device(self.options.device):
                handle = self.resource_handle
                tf.raw_ops.QueueEnqueueV2(handle=self._keeper(), components=[handle])
        self._was_kept = True

    def _is_kept_by_server(self) -> bool:
        with tf.init_scope(), tf.device(self.options.device):
            return int(tf.raw_ops.QueueSizeV2(handle=self._keeper())) > 0

    def _keeper(self) -> tf.Tensor:
        """A queue on the server that holds the handle. A later chief finds it by its name."""
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.resource],
            capacity=1,
            shared_name=f"{self._name_on_server}/keeper",
        )


class ServerTable(RoutedTable):
    """A table whose rows are on servers.

    Args:
        options: The options of the whole table.
        sharding: How rows are spread over them.

    Raises:
        ValueError: If a bound is less than a row for each server.
    """

    spread: AcrossServers

    def __init__(self, options: TableOptions, servers: Servers, sharding: WorkerSharding) -> None:
        self.spread = AcrossServers(servers, sharding, options.name)
        name = servers.name_of_next_table(options.name)
        with tf.init_scope():
            self._parts = tuple(
                ServerPart(
                    dataclasses.replace(
                        share_of_options(options, number, servers.count, "server"),
                        device=device,
                        device_reason="it is the part of a parameter server",
                    ),
                    OnServer(servers, sharding, options.name, number),
                    name,
                )
                for number, device in enumerate(servers.devices)
            )
        # The chief may have a GPU, but has no rows.
        reason = "its rows are on parameter servers"
        super().__init__(dataclasses.replace(options, device=CPU, device_reason=reason))

    def _create_resource(self) -> tf.Tensor:
        return self._parts[0].resource_handle  # it has no handle itself

    @property
    @override
    def outlives_process(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[ServerPart, ...]:
        """The table of each server."""
        return self._parts

    # Verbs with keys.

    @override
    def find(
        self,
        keys: tf.Tensor,
        defaults: tf.Tensor | None = None,
        token: tf.Tensor | None = None,
        *,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        options, routed = self.options, self.spread.route(keys)
        wire = self._wire_type_of(options.value_dtype)

        def find(part: Table, some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rows, exists = part.find(some, training=training)
            return tf.cast(rows, wire), exists

        rows, exists = self._joined(find, routed.counts, [routed.keys])
        rows = tf.ensure_shape(tf.cast(rows, options.value_dtype), [None, options.dim])
        # The op has a kernel for the CPU only.
        with tf.device("/CPU:0"):
            rows = routing_ops.routed_rows(keys, routed.keys, rows, routed.places, token)
        exists = routed.of_batch(exists)
        rows = self._with_defaults(rows, exists, defaults)
        return self._with_shape(rows, keys), exists

    @override
    def find_or_insert(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None, *, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        dim, routed = self.options.dim, self.spread.route(keys)
        sent = [routed.keys]
        if defaults is not None:
            shape = tf.concat([tf.shape(keys), [dim]], 0)
            sent.append(routed.last(tf.reshape(tf.broadcast_to(defaults, shape), [-1, dim])))

        def find(part: Table, some: tf.Tensor, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return part.find_or_insert(some, *rows, training=training)

        rows, exists = self._joined(find, routed.counts, sent)
        return self._with_shape(routed.of_batch(rows), keys), routed.of_batch(exists)

    @override
    def insert_or_assign(
        self, keys: tf.Tensor, values: tf.Tensor, distinct: bool = False
    ) -> tf.Operation | None:
        routed = self.spread.route(keys)
        rows = routed.last(tf.reshape(values, [-1, self.options.dim]))

        def assign(part: Table, some: tf.Tensor, rows: tf.Tensor) -> Any:
            # Routing has made the keys distinct.
            return part.insert_or_assign(some, rows, distinct=True)

        return self._done(assign, routed.counts, [routed.keys, rows])

    @override
    def accum(
        self, keys: tf.Tensor, old_values: tf.Tensor, new_values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Operation | None:
        order, counts = self.spread.route(keys).each()  # each difference is added
        dim = self.options.dim
        sent = [tf.gather(tf.reshape(keys, [-1]), order)]
        sent += [tf.gather(tf.reshape(one, [-1, dim]), order) for one in (old_values, new_values)]
        sent.append(tf.gather(tf.reshape(exists, [-1]), order))
        return self._done(lambda part, *some: part.accum(*some), counts, sent)

    @override
    def apply(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        *,
        rule: str,
        hyper: tf.Tensor,
        step: tf.Tensor,
        distinct: bool = False,
        stochastic_rounding: bool = False,
        unless_frozen: tf.Tensor | None = None,
    ) -> tf.Operation | None:
        """Runs one op on each server. A step with a token runs it once."""
        wide = pooling_ops.compute_dtype(self.options.value_dtype)
        routed = self.spread.route(keys)
        sums = routed.sums(tf.cast(tf.reshape(gradients, [-1, self.options.dim]), wide))
        sums = tf.cast(sums, self._wire_type_of(wide))
        # Each tensor is a call between processes, so all numbers of the step are in a single
        # tensor.
        token = step_tokens.token_of_step()
        # Floats are sent by their bits, among integers.
        numbers = [tf.bitcast(tf.cast(hyper, tf.float64), tf.int64), tf.reshape(step, [1]), *token]
        sizes = [hyper.shape[0], 1, *(2 for _ in token)]
        if unless_frozen is not None:
            numbers.append(tf.reshape(tf.cast(unless_frozen, tf.int64), [1]))
            sizes.append(1)
        packed = tf.concat(numbers, 0)

        def apply(part: Table, some: tf.Tensor, rows: tf.Tensor) -> Any:
            # Split on the server's device, so only the packed tensor crosses the wire.
            there = tf.split(packed, sizes)
            with step_tokens.with_tokens(there[2 : 2 + len(token)]):
                return part.apply(
                    some,
                    tf.cast(rows, wide),
                    rule=rule,
                    hyper=tf.bitcast(there[0], tf.float64),
                    step=tf.reshape(there[1], []),
                    distinct=True,
                    stochastic_rounding=stochastic_rounding,
                    unless_frozen=(
                        None if unless_frozen is None else tf.reshape(there[-1] > 0, [])
                    ),
                )

        return self._done(apply, routed.counts, [routed.keys, sums])

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
        sent = [routed.keys, routed.last(tf.reshape(scores, [-1]))]
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
        """Sums the rows of all servers, or the rows of a shard on each server."""
        return tf.reduce_sum(tf.stack(self._of_all(lambda part: part.size(shard))))

    @override
    def export(self, *, with_slots: bool = True, with_policy: bool = True) -> Exported:
        """Joins the rows of the servers. The rows of each server are a consistent snapshot."""
        if with_policy:
            self._check_counts()
        exported = self._of_all(
            lambda part: part.export(with_slots=with_slots, with_policy=with_policy)
        )
        first = exported[0]
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

    # `export` has the rows of all servers already.
    export_all = export

    @override
    def import_(self, saved: Exported) -> tf.Operation | None:
        self.wait_until_written()
        done = []
        for part in self._parts:
            owned = self._owned(saved, part.spread.owns)
            with tf.device(part.options.device):
                done.append(part.import_(owned))
        return _grouped(done)

    @override
    def restrict(
        self, num_reserved: tf.Tensor, order: str, trigger: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Each server keeps a share in proportion to its rows."""
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

    @tf.autograph.experimental.do_not_convert
    @override
    def bind_rule(self, rule: str | ExternalRule) -> None:
        if not isinstance(rule, str):
            raise self._refused("an optimizer whose rule runs outside of the table")
        if self.check_rule is not None:
            self.check_rule(rule)
        self._rule = rule
        for part in self._parts:
            part.bind_rule(rule)

    @tf.autograph.experimental.do_not_convert
    @override
    def drop_slots(self) -> None:
        for part in self._parts:
            part.drop_slots()

    # Parts of these.

    def _wire_type_of(self, dtype: tf.DType) -> tf.DType:
        """The dtype in which rows, or gradients, of a dtype are sent."""
        narrow = self.spread.sharding.wire_dtype if dtype == tf.float32 else None
        return dtype if narrow is None else tf.as_dtype(narrow)

    def _by_server(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> list[Any]:
        """Calls `verb` on each server: server 0 gets the first `counts[0]` rows of `sent`, etc."""
        count = self.spread.count
        pieces = [tf.split(one, counts, num=count) for one in sent]
        results = []
        for part, some in zip(self._parts, zip(*pieces, strict=True), strict=True):
            with tf.device(part.options.device):
                results.append(verb(part, *some))
        return results

    def _joined(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        results = self._by_server(verb, counts, sent)
        return [tf.concat(some, 0) for some in zip(*results, strict=True)]

    def _done(
        self, verb: Callable[..., Any], counts: tf.Tensor, sent: Sequence[tf.Tensor]
    ) -> tf.Operation | None:
        return _grouped(self._by_server(verb, counts, sent))

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
