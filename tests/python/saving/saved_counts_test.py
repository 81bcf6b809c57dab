# SPDX-License-Identifier: Apache-2.0
"""Counts of waiting keys, saved by several processes and loaded by other numbers of processes."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.ops import row_file_ops, snapshot_ops
from tf_embed.ops.row_file_ops import Part
from tf_embed.variable.row_files import RowFiles

KEYS, THRESHOLD, SAVE = 40, 4, -7


def variable(admission: Any, key_dtype: str = "int64") -> tf_embed.tfra.Variable:
    return tf_embed.tfra.Variable(
        dim=1,
        key_dtype=key_dtype,
        name="items",
        devices="/CPU:0",
        initializer="zeros",
        policy=tf_embed.TablePolicy(admission=admission),
    )


def of(v: tf_embed.Variable, keys: Any) -> tf.Tensor:
    if v.key_dtype == tf.string:
        return tf.constant([f"k{key}" for key in keys])
    return tf.cast(tf.constant(list(keys), tf.int64), v.key_dtype)


def train(v: tf_embed.Variable, keys: Any) -> None:
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_embed.embedding_lookup(v, of(v, keys)))
    variables = v.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def counted(key: int) -> int:
    """The count of a key at the save: 0 to 3, at most one less than the admission needs."""
    return key % THRESHOLD


def waiting_table(rank: int, processes: int, admission: Any, **options: Any) -> Any:
    """A table with the counts of a process, and a row of that process."""
    v = variable(admission, **options)
    mine = range(rank, KEYS, processes)
    for time in range(THRESHOLD - 1):
        train(v, [key for key in mine if counted(key) > time])
    v.upsert(of(v, [1000 + rank]), [[1.0]])
    return v


def admitted(v: tf_embed.Variable) -> list[int]:
    """Makes a step with all keys. Returns the keys that then have a row."""
    train(v, range(KEYS))
    _, exists = v.lookup(of(v, range(KEYS)), return_exists=True)
    return [key for key in range(KEYS) if exists[key]]


ADMITTED = [key for key in range(KEYS) if counted(key) == THRESHOLD - 1]
COUNTER = tf_embed.CounterAdmission(THRESHOLD)
FILTERS = tf_embed.BloomAdmission(THRESHOLD, 1e-6)


class SavedCountsTest(tf.test.TestCase, parameterized.TestCase):
    def save(self, processes: int, admission: Any = COUNTER, **options: Any) -> list[Any]:
        tables = [waiting_table(rank, processes, admission, **options) for rank in range(processes)]
        for rank, v in enumerate(tables):
            v.save_to_file_system(self.folder, proc_size=processes, proc_rank=rank)
        return tables

    def setUp(self):
        super().setUp()
        self.folder = self.enter_context(tempfile.TemporaryDirectory())

    @parameterized.product(
        processes=[1, 2, 3], admission=[COUNTER, FILTERS, tf_embed.CounterAdmission(THRESHOLD, 400)]
    )
    def test_one_process_goes_on_with_the_counts_of_several(self, processes, admission):
        self.save(processes, admission)
        v = variable(admission)
        v.load_from_file_system(self.folder, load_entire_dir=True)
        self.assertEqual(admitted(v), ADMITTED)

    @parameterized.product(
        saved=[1, 2, 3], loaded=[2, 4], key_dtype=["int64", "int32", "uint64", "uint32"]
    )
    def test_each_process_goes_on_with_the_counts_of_its_keys(self, saved, loaded, key_dtype):
        self.save(saved, key_dtype=key_dtype)
        found: list[int] = []
        for rank in range(loaded):
            v = variable(COUNTER, key_dtype)
            v.load_from_file_system(self.folder, proc_size=loaded, proc_rank=rank)
            found += admitted(v)
        self.assertEqual(sorted(found), ADMITTED)

    def test_filters_and_strings_wait_in_each_process(self):
        for admission, key_dtype in ((FILTERS, "int64"), (FILTERS, "string"), (COUNTER, "string")):
            self.save(3, admission, key_dtype=key_dtype)
            for rank in range(2):
                v = variable(admission, key_dtype)
                v.load_from_file_system(self.folder, proc_size=2, proc_rank=rank)
                self.assertEqual(admitted(v), ADMITTED)

    def test_in_a_graph_it_is_the_same(self):
        self.save(3)
        v = variable(COUNTER)

        @tf.function
        def load() -> None:
            v.load_from_file_system(self.folder, proc_size=2, proc_rank=1)

        load()
        self.assertEqual(admitted(v), [key for key in ADMITTED if key % 2 == 1])

    def test_counts_of_a_table_with_rows_stay(self):
        self.save(2)
        v = variable(COUNTER)
        v.upsert(of(v, [77]), [[1.0]])
        for _ in range(THRESHOLD - 1):
            train(v, [5])
        v.load_from_file_system(self.folder, proc_size=3, proc_rank=0)
        self.assertEqual(admitted(v), [5])

    def test_filters_of_other_sizes_are_refused_by_name(self):
        for rank, error_rate in enumerate((0.1, 0.01)):
            v = waiting_table(rank, 2, tf_embed.BloomAdmission(THRESHOLD, error_rate))
            v.save_to_file_system(self.folder, proc_size=2, proc_rank=rank)
        v = variable(tf_embed.BloomAdmission(THRESHOLD, 0.1))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "rank1of2.*filters of other"):
            v.load_from_file_system(self.folder, load_entire_dir=True)
        self.assertEqual(int(v.size()), 0)

    @parameterized.parameters(COUNTER, FILTERS)
    def test_a_snapshot_by_several_processes_has_the_counts_of_all(self, admission):
        for rank in range(3):
            v = waiting_table(rank, 3, admission)
            handle, part = v.table.resource_handle, Part(SAVE, rank, 3)
            row_file_ops.save_part(handle, self.folder, "rows", part, buffer_bytes=100)
        snapshot_ops.join_rows(self.folder, "rows", 3)
        v = variable(admission)
        RowFiles(v.table).load_all(self.folder, "rows")
        self.assertEqual(admitted(v), ADMITTED)


if __name__ == "__main__":
    tf.test.main()
