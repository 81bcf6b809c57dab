# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of the ops on row files and on whole tables: refused by name.

The wrappers in tf_embed pass none of them, except from files of other versions or damaged files.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import NO_OWNERS, RawTable
from support.cases.refused_ops import RAW, RefusedTestCase, int64

pytestmark = pytest.mark.cpu


def nothing() -> tf.Tensor:
    """A variant that no op on files returns."""
    return RAW.tf_embed_row_gradients(keys=int64([1]), values=tf.ones([1, 2]))


class FilesOpsTest(RefusedTestCase):
    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.table = RawTable(2)
        self.table.assign([1], [[1.0, 1.0]])
        self.handle = {"table": self.table.handle}
        self.place = {"folder": self.path, "file_name": "v"}

    def open(self) -> tf.Tensor:
        RAW.tf_embed_save_rows(**self.handle, **self.place)
        return RAW.tf_embed_open_saved_rows(**self.handle, **self.place, key_dtype=tf.int64)[0]

    def test_a_folder_must_have_a_name(self):
        with self.refused("`folder` must name a folder. Received: ''"):
            RAW.tf_embed_join_rows(folder="", file_name="v", processes=int64(1))
        with self.refused("`dirpath` must name a folder. Received: ''"):
            RAW.tf_embed_save_rows(**self.handle, folder="", file_name="v")

    @parameterized.parameters(
        (0, 0, 1, "`save` must not be 0. Received: 0"),
        (1, 2, 2, "`rank` must be from 0 to `processes`, of at most 65536. Received: rank=2"),
        (1, 0, 65_537, "`rank` must be from 0 to `processes`, of at most 65536. Received: rank=0"),
    )
    def test_a_part_of_a_save_has_a_number_and_a_rank(self, save, rank, processes, words):
        part = {"save": save, "rank": rank, "processes": processes}
        part = {name: int64(number) for name, number in part.items()}
        with self.refused(words):
            RAW.tf_embed_save_rows_part(**self.handle, **self.place, **part)

    @parameterized.parameters((1, 1), (-1, 1), (0, 0))
    def test_a_rank_is_one_of_the_processes(self, rank, processes):
        words = "`rank` must be from 0 to `processes`. Received: rank=.*, processes="
        for op, more in (
            (RAW.tf_embed_save_rows, {}),
            (RAW.tf_embed_open_saved_rows, {"key_dtype": tf.int64}),
        ):
            with self.refused(words):
                op(**self.handle, **self.place, **more, rank=rank, processes=processes)

    def test_a_part_has_no_more_shards_than_a_save(self):
        table = RawTable(2, num_shards=2)
        with self.refused("A save has at most 65536 shards. Received: 2 of each of 32769 proc"):
            RAW.tf_embed_save_rows_part(
                table=table.handle,
                **self.place,
                save=int64(1),
                rank=int64(0),
                processes=int64(32_769),
            )

    @parameterized.parameters(0, 65_537)
    def test_parts_are_of_as_many_processes_as_a_save_has(self, processes):
        with self.refused(f"`processes` must be from 1 to 65536. Received: {processes}"):
            RAW.tf_embed_join_rows(**self.place, processes=int64(processes))

    def test_rows_must_be_open_files(self):
        wrong = {**self.handle, "rows": nothing()}
        words = "`rows` must be the open files of saved rows"
        with self.refused(words):
            RAW.tf_embed_saved_row_counts(**wrong)
        with self.refused(words):
            RAW.tf_embed_saved_keys(**wrong, block=int64(0), key_dtype=tf.int64)
        with self.refused(words):
            RAW.tf_embed_begin_published_rows(**wrong, key_dtype=tf.int64)

    @parameterized.parameters(-1, 1)
    def test_a_block_is_one_of_the_files(self, block):
        with self.refused("`block` must be a scalar less than 1. Received: "):
            RAW.tf_embed_load_saved_rows(
                **self.handle, rows=self.open(), block=int64(block), owners=NO_OWNERS
            )

    def test_keys_have_the_dtype_of_the_table(self):
        rows = {**self.handle, "rows": self.open()}
        with self.refused("`keys` must be int64"):
            RAW.tf_embed_saved_keys(**rows, block=int64(0), key_dtype=tf.int32)
        with self.refused("`keys` must be int64"):
            RAW.tf_embed_begin_published_rows(**rows, key_dtype=tf.int32)
        with self.refused("`keys` must be int64. Received: int32"):
            RAW.tf_embed_forget_waiting(**self.handle, keys=tf.constant([1]))

    def test_published_rows_are_of_the_save_that_was_published(self):
        RAW.tf_embed_save_rows(**self.handle, **self.place)
        with self.assertRaisesRegex(
            tf.errors.DataLossError, r"\.rows' is of another save than was published"
        ):
            RAW.tf_embed_open_published_rows(**self.handle, **self.place, save=int64(7))

    def test_a_file_must_have_the_name_of_a_file(self):
        for name in ("", "..", "a/b"):
            with self.refused(f"`file_name` must be the name of a file. Received: '{name}'"):
                RAW.tf_embed_put_file(folder=self.path, file_name=name, text="")


class SnapshotOpsTest(RefusedTestCase):
    def begin(self, since: Any = (0,), **policy: Any) -> tf.Tensor:
        table = RawTable(2, settings=policy)
        return RAW.tf_embed_begin_snapshot(tables=[table.handle], since=int64(since))

    def write(self, snapshot: tf.Tensor, number: int) -> None:
        place = {
            "folder": tempfile.mkdtemp(dir=self.get_temp_dir()),
            "file_name": "v",
            "since_name": "",
        }
        RAW.tf_embed_write_snapshot(snapshot=snapshot, number=int64(number), **place)

    def test_a_snapshot_is_of_tables_that_keep_track_of_changes(self):
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "Table 'raw' does not keep track of changes"
        ):
            self.begin()
        with self.refused("`since` must have 1 numbers. Received: 2"):
            self.begin([0, 0])

    def test_a_snapshot_writes_each_of_its_tables_once(self):
        snapshot = self.begin(statistics=32)
        for number in (-1, 1):
            with self.refused(f"that of a table that is not written yet, of 1. Received: {number}"):
                self.write(snapshot, number)
        self.write(snapshot, 0)
        with self.refused("that of a table that is not written yet, of 1. Received: 0"):
            self.write(snapshot, 0)
        with self.refused("`snapshot` must be what TfEmbedBeginSnapshot gave"):
            self.write(nothing(), 0)


class WholeTableOpsTest(RefusedTestCase):
    def table(self, **options: Any) -> RawTable:
        table = RawTable(2, **options)
        table.assign([1, 2], np.ones([2, 2]))
        return table

    def import_with(self, **changes: Any) -> None:
        names = ("keys", "values", "slots", "meta", "statistics", "policy")
        table = self.table()
        exported = dict(zip(names, table.export(), strict=True))
        RAW.tf_embed_import(table=table.handle, owners=NO_OWNERS, **{**exported, **changes})

    def test_imported_rows_have_the_shape_of_the_table(self):
        self.import_with()
        with self.refused(r"The saved slots of table 'raw' must be \[2,0\]. Received: float \[2,1"):
            self.import_with(slots=tf.zeros([2, 1]))
        with self.refused(r"The saved statistics of table 'raw' must be \[2,0\]. Received: \[2,1"):
            self.import_with(statistics=tf.zeros([2, 1], tf.int64))
        with self.refused("does not fit table 'raw', .*dim 2.* It has float values and dim 3"):
            self.import_with(meta=int64([2, 0, 0, 0, 0, 0, 3, 0, 0]))

    def test_exported_rows_have_the_dtypes_of_the_table(self):
        handle = {"table": self.table(settings={"log_evicted": True}).handle}
        types = {"key_dtype": tf.int32, "value_dtype": tf.float32, "dim": 2}
        with self.refused("'raw' is a table of int64 keys.*. Asked for: keys int32, values float"):
            RAW.tf_embed_export(**handle, **types, slot_dtype=tf.float32)
        with self.refused("'raw' is a table of int64 keys.*. Asked for: keys int32."):
            RAW.tf_embed_drain_evicted(**handle, **types)
        with self.refused("'raw' is a table of int64 keys.*. Asked for: keys int32."):
            RAW.tf_embed_export_scores(
                **handle, split_size=int64(1), key_dtype=tf.int32, order="lru"
            )
        types.update(key_dtype=tf.int64, value_dtype=tf.int32)
        with self.refused(r"Table '.*' holds float.*Asked for: .*int32"):
            RAW.tf_embed_drain_evicted(**handle, **types)
        with self.refused("Table 'raw' holds float. Asked for: int32"):
            RAW.tf_embed_find(
                **handle,
                keys=int64([1]),
                owners=NO_OWNERS,
                defaults=tf.zeros([0], tf.int32),
                tokens=[],
                dim=2,
            )

    def test_statistics_that_a_table_does_not_keep_are_not_given(self):
        handle = {"table": self.table().handle}
        types = {"key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 2}
        for words, op, arguments in (
            (
                "'raw' does not keep the statistics that these scores are",
                RAW.tf_embed_export_scores,
                {"split_size": int64(1), "key_dtype": tf.int64, "order": "lru"},
            ),
            (
                "'raw' does not keep the statistics of its rows that this restriction goes by",
                RAW.tf_embed_restrict,
                {"num_reserved": int64(1), "order": "lru"},
            ),
            ("Table 'raw' keeps no log of evicted rows", RAW.tf_embed_drain_evicted, types),
        ):
            with self.assertRaisesRegex(tf.errors.FailedPreconditionError, words):
                op(**handle, **arguments)

    def test_numbers_of_rows_are_positive(self):
        handle = {"table": self.table(settings={"statistics": 31}).handle}
        with self.refused("`split_size` of table 'raw' must be a positive number of rows. Rec"):
            RAW.tf_embed_export_scores(
                **handle, split_size=int64(0), key_dtype=tf.int64, order="lru"
            )
        with self.refused("`num_reserved` of table 'raw' must be a number of rows. Received: -1"):
            RAW.tf_embed_restrict(**handle, num_reserved=int64(-1), order="lru")

    def test_scores_have_the_shape_of_the_keys(self):
        keys = {
            "table": self.table(settings={"statistics": 31}).handle,
            "keys": int64([1, 2]),
            "owners": NO_OWNERS,
        }
        words = r"`scores` of table 'raw' must have the shape of the keys, \[2\]. Received: \[1\]"
        with self.refused(words):
            RAW.tf_embed_set_scores(**keys, scores=int64([1]))
        with self.refused(words):
            RAW.tf_embed_insert_or_assign(
                **keys, values=tf.ones([2, 2]), scores=[int64([1])], dim=2
            )

    def test_rows_have_the_dtype_and_shape_of_the_table(self):
        keys = {"table": self.table().handle, "keys": int64([1, 2]), "owners": NO_OWNERS, "dim": 2}
        with self.refused(r"`[a-z]+` of table '[a-z]+' must be float. Received: int32"):
            RAW.tf_embed_insert_or_assign(**keys, values=tf.ones([2, 2], tf.int32), scores=[])
        with self.refused(
            r"`defaults` of table 'raw' must have shape \[2,2\] for keys of shape \[2\]. Received"
        ):
            RAW.tf_embed_find(**keys, defaults=tf.ones([3]), tokens=[])


if __name__ == "__main__":
    tf.test.main()
