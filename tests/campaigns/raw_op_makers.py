# SPDX-License-Identifier: Apache-2.0
"""Right calls of raw ops, from which a campaign makes calls with wrong arguments."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_embed import _library
from tf_embed.ops.new_table_ops import settings_text

RAW = _library.load()
T = TypeVar("T")

KEY_DTYPES = ("int64", "int32", "uint64", "uint32", "string")
FLOATING = ("float32", "float16", "bfloat16", "float64")
RULES = {
    "sgd": 2,
    "momentum": 4,
    "adagrad": 4,
    "adam": 5,
    "rmsprop": 5,
    "ftrl": 9,
    "exact_adagrad": 3,
    "rowwise_adagrad": 7,
    "rowwise_adagrad_global": 8,
    "rowwise_adagrad_counter": 15,
    "ensemble_rowwise_adagrad": 12,
    "ema_rowwise_adagrad": 9,
    "row_adam": 6,
    "lamb": 6,
    "lars": 5,
    "smart_decay_adam": 5,
}
ORDERS = ("lru", "lfu", "ttl", "score", "epoch_lru", "epoch_lfu")

Arguments = dict[str, Any]


def draw_one(draw: random.Random, pool: Sequence[T]) -> T:
    """Draws an element of a pool."""
    return pool[draw.randrange(len(pool))]


@dataclasses.dataclass(frozen=True)
class SomeTable:
    """A table of a block."""

    handle: tf.Tensor
    key_dtype: str
    value_dtype: str
    dim: int
    shards: int
    orders: tuple[str, ...]

    @property
    def slot_dtype(self) -> str:
        return "float64" if self.value_dtype == "float64" else "float32"


def numbers_of(draw: random.Random, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
    """A tensor of small numbers."""
    return tensor_of(dtype, shape, [draw.randrange(6) for _ in range(int(np.prod(shape)))])


def tensor_of(dtype: Any, shape: tuple[int, ...], values: list[Any]) -> tf.Tensor:
    dtype = tf.as_dtype(dtype)
    if dtype == tf.string:
        return tf.constant([str(one) for one in values], tf.string, shape=shape)
    with np.errstate(all="ignore"):
        if dtype.is_integer:
            info = np.iinfo(dtype.as_numpy_dtype)
            values = [int(one) % 2**64 for one in values]
            array = np.array(values, np.uint64).astype(info.dtype)
        else:
            array = np.array([float(one) for one in values]).astype(dtype.as_numpy_dtype)
    # tf.reshape takes shapes that NumPy's arrays can't have.
    return tf.reshape(tf.constant(array, dtype), shape)


class RowCalls:
    """The tables that a block's calls use, and a method for each op.

    `right_OP` gives right arguments of the op tf_embed_OP.
    """

    def __init__(self, seed: int, number: int, folder: str) -> None:
        self._draw = random.Random(f"{seed} block {number}")
        self.folder = folder
        self.prefix = f"{seed}-{number}-{os.getpid()}"
        self.others = [
            tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0),
            tf.Variable([1.0, 2.0]),
        ]
        everything = {"statistics": 31, "log_evicted": True}
        self.tables = [
            self._table("int64", "float32", 3),
            self._table("int64", "float32", 4, 3),
            self._table("int64", "int8", 12),
            self._table("string", "string", 2),
            self._table(draw_one(self._draw, KEY_DTYPES), draw_one(self._draw, FLOATING), 2),
            self._table(draw_one(self._draw, KEY_DTYPES), "float32", 2, 2, ORDERS, **everything),
            self._table(
                *("int64", draw_one(self._draw, FLOATING), 4, 1, ORDERS),
                **everything,
                max_rows=draw_one(self._draw, (1, 3, 50)),
                eviction=draw_one(self._draw, ("none", *ORDERS)),
                admission=draw_one(self._draw, ("none", "counter", "bloom")),
                admission_threshold=2,
            ),
        ]
        for table in self.tables:
            self._fill(table)

    def _fill(self, table: SomeTable) -> None:
        """Gives a table the rows of all keys that calls draw."""
        keys = tensor_of(table.key_dtype, (6,), list(range(6)))
        RAW.tf_embed_insert_or_assign(
            table=table.handle,
            keys=keys,
            owners=tf.zeros([0], tf.int32),
            values=numbers_of(self._draw, table.value_dtype, (6, table.dim)),
            scores=[],
            dim=table.dim,
        )

    def close(self) -> None:
        """Frees the tables."""
        for table in self.tables:
            tf.raw_ops.DestroyResourceOp(resource=table.handle, ignore_lookup_error=True)

    def _table(
        self,
        key_dtype: str,
        value_dtype: str,
        dim: int,
        shards: int = 1,
        orders: tuple[str, ...] = (),
        **policy: Any,
    ) -> SomeTable:
        handle = RAW.tf_embed_table(
            shared_name=f"{self.prefix}-{self._draw.getrandbits(60)}",
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            dim=dim,
            num_shards=shards,
            label="campaign",
            settings=settings_text(policy),
        )
        return SomeTable(handle, key_dtype, value_dtype, dim, shards, orders)

    def _some(self, draw: random.Random, **wanted: Any) -> SomeTable:
        """A random table; with `kinds`, its rows have one of these dtypes."""
        kinds = wanted.get("kinds")
        return draw_one(draw, [one for one in self.tables if not kinds or one.value_dtype in kinds])

    def _keys(self, draw: random.Random, table: SomeTable, rank: int | None = None) -> Arguments:
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(3) if rank is None else rank))
        size = int(np.prod(shape))
        owners = np.zeros([0], np.int32)
        if draw.randrange(3) == 0:
            owners = np.array([draw.randrange(table.shards) for _ in range(size)], np.int32)
        return {
            "table": table.handle,
            "keys": numbers_of(draw, table.key_dtype, shape),
            "owners": tf.constant(owners),
        }

    def _rows(self, draw: random.Random, dtype: str, keys: tf.Tensor, dim: int) -> tf.Tensor:
        return numbers_of(draw, dtype, (*keys.shape.as_list(), dim))

    def _defaults(self, draw: random.Random, table: SomeTable, keys: tf.Tensor) -> tf.Tensor:
        shapes = ((0,), (table.dim,), (*keys.shape.as_list(), table.dim))
        return numbers_of(draw, table.value_dtype, draw_one(draw, shapes))

    def _scores(self, draw: random.Random, table: SomeTable, keys: tf.Tensor) -> list[tf.Tensor]:
        if not table.orders or draw.randrange(2):
            return []
        return [numbers_of(draw, "int64", tuple(keys.shape))]

    def _kind(self, draw: random.Random) -> Arguments:
        return {
            "key_dtype": tf.as_dtype(draw_one(draw, KEY_DTYPES)),
            "value_dtype": tf.as_dtype(draw_one(draw, (*FLOATING, "int8", "bool", "string"))),
            "dim": draw.randint(1, 5),
            "num_shards": draw.randint(1, 4),
            "initializer": draw_one(draw, ("constant", "uniform", "normal", "truncated_normal")),
        }

    def _settings(self, draw: random.Random) -> Arguments:
        return {
            "max_rows": draw_one(draw, (0, 9)),
            "eviction": draw_one(draw, ("none", *ORDERS)),
            "steps_per_epoch": draw.randrange(3),
            "ttl_milliseconds": draw.randrange(3),
            "admission": draw_one(draw, ("none", "counter", "bloom")),
            "admission_threshold": draw.randint(1, 5),
            "admission_error_rate": 0.01,
            "admission_max_keys": draw.randrange(9),
            "statistics": draw.randrange(32),
            "log_evicted": bool(draw.randrange(2)),
            "gpu_total_bytes": -1,
            "gpu_bytes": -1,
            "host_bytes": 0,
            "gpu_cache": False,
            "evict_by_bytes": False,
            "path": "",
            "disk_bytes": -1,
            "keep_leftovers": False,
        }

    def right_table(self, draw: random.Random) -> Arguments:
        kind, settings = self._kind(draw), self._settings(draw)
        # Graphs of earlier versions have an attribute for each setting.
        as_text = draw.randrange(2)
        return {
            "shared_name": f"{self.prefix}-{draw.getrandbits(60)}",
            "container": "",
            **kind,
            "init_size": draw.randrange(100),
            "label": "new",
            "initializer_values": "0.5" if kind["initializer"] == "constant" else "0 1",
            "seed": draw.randrange(9),
            "table_id": draw.randrange(9),
            **({"settings": settings_text(settings)} if as_text else settings),
        }

    def right_new_table(self, draw: random.Random) -> Arguments:
        kind = self._kind(draw)
        values = [0.5] if kind["initializer"] == "constant" else [0.0, 1.0]
        return {
            **kind,
            "label": tf.constant("new"),
            "init_size": tf.constant(draw.randrange(100), tf.int64),
            "seed": tf.constant(draw.randrange(9), tf.int64),
            "table_id": tf.constant(draw.randrange(9), tf.int64),
            "initializer_values": tf.constant(values, tf.float64),
            "settings": tf.constant(settings_text(self._settings(draw))),
        }

    def right_find(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        keys = self._keys(draw, table)
        defaults = self._defaults(draw, table, keys["keys"])
        options = {"tokens": [], "dim": table.dim, "training": bool(draw.randrange(2))}
        return {**keys, "defaults": defaults, **options}

    def right_find_or_insert(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        keys = self._keys(draw, table)
        return {
            **keys,
            "defaults": self._defaults(draw, table, keys["keys"]),
            "scores": self._scores(draw, table, keys["keys"]),
            "dim": table.dim,
            "training": bool(draw.randrange(2)),
        }

    def right_insert_or_assign(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        keys = self._keys(draw, table)
        return {
            **keys,
            "values": self._rows(draw, table.value_dtype, keys["keys"], table.dim),
            "scores": self._scores(draw, table, keys["keys"]),
            "dim": table.dim,
            "distinct": draw.randrange(4) == 0,
        }

    def right_accum(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=(*FLOATING, "int8"))
        keys = self._keys(draw, table)
        rows = [self._rows(draw, table.value_dtype, keys["keys"], table.dim) for _ in range(2)]
        return {
            **keys,
            "old_values": rows[0],
            "new_values": rows[1],
            "exists": tf.cast(numbers_of(draw, "int64", tuple(keys["keys"].shape)), tf.bool),
            "scores": self._scores(draw, table, keys["keys"]),
            "dim": table.dim,
        }

    def right_apply(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys = self._keys(draw, table)
        rule = draw_one(draw, list(RULES))
        return {
            **keys,
            "gradients": self._rows(draw, table.value_dtype, keys["keys"], table.dim),
            "hyper": numbers_of(draw, "float64", (RULES[rule],)),
            "step": tf.constant(draw.randint(1, 9), tf.int64),
            "scores": self._scores(draw, table, keys["keys"]),
            "token": [numbers_of(draw, "int64", (2,)) for _ in range(draw.randrange(2))],
            "trained": [tf.constant(bool(draw.randrange(2))) for _ in range(draw.randrange(2))],
            "dim": table.dim,
            "rule": rule,
            "distinct": draw.randrange(4) == 0,
            "stochastic_rounding": bool(draw.randrange(2)),
        }

    def _external(self, draw: random.Random) -> Arguments:
        widths = [draw.randint(1, 3) for _ in range(draw.randrange(3))]
        return {
            "rule_id": draw.randrange(2),
            "slot_widths": widths,
            "slot_initial_values": " ".join("0.5" for _ in widths),
        }

    def right_find_slots(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys = self._keys(draw, table)
        return {
            **keys,
            "defaults": self._defaults(draw, table, keys["keys"]),
            "slot_dtype": tf.as_dtype(table.slot_dtype),
            "dim": table.dim,
            **self._external(draw),
        }

    def right_assign_slots(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys = self._keys(draw, table)
        rule = self._external(draw)
        width = sum(rule["slot_widths"])
        return {
            **keys,
            "values": self._rows(draw, table.value_dtype, keys["keys"], table.dim),
            "slots": self._rows(draw, table.slot_dtype, keys["keys"], width),
            "scores": self._scores(draw, table, keys["keys"]),
            "dim": table.dim,
            **rule,
            "distinct": draw.randrange(4) == 0,
        }

    def right_erase(self, draw: random.Random) -> Arguments:
        return self._keys(draw, self._some(draw))

    def right_clear(self, draw: random.Random) -> Arguments:
        return {"table": self._some(draw).handle}

    right_shrink = right_origin = right_stats = right_rows_saved = right_clear

    def right_size(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        shard = draw.randrange(-1, table.shards)
        return {"table": table.handle, "shard": tf.constant(shard, tf.int64)}

    def _rule(self, draw: random.Random) -> Arguments:
        if draw.randrange(2):
            return {"rule": "external", **self._external(draw)}
        return {"rule": draw_one(draw, list(RULES))}

    def right_read_slots(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        return {
            **self._keys(draw, table),
            "slot_dtype": tf.as_dtype(table.slot_dtype),
            **self._rule(draw),
            "initial_value": 0.5,
        }

    def right_rows_of_other_rule(self, draw: random.Random) -> Arguments:
        return {"table": self._some(draw).handle, **self._rule(draw)}

    def right_largest_slot(self, draw: random.Random) -> Arguments:
        rule = draw_one(draw, list(RULES))
        return {"table": self._some(draw).handle, "rule": rule, "slot": draw.randrange(9)}

    def right_export(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        return {
            "table": table.handle,
            "key_dtype": tf.as_dtype(table.key_dtype),
            "value_dtype": tf.as_dtype(table.value_dtype),
            "slot_dtype": tf.as_dtype(table.slot_dtype),
            "dim": table.dim,
            "with_slots": bool(draw.randrange(4)),
            "with_policy": bool(draw.randrange(4)),
        }

    def right_import(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        exported = RAW.tf_embed_export(
            table=table.handle,
            key_dtype=table.key_dtype,
            value_dtype=table.value_dtype,
            slot_dtype=table.slot_dtype,
            dim=table.dim,
        )
        names = ("keys", "values", "slots", "meta", "statistics", "policy")
        return {
            "table": table.handle,
            "owners": tf.zeros([0], tf.int32),
            **dict(zip(names, exported, strict=True)),
        }

    def right_restrict(self, draw: random.Random) -> Arguments:
        return {
            "table": self._some(draw).handle,
            "num_reserved": tf.constant(draw.randrange(9), tf.int64),
            "order": draw_one(draw, ORDERS),
        }

    def right_drain_evicted(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        return {
            "table": table.handle,
            "key_dtype": tf.as_dtype(table.key_dtype),
            "value_dtype": tf.as_dtype(table.value_dtype),
            "dim": table.dim,
        }

    def right_row_statistics(self, draw: random.Random) -> Arguments:
        return self._keys(draw, self._some(draw))

    def right_export_scores(self, draw: random.Random) -> Arguments:
        table = self._some(draw)
        return {
            "table": table.handle,
            "split_size": tf.constant(draw.randint(1, 9), tf.int64),
            "key_dtype": tf.as_dtype(table.key_dtype),
            "order": draw_one(draw, ORDERS),
        }

    def right_set_scores(self, draw: random.Random) -> Arguments:
        keys = self._keys(draw, self._some(draw))
        return {**keys, "scores": numbers_of(draw, "int64", tuple(keys["keys"].shape))}

    def right_expired_rows(self, draw: random.Random) -> Arguments:
        return {"table": self._some(draw).handle, "renews": draw_one(draw, (False, True))}

    def right_set_clock(self, draw: random.Random) -> Arguments:
        return {
            "table": self._some(draw).handle,
            "step": tf.constant(draw.randint(1, 99), tf.int64),
            "milliseconds": tf.constant(draw.randint(-2, 99), tf.int64),
            "epoch": tf.constant(draw.randint(-1, 9), tf.int64),
        }
