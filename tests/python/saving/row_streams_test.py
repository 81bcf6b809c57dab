# SPDX-License-Identifier: Apache-2.0
"""Saved rows as NumPy arrays, without a table: `RowReader` and `RowWriter` against `Variable`."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED, sorted_rows
from tf_embed.ops import row_stream_ops
from tf_embed.saving.row_streams import KEY_DTYPES, VALUE_DTYPES, RowReader, RowWriter
from tf_embed.snapshots import manifest
from tf_embed.variable.row_files import RowFiles

NO_META = tf.zeros([0], tf.int64)


def read(folder: str, name: str = "v") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows, in the order of their keys."""
    parts = list(RowReader(folder, name).blocks())
    keys, weights, slots = (np.concatenate(some) for some in zip(*parts, strict=True))
    order = np.argsort(keys)
    return keys[order], weights[order], slots[order]


class RowStreamsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.product(
        key_dtype=[one.name for one in KEY_DTYPES], value_dtype=[one.name for one in VALUE_DTYPES]
    )
    def test_rows_of_a_variable_are_read(self, key_dtype, value_dtype):
        folder, rng = self.folder(), np.random.default_rng(SEED)
        v = tf_embed.Variable(key_dtype, value_dtype, dim=3, name="v", devices=["/CPU:0"] * 2)
        v.upsert(
            tf.cast(rng.choice(10**6, 500, replace=False), key_dtype),
            tf.cast(rng.normal(size=[500, 3]), value_dtype),
        )
        v.save_rows(folder, buffer_bytes=1000)
        reader = RowReader(folder, "v")
        self.assertEqual((reader.num_rows, reader.dim, reader.slots), (500, 3, 0))
        self.assertGreater(len(list(reader.blocks())), 4)
        keys, weights, slots = read(folder)
        wanted_keys, wanted = sorted_rows(*v.export())
        self.assertAllEqual(keys, wanted_keys)
        self.assertAllEqual(weights, wanted)
        self.assertEqual((keys.dtype, weights.dtype), (wanted_keys.dtype, wanted.dtype))
        self.assertEqual(slots.shape, (500, 0))

    @parameterized.parameters("float32", "bfloat16", "float64")
    def test_slots_and_the_parts_of_all_processes_are_read(self, value_dtype):
        folder, rng = self.folder(), np.random.default_rng(SEED)
        seen = {}
        for rank in range(3):
            layer = tf_embed.layers.DynamicEmbedding(
                2, dtype=value_dtype, optimizer="adam", name="v", devices="/CPU:0"
            )
            keys = tf.constant(3 * rng.choice(1000, 20, replace=False) + rank)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(keys) ** 2)
            variables = layer.trainable_variables
            keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
            v = layer.variable
            files = RowFiles(v.table)
            files.save(dataclasses.replace(files.place(folder, "v"), rank=rank, processes=3))
            slots = [one.lookup(keys) for one in v.slot_variables(layer.optimizer)]
            rows = zip(v.lookup(keys).numpy(), np.concatenate(slots, 1), strict=True)
            seen.update(zip(keys.numpy().tolist(), rows, strict=True))
        keys, weights, slots = read(folder)
        self.assertEqual(keys.tolist(), sorted(seen))
        for key, row, some in zip(keys.tolist(), weights, slots, strict=True):
            self.assertAllEqual(row, seen[key][0])
            self.assertAllEqual(some, seen[key][1])

    def test_parts_of_different_kinds_are_not_read_as_one(self):
        folder = self.folder()
        for rank in range(2):
            v = tf_embed.tfra.Variable(dim=3 + rank, name="v")
            v.upsert([rank], np.ones([1, 3 + rank]))
            v.save_to_file_system(folder, proc_size=2, proc_rank=rank)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "different kinds"):
            RowReader(folder, "v")

    def test_rows_of_a_policy_are_read_and_loaded_as_used_now(self):
        folder, other = self.folder(), self.folder()
        policy = tf_embed.TablePolicy(max_rows=10, eviction="lfu")
        v = tf_embed.Variable(dim=2, name="v", policy=policy)
        for count in range(1, 4):
            v.upsert(range(count), np.full([count, 2], float(count)))
        v.save_rows(folder)
        source = RowReader(folder, "v")
        target = RowWriter(other, "v", source.value_dtype, source.dim, source.meta)
        for block in source.blocks():
            target.append(*block)
        target.finish()
        w = tf_embed.Variable(dim=2, name="v", policy=policy)
        w.load_rows(other)
        self.assertAllEqual(sorted_rows(*w.export())[1], sorted_rows(*v.export())[1])

    @parameterized.parameters(
        ("string", "float32"),
        ("int64", "string"),
        ("string", "string"),
        ("uint32", "int8"),
        ("int64", "bool"),
        ("int32", "int32"),
        ("uint64", "int64"),
    )
    def test_rows_of_any_type_are_read(self, key_dtype, value_dtype):
        folder, numbers = self.folder(), np.arange(300)
        v = tf_embed.Variable(key_dtype, value_dtype, dim=2, name="v", devices=["/CPU:0"] * 2)

        def of(dtype, array):
            return tf.as_string(array) if dtype == "string" else tf.cast(array, dtype)

        v.upsert(of(key_dtype, numbers), of(value_dtype, np.stack([numbers, numbers % 2], 1) % 100))
        v.save_rows(folder, buffer_bytes=1000)
        reader = RowReader(folder, "v", of_any_type=True)
        found = {}
        for keys, weights, _ in reader.blocks():
            found.update(zip(keys.tolist(), weights.tolist(), strict=True))
        keys, weights = (one.numpy().tolist() for one in v.export())
        self.assertLen(found, 300)
        self.assertEqual(found, dict(zip(keys, weights, strict=True)))

    def test_statistics_are_read(self):
        folder = self.folder()
        policy = tf_embed.TablePolicy(eviction="score", max_rows=9)
        v = tf_embed.Variable(dim=1, name="v", policy=policy)
        v.upsert([1, 2, 3], np.ones([3, 1]))
        v.upsert([2], np.ones([1, 1]))
        v.set_scores([1, 2, 3], [-5, 0, 7])
        v.save_rows(folder)
        (block,) = RowReader(folder, "v").blocks_with_statistics()
        wanted = v.row_statistics(block.keys)
        self.assertEqual(block.statistics.keys(), wanted.keys() - {"exists"})
        for name, numbers in block.statistics.items():
            self.assertAllEqual(numbers, wanted[name])
        self.assertCountEqual(block.statistics["score"].tolist(), [-5, 0, 7])

    def test_a_save_of_changes_is_read_alone_or_with_its_base(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=1, name="v", policy=tf_embed.TablePolicy(track_changes=True))
        v.upsert([1, 2, 3], np.ones([3, 1]))
        snapshots = tf_embed.Snapshots(folder, v)
        snapshots.save("a")
        v.upsert([2], np.zeros([1, 1]))
        snapshots.save("b", since="a")
        place = str(pathlib.Path(folder, "b")), manifest.read(f"{folder}/b").tables[0].file_name
        self.assertEqual(RowReader(*place).num_rows, 3)
        self.assertEqual(RowReader(*place, alone=True).num_rows, 1)
        described = row_stream_ops.describe_rows(*place)
        numbers = row_stream_ops.SaveNumbers(*described.numbers.numpy().tolist())
        self.assertEqual((numbers.rows, numbers.files, numbers.processes), (1, 1, 1))
        self.assertNotEqual(numbers.since, 0)
        self.assertEqual(described.names.numpy().tolist(), [b"int64", b"float32", b"a"])
        self.assertAllEqual(described.meta, RowReader(*place).meta)
        with self.assertRaisesRegex(tf.errors.NotFoundError, "no whole save of 'v'"):
            row_stream_ops.describe_rows(folder, "v")

    def test_a_missing_save_is_named(self):
        with self.assertRaisesRegex(tf.errors.NotFoundError, "no whole save of 'v'"):
            RowReader(self.folder(), "v")

    def test_a_closed_reader_gives_no_more_blocks(self):
        folder = self.folder()
        writer = RowWriter(folder, "v", tf.float32, 1)
        for number in range(3):
            writer.append(np.array([number]), np.ones([1, 1], np.float32), np.ones([1, 0], "f"))
        writer.finish()
        reader = RowReader(folder, "v")
        blocks = reader.blocks()
        next(blocks)
        reader.close()
        self.assertEmpty(list(blocks))

    @parameterized.parameters(
        ({"keys": tf.zeros([2, 1], tf.int64)}, "`keys`"),
        ({"weights": tf.zeros([1, 3])}, r"`weights` must be of shape \[2, 3\]"),
        ({"weights": tf.zeros([2, 4])}, "`weights`"),
        (
            {"weights": tf.zeros([2, 3], tf.float16)},
            "`weights` must be float32, and `slots` as wide as they are computed with",
        ),
        ({"slots": tf.zeros([2, 1])}, r"`slots` must be of shape \[2, 0\]"),
        ({"slots": tf.zeros([2, 0], tf.float64)}, "and `slots` as wide as they are computed"),
        (
            {"stream": tf.raw_ops.EmptyTensorList},
            "`stream` must be what TfEmbedBeginRowStream gave",
        ),
    )
    def test_wrong_rows_are_refused_and_the_stream_goes_on(self, wrong, message):
        folder = self.folder()
        stream = row_stream_ops.begin_rows(folder, "v", NO_META, value_dtype=tf.float32, dim=3)
        right = {
            "keys": tf.constant([1, 2], tf.int64),
            "weights": tf.ones([2, 3]),
            "slots": tf.zeros([2, 0]),
        }
        if "stream" in wrong:
            wrong = {
                "stream": wrong["stream"](
                    element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
                )
            }
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            row_stream_ops.append_rows(**{"stream": stream, **right, **wrong})
        row_stream_ops.append_rows(stream, **right)
        row_stream_ops.finish_rows(stream)
        self.assertAllEqual(read(folder)[0], [1, 2])
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "The stream of rows has ended, or has failed before"
        ):
            row_stream_ops.append_rows(stream, **right)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "The stream of rows has ended, or has failed before"
        ):
            row_stream_ops.finish_rows(stream)

    def test_rows_are_of_the_types_of_the_file_alone(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=2, name="v")
        v.upsert([1], [[1.0, 2.0]])
        v.save_rows(folder)
        opened = row_stream_ops.open_rows(folder, "v")
        for types in ((tf.int32, tf.float32), (tf.int64, tf.float16), (tf.int64, tf.float64)):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError,
                "must be those of the rows, which have int64 keys and float32 weights",
            ):
                row_stream_ops.read_rows(opened.rows, 0, key_dtype=types[0], value_dtype=types[1])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`block`.*less than 1"):
            row_stream_ops.read_rows(opened.rows, 1, key_dtype=tf.int64, value_dtype=tf.float32)

    @parameterized.parameters("int32", "bool")
    def test_rows_without_floating_weights_need_a_table(self, value_dtype):
        folder = self.folder()
        tf_embed.Variable(value_dtype=value_dtype, dim=2, name="v").save_rows(folder)
        with self.assertRaisesRegex(
            TypeError,
            "without a table must have integer keys and floating weights. "
            f"Received: int64 keys and {value_dtype} weights in '{folder}'",
        ):
            RowReader(folder, "v")

    def test_a_wrong_meta_is_refused_and_makes_no_file(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=2, name="v")
        v.save_rows(folder)
        meta = RowReader(folder, "v").meta
        new = str(pathlib.Path(folder, "new"))
        other = r"`meta` must be of `value_dtype` and `dim`. Received: dim=\d and a meta of dim 2"
        for numbers, value_dtype, dim, words in (
            (meta, tf.float32, 3, other),
            (meta, tf.float64, 2, other),
            (meta[:-1], tf.float32, 2, "The meta numbers of a saved table are damaged"),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, words):
                row_stream_ops.begin_rows(new, "v", numbers, value_dtype=value_dtype, dim=dim)
        self.assertFalse(pathlib.Path(new).exists())


if __name__ == "__main__":
    tf.test.main()
