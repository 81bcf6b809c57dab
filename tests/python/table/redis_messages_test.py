# SPDX-License-Identifier: Apache-2.0
"""Errors of a table in Redis: its server is lost, or has values that no table wrote.

The server is a fake, so these tests need no Redis.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.raw_tables import NO_LISTS, RAW
from support.faults.false_redis import FalseRedis, Raw
from tf_embed.ops import new_table_ops
from tf_embed.ops.new_table_ops import settings_text

pytestmark = pytest.mark.cpu

NO_OWNERS = tf.zeros([0], tf.int32)
SGD = tf.constant([0.5, 0.0], tf.float64)
GENERATION = 4  # the index of this number in the metadata


def value(data: bytes = bytes(8), generation: int = 0) -> bytes:
    """A row in its format in Redis."""
    return struct.pack("<QII", 1, generation, 0) + data


class RedisMessagesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.server = FalseRedis()
        self.addCleanup(self.server.close)

    def table(self, port: int | None = None, dim: int = 2, **fields: Any) -> tf.Tensor:
        fields = {
            "host": "127.0.0.1",
            "port": port or self.server.port,
            "prefix": "items",
            "slices": 1,
            "connect_timeout_ms": 300,
            "timeout_ms": 300,
            **fields,
        }
        return new_table_ops.create_table(
            shared_name=None,
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=dim,
            num_shards=1,
            init_size=0,
            label="items",
            initializer="constant",
            initializer_values=[0.0],
            seed=0,
            table_id=0,
            settings=settings_text({f"redis_{name}": field for name, field in fields.items()}),
        )

    def find(self, table: tf.Tensor) -> tf.Tensor:
        keys = tf.constant([7], tf.int64)
        return RAW.tf_embed_find(
            table=table, keys=keys, owners=NO_OWNERS, defaults=tf.zeros([0]), tokens=[], dim=2
        )[0]

    def train(self, table: tf.Tensor) -> None:
        keys, step = tf.constant([7], tf.int64), tf.constant(1, tf.int64)
        RAW.tf_embed_apply(
            table=table,
            keys=keys,
            owners=NO_OWNERS,
            gradients=tf.ones([1, 2]),
            hyper=SGD,
            step=step,
            **NO_LISTS,
            dim=2,
            rule="sgd",
        )

    def generation(self) -> int:
        """The generation of the table's current optimizer."""
        return struct.unpack_from("<q", self.server.meta, 8 * GENERATION)[0]

    def test_a_row_that_is_there_is_found(self):
        self.server.rows = lambda words: [value(struct.pack("<ff", 1.0, 2.0))]
        self.assertAllEqual(self.find(self.table()), [[1.0, 2.0]])

    @parameterized.parameters(
        (b"abc", "has a value of 3 bytes for key 7, which is no row"),
        (value(bytes(4)), "has 20 bytes, and must have at least 24"),
        (5, "gave an unexpected reply to GET"),
    )
    def test_a_value_that_is_no_row_is_damage(self, row, words):
        table = self.table()
        self.server.rows = lambda _: [row]
        with self.assertRaisesRegex(tf.errors.DataLossError, f"'items' (is )?in Redis.*{words}"):
            self.find(table)

    def test_an_answer_of_another_length_is_damage(self):
        table = self.table()
        self.server.rows = lambda _: []
        with self.assertRaisesRegex(
            tf.errors.DataLossError,
            r"Table 'items' is in Redis. The server at .* gave an unexpected reply to HMGET",
        ):
            self.find(table)

    def test_a_header_of_too_many_elements_takes_no_memory(self):
        table = self.table()
        self.server.rows = lambda _: Raw(b"*1279233332\r\n")  # 10 GB of pointers
        with self.assertRaisesRegex(
            tf.errors.AbortedError, "The Redis server at .* was lost: Out of memory"
        ):
            self.find(table)

    def test_a_row_of_another_optimizer_is_damage(self):
        table = self.table()
        self.server.rows = lambda _: [value(bytes(12), self.generation())]
        with self.assertRaisesRegex(
            tf.errors.DataLossError, "has 28 bytes, which are not those of a row of its optimizer"
        ):
            self.train(table)
        self.server.rows = lambda _: [value(bytes(8), self.generation() + 1)]
        with self.assertRaisesRegex(
            tf.errors.DataLossError, "in Redis at .* are of a later optimizer than its meta"
        ):
            self.train(table)

    def test_the_name_of_another_table_is_refused(self):
        self.table(dim=3)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "in Redis at .* has the name 'items', and must be what the table of that name is: "
            "float32 values, dim 3, in 1 slice, without expiry. Received: float32 values, dim 2",
        ):
            self.table()
        self.server.meta = b"an article of the shop"
        with self.assertRaisesRegex(
            tf.errors.DataLossError,
            "and what is there is no table. It is not of a table of this version of tf_embed",
        ):
            self.table()

    def test_a_server_that_does_not_answer_is_named(self):
        with self.assertRaisesRegex(
            tf.errors.AbortedError, "The Redis server at 127.0.0.1:1 can't be reached: Connection"
        ):
            self.table(port=1)
        table = self.table()
        self.server.rows = lambda _: RuntimeError("LOADING it reads its rows")
        with self.assertRaisesRegex(
            tf.errors.AbortedError, "The Redis server at .* is not ready: LOADING it reads"
        ):
            self.find(table)

    def test_a_server_that_takes_no_connection_is_named(self):
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(full.close)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            self.addCleanup(one.close)
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with self.assertRaisesRegex(
            tf.errors.AbortedError, "can't be reached: no connection within 300 ms"
        ):
            self.table(port=full.getsockname()[1])

    def test_a_table_in_redis_is_not_restricted(self):
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            "The store of table 'items' keeps no statistics by which rows leave",
        ):
            tf_embed._library.load().tf_embed_row_statistics(
                table=self.table(), keys=tf.constant([7], tf.int64), owners=NO_OWNERS
            )


if __name__ == "__main__":
    tf.test.main()
