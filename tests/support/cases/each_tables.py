# SPDX-License-Identifier: Apache-2.0
"""Tables of many kinds, twice: for the ops of a table, and for the ops of many."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from support.cases.raw_tables import HYPER, NO_OWNERS, RawTable
from tf_embed import _library
from tf_embed.ops.each_table_ops import PooledLookup, RowLookup, RowStep
from tf_embed.ops.pooling_ops import compute_dtype

RAW = _library.load()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of table, and how it is trained.

    Attributes:
        tiered: Whether some rows are on disk.
        owned: Whether a partitioner chooses the shards.
        default: The defaults of lookups: "none", "one" for all keys, or "each".
    """

    key_dtype: str = "int64"
    value_dtype: str = "float32"
    dim: int = 3
    shards: int = 1
    rule: str = "adam"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tiered: bool = False
    owned: bool = False
    default: str = "none"
    distinct: bool = False
    rounding: bool = False
    frozen: bool = False

    def table(self, number: int) -> RawTable:
        """A new table. Two of one number have the same rows."""
        tiers = {"path": tempfile.mkdtemp(), "host_bytes": 1 << 16} if self.tiered else {}
        return RawTable(
            self.dim,
            self.key_dtype,
            self.value_dtype,
            self.shards,
            settings={**self.settings, **tiers},
            initializer="uniform",
            initializer_values=[-1.0, 1.0],
            table_id=number,
        )

    def keys(self, draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        """Keys of which some repeat, unless they are distinct."""
        size = int(np.prod(shape))
        numbers = draw.permutation(30)[:size] if self.distinct else draw.integers(0, 30, size)
        if self.key_dtype == "string":
            return np.array([b"key %d" % one for one in numbers], object).reshape(shape)
        high = {"uint64": 2**63, "uint32": 2**31}.get(self.key_dtype, 0)
        numbers = [int(one) + high * (int(one) % 2) for one in numbers]
        return np.array(numbers, self.key_dtype).reshape(shape)

    def owners(self, keys: np.ndarray) -> np.ndarray:
        if not self.owned:
            return NO_OWNERS
        return np.array([len(str(key)) % self.shards for key in keys.ravel()], np.int32)

    def defaults(self, draw: np.random.Generator, keys: np.ndarray) -> np.ndarray:
        shape = {"none": (0,), "one": (self.dim,), "each": (*keys.shape, self.dim)}[self.default]
        return draw.normal(size=shape)


LRU = {"max_rows": 12, "eviction": "lru"}
LFU = {"max_rows": 16, "eviction": "lfu", "statistics": 5}
ADMISSION = {"admission": "counter", "admission_threshold": 2}
# Keys of 64 bits, which a GPU reads from its own memory.
WIDE = (
    Kind(),
    Kind("uint64", "bfloat16", 5, rule="adagrad", rounding=True),
    Kind(value_dtype="float64", dim=1, shards=3, owned=True, rule="sgd", default="one"),
    Kind(value_dtype="float16", dim=4, rule="rmsprop", default="each", distinct=True),
    Kind(dim=2, settings=LRU, rule="momentum"),
    Kind("uint64", dim=7, shards=2, settings=LFU),
    Kind(dim=16, settings=ADMISSION, rule="rowwise_adagrad"),
    Kind(dim=2, frozen=True),
    Kind(dim=8, shards=2, rule="ftrl"),
)
NARROW = (
    Kind("int32", "float16", 3, shards=2, rule="adagrad"),
    Kind("uint32", dim=2, settings=LRU, default="one"),
)
STRINGS = (Kind("string", dim=2), Kind("string", "bfloat16", 3, shards=2, settings=LFU, rule="sgd"))
MIXED = (*WIDE[:3], *STRINGS, Kind(dim=64, tiered=True), *NARROW, *WIDE[3:])
LISTS = {"wide": WIDE, "narrow": NARROW, "few": WIDE[:3], "mixed": MIXED}


class Draw:
    """The arguments of steps of tables, the same for each seed."""

    def __init__(self, kinds: Sequence[Kind], seed: int) -> None:
        self.kinds = kinds
        self.tables = [kind.table(i) for i, kind in enumerate(kinds)]
        self.draw = np.random.default_rng(seed)

    def _shape(self) -> tuple[int, ...]:
        shapes: tuple[tuple[int, ...], ...] = ((), (0,), (9,), (2, 4), (3, 1, 2))
        return shapes[self.draw.integers(len(shapes))]

    def lookups(self) -> list[RowLookup]:
        lookups = []
        for kind, table in zip(self.kinds, self.tables, strict=True):
            keys = kind.keys(self.draw, self._shape())
            defaults = kind.defaults(self.draw, keys)
            lookups.append(
                RowLookup(
                    table.handle,
                    tf.constant(keys, kind.key_dtype),
                    tf.constant(kind.owners(keys)),
                    table.rows(defaults),
                    kind.dim,
                    training=bool(self.draw.integers(2)),
                )
            )
        return lookups

    def pooled(self) -> list[PooledLookup]:
        combiners = ("sum", "mean", "sqrtn")
        lookups = []
        for i, (kind, table) in enumerate(zip(self.kinds, self.tables, strict=True)):
            keys = kind.keys(self.draw, (4, 3) if i % 3 == 0 else (12,))
            splits = tf.constant([0, 5, 5, 11, 12], (tf.int32, tf.int64)[i % 2])
            places = np.stack([self.draw.integers(0, 4, 12), self.draw.integers(0, 9, 12)], 1)
            compute = compute_dtype(tf.as_dtype(kind.value_dtype))
            weights = tf.constant(self.draw.normal(size=keys.shape), compute)
            padding = keys.ravel()[1].item() if kind.key_dtype != "string" else keys.ravel()[1]
            lookups.append(
                PooledLookup(
                    table.handle,
                    tf.constant(keys, kind.key_dtype),
                    tf.constant(kind.owners(keys)),
                    table.rows(kind.defaults(self.draw, keys)),
                    ((), (splits,), (tf.constant(places), tf.constant([4, 9], tf.int64)))[i % 3],
                    weights if i % 2 else None,
                    tf.as_dtype(kind.value_dtype),
                    kind.dim,
                    combiners[i % 4 % 3],
                    padding if i % 5 < 2 else None,
                    training=bool(self.draw.integers(2)),
                )
            )
        return lookups

    def steps(self, number: int) -> list[RowStep]:
        steps = []
        for kind, table in zip(self.kinds, self.tables, strict=True):
            keys = kind.keys(self.draw, self._shape())
            gradients = self.draw.normal(size=(*keys.shape, kind.dim))
            steps.append(
                RowStep(
                    table.handle,
                    tf.constant(keys, kind.key_dtype),
                    tf.constant(kind.owners(keys)),
                    table.rows(gradients),
                    tf.constant(HYPER[kind.rule], tf.float64),
                    tf.constant(number, tf.int64),
                    tf.constant(not kind.frozen),
                    kind.dim,
                    kind.rule,
                    kind.distinct,
                    kind.rounding,
                )
            )
        return steps

    def exported(self) -> list[list[Any]]:
        """All parts of each table, with its rows in the order of the keys."""
        return [_sorted(table.export()) for table in self.tables]


def _sorted(exported: Any) -> list[Any]:
    keys, values, slots, meta, statistics, policy = exported
    order = np.argsort(keys.numpy())
    rows = [part.numpy()[order] for part in (keys, values, slots, statistics)]
    rest = [part.numpy() for part in tf.nest.flatten([meta, policy])]
    return [part.tolist() for part in (*rows, *rest)]


def find_one(lookup: RowLookup, token: tf.Tensor | None = None) -> tf.Tensor:
    """The op of a single table."""
    return RAW.tf_embed_find(
        table=lookup.handle,
        keys=lookup.keys,
        owners=lookup.owners,
        defaults=lookup.defaults,
        tokens=[] if token is None else [token],
        dim=lookup.dim,
        training=lookup.training,
    )[0]


def apply_one(step: RowStep) -> None:
    """The op of a single table."""
    RAW.tf_embed_apply(
        table=step.handle,
        keys=step.keys,
        owners=step.owners,
        gradients=step.gradients,
        hyper=step.hyper,
        step=step.step,
        scores=[],
        token=[],
        trained=[step.trained],
        dim=step.dim,
        rule=step.rule,
        distinct=step.distinct,
        stochastic_rounding=step.stochastic_rounding,
    )
