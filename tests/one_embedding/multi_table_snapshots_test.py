# SPDX-License-Identifier: Apache-2.0
"""`save_snapshot`, `load_snapshot` and `snapshots` of layers of many tables."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import PYTHONPATH, TESTS
from support.cases.one_embedding_cases import KEY_TYPES, edges, layer, store, train, uniform_tables
from support.oracles.reference import SEED, sorted_rows
from tf_embed import one_embedding

TRACKED = tf_embed.TablePolicy(eviction=None, track_changes=True)
KILLED_SAVES = TESTS / "support" / "faults" / "killed_saves.py"


def ssd(path, **options):
    return one_embedding.make_cached_ssd_store_options(1, path, **options)


def rows_of(emb) -> list[dict[int, list[float]]]:
    """Weights and slots by key, of each table of ids, over all of its folders."""
    tables: dict[str, dict[int, list[float]]] = {}
    for member in emb.row_tables:
        exported = member.table.export()
        rows = np.concatenate([exported.values.numpy(), exported.slots.numpy()], axis=1)
        keys = exported.keys.numpy().tolist()
        of_table = tables.setdefault(member.table.options.name, {})
        assert not set(keys) & set(of_table)
        of_table.update(zip(keys, rows.tolist(), strict=True))
    return list(tables.values())


class OneTableTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def emb(self, folder: str, on_disk: bool = False, **options):
        chosen = ssd(folder) if on_disk else store(folder)
        options = {"optimizer": "adam", "devices": "/CPU:0", **options}
        return layer(uniform_tables(1.0, 2.0), "int32", store_options=chosen, **options)

    @parameterized.product(on_disk=[False, True], shards=[1, 3])
    def test_a_snapshot_brings_rows_and_slots_back(self, on_disk, shards):
        folder = self.folder()
        emb = self.emb(folder, on_disk)
        ids = tf.constant([[1, 2], [3, 1]])
        train(emb, ids)
        rows = emb(ids).numpy()
        emb.save_snapshot("first")
        train(emb, ids + 1)
        emb.save_snapshot("second")
        del emb  # and with it its files on disk
        again = self.emb(folder, on_disk, devices=["/CPU:0"] * shards)
        again.load_snapshot("first")
        self.assertEqual(int(again.size()), 4)
        self.assertAllEqual(again(ids), rows)
        (member,) = again.row_tables
        slots = member.slot_variables(again.optimizers[0])
        self.assertLen(slots, 2)
        for slot in slots:
            self.assertTrue(np.any(slot.lookup(tf.constant([1], tf.int64)).numpy()))

    def test_a_snapshot_has_rows_of_several_columns_that_went_to_the_disk(self):
        folder, ids = self.folder(), np.arange(200_000).reshape([-1, 2])
        makers = one_embedding.make_uniform_initializer, one_embedding.make_normal_initializer
        columns = [one_embedding.make_column_options(make()) for make in makers]
        tables = [one_embedding.make_table(columns)] * 2
        emb = layer(tables, "int32", [3, 1], store_options=ssd(folder), optimizer="sgd")
        train(emb, tf.constant(ids, tf.int32))
        (member,) = emb.row_tables
        self.assertGreater(member.stats()["demoted"], 1000)
        emb.save_snapshot("s")
        kind = (folder, "s", "int64", "float32", 4)
        blocks = list(one_embedding.make_persistent_table_reader(*kind))
        read = sorted_rows(*(tf.concat(parts, 0) for parts in zip(*blocks, strict=True)))
        wanted = sorted_rows(*member.export())
        self.assertLen(wanted[0], 200_000)
        self.assertAllEqual(read[0], wanted[0])
        self.assertAllEqual(read[1], wanted[1])

    def test_a_snapshot_takes_the_place_of_an_earlier_one(self):
        folder = self.folder()
        emb = self.emb(folder)
        for ids in ([[1, 2]], [[3, 4]]):
            train(emb, tf.constant(ids))
            emb.save_snapshot("rows")
        again = self.emb(folder)
        again.load_snapshot("rows")
        self.assertEqual(int(again.size()), 4)

    def test_an_empty_layer_has_snapshots_too(self):
        folder = self.folder()
        self.emb(folder).save_snapshot("none")
        again = self.emb(folder)
        again.load_snapshot("none")
        self.assertEqual(int(again.size()), 0)

    def test_what_is_not_there_is_an_error_and_not_an_empty_table(self):
        emb = self.emb(self.folder())
        os.makedirs(pathlib.Path(emb._paths[0], "snapshots", "emb", "hollow"))
        for name in ("never", "hollow"):
            with self.assertRaisesRegex(
                ValueError,
                f"`snapshot_name` must be the name of a snapshot of 'emb' in '{emb._paths[0]}'. "
                f"Received: snapshot_name='{name}'",
            ):
                emb.load_snapshot(name)

    def test_each_damaged_file_is_an_error_and_leaves_the_layer_empty(self):
        folder = self.folder()
        emb = self.emb(folder)
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("rows")
        files = [one for one in pathlib.Path(folder).rglob("*") if one.is_file()]
        self.assertNotEmpty(files)
        for file in files:
            whole = file.read_bytes()
            for bad in (whole[: len(whole) // 2], whole[:9] + b"?" + whole[10:]):
                file.write_bytes(bad)
                again = self.emb(folder)
                with self.assertRaises(tf.errors.OpError):
                    again.load_snapshot("rows")
                self.assertEqual(int(again.size()), 0)
            file.write_bytes(whole)

    def test_a_layer_with_rows_loads_none(self):
        emb = self.emb(self.folder())
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("rows")
        with self.assertRaisesRegex(
            RuntimeError, "rows that came after the snapshot would stay. Received: 2 rows"
        ):
            emb.load_snapshot("rows")

    def test_layers_and_snapshots_are_apart_in_one_folder(self):
        folder = self.folder()
        for name in ("a", "a_", "a."):
            emb = self.emb(folder, name=name)
            train(emb, tf.constant([[len(name), 2]]))
            emb.save_snapshot("s")
            emb.save_snapshot("s.")
        for name in ("a", "a_", "a."):
            emb = self.emb(folder, name=name)
            emb.load_snapshot("s")
            (member,) = emb.row_tables
            self.assertIn(len(name), member.export()[0].numpy())

    @parameterized.parameters("a/b", "..", ".", "snapshot.json", f"snapshot.json.{'0' * 16}.aside")
    def test_a_path_is_no_name(self, name):
        emb = self.emb(self.folder())
        wanted = "be the name of a folder, not a path"
        if name.startswith("snapshot"):
            wanted = "not be the name of the file that makes a folder a snapshot"
        with self.assertRaisesRegex(ValueError, f"`snapshot_name` must {wanted}"):
            emb.save_snapshot(name)
        with self.assertRaisesRegex(ValueError, f"`name` must {wanted}"):
            emb.snapshots.save(name)


class ManyTablesTest(tf.test.TestCase, parameterized.TestCase):
    """Layers of two tables, with a table of rows for each table, each folder, or each pair."""

    def folders(self, count: int) -> list[str]:
        return [tempfile.mkdtemp(dir=self.get_temp_dir()) for _ in range(count)]

    def emb(self, folders, key_type="int64", on_disk=False, tables=(1.0, 1.0), **options):
        make = ssd if on_disk else store
        path = folders[0] if len(folders) == 1 else folders
        options = {"optimizer": "adam", "devices": "/CPU:0", **options}
        return layer(uniform_tables(*tables), key_type, store_options=make(path), **options)

    def trained(self, folders, key_type="int64", **options):
        emb = self.emb(folders, key_type, **options)
        rng = np.random.default_rng(SEED)
        ids = np.concatenate([rng.integers(0, 100, 300), edges(key_type)[:8]])
        for _ in range(2):
            train(emb, tf.constant(ids.reshape([-1, 2]), key_type))
        return emb

    @parameterized.product(saved=[1, 2, 3, 4], loaded=[1, 2, 3, 4], key_type=["int32", "int64"])
    def test_any_number_of_folders_loads_what_another_saved(self, saved, loaded, key_type):
        folders = self.folders(saved)
        emb = self.trained(folders, key_type)
        self.assertLen(emb.row_tables, saved * (2 if key_type == "int64" else 1))
        emb.save_snapshot("s")
        for folder in folders[1:]:
            self.assertEmpty(os.listdir(folder))
        again = self.emb([folders[0], *self.folders(loaded - 1)], key_type)
        again.load_snapshot("s")
        self.assertEqual(rows_of(again), rows_of(emb))
        for number, member in enumerate(again.row_tables):
            remainders = set((member.export()[0].numpy() % loaded).tolist())
            self.assertEqual(remainders, {number % loaded})
        ids = tf.constant([[1, 1], [50, 99], [10_000, 10_001]], key_type)
        self.assertAllEqual(again(ids), emb(ids))
        for optimizer in again.optimizers:
            optimizer.iterations.assign(emb.optimizers[0].iterations)  # not in a snapshot
        for one in (emb, again):
            train(one, ids)
        self.assertEqual(rows_of(again), rows_of(emb))

    @parameterized.product(
        key_type=KEY_TYPES, saved=[False, True], loaded=[False, True], folders=[1, 2]
    )
    def test_equal_ids_of_two_tables_come_back_apart(self, key_type, saved, loaded, folders):
        paths = self.folders(folders)
        emb = self.emb(paths, key_type, saved, (1.0, 2.0))
        ids = np.stack([edges(key_type)] * 2, axis=1)
        train(emb, tf.constant(ids))
        self.assertEqual(int(emb.size()), ids.size)
        rows, seen = rows_of(emb), emb(tf.constant(ids))
        self.assertNotAllClose(seen[:, 0], seen[:, 1])
        emb.save_snapshot("s")
        del emb  # and with it its files on disk
        again = self.emb(paths, key_type, loaded, (1.0, 2.0))
        again.load_snapshot("s")
        self.assertEqual(rows_of(again), rows)
        self.assertAllEqual(again(tf.constant(ids)), seen)

    def test_devices_and_folders_are_no_part_of_a_snapshot(self):
        folders = self.folders(1)
        emb = self.trained(folders, devices=["/CPU:0"] * 3)
        emb.save_snapshot("s")
        (info,) = emb.snapshots.list_snapshots()
        self.assertEqual([one.table for one in info.tables], ["emb/table_0", "emb/table_1"])
        shutil.move(folders[0], folders[0] + "_moved")
        again = self.emb([folders[0] + "_moved"])
        again.load_snapshot("s")
        self.assertEqual(rows_of(again), rows_of(emb))

    @parameterized.parameters((1, 3), (3, 1), (2, 3))
    def test_folders_share_the_bound_of_a_layer_that_had_others(self, before, after):
        # For each number of folders, the ids of a table are spread evenly.
        ids = tf.constant(np.arange(24).reshape([12, 2]) // 2)
        paths, policy = self.folders(3), tf_embed.TablePolicy(max_rows=24)
        emb = self.emb(paths[:before], policy=policy, optimizer="sgd")
        train(emb, ids)
        emb.save_snapshot("s")
        again = self.emb(paths[:after], policy=policy, optimizer="sgd")
        again.load_snapshot("s")
        self.assertEqual(int(again.size()), 24)
        self.assertEqual(rows_of(again), rows_of(emb))

    def test_a_lower_bound_evicts_the_rows_that_a_snapshot_has_beyond_it(self):
        ids = tf.constant(np.arange(24).reshape([12, 2]) // 2)
        paths = self.folders(3)
        emb = self.emb(paths, optimizer="sgd")
        train(emb, ids)
        emb.save_snapshot("s")
        again = self.emb(paths, policy=tf_embed.TablePolicy(max_rows=8), optimizer="sgd")
        again.load_snapshot("s")
        self.assertEqual([int(one.size()) for one in again.row_tables], [2, 2, 1, 1, 1, 1])
        evicted = sum(int(one.stats()["evicted"]) for one in again.row_tables)
        self.assertEqual(evicted, 24 - 8)

    def test_a_reader_gives_the_rows_of_one_table_after_the_other(self):
        folders = self.folders(2)
        emb = self.trained(folders)
        emb.save_snapshot("s")
        kind = (folders, "s", "int64", "float32", 6)
        found: list[dict[int, list[float]]] = [{}, {}]
        with one_embedding.make_persistent_table_reader(*kind) as reader:
            self.assertEqual((reader.num_rows, reader.num_tables), (int(emb.size()), 2))
            for keys, values in reader:
                found[reader.table].update(zip(keys.tolist(), values.tolist(), strict=True))
        self.assertEqual(found, rows_of(emb))

    def test_a_writer_fills_a_layer_of_several_folders(self):
        folders = self.folders(3)
        keys = np.arange(-500, 500)
        values = np.random.default_rng(SEED).normal(size=[1000, 2]).astype(np.float32)
        kind = (folders, "s", "int64", "float32", 2)
        with one_embedding.make_persistent_table_writer(*kind) as writer:
            writer.write(keys, values)
        emb = self.emb(folders, shared_ids=True)
        emb.load_snapshot("s")
        self.assertAllEqual(emb(tf.constant(keys), tf.zeros([1000], tf.int64)), values)
        (rows,) = rows_of(emb)
        self.assertEqual(
            {key: row[:2] for key, row in rows.items()},
            dict(zip(keys, values.tolist(), strict=True)),
        )

    @parameterized.parameters(1, 2)
    def test_another_number_of_tables_is_refused(self, folders):
        paths = self.folders(folders)
        self.trained(paths).save_snapshot("two")
        self.trained(paths, "int32").save_snapshot("one")
        words = "tables of rows, as 'emb' has. Received: snapshot_name="
        with self.assertRaisesRegex(ValueError, f"of 1 {words}'two', which has 2$"):
            self.emb(paths, "int32").load_snapshot("two")
        # The same number of files, from a single table in two folders.
        with self.assertRaisesRegex(ValueError, f"of 2 {words}'one', which has 1$"):
            self.emb(paths[:1]).load_snapshot("one")
        kind = (paths[0], "written", "int64", "float32", 2)
        with one_embedding.make_persistent_table_writer(*kind) as writer:
            writer.write(np.arange(3), np.ones([3, 2], np.float32))
        hint = "make_persistent_table_writer writes them by num_tables=2"
        with self.assertRaisesRegex(ValueError, f"of 2 {words}'written', which has 1. {hint}"):
            self.emb(paths[:1]).load_snapshot("written")

    @parameterized.parameters(1, 2)
    def test_keys_of_other_ids_are_refused(self, folders):
        paths = self.folders(1)
        two = self.trained(paths, "int32", policy=TRACKED)
        two.save_snapshot("two")
        two.save_snapshot("later", since="two")
        two.snapshots.fold("later", "folded")
        others = self.folders(folders)
        shutil.copytree(os.path.join(paths[0], "snapshots"), os.path.join(others[0], "snapshots"))
        path = others[0] if folders == 1 else others
        options = {"store_options": store(path), "devices": "/CPU:0"}
        options |= {"optimizer": "adam"}
        one = layer(uniform_tables(1.0), "int64", **options)
        unsigned = layer(uniform_tables(1.0, 2.0), "uint32", **options)
        for name in ("two", "later", "folded"):
            for emb, words in ((one, "ids"), (unsigned, "2 tables of uint32 ids")):
                wanted = (
                    f"must be the name of a snapshot whose keys are {words}.*, as those of 'emb' "
                    f"are. Received: snapshot_name={name!r}, whose keys are 2 tables of int32 ids"
                )
                with self.assertRaisesRegex(ValueError, wanted):
                    emb.load_snapshot(name)
                with self.assertRaisesRegex(ValueError, wanted):
                    emb.snapshots.load(name)
                self.assertEqual(int(emb.size()), 0)

    @parameterized.parameters(1, 2)
    def test_each_damaged_file_is_an_error_and_leaves_all_tables_empty(self, folders):
        paths = self.folders(1)
        self.trained(paths).save_snapshot("s")
        again = self.emb([*paths, *self.folders(folders - 1)])
        files = [one for one in pathlib.Path(paths[0]).rglob("*") if one.is_file()]
        self.assertLen(files, 5)
        for file in files:
            whole = file.read_bytes()
            for bad in (whole[: len(whole) // 2], whole[:9] + b"?" + whole[10:], b""):
                file.write_bytes(bad)
                with self.assertRaises(tf.errors.OpError):
                    again.load_snapshot("s")
                self.assertEqual(int(again.size()), 0)
            file.unlink()
            with self.assertRaises((tf.errors.OpError, ValueError)):
                again.load_snapshot("s")
            self.assertEqual(int(again.size()), 0)
            file.write_bytes(whole)
        again.load_snapshot("s")
        self.assertGreater(int(again.size()), 100)

    def test_forty_saves_take_the_room_of_one(self):
        (folder,) = self.folders(1)
        emb = self.emb([folder], on_disk=True, dim=16)
        ids = np.arange(20_000).reshape([-1, 2])
        sizes, counts = [], []
        for number in range(40):
            train(emb, tf.constant(ids))
            emb.save_snapshot("s")
            files = [one for one in pathlib.Path(folder).rglob("*") if one.is_file()]
            if number >= 4:
                sizes.append(sum(one.stat().st_size for one in files))
                counts.append(len(files))
        self.assertGreater(sum(one.stats()["demoted"] for one in emb.row_tables), 10_000)
        row_bytes = 20_000 * (8 + 3 * 16 * 4)
        # The bytes of a snapshot, and of the store's files, which may be half garbage.
        self.assertLess(max(sizes), 5 * row_bytes)
        self.assertLess(max(sizes[18:]), 1.5 * max(sizes[:18]))
        self.assertLess(max(counts[18:]), 1.5 * max(counts[:18]))

    @parameterized.parameters("cut", "kill")
    def test_a_layer_that_dies_while_it_saves_leaves_a_whole_snapshot(self, how):
        (folder,) = self.folders(1)
        command = [sys.executable, str(KILLED_SAVES), how, folder, "snapshots"]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        program = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(program.returncode, 0, program.stderr)
        for number, child in enumerate(json.loads(program.stdout)):
            self.assertTrue(child["died"], program.stderr)
            emb = layer(
                uniform_tables(1.0, 1.0),
                dim=4,
                name="v",
                store_options=store(os.path.join(folder, str(number))),
            )
            emb.load_snapshot("s")
            numbers = set()
            for member in emb.row_tables:
                keys, rows = sorted_rows(*member.export())
                self.assertAllEqual(keys, np.arange(200))
                numbers.update(np.unique(rows).tolist())
            self.assertLen(numbers, 1)
            self.assertIn(numbers.pop(), child["values"])
            emb.save_snapshot("s")
            self.assertLen(os.listdir(os.path.join(folder, str(number), "snapshots/v/s")), 5)


class ChangesTest(tf.test.TestCase, parameterized.TestCase):
    def emb(self, folder, key_type="int64", policy=TRACKED, **options):
        options = {"optimizer": "adam", "devices": "/CPU:0", "policy": policy, **options}
        chosen = store(folder)
        return layer(uniform_tables(1.0, 1.0), key_type, store_options=chosen, **options)

    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.product(key_type=["int32", "int64"], folders=[1, 2])
    def test_a_chain_of_changes_is_loaded_and_read_as_one(self, key_type, folders):
        paths = [self.folder() for _ in range(folders)]
        emb = self.emb(paths, key_type)
        rng, seen = np.random.default_rng(SEED), []
        for number in range(4):
            train(emb, tf.constant(rng.integers(0, 300 >> number, [40, 2]), key_type))
            for member in emb.row_tables:
                member.remove(tf.constant(rng.integers(0, 100, 5)))
            since = f"s{number - 1}" if number else None
            info = emb.save_snapshot(f"s{number}", since=since).wait()
            self.assertEqual(info.since, since)
            seen.append(rows_of(emb))
        self.assertLess(info.rows, int(emb.size()))
        for number, rows in enumerate(seen):
            again = self.emb(paths, key_type)
            again.load_snapshot(f"s{number}")
            self.assertEqual(rows_of(again), rows)
            kind = (paths, f"s{number}", "int64", "float32", 6)
            with one_embedding.make_persistent_table_reader(*kind) as reader:
                blocks = [(reader.table, *block) for block in reader]
                self.assertEqual(reader.num_rows, sum(map(len, rows)))
            found = [{} for _ in rows]
            for table, keys, values in blocks:
                of_table = found[table]
                self.assertNoCommonElements(keys.tolist(), of_table)
                of_table.update(zip(keys.tolist(), values.tolist(), strict=True))
            self.assertEqual(found, rows)

    def test_a_chain_goes_into_another_number_of_folders(self):
        folder = self.folder()
        emb = self.emb(folder)
        train(emb, tf.constant(np.arange(80).reshape([-1, 2])))
        emb.save_snapshot("a")
        train(emb, tf.constant([[1, 2], [3, 400]]))
        emb.row_tables[0].remove([5, 6])
        emb.save_snapshot("b", since="a")
        again = self.emb([folder, self.folder(), self.folder()])
        again.load_snapshot("b")
        self.assertEqual(rows_of(again), rows_of(emb))
        with self.assertRaisesRegex(ValueError, "`since`.*6 tables.*since='b', of 2"):
            again.save_snapshot("c", since="b")
        again.save_snapshot("c")

    def test_changes_go_on_from_a_loaded_snapshot(self):
        folder = self.folder()
        emb = self.emb(folder)
        train(emb, tf.constant([[1, 2], [3, 4]]))
        emb.save_snapshot("a")
        again = self.emb(folder)
        again.load_snapshot("a")
        train(again, tf.constant([[1, 5]]))
        self.assertEqual(again.save_snapshot("b", since="a").wait().rows, 2)
        third = self.emb(folder)
        third.load_snapshot("b")
        self.assertEqual(rows_of(third), rows_of(again))

    def test_changes_go_on_from_what_was_written_for_the_layer(self):
        for name, folder in (("emb", self.folder()), (None, self.folder())):
            kind = ([folder], "a", "int64", "float32", 2)
            with one_embedding.make_persistent_table_writer(*kind, layer_name=name) as writer:
                writer.write(np.array([7]), np.ones([1, 2]))
            emb = self.emb(folder, "int32", optimizer=None)
            emb.load_snapshot("a")
            emb.row_tables[0].upsert([8], [[2.0, 2.0]])
            if name is None:  # the layer's snapshots do not include it
                with self.assertRaisesRegex(ValueError, "`since` must be.*snapshots/emb'.*'a'"):
                    emb.save_snapshot("b", since="a")
                emb.save_snapshot("b")
            else:
                self.assertEqual(emb.save_snapshot("b", since="a").wait().rows, 1)
            again = self.emb(folder, "int32", optimizer=None)
            again.load_snapshot("b")
            self.assertEqual(rows_of(again), rows_of(emb))

    @parameterized.parameters("int32", "int64")
    def test_training_goes_on_while_a_snapshot_is_written(self, key_type):
        folder = self.folder()
        emb = self.emb(folder, key_type)
        ids = tf.constant(np.arange(4000).reshape([-1, 2]), key_type)
        train(emb, ids)
        for number in range(3):
            rows = rows_of(emb)
            pending = emb.save_snapshot(f"s{number}", wait=False)
            train(emb, ids + number)
            self.assertEqual(pending.wait().rows, sum(map(len, rows)))
            again = self.emb(folder, key_type)
            again.load_snapshot(f"s{number}")
            self.assertEqual(rows_of(again), rows)

    def test_keep_and_fold_and_list(self):
        folder = self.folder()
        emb = self.emb(folder)
        for number in range(4):
            train(emb, tf.constant([[number, 7]]))
            since = f"s{number - 1}" if number == 3 else None
            emb.save_snapshot(f"s{number}", since=since)
        self.assertEqual(list(emb.snapshots.keep(1)), ["s1", "s0"])
        self.assertEqual([one.name for one in emb.snapshots.list_snapshots()], ["s2", "s3"])
        with self.assertRaisesRegex(ValueError, "`snapshot_name`.*'s3' has the changes.*='s2'"):
            emb.save_snapshot("s2")
        emb.snapshots.fold("s3", to="all")
        emb.snapshots.remove("s3")
        self.assertEqual(list(emb.snapshots.keep(1)), ["s2"])
        again = self.emb(folder)
        again.load_snapshot("all")
        self.assertEqual(rows_of(again), rows_of(emb))
        self.assertIs(emb.snapshots, emb.snapshots)
        self.assertEqual(emb.snapshots.path, os.path.join(folder, "snapshots", "emb"))

    def test_what_needs_tracking_is_refused_without(self):
        emb = self.emb(self.folder(), policy=None)
        emb.save_snapshot("a")
        for argument, options in (("since", {"since": "a"}), ("wait", {"wait": False})):
            with self.assertRaisesRegex(ValueError, f"`{argument}`.*track_changes=True"):
                emb.save_snapshot("b", **options)
        with self.assertRaisesRegex(ValueError, "`since`.*'never'"):
            self.emb(self.folder()).save_snapshot("b", since="never")
        with self.assertRaisesRegex(TypeError, "`wait`"):
            emb.save_snapshot("b", wait="no")
        self.assertEqual([one.name for one in emb.snapshots.list_snapshots()], ["a"])

    def test_a_graph_is_refused(self):
        emb = self.emb(self.folder())
        emb.save_snapshot("a")
        for method in (emb.save_snapshot, emb.load_snapshot):
            words = "runs in eager execution. Received: a call in a graph"
            with self.assertRaisesRegex(RuntimeError, f"`{method.__name__}` of 'emb' {words}"):
                tf.function(lambda method=method: method("a"))()

    def test_a_layer_with_snapshots_is_saved_and_copied(self):
        folder = self.folder()
        emb = self.emb(folder)
        ids = keras.Input([2], dtype="int64")
        model = keras.Model(ids, emb(ids))
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("a")
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertEqual(rows_of(loaded.get_layer("emb")), rows_of(emb))
        copied = keras.models.clone_model(model).get_layer("emb")
        copied.load_snapshot("a")
        self.assertEqual(rows_of(copied), rows_of(emb))
        # A model's state has the rows, but not the name of a snapshot.
        checkpoint = os.path.join(folder, "checkpoint")
        tf.train.Checkpoint(model=model).write(checkpoint)
        shutil.rmtree(os.path.join(folder, "snapshots"))
        other = keras.models.clone_model(model)
        tf.train.Checkpoint(model=other).read(checkpoint).assert_existing_objects_matched()
        self.assertEqual(rows_of(other.get_layer("emb")), rows_of(emb))


if __name__ == "__main__":
    tf.test.main()
