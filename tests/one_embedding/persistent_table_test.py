# SPDX-License-Identifier: Apache-2.0
"""`make_persistent_table_reader` and `make_persistent_table_writer`, against NumPy and layers."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import KEY_TYPES, edges, layer, store, train, uniform_tables
from support.cases.persistent_tables import files_in, read, reader, rows_of, write, writer
from support.oracles.reference import SEED
from tf_embed.snapshots import manifest

VALUE_TYPES = ("float32", "float16", "bfloat16", "float64")


def rows_and_slots(emb) -> dict[int, np.ndarray]:
    """The rows of a layer by key, as in files: weights, and the optimizer's slots."""
    (member,) = emb.row_tables
    keys, weights = member.export()
    slots = member.slot_variables(emb.optimizers[0])
    parts = [weights, *(slot.lookup(keys) for slot in slots)]
    rows = np.concatenate([tf.cast(one, tf.float32).numpy() for one in parts], 1)
    return dict(zip(keys.numpy().tolist(), rows, strict=True))


class PersistentTableTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def emb(self, folder: str, key_type: str = "int32", **options):
        options = {"optimizer": "adam", "devices": "/CPU:0", "name": "emb", **options}
        tables = options.pop("tables", uniform_tables(1.0, 1.0))
        return layer(tables, key_type, store_options=store(folder), **options)

    def trained(self, folder: str, **options):
        emb = self.emb(folder, **options)
        rng = np.random.default_rng(SEED)
        for _ in range(3):
            train(emb, tf.constant(rng.integers(-20, 20, [16, 2]), tf.int32))
        return emb

    # Written rows are read back.

    @parameterized.product(key_type=KEY_TYPES, value_type=VALUE_TYPES)
    def test_rows_that_were_written_are_read(self, key_type, value_type):
        folder, keys = self.folder(), edges(key_type)
        values = np.random.default_rng(SEED).normal(size=[len(keys), 3])
        values = tf.cast(values, value_type).numpy()
        types = {"key_type": key_type, "value_type": value_type}
        with writer([folder], **types) as one:
            for begin in range(0, len(keys), 2):
                one.write(keys[begin : begin + 2], values[begin : begin + 2])
        with reader([folder], **types) as one:
            self.assertEqual((one.dim, one.storage_dim, one.num_rows), (3, 3, len(keys)))
            self.assertEqual(one.dtype, values.dtype)
            for some_keys, some_values in one:
                self.assertEqual(some_keys.dtype, keys.dtype)
                self.assertEqual(some_values.dtype, values.dtype)
        self.assertEqual(read(folder, **types), rows_of(keys, values))

    @parameterized.parameters(1, 2, 5)
    def test_of_several_folders_the_first_has_the_snapshot(self, count):
        folders = [self.folder() for _ in range(count)]
        keys = np.random.default_rng(SEED).choice(10**6, 1000, replace=False) - 500_000
        values = np.arange(3000, dtype=np.float32).reshape([1000, 3])
        write(folders, keys, values)
        self.assertEqual(read(folders), rows_of(keys, values))
        self.assertEqual(read(folders[0]), rows_of(keys, values))
        for folder in folders[1:]:
            self.assertEmpty(os.listdir(folder))

    def test_a_snapshot_of_a_writer_is_one_like_any_other(self):
        folder = self.folder()
        write(folder, np.arange(5), np.ones([5, 2], np.float32))
        write(folder, np.arange(4), np.ones([4, 2], np.float32), layer_name="emb")
        variable = tf_embed.Variable(dim=2)
        for path, rows in ((f"{folder}/snapshots", 5), (f"{folder}/snapshots/emb", 4)):
            snapshots = tf_embed.Snapshots(path, variable)
            (info,) = snapshots.list_snapshots()
            self.assertEqual((info.name, info.since, info.rows), ("s", None, rows))
            variable.clear()
            snapshots.load("s")
            self.assertEqual(rows_of(*variable.export()), {key: [1.0, 1.0] for key in range(rows)})
        emb = self.emb(folder)
        self.assertEqual([one.rows for one in emb.snapshots.list_snapshots()], [4])
        emb.load_snapshot("s")
        self.assertEqual(int(emb.size()), 4)  # the layer's own snapshot has precedence

    def test_a_snapshot_that_is_replaced_while_it_is_opened_is_looked_for_again(self):
        folder = self.folder()
        write(folder, np.arange(5), np.zeros([5, 3]))
        before = manifest.read(f"{folder}/snapshots/s")
        write(folder, np.arange(4), np.ones([4, 3]))
        found = [before, manifest.read(f"{folder}/snapshots/s")]
        with mock.patch.object(manifest, "read", side_effect=[before, *found[1:] * 2]):
            one = reader(folder)
        self.assertEqual(one.num_rows, 4)
        gone = mock.patch.object(manifest, "read", return_value=before)  # its files do not exist
        with gone, self.assertRaises(tf.errors.NotFoundError):
            reader(folder)

    def test_a_block_has_at_most_65536_rows(self):
        folder, rows = self.folder(), 200_000
        keys = np.arange(rows)
        write(folder, keys, np.stack([keys, -keys], 1).astype(np.float32))
        sizes, seen = [], []
        with reader(folder, storage_dim=2) as one:
            for some, values in one:
                self.assertAllEqual(values, np.stack([some, -some], 1))
                sizes.append(len(some))
                seen.append(some)
        self.assertAllEqual(np.concatenate(seen), keys)
        self.assertEqual(max(sizes), 65536)

    def test_a_snapshot_of_no_rows_is_one(self):
        folder = self.folder()
        with writer(folder):
            pass
        with reader(folder) as one:
            self.assertEqual((one.num_rows, list(one)), (0, []))
        self.emb(folder).save_snapshot("none")
        self.assertEqual(read(folder, "none", storage_dim=2), {})

    def test_other_file_systems_have_snapshots_too(self):
        path = "ram://persistent_table_test"
        write([path], np.arange(5), np.ones([5, 3]))
        write([path], np.arange(4), np.zeros([4, 3]))
        self.assertEqual(read([path]), {key: [0.0] * 3 for key in range(4)})

    def test_of_a_key_that_is_written_twice_the_later_row_counts(self):
        folder = self.folder()
        with writer(folder, storage_dim=2) as one:
            one.write([1, 2, 1], np.array([[1, 1], [2, 2], [3, 3]], np.float32))
            one.write([2, 4], np.array([[5, 5], [4, 4]], np.float32))
        wanted = {1: [3.0, 3.0], 2: [5.0, 5.0], 4: [4.0, 4.0]}
        self.assertEqual(read(folder, storage_dim=2), wanted)
        self.assertEqual(reader(folder, storage_dim=2).num_rows, 4)  # the files have key 2 twice
        emb = self.emb(folder)
        emb.load_snapshot("s")
        self.assertEqual(rows_of(*emb.row_tables[0].export()), wanted)

    # Snapshots of layers.

    @parameterized.product(dtype=["float32", "float16", "bfloat16"], shards=[1, 3])
    def test_a_snapshot_of_a_layer_is_changed_and_loaded(self, dtype, shards):
        folder = self.folder()
        emb = self.trained(folder, dtype=dtype, devices=["/CPU:0"] * shards)
        emb.save_snapshot("s")
        before = rows_and_slots(emb)
        self.assertGreater(len(before), 30)
        kind = {"value_type": dtype, "storage_dim": 6}
        self.assertEqual(read(folder, **kind), {key: row.tolist() for key, row in before.items()})
        with reader(folder, **kind) as source:
            self.assertEqual((source.dim, source.num_rows), (2, len(before)))
            with writer(folder, "changed", **kind, like=source) as target:
                for keys, values in source:
                    values[:, : source.dim] *= 2
                    target.write(keys, values)
        again = self.emb(folder, dtype=dtype, seed=7)
        again.load_snapshot("changed")
        after = rows_and_slots(again)
        self.assertEqual(set(after), set(before))
        for key, row in before.items():
            self.assertAllEqual(after[key], row * [2, 2, 1, 1, 1, 1])
        unseen = tf.constant([[100, 101]])
        self.assertAllEqual(again(unseen), emb(unseen))  # the snapshot has the seed

    def test_rows_of_no_layer_are_weights_and_leave_the_seed(self):
        folder = self.folder()
        values = np.random.default_rng(SEED).normal(size=[50, 2]).astype(np.float32)
        write(folder, np.arange(50), values)
        emb, other = self.emb(folder, seed=5), self.emb(folder, seed=5)
        emb.load_snapshot("s")
        rows = rows_and_slots(emb)
        for key in range(50):
            self.assertAllEqual(rows[key], [*values[key], 0, 0, 0, 0])
        unseen = tf.constant([[100, 101]])
        self.assertAllEqual(emb(unseen), other(unseen))
        train(emb, unseen)

    def test_a_layer_of_another_dim_refuses_rows_and_stays_empty(self):
        folder = self.folder()
        write(folder, np.arange(5), np.ones([5, 3]))
        emb = self.emb(folder)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "dim 2.*dim 3"):
            emb.load_snapshot("s")
        self.assertEqual(int(emb.size()), 0)

    @parameterized.parameters("int32", "uint32")
    def test_keys_of_several_tables_are_taken_apart_as_the_docstring_says(self, key_type):
        folder, ids = self.folder(), edges(key_type)
        emb = self.emb(folder, key_type, tables=uniform_tables(1.0, 1.0, 1.0), optimizer="sgd")
        train(emb, tf.constant(np.stack([ids] * 3, 1)))
        emb.save_snapshot("s")
        keys = np.array(sorted(read(folder, storage_dim=2)))
        tables = (keys + 2**31) >> 32 if key_type == "int32" else keys >> 32
        found = list(zip(tables.tolist(), (keys - (tables << 32)).tolist(), strict=True))
        self.assertEqual(found, [(table, one) for table in range(3) for one in ids.tolist()])
        with self.assertRaisesRegex(ValueError, f"`key_type` must be int64.*key_type={key_type}"):
            read(folder, storage_dim=2, key_type=key_type)

    @parameterized.parameters(*KEY_TYPES)
    def test_a_layer_of_one_table_has_the_ids_for_keys(self, key_type):
        folder, ids = self.folder(), edges(key_type)
        emb = self.emb(folder, key_type, tables=uniform_tables(1.0), optimizer="sgd")
        train(emb, tf.constant(ids))
        emb.save_snapshot("s")
        self.assertEqual(
            read(folder, storage_dim=2, key_type=key_type), rows_of(ids, emb(tf.constant(ids)))
        )

    def test_a_snapshot_belongs_to_a_layer_or_to_any(self):
        folder = self.folder()
        write(folder, [1], np.full([1, 2], 1.0), layer_name="a")
        write(folder, [1], np.full([1, 2], 2.0), layer_name="b")
        found = {name: read(folder, storage_dim=2, layer_name=name)[1][0] for name in ("a", "b")}
        self.assertEqual(found, {"a": 1.0, "b": 2.0})
        with self.assertRaisesRegex(
            ValueError, r"the layer of the snapshot, as several have one.*\['a', 'b'\]"
        ):
            read(folder, storage_dim=2)
        with self.assertRaisesRegex(
            ValueError, "`snapshot_name` must be the name of a snapshot of 'c'"
        ):
            read(folder, storage_dim=2, layer_name="c")
        for name, weight in (("a", 1.0), ("b", 2.0)):
            emb = self.emb(folder, name=name)
            emb.load_snapshot("s")
            self.assertAllEqual(emb.row_tables[0].lookup(tf.constant([1], tf.int64))[0, 0], weight)
        write(folder, [1], np.full([1, 2], 3.0), name="any")
        emb = self.emb(folder, name="c")
        emb.load_snapshot("any")
        self.assertEqual(int(emb.size()), 1)

    # When a snapshot becomes visible.

    def test_a_snapshot_is_replaced_when_it_is_complete_and_read_as_it_was(self):
        folder = self.folder()
        write(folder, np.arange(5), np.zeros([5, 3]))
        source = reader(folder)
        target = writer(folder, like=source)
        for keys, values in source:
            target.write(keys, values + 1)
        self.assertEqual(read(folder), {key: [0.0] * 3 for key in range(5)})
        source = reader(folder)
        target.close()
        target.close()
        self.assertAllEqual(next(source)[1], np.zeros([5, 3]))
        self.assertEqual(read(folder), {key: [1.0] * 3 for key in range(5)})
        self.assertLen(files_in(folder), 3)

    @parameterized.parameters("dropped", "left by an exception")
    def test_a_writer_that_is_not_closed_leaves_no_snapshot(self, how):
        folder = self.folder()
        one = writer(folder)
        one.write(np.arange(5), np.ones([5, 3]))
        self.assertLen(files_in(folder), 1)
        if how == "dropped":
            del one
            gc.collect()
        else:
            with self.assertRaisesRegex(KeyError, "mine"), one:
                raise KeyError("mine")
            with self.assertRaisesRegex(
                ValueError, "writer of 's' is given up, as it failed before"
            ):
                one.close()
        self.assertEmpty(files_in(folder))
        with self.assertRaisesRegex(ValueError, "`snapshot_name`"):
            reader(folder)
        with self.assertRaisesRegex(ValueError, "`snapshot_name`"):
            self.emb(folder).load_snapshot("s")

    def test_a_writer_that_is_killed_leaves_the_earlier_snapshot(self):
        folder = self.folder()
        program = (
            "import os, sys, numpy as np\n"
            "from tf_embed import one_embedding\n"
            "make = one_embedding.make_persistent_table_writer\n"
            "one = make(sys.argv[1], sys.argv[2], 'int64', 'float32', 3)\n"
            "one.write(np.arange(5), np.ones([5, 3]))\n"
            "os._exit(3)\n"
        )
        write(folder, [7], np.zeros([1, 3]))
        for name in ("s", "new"):
            command = [sys.executable, "-c", program, folder, name]
            self.assertEqual(subprocess.run(command, check=False).returncode, 3)
        self.assertLen(files_in(folder), 5)
        self.assertEqual(read(folder), {7: [0.0] * 3})
        with self.assertRaisesRegex(ValueError, "must be the name of a snapshot in .*'new'"):
            reader(folder, "new")
        for name in ("s", "new"):
            write(folder, [8], np.ones([1, 3]), name)  # removes the remains
            self.assertEqual(read(folder, name), {8: [1.0] * 3})
        self.assertLen(files_in(folder), 6)

    @parameterized.parameters(
        ("", "can't be brought to the disk"), ("ram://two_writers", "removed by another save")
    )
    def test_of_two_writers_the_first_to_close_goes_through(self, folder, message):
        folder = folder or self.folder()
        one, other = writer(folder), writer(folder)
        one.write([1], np.ones([1, 3]))
        other.write([2], np.ones([1, 3]))
        other.close()
        with self.assertRaisesRegex(tf.errors.OpError, f"rank0of1.*{message}"):
            one.close()
        self.assertEqual(set(read(folder)), {2})

    def test_a_full_disk_gives_the_snapshot_up_and_is_never_silent(self):
        folder = self.folder()
        program = (
            "import resource, sys, numpy as np, tensorflow as tf\n"
            "from tf_embed import one_embedding\n"
            "make = one_embedding.make_persistent_table_writer\n"
            "one = make(sys.argv[1], 's', 'int64', 'float32', 3)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
            "seen = []\n"
            "for action in (*[lambda: one.write(np.arange(2000), np.ones([2000, 3]))] * 5,\n"
            "               lambda: one.close(), lambda: one.close()):\n"
            "    try:\n"
            "        action()\n"
            "    except (tf.errors.OpError, ValueError) as error:\n"
            "        seen.append(error)\n"  # keeps its frames, which hold the stream
            "assert isinstance(seen[0], tf.errors.OpError), seen\n"
            "assert len(seen) > 2 and all('given up' in str(error) for error in seen[1:]), seen\n"
            "assert len(tf.io.gfile.listdir(sys.argv[1] + '/snapshots/s')) == 3\n"
        )
        write(folder, [7], np.zeros([1, 3]))
        before = {one.name for one in files_in(folder)}
        command = [sys.executable, "-c", program, folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({one.name for one in files_in(folder)}, before)
        self.assertEqual(read(folder), {7: [0.0] * 3})

    def test_each_damaged_byte_is_an_error_that_names_the_file(self):
        folder = self.folder()
        self.trained(folder).save_snapshot("s")
        rng = np.random.default_rng(SEED)
        self.assertLen(files_in(folder), 3)
        for file in files_in(folder):
            whole = file.read_bytes()
            places = [0, len(whole) - 1, *rng.integers(len(whole), size=20).tolist()]
            bad = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
            for damaged in (*bad, whole[: len(whole) // 2], b""):
                file.write_bytes(damaged)
                with self.assertRaisesRegex(tf.errors.DataLossError, file.name):
                    reader(folder, storage_dim=6)
            file.write_bytes(whole)
            file.unlink()
            with self.assertRaises((tf.errors.NotFoundError, ValueError)):
                reader(folder, storage_dim=6)
            file.write_bytes(whole)
        reader(folder, storage_dim=6)

    def test_rows_of_another_snapshot_are_not_taken_for_those_of_this_one(self):
        folder = self.folder()
        for name, count in (("s", 5), ("other", 4)):
            write(folder, np.arange(count), np.zeros([count, 3]), name)
        ours, others = (pathlib.Path(folder, "snapshots", name) for name in ("s", "other"))
        file_name = manifest.read(str(ours)).tables[0].file_name
        for path in ours.glob("rows_*"):
            path.unlink()
        for path in others.glob("rows_*"):
            path.rename(ours / f"{file_name}.{path.name.split('.', 1)[1]}")
        with self.assertRaises(tf.errors.OpError):
            reader(folder)
        with self.assertRaises(tf.errors.OpError):
            self.emb(folder).load_snapshot("s")


if __name__ == "__main__":
    tf.test.main()
