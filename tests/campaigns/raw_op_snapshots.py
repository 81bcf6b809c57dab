# SPDX-License-Identifier: Apache-2.0
"""Right calls of the raw ops for snapshots."""

from __future__ import annotations

import gc
import os
import random

import tensorflow as tf
from raw_op_each import EachTableCalls
from raw_op_makers import RAW, Arguments, SomeTable, draw_one, numbers_of

ALL_STATISTICS, TRACKED = 31, 32


class SnapshotCalls(EachTableCalls):
    """A method for each op, as in RowCalls, and tables that keep track of changes."""

    def __init__(self, seed: int, number: int, folder: str) -> None:
        super().__init__(seed, number, folder)
        self.tracked = [
            self._table("int64", "float32", 3, 2, statistics=TRACKED),
            self._table("int32", "bfloat16", 2, statistics=TRACKED | ALL_STATISTICS),
        ]
        for table in self.tracked:
            self._fill(table)
        self.tables += self.tracked

    def _folder(self, name: str) -> tf.Tensor:
        return tf.constant(os.path.join(self.folder, "snapshots", name))

    def _begun(self, draw: random.Random, table: SomeTable) -> tf.Tensor:
        gc.collect()  # a snapshot under way refuses others
        begun = RAW.tf_embed_begin_snapshot(tables=[table.handle], since=tf.zeros([1], tf.int64))
        self._change(draw, table)
        return begun

    def _change(self, draw: random.Random, table: SomeTable) -> None:
        """Changes a table, so that a snapshot under way is given rows."""
        keys = numbers_of(draw, table.key_dtype, (3,))
        owners = tf.zeros([0], tf.int32)
        if draw.randrange(2):
            RAW.tf_embed_erase(table=table.handle, keys=keys, owners=owners)
            return
        values = numbers_of(draw, table.value_dtype, (3, table.dim))
        RAW.tf_embed_insert_or_assign(
            table=table.handle, keys=keys, owners=owners, values=values, scores=[], dim=table.dim
        )

    def _written(self, draw: random.Random, table: SomeTable) -> tf.Tensor:
        """Writes a snapshot "one", and returns the number of its save."""
        return RAW.tf_embed_write_snapshot(
            snapshot=self._begun(draw, table), number=tf.constant(0, tf.int64), **self._place("one")
        )

    def _place(self, name: str) -> Arguments:
        return {"folder": self._folder(name), "file_name": "rows", "since_name": ""}

    def right_begin_snapshot(self, draw: random.Random) -> Arguments:
        gc.collect()
        tables = draw.sample(self.tracked, draw.randint(1, 2))
        since = [tf.constant(0, tf.int64) for _ in tables]
        if draw.randrange(2):
            since[0] = self._written(draw, tables[0])
        return {"tables": [table.handle for table in tables], "since": tf.stack(since)}

    def right_write_snapshot(self, draw: random.Random) -> Arguments:
        table, since_name = draw_one(draw, self.tracked), ""
        if draw.randrange(2):
            save, since_name = self._written(draw, table), "one"
            self._change(draw, table)
            begun = RAW.tf_embed_begin_snapshot(tables=[table.handle], since=save[tf.newaxis])
            self._change(draw, table)
        else:
            begun = self._begun(draw, table)
        return {
            "snapshot": begun,
            "number": tf.constant(0, tf.int64),
            **self._place("two"),
            "since_name": since_name,
            "buffer_bytes": draw_one(draw, (1, 100, 4096)),
            "with_slots": bool(draw.randrange(2)),
        }

    def right_write_snapshot_part(self, draw: random.Random) -> Arguments:
        write = self.right_write_snapshot(draw)
        return {**write, "file_name": "part", **self._part(draw, draw.randint(1, 3))}

    def _part(self, draw: random.Random, processes: int) -> Arguments:
        numbers = {"save": 7, "rank": draw.randrange(processes), "processes": processes}
        return {name: tf.constant(number, tf.int64) for name, number in numbers.items()}

    def right_save_rows_part(self, draw: random.Random) -> Arguments:
        return {
            "table": self._some(draw).handle,
            "folder": self._folder("parts"),
            "file_name": "rows",
            **self._part(draw, draw.randint(1, 3)),
            "buffer_bytes": draw_one(draw, (1, 100, 4096)),
            "with_slots": bool(draw.randrange(2)),
        }

    def right_join_rows(self, draw: random.Random) -> Arguments:
        table, processes = self._some(draw), draw.randint(1, 3)
        place = {"folder": self._folder("joined"), "file_name": f"rows-{draw.getrandbits(40)}"}
        for rank in range(processes):
            part = {**self._part(draw, processes), "rank": tf.constant(rank, tf.int64)}
            RAW.tf_embed_save_rows_part(table=table.handle, **place, **part)
        return {**place, "processes": tf.constant(processes, tf.int64)}

    def right_note_snapshot(self, draw: random.Random) -> Arguments:
        save = tf.constant(draw.randrange(-9, 9), tf.int64)
        return {"table": self._some(draw).handle, "save": save}

    def right_drop_snapshot(self, draw: random.Random) -> Arguments:
        table = draw_one(draw, self.tracked)
        return {"table": table.handle, "save": self._written(draw, table)}

    def _published(self, draw: random.Random) -> tuple[SomeTable, Arguments]:
        """A table, and a save of it or of its changes since another save."""
        table = draw_one(draw, self.tracked)
        save, name = self._written(draw, table), "one"
        if draw.randrange(2):
            self._change(draw, table)
            begun = RAW.tf_embed_begin_snapshot(tables=[table.handle], since=save[tf.newaxis])
            name, zero = "two", tf.constant(0, tf.int64)
            place = {**self._place("two"), "since_name": "one"}
            save = RAW.tf_embed_write_snapshot(snapshot=begun, number=zero, **place)
        place = {"folder": self._folder(name), "file_name": "rows"}
        return table, {"table": table.handle, **place, "save": save}

    def right_open_published_rows(self, draw: random.Random) -> Arguments:
        return self._published(draw)[1]

    def right_begin_published_rows(self, draw: random.Random) -> Arguments:
        table, place = self._published(draw)
        rows, _ = RAW.tf_embed_open_published_rows(**place)
        return {"table": table.handle, "rows": rows, "key_dtype": tf.as_dtype(table.key_dtype)}

    def right_fold_rows(self, draw: random.Random) -> Arguments:
        write = self.right_write_snapshot(draw)
        RAW.tf_embed_write_snapshot(**write)
        return {
            "folder": write["folder"],
            "file_name": "rows",
            "to_folder": self._folder(draw_one(draw, ("two", "three"))),
            "to_file_name": draw_one(draw, ("others", "more")),  # not the place of the save
            "buffer_bytes": draw_one(draw, (1, 100, 4096)),
        }

    def right_put_file(self, draw: random.Random) -> Arguments:
        text = draw_one(draw, ("", "x", "{}", "x" * 100_000))
        return {"folder": self._folder("put"), "file_name": "file", "text": text}
