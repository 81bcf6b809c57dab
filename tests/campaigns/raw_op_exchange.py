# SPDX-License-Identifier: Apache-2.0
"""Right calls of the raw ops of the exchange between workers."""

from __future__ import annotations

import random

import tensorflow as tf
from raw_op_makers import FLOATING, KEY_DTYPES, RAW, Arguments, draw_one, numbers_of
from raw_op_snapshots import SnapshotCalls

from tf_embed.ops.pooling_ops import compute_dtype


class ExchangeCalls(SnapshotCalls):
    """A method for each op, as in RowCalls."""

    def _routed(self, draw: random.Random, shapes: list[tuple[int, ...]]) -> Arguments:
        keys, owners, rules = [], [], []
        for shape in shapes:
            dtype = draw_one(draw, KEY_DTYPES)
            keys.append(numbers_of(draw, dtype, shape))
            # Equal keys must have one owner.
            size = int(tf.size(keys[-1])) if draw.randrange(3) == 0 else 0
            owners.append(tf.zeros([size], tf.int32))
            rules.append("hash" if dtype == "string" else draw_one(draw, ("hash", "remainder")))
        workers = draw.randint(1, 4)
        return {"keys": keys, "owners": owners, "num_workers": workers, "owner_rules": rules}

    def right_route_keys(self, draw: random.Random) -> Arguments:
        shapes = [(draw.randrange(5), draw.randrange(3)) for _ in range(draw.randint(1, 3))]
        return self._routed(draw, list(shapes))

    def right_route_gradients(self, draw: random.Random) -> Arguments:
        sizes = [draw.randrange(5) for _ in range(draw.randint(1, 3))]
        dtypes = [draw_one(draw, FLOATING) for _ in sizes]
        return {
            **self._routed(draw, [(size,) for size in sizes]),
            "gradients": [
                numbers_of(draw, dtype, (size, draw.randint(1, 3)))
                for size, dtype in zip(sizes, dtypes, strict=True)
            ],
            "sum_dtypes": [compute_dtype(tf.as_dtype(dtype)) for dtype in dtypes],
        }

    def _counts(self, draw: random.Random) -> list[list[int]]:
        """How many keys of each table go to each worker."""
        tables, workers = draw.randint(1, 3), draw.randint(1, 4)
        return [[draw.randrange(4) for _ in range(workers)] for _ in range(tables)]

    def _parts(self, draw: random.Random) -> Arguments:
        counts = self._counts(draw)
        numbers, parts, wires = [], [], []
        for _ in range(draw.randint(1, 4)):
            number = draw.randrange(len(counts))
            size = sum(counts[number])
            if draw.randrange(2):
                parts.append(numbers_of(draw, draw_one(draw, KEY_DTYPES), (size,)))
                wires.append("same")
            else:
                dtype = draw_one(draw, (*FLOATING, "bool", "int8"))
                parts.append(numbers_of(draw, dtype, (size, draw.randint(1, 3))))
                some = ("same", "bfloat16", "float16") if dtype == "float32" else ("same",)
                wires.append(draw_one(draw, some))
            numbers.append(number)
        return {
            "parts": parts,
            "counts": tf.constant(counts, tf.int32),
            "part_tables": numbers,
            "wire_types": wires,
            "rank": draw.randrange(-1, len(counts[0])),
        }

    right_message_words = _parts

    def right_pack_messages(self, draw: random.Random) -> Arguments:
        parts = self._parts(draw)
        most = int(tf.reduce_max(RAW.tf_embed_message_words(**parts)))
        return {**parts, "capacity": tf.constant(most + draw.randrange(3), tf.int64)}

    def right_unpack_messages(self, draw: random.Random) -> Arguments:
        packed = self.right_pack_messages(draw)
        parts = packed["parts"]
        return {
            "messages": RAW.tf_embed_pack_messages(**packed),
            "counts": packed["counts"],
            "part_types": [part.dtype for part in parts],
            "part_tables": packed["part_tables"],
            "wire_types": packed["wire_types"],
            "widths": [part.shape[1] if part.shape.rank == 2 else 0 for part in parts],
            "own": parts if packed["rank"] >= 0 else [],
            "own_counts": packed["counts"],
            "rank": packed["rank"],
        }

    def right_plan_exchange(self, draw: random.Random) -> Arguments:
        workers, tables = draw.randint(1, 4), draw.randint(1, 3)
        size = workers * (tables + 1) * workers
        replies = draw.randrange(3)
        return {
            "gathered": tf.constant([draw.randrange(100) for _ in range(size)], tf.int32),
            "num_workers": workers,
            "num_tables": tables,
            "rank": draw.randrange(workers),
            "reply_tables": [draw.randrange(tables) for _ in range(replies)],
            "reply_row_bytes": [draw.randrange(64) for _ in range(replies)],
        }

    def _of_batch(self, draw: random.Random) -> Arguments:
        """The number of distinct keys, and the index of each batch key among them."""
        size = draw.randint(1, 4)
        shape = (draw.randrange(3), draw.randint(1, 2))
        places = [draw.randrange(size) for _ in range(shape[0] * shape[1])]
        return {
            "routed": numbers_of(draw, draw_one(draw, KEY_DTYPES), (size,)),
            "places": tf.reshape(tf.constant(places, tf.int32), shape),
        }

    def right_routed_rows(self, draw: random.Random) -> Arguments:
        dtype, batch = draw_one(draw, FLOATING), self._of_batch(draw)
        keys = tf.gather(batch["routed"], batch["places"])
        return {
            **batch,
            "keys": keys,
            "noted": [keys] * draw.randrange(2),
            "rows": numbers_of(draw, dtype, (int(tf.size(batch["routed"])), 2)),
            "tokens": [tf.zeros([0, 2], dtype)] * draw.randrange(2),
            "label": draw_one(draw, ("", "items")),
        }

    def right_routed_rows_gradient(self, draw: random.Random) -> Arguments:
        batch, dim = self._of_batch(draw), draw.randint(1, 3)
        shape = (*batch["places"].shape, dim)
        return {**batch, "gradient": numbers_of(draw, draw_one(draw, FLOATING), shape), "dim": dim}

    def right_unless_frozen(self, draw: random.Random) -> Arguments:
        size = draw.randrange(4)
        return {
            "keys": numbers_of(draw, draw_one(draw, KEY_DTYPES), (size,)),
            "gradients": numbers_of(draw, draw_one(draw, FLOATING), (size, 2)),
            "trained": tf.constant(bool(draw.randrange(2))),
        }

    # Bags, split by owner and put together.

    def right_split_bags(self, draw: random.Random) -> Arguments:
        batch, dims, size = self._batch(draw)
        workers = draw.randint(1, 4)
        owners = draw_one(draw, ([], [workers - 1] * int(batch["indices"].shape[0])))
        return {
            **batch,
            "size": tf.constant(size, tf.int64),
            "owners": tf.constant(owners, tf.int32),
            "dims": list(dims),
            "num_workers": workers,
            "rank": draw.randrange(workers),
            "owner_rule": draw_one(draw, ("hash", "remainder")),
            "ask_by": draw_one(draw, ("less", "bags", "keys")),
            "bytes_of_number": draw_one(draw, (2, 4)),
        }

    def _joined(self, draw: random.Random) -> tuple[Arguments, tf.Tensor]:
        split = self.right_split_bags(draw)
        _, _, _, counts, sources, splits = RAW.tf_embed_split_bags(**split)
        batch = {name: split[name] for name in ("indices", "offsets", "pieces", "weights", "dims")}
        values = numbers_of(draw, "float32", (int(tf.reduce_sum(counts[3])),))
        combiner = draw_one(draw, ("sum", "mean"))
        rest = {"values": values, "sources": sources, "splits": splits, "combiner": combiner}
        return {**batch, **rest}, split["size"]

    def right_join_bags(self, draw: random.Random) -> Arguments:
        joined, size = self._joined(draw)
        return {**joined, "size": size, "max_gradient": draw_one(draw, (0.0, 1.0))}

    def right_join_bags_gradient(self, draw: random.Random) -> Arguments:
        joined, size = self._joined(draw)
        return {**joined, "gradient": numbers_of(draw, "float32", (int(size),))}

    def right_split_pooled(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        batch, _ = self._bags(draw, table)
        keys, workers = batch["keys"], draw.randint(1, 4)
        # Equal keys must have one owner.
        owners = draw_one(draw, ([], [workers - 1] * int(tf.size(keys))))
        rules = ("hash",) if table.key_dtype == "string" else ("hash", "remainder")
        return {
            "keys": keys,
            "bags": batch["bags"],
            "owners": tf.constant(owners, tf.int32),
            **self._padding(draw, table),
            "num_workers": workers,
            "rank": draw.randrange(workers),
            "owner_rule": draw_one(draw, rules),
            "ask_by": draw_one(draw, ("less", "bags", "keys")),
            "row_bytes": draw_one(draw, (2, 64)),
            "sum_bytes": draw_one(draw, (4, 64)),
            "weight_bytes": draw_one(draw, (0, 4)),
        }

    # In a process without other workers a watch watches nothing.

    def right_start_watch(self, draw: random.Random) -> Arguments:
        seconds = tf.constant(draw_one(draw, (0.5, 30.0, 1e6)))
        return {"seconds": seconds, "what": draw_one(draw, ("x", "a step"))}

    def right_end_watch(self, draw: random.Random) -> Arguments:
        watch, _ = RAW.tf_embed_start_watch(**self.right_start_watch(draw))
        result = numbers_of(draw, draw_one(draw, (*KEY_DTYPES, *FLOATING)), (draw.randrange(3),))
        return {"watch": watch, "result": result}
