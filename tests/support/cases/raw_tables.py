# SPDX-License-Identifier: Apache-2.0
"""A table by its ops alone, without a Variable."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from support.oracles import reference
from tf_embed import _library
from tf_embed.ops import new_table_ops, whole_table_ops

KEY_DTYPES = ("int64", "int32", "uint64", "uint32")
VALUE_DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "bool")
FLOATING = VALUE_DTYPES[:4]
NO_OWNERS = np.zeros([0], np.int32)
# The lists of TfEmbedApply, empty.
NO_LISTS: dict[str, Any] = {"scores": [], "token": [], "trained": []}
# The hyper-parameters of each rule. The first is the learning rate.
HYPER = {
    "sgd": [0.5, 0.0],
    "momentum": [0.5, 0.0, 0.9, 1.0],
    "adagrad": [0.5, 0.0, 0.1, 1e-7],
    "rowwise_adagrad": [0.5, 0.0, 0.0, 1e-8, 0.0, 0.0, 0.0],
    "adam": [0.5, 0.0, 0.9, 0.999, 1e-7],
    "adam_amsgrad": [0.5, 0.01, 0.9, 0.999, 1e-7],
    "smart_decay_adam": [0.5, 0.0, 0.9, 0.999, 1e-7],
    "rmsprop": [0.1, 0.0, 0.9, 0.0, 1e-7],
    "rmsprop_momentum": [0.1, 0.0, 0.8, 0.5, 1e-7],
    "rmsprop_centered": [0.1, 0.0, 0.9, 0.0, 1e-3],
    "rmsprop_centered_momentum": [0.1, 0.0, 0.8, 0.5, 1e-3],
    "ftrl": [0.5, 0.0, 0.2, -0.4, 0.25, 0.125, 0.0625, 1.0, 0.0],
}


RAW = _library.load()


class RawTable:
    """A table by its ops alone."""

    def __init__(
        self,
        dim: int = 2,
        key_dtype: str = "int64",
        value_dtype: str = "float32",
        num_shards: int = 1,
        initial: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.dim, self.num_shards = dim, num_shards
        self.keys_as, self.values_as = tf.as_dtype(key_dtype), tf.as_dtype(value_dtype)
        self.slots_as = tf.float64 if value_dtype == "float64" else tf.float32
        self.handle = new_table_ops.create_table(
            **{
                "shared_name": uuid.uuid4().hex,
                "key_dtype": self.keys_as,
                "value_dtype": self.values_as,
                "dim": dim,
                "num_shards": num_shards,
                "init_size": 0,
                "label": "raw",
                "initializer": "constant",
                "initializer_values": [initial],
                "seed": 0,
                "table_id": 0,
                "settings": new_table_ops.settings_text(settings or {}),
                **options,
            }
        )

    def inputs(self, keys: Any, owners: Any = NO_OWNERS) -> dict[str, Any]:
        """The inputs that all ops on keys share."""
        return {"table": self.handle, "keys": self.keys(keys), "owners": owners}

    def keys(self, keys: Any) -> tf.Tensor:
        return tf.constant(np.asarray(keys, self.keys_as.as_numpy_dtype))

    def rows(self, rows: Any) -> tf.Tensor:
        return tf.constant(np.asarray(rows).astype(self.values_as.as_numpy_dtype))

    def find(self, keys: Any, defaults: Any = (), owners: Any = NO_OWNERS) -> tuple:
        return RAW.tf_embed_find(
            **self.inputs(keys, owners), defaults=self.rows(defaults), tokens=[], dim=self.dim
        )

    def find_or_insert(self, keys: Any, defaults: Any = ()) -> tuple:
        return RAW.tf_embed_find_or_insert(
            **self.inputs(keys), defaults=self.rows(defaults), scores=[], dim=self.dim
        )

    def assign(self, keys: Any, rows: Any, owners: Any = NO_OWNERS) -> None:
        RAW.tf_embed_insert_or_assign(
            **self.inputs(keys, owners), values=self.rows(rows), scores=[], dim=self.dim
        )

    def accum(self, keys: Any, rows: Any, exists: Any) -> None:
        rows = self.rows(rows)
        RAW.tf_embed_accum(
            **self.inputs(keys),
            old_values=tf.zeros_like(rows),
            new_values=rows,
            exists=exists,
            scores=[],
            dim=self.dim,
        )

    def apply(
        self, keys: Any, gradients: Any, rule: str = "sgd", hyper: Any = None, step: Any = 1
    ) -> None:
        RAW.tf_embed_apply(
            **self.inputs(keys),
            gradients=self.rows(gradients),
            hyper=tf.constant(HYPER[rule] if hyper is None else hyper, tf.float64),
            step=tf.constant(step, tf.int64),
            **NO_LISTS,
            dim=self.dim,
            rule=rule,
        )

    def erase(self, keys: Any) -> None:
        RAW.tf_embed_erase(**self.inputs(keys))

    def take(self, exported: Any) -> None:
        """Replaces the rows by an export, or by its parts in order."""
        keys, values, slots, meta, statistics, policy = exported
        RAW.tf_embed_import(
            table=self.handle,
            keys=keys,
            owners=NO_OWNERS,
            values=values,
            slots=slots,
            meta=meta,
            statistics=statistics,
            policy=policy,
        )

    def size(self, shard: int = -1) -> int:
        return int(whole_table_ops.size(self.handle, shard))

    def export(self, with_slots: bool = True) -> tuple:
        return whole_table_ops.export(
            self.handle,
            key_dtype=self.keys_as,
            value_dtype=self.values_as,
            slot_dtype=self.slots_as,
            dim=self.dim,
            with_slots=with_slots,
        )

    def content(self) -> tuple[np.ndarray, np.ndarray]:
        return reference.sorted_rows(*self.export(with_slots=False)[:2])
