# SPDX-License-Identifier: Apache-2.0
"""Right calls of the raw ops for bags, gradients, many tables and files."""

from __future__ import annotations

import gc
import os
import random

import numpy as np
import tensorflow as tf
from raw_op_makers import (
    FLOATING,
    KEY_DTYPES,
    RAW,
    RULES,
    Arguments,
    RowCalls,
    SomeTable,
    draw_one,
    numbers_of,
)


class RightCalls(RowCalls):
    """A method for each op, as in RowCalls."""

    # Bags, and the gradients of rows.

    def _bags(self, draw: random.Random, table: SomeTable) -> tuple[Arguments, int | None]:
        """Keys with bag arguments, and the number of bags; None: keys.shape[:-1]."""
        keys = self._keys(draw, table, rank=draw_one(draw, (1, 1, 2)))
        size = int(np.prod(keys["keys"].shape))
        dtype = draw_one(draw, (tf.int64, tf.int32))
        if keys["keys"].shape.rank == 2:
            return {**keys, "bags": []}, None
        count = draw.randint(1, 3)
        if draw.randrange(2):
            splits = sorted(draw.randint(0, size) for _ in range(count - 1))
            return {**keys, "bags": [tf.constant([0, *splits, size], dtype)]}, count
        indices = [[draw.randrange(count), draw.randrange(4)] for _ in range(size)]
        places = tf.constant(np.array(indices, np.int64).reshape([size, 2]))
        return {**keys, "bags": [places, tf.constant([count, 4], tf.int64)]}, count

    def _weights(self, draw: random.Random, dtype: str, keys: tf.Tensor) -> list[tf.Tensor]:
        return draw_one(draw, ([], [numbers_of(draw, dtype, tuple(keys.shape))]))

    def _padding(self, draw: random.Random, table: SomeTable) -> Arguments:
        if table.key_dtype == "string":
            return {"padding_text": draw_one(draw, ([], ["0"]))}
        return {"padding": draw_one(draw, ([], [0]))}

    def right_find_pooled(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys, _ = self._bags(draw, table)
        return {
            **keys,
            "defaults": self._defaults(draw, table, keys["keys"]),
            "tokens": [],
            "weights": self._weights(draw, table.slot_dtype, keys["keys"]),
            "pooled_dtype": tf.as_dtype(table.slot_dtype),
            "dim": table.dim,
            "combiner": draw_one(draw, ("sum", "mean", "sqrtn")),
            **self._padding(draw, table),
            "training": bool(draw.randrange(2)),
            "found_dtypes": draw_one(draw, ([], [tf.as_dtype(table.slot_dtype)])),
        }

    def right_sum_by_key(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys, bags = self._bags(draw, table)
        shape = tuple(keys["keys"].shape)[:-1] if bags is None else (bags,)
        combiner = draw_one(draw, ("none", "sum", "mean", "sqrtn"))
        if combiner == "none":
            keys["bags"], shape = [], tuple(keys["keys"].shape)
        return {
            "keys": keys["keys"],
            "gradients": numbers_of(draw, table.value_dtype, (*shape, table.dim)),
            "bags": keys["bags"],
            "weights": self._weights(draw, table.slot_dtype, keys["keys"]),
            "tables": draw_one(draw, ([], [table.handle])),
            "sum_dtype": tf.as_dtype(table.value_dtype),
            "combiner": combiner,
            **self._padding(draw, table),
        }

    def right_unique_keys(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        return {
            "keys": self._keys(draw, table)["keys"],
            "tables": draw_one(draw, ([], [table.handle])),
        }

    def right_check_sparse(self, draw: random.Random) -> Arguments:
        count, rank = draw.randrange(4), draw.randint(1, 3)
        return {
            "indices": tf.constant([[draw.randrange(3)] * rank] * count, tf.int64, [count, rank]),
            "values": tf.zeros([count], draw_one(draw, (tf.int64, tf.int32, tf.string))),
            "dense_shape": tf.constant([3] * rank, tf.int64),
            "label": "ids",
        }

    def right_token(self, draw: random.Random) -> Arguments:
        dtype, dim = draw_one(draw, FLOATING), draw.randint(1, 5)
        return {
            "anchor": tf.zeros([0, dim], dtype),
            "key_dtype": tf.as_dtype(draw_one(draw, KEY_DTYPES)),
            "dim": dim,
        }

    def right_row_gradients(self, draw: random.Random) -> Arguments:
        size = draw.randrange(4)
        return {
            "keys": numbers_of(draw, draw_one(draw, KEY_DTYPES), (size,)),
            "values": numbers_of(draw, draw_one(draw, FLOATING), (size, 3)),
            "packed": bool(draw.randrange(4) == 0),
        }

    def right_unpack_row_gradients(self, draw: random.Random) -> Arguments:
        keys, values = draw_one(draw, KEY_DTYPES), draw_one(draw, FLOATING)
        parts = [
            RAW.tf_embed_row_gradients(
                keys=numbers_of(draw, keys, (size,)), values=numbers_of(draw, values, (size, 3))
            )
            for size in range(draw.randint(1, 3))
        ]
        return {
            "gradients": tf.add_n(parts),
            "key_dtype": tf.as_dtype(keys),
            "value_dtype": tf.as_dtype(values),
            "dim": 3,
        }

    def right_has_gpu_tables(self, draw: random.Random) -> Arguments:
        return {}

    # Many tables at once.

    def _batch(self, draw: random.Random) -> tuple[Arguments, tuple[int, int], int]:
        """A batch of bags of the first two tables, the tables' dims, the number of values."""
        lengths = [draw.randrange(3) for _ in range(draw.randint(1, 5))]
        bags, size = len(lengths), sum(lengths)
        first = draw.randrange(bags + 1)
        dims = (self.tables[0].dim, self.tables[1].dim)
        middle = first * dims[0]
        batch = {
            "indices": numbers_of(draw, "int64", (size,)),
            "offsets": tf.constant(np.cumsum([0, *lengths]), tf.int64),
            "pieces": tf.constant(
                [[0, 0, first, 0, dims[0]], [1, first, bags - first, middle, dims[1]]], tf.int64
            ),
            "weights": draw_one(draw, ([], [numbers_of(draw, "float32", (size,))])),
        }
        return batch, dims, middle + (bags - first) * dims[1]

    def _two(self, draw: random.Random, dims: tuple[int, int]) -> Arguments:
        return {
            "tables": [self.tables[0].handle, self.tables[1].handle],
            "dims": list(dims),
            "combiner": draw_one(draw, ("sum", "mean")),
        }

    def right_find_pooled_tables(self, draw: random.Random) -> Arguments:
        batch, dims, size = self._batch(draw)
        return {
            **batch,
            **self._two(draw, dims),
            "size": tf.constant(size, tf.int64),
            "tokens": [],
            "row_dtypes": [tf.float32, tf.float32],
            "packs": bool(draw.randrange(2)),
            "max_gradient": 0.0,
            "training": bool(draw.randrange(2)),
            "found_dtypes": draw_one(draw, ([], [tf.float32])),
        }

    def right_sum_by_key_tables(self, draw: random.Random) -> Arguments:
        batch, dims, size = self._batch(draw)
        two = self._two(draw, dims)
        return {
            **batch,
            "dims": two["dims"],
            "combiner": two["combiner"],
            "gradient": numbers_of(draw, "float32", (size,)),
            "distinct_dtypes": [tf.int64] * 2,
            "sum_dtypes": [tf.float32, tf.float16],
        }

    def right_pack_batch(self, draw: random.Random) -> Arguments:
        batch, dims, size = self._batch(draw)
        return {**batch, **self._two(draw, dims), "size": tf.constant(size, tf.int64)}

    def right_apply_tables(self, draw: random.Random) -> Arguments:
        packs, sizes = [], []
        for _ in range(draw.randrange(3)):
            batch, dims, size = self._batch(draw)
            two = {**self._two(draw, dims), "size": tf.constant(size, tf.int64)}
            packs.append(RAW.tf_embed_pack_batch(**batch, **two))
            sizes.append(size)
        rule = draw_one(draw, list(RULES))
        shape = draw_one(draw, ((RULES[rule],), (2, RULES[rule])))
        return {
            **self._two(draw, (self.tables[0].dim, self.tables[1].dim)),
            "batches": tf.concat([tf.zeros([0], tf.int64), *packs], 0),
            "gradients": numbers_of(draw, "float32", (sum(sizes),)),
            "hyper": numbers_of(draw, "float64", shape),
            "step": tf.constant(draw.randint(1, 9), tf.int64),
            "rule": rule,
            "slot_types": [],
            "stochastic_rounding": bool(draw.randrange(2)),
        }

    def right_check_bounds(self, draw: random.Random) -> Arguments:
        lengths = [draw.randrange(3) for _ in range(3)]
        return {
            "indices": numbers_of(draw, "int64", (sum(lengths),)),
            "offsets": tf.constant(np.cumsum([0, *lengths]), tf.int64),
            "num_bags": tf.constant([1, 2], tf.int64),
            "rows": [draw.randint(-1, 5), 5],
            "tables": ["a", "b"],
            "owner": "campaign",
            "mode": draw_one(draw, ("fatal", "warning", "ignore", "none")),
        }

    # Files of rows.

    def right_save_rows(self, draw: random.Random) -> Arguments:
        return {
            "table": self._some(draw).handle,
            "folder": tf.constant(os.path.join(self.folder, draw_one(draw, ("a", "b")))),
            "file_name": "rows",
            "folder_variable": "",
            "rank": 0,
            "processes": 1,
            "buffer_bytes": draw_one(draw, (1, 100, 4096)),
        }

    def _saved(self, draw: random.Random) -> tuple[SomeTable, Arguments]:
        """A table that has just been saved, and the arguments that name its files."""
        table = self._some(draw)
        place = {"folder": tf.constant(os.path.join(self.folder, "saved")), "file_name": "rows"}
        RAW.tf_embed_save_rows(table=table.handle, buffer_bytes=64, **place)
        return table, {"table": table.handle, **place}

    def right_open_saved_rows(self, draw: random.Random) -> Arguments:
        table, place = self._saved(draw)
        options = {"folder_variable": "", "rank": 0, "processes": 1}
        options["key_dtype"] = tf.as_dtype(table.key_dtype)
        return {**place, **options, "whole": bool(draw.randrange(2))}

    def right_forget_waiting(self, draw: random.Random) -> Arguments:
        arguments = self._keys(draw, self._some(draw))
        return {name: arguments[name] for name in ("table", "keys")}

    def _block(self, draw: random.Random) -> tuple[SomeTable, Arguments]:
        table, place = self._saved(draw)
        key_dtype = tf.as_dtype(table.key_dtype)
        rows, blocks, *_ = RAW.tf_embed_open_saved_rows(key_dtype=key_dtype, **place)
        block = tf.constant(draw.randrange(max(1, int(blocks))), tf.int64)
        return table, {"table": table.handle, "rows": rows, "block": block}

    def right_saved_keys(self, draw: random.Random) -> Arguments:
        table, block = self._block(draw)
        return {**block, "key_dtype": tf.as_dtype(table.key_dtype)}

    def right_saved_row_counts(self, draw: random.Random) -> Arguments:
        _, block = self._block(draw)
        return {name: block[name] for name in ("table", "rows")}

    # Streams of rows, without a table.

    def right_describe_rows(self, draw: random.Random) -> Arguments:
        _, place = self._saved(draw)
        return {name: place[name] for name in ("folder", "file_name")}

    def right_open_row_stream(self, draw: random.Random) -> Arguments:
        return {**self.right_describe_rows(draw), "alone": bool(draw.randrange(2))}

    def right_read_row_stream(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        place = {"folder": tf.constant(os.path.join(self.folder, "read")), "file_name": "rows"}
        RAW.tf_embed_save_rows(table=table.handle, buffer_bytes=64, **place)
        rows, counts, _, _ = RAW.tf_embed_open_row_stream(**place)
        return {
            "rows": rows,
            "block": tf.constant(draw.randrange(max(1, int(counts[0]))), tf.int64),
            "key_dtype": tf.as_dtype(table.key_dtype),
            "value_dtype": tf.as_dtype(table.value_dtype),
            "slot_dtype": tf.as_dtype(table.slot_dtype),
        }

    def right_begin_row_stream(self, draw: random.Random) -> Arguments:
        dtype, dim, meta = draw_one(draw, FLOATING), draw.randint(1, 4), tf.zeros([0], tf.int64)
        if draw.randrange(2):
            table = self._some(draw, kinds=FLOATING)
            place = {"folder": tf.constant(os.path.join(self.folder, "like")), "file_name": "rows"}
            RAW.tf_embed_save_rows(table=table.handle, **place)
            dtype, dim = table.value_dtype, table.dim
            meta = RAW.tf_embed_open_row_stream(**place)[3]
        return {
            "folder": tf.constant(os.path.join(self.folder, draw_one(draw, ("c", "d")))),
            "file_name": "rows",
            "meta": meta,
            "value_dtype": tf.as_dtype(dtype),
            "dim": dim,
        }

    def right_append_row_stream(self, draw: random.Random) -> Arguments:
        begun = self.right_begin_row_stream(draw)
        begun["meta"] = tf.zeros([0], tf.int64)
        dtype, size = begun["value_dtype"], draw.randrange(4)
        slot_dtype = tf.float64 if dtype == tf.float64 else tf.float32
        return {
            "stream": RAW.tf_embed_begin_row_stream(**begun),
            "keys": tf.range(size, dtype=tf.int64),
            "weights": numbers_of(draw, dtype, (size, begun["dim"])),
            "slots": tf.zeros([size, 0], slot_dtype),
        }

    def right_finish_row_stream(self, draw: random.Random) -> Arguments:
        append = self.right_append_row_stream(draw)
        if draw.randrange(2):
            RAW.tf_embed_append_row_stream(**append)
        return {"stream": append["stream"]}

    # Turns.

    def right_take_turn(self, draw: random.Random) -> Arguments:
        gc.collect()  # frees the turns that dead tf.functions hold
        return {"table": self._some(draw).handle}

    def right_end_turn(self, draw: random.Random) -> Arguments:
        table = self.right_take_turn(draw)["table"]
        return {"table": table, "turn": RAW.tf_embed_take_turn(table=table)}

    def right_load_saved_rows(self, draw: random.Random) -> Arguments:
        _, block = self._block(draw)
        return {**block, "owners": tf.zeros([0], tf.int32)}
