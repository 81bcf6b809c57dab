# SPDX-License-Identifier: Apache-2.0
"""`ServerTable`: a table whose rows are on the parameter servers of a cluster.

Each server has a table with the rows that it owns. Several workers may call operations at once:
each is one op on a server, so it changes a row atomically.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import pooling_ops, routing_ops
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.sharded.parted_table import PartedTable
from tf_embed.sharded.routed_table import share_of_options
from tf_embed.sharded.servers import Servers
from tf_embed.sharded.spreads import AcrossServers, OnServer
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table import step_tokens
from tf_embed.table.placement import CPU
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


class ServerTable(PartedTable):
    """A table whose rows are on servers.

    Args:
        options: The options of the whole table.
        sharding: How rows are spread over them.

    Raises:
        ValueError: If a bound is less than a row for each server.
    """

    spread: AcrossServers
    _parts: tuple[ServerPart, ...]

    def __init__(self, options: TableOptions, servers: Servers, sharding: WorkerSharding) -> None:
        self.spread = AcrossServers(servers, sharding, options.name)
        name = servers.name_of_next_table(options.name)
        with tf.init_scope():
            parts = [
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
            ]
        # The chief may have a GPU, but has no rows.
        reason = "its rows are on parameter servers"
        super().__init__(dataclasses.replace(options, device=CPU, device_reason=reason), parts)

    @property
    @override
    def outlives_process(self) -> bool:
        return True

    @property
    @override
    def parts(self) -> tuple[ServerPart, ...]:
        return self._parts

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
        joins: bool = False,
    ) -> tf.Operation | None:
        """Runs one op on each server. A step with a token runs it once."""
        del joins  # tables on servers step by themselves
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

    @tf.autograph.experimental.do_not_convert
    @override
    def bind_rule(self, rule: str | ExternalRule) -> None:
        if not isinstance(rule, str):
            raise self._refused("an optimizer whose rule runs outside of the table")
        super().bind_rule(rule)

    def _wire_type_of(self, dtype: tf.DType) -> tf.DType:
        """The dtype in which rows, or gradients, of a dtype are sent."""
        narrow = self.spread.sharding.wire_dtype if dtype == tf.float32 else None
        return dtype if narrow is None else tf.as_dtype(narrow)
