# SPDX-License-Identifier: Apache-2.0
"""The ops that create tables, typed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def create_table(
    *,
    shared_name: str | None,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    dim: int,
    num_shards: int,
    init_size: int,
    label: str,
    initializer: str,
    initializer_values: Sequence[float],
    seed: int,
    table_id: int,
    settings: str = "",
) -> tf.Tensor:
    """Creates a table, or in a graph finds the table of that `shared_name`; returns its handle.

    Args:
        shared_name: The name by which a graph finds its table again each time that it runs. None in
            eager execution, in which each call creates a table. TensorFlow caches a kernel for each
            set of attributes, so there names and numbers are inputs instead.
        init_size: Rows that each shard reserves.
        label: The name that error messages use.
        initializer: Kind of the initial row of a key, see `initializers.RowInitializer`.
        settings: The policy and the storage, see `settings_text`. A graph takes no settings of a
            Redis server, which may have a password.
    """
    attributes = {
        "key_dtype": key_dtype,
        "value_dtype": value_dtype,
        "dim": dim,
        "num_shards": num_shards,
        "initializer": initializer,
    }
    if shared_name is None:
        return _raw.tf_embed_new_table(
            label=label,
            init_size=_input_of(init_size),
            seed=_input_of(seed),
            table_id=_input_of(table_id),
            initializer_values=np.asarray(initializer_values, np.float64),
            settings=settings,
            **attributes,
        )
    return _raw.tf_embed_table(
        shared_name=shared_name,
        label=label,
        init_size=init_size,
        seed=seed,
        table_id=table_id,
        initializer_values=decimal_numbers(initializer_values),
        settings=settings,
        **attributes,
    )


def handle_on_host(handle: tf.Tensor) -> tf.Tensor:
    """A handle of a table on a GPU for ops of the CPU.

    If several threads call an op on a GPU eagerly, TensorFlow gives one the outputs of another that
    are in host memory, and it copies such outputs to the GPU and back.
    """
    shared = _raw.tf_embed_share_table(table=handle)
    with tf.device("/CPU:0"):
        return _raw.tf_embed_table_here(shared=shared)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings of a table, as the ops that create tables take them.

    Args:
        settings: A number, a bool or a str for each setting. None: its default, which the op knows.

    Returns:
        A line `name=value` for each, as cc/tf/settings_text.h describes it.
    """
    return "".join(
        f"{name}={_text_of(value)}\n" for name, value in settings.items() if value is not None
    )


def _text_of(value: float | str) -> str:
    if isinstance(value, str):
        return value.replace("\\", r"\\").replace("\n", r"\n")
    # NumPy's repr of a number is a call. A bool is an integer, too.
    is_integer = isinstance(value, (int, np.integer, np.bool_))
    return repr(int(value) if is_integer else float(value))


def _input_of(number: int) -> np.ndarray:
    """A number as an array, because TensorFlow caches a tensor for each Python number."""
    return np.asarray(number)


def destroy(
    handle: tf.Tensor, eagerly: Callable[[], contextlib.AbstractContextManager[Any]]
) -> None:
    """Frees a table. The last reference to it may be dropped in a graph or in another thread.

    Args:
        eagerly: Returns a context of eager execution.
    """
    with eagerly():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def decimal_numbers(numbers: Sequence[float]) -> str:
    """Numbers as exact text, because eager TensorFlow accepts no tensor attribute."""
    return " ".join(repr(float(number)) for number in numbers)
