# SPDX-License-Identifier: Apache-2.0
"""Keys of every key dtype, random rows of every value dtype, and the rows of a table as a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf_embed
from support.oracles.reference import EXTREME_KEYS

KEYS: dict[str, list[Any]] = {
    **EXTREME_KEYS,
    "string": [b"", b"\0", b"a", b"a\0", b"\xff\xfe", "ä".encode(), b"x" * 23, b"x" * 300],
}
NUMBERS = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64")
VALUES = (*NUMBERS, "bool", "string")


def rows_of(value_dtype: str, count: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Random rows, exact in any dtype."""
    numbers = rng.integers(-8, 8, [count, dim])
    if value_dtype == "string":
        lengths = rng.integers(0, 60, numbers.shape)
        return np.array(
            [
                [b"%d\0" % n * k for n, k in zip(*row, strict=True)]
                for row in zip(numbers, lengths, strict=True)
            ],
            object,
        ).reshape(count, dim)
    return numbers.astype(tf.as_dtype(value_dtype).as_numpy_dtype)


def as_dict(v: tf_embed.Variable) -> dict[Any, list[Any]]:
    keys, rows = v.export()
    found = dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))
    assert len(found) == int(v.size()) == keys.shape[0]
    return found
