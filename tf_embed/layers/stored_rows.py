"""Rows of a table in the files of Keras.

A Keras file takes arrays by name: keys [n], values [n, dim], slots [n, slots of a row] and meta,
as `Table.export` gives them, and the dtypes. bfloat16 is written as the integers of its bits,
since HDF5 knows no such type.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.table import Table

_NAMES = ("keys", "values", "slots", "meta")


def save(table: Table, store: Any) -> None:
    """Writes a table.

    Args:
        table: The table.
        store: What Keras gives to `save_own_variables`: a mapping from names to arrays.
    """
    for name, tensor in zip(_NAMES, table.export(), strict=True):
        array = tensor.numpy()
        store[name] = array.view(np.uint16) if tensor.dtype == tf.bfloat16 else array
    store["dtypes"] = np.frombuffer(_dtypes(table).encode(), np.uint8).copy()


def load(table: Table, store: Any) -> None:
    """Replaces the content of a table by what was saved.

    Args:
        table: The table. It may have another number of shards.
        store: What Keras gives to `load_own_variables`.

    Raises:
        ValueError: There is no table in the file, or one of another dim or dtype. Nothing is
            changed then.
    """
    options = table.options
    saved = set(store.keys())
    missing = [name for name in (*_NAMES, "dtypes") if name not in saved]
    if missing:
        raise ValueError(
            f"The file has no rows for {options.name!r}: {', '.join(missing)} missing. It has "
            f"{sorted(saved)}"
        )
    arrays = {name: np.asarray(store[name]) for name in (*_NAMES, "dtypes")}
    dtypes = arrays.pop("dtypes").tobytes().decode()
    if dtypes != _dtypes(table) or arrays["values"].shape[1:] != (options.dim,):
        raise ValueError(
            f"{options.name!r} must have the dtypes and dim of the file. Received: {_dtypes(table)}"
            f" and {options.dim}; the file has {dtypes} and {arrays['values'].shape[-1]}"
        )
    if options.value_dtype == tf.bfloat16:
        arrays["values"] = arrays["values"].view(tf.bfloat16.as_numpy_dtype)
    table.import_(**{name: tf.constant(array) for name, array in arrays.items()})


def _dtypes(table: Table) -> str:
    return f"key {table.options.key_dtype.name}, value {table.options.value_dtype.name}"


def refuse_old_format(layer_name: str) -> None:
    """Raises where Keras is writing a model into an .h5 file, its old format.

    That one holds nothing but variables, so the rows would be lost without a word. Keras asks a
    layer for its config then, and tells it no more; so the callers are looked at.

    Raises:
        ValueError: It is.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "save_model_to_hdf5":
            raise ValueError(
                f"The rows of {layer_name!r} can't be saved in Keras's old .h5 format: save the "
                "model as a .keras file, or its weights as a .weights.h5 file."
            )
        frame = frame.f_back
