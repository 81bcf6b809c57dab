# SPDX-License-Identifier: Apache-2.0
"""The options of the processes' parts of a table."""

from __future__ import annotations

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.sharded.routed_table import share_of_options
from tf_embed.table.table_options import TableOptions


def shares(count: int, **options: object) -> list[TableOptions]:
    whole = TableOptions("v", **options)  # type: ignore[arg-type]
    return [share_of_options(whole, number, count, "worker") for number in range(count)]


class ShareOfOptionsTest(parameterized.TestCase):
    @parameterized.parameters((9, [3, 3, 3]), (10, [4, 3, 3]), (11, [4, 4, 3]), (3, [1, 1, 1]))
    def test_bounds_add_up_to_that_of_the_table(self, max_rows, expected):
        policy = tf_embed.TablePolicy(max_rows=max_rows, eviction="lru")
        found = shares(3, policy=policy)
        self.assertEqual([one.policy.max_rows for one in found], expected)
        self.assertEqual({one.policy.eviction for one in found}, {"lru"})

    def test_a_bound_has_a_row_for_each(self):
        with self.assertRaisesRegex(ValueError, "must be at least 3, a row for each worker"):
            shares(3, policy=tf_embed.TablePolicy(max_rows=2, eviction="lru"))

    @parameterized.parameters((9, 3), (10, 4), (0, 0))
    def test_room_is_for_a_share_of_the_rows(self, init_size, expected):
        self.assertEqual({one.init_size for one in shares(3, init_size=init_size)}, {expected})

    def test_each_has_a_folder_of_its_own(self):
        storage = tf_embed.Storage(path="/rows", host_bytes=4096)
        found = [one.storage.path for one in shares(2, storage=storage)]
        self.assertEqual(found, ["/rows/worker_0", "/rows/worker_1"])

    def test_the_rest_is_that_of_the_table(self):
        storage = tf_embed.Storage(gpu_bytes=0)
        options = {"key_dtype": tf.string, "dim": 7, "storage": storage, "init_size": 0}
        self.assertEqual(shares(2, **options), [TableOptions("v", **options)] * 2)


if __name__ == "__main__":
    absltest.main()
