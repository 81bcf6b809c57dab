# SPDX-License-Identifier: Apache-2.0
"""Files that are damaged or belong to another kind of table, and the errors that they raise.

For each format of FORMATS and each of HARMS a trained model reads such a file. It must raise, and
its table must be as it was.
"""

from __future__ import annotations

import pathlib
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.cases import save_path_models as models
from support.cases.save_path_cases import plain

FORMATS = ("`m.weights.h5`", "`m.keras`", "`tf.train.Checkpoint`")


def _save(model: keras.Model, kind: str, folder: pathlib.Path) -> pathlib.Path:
    """Saves a model. Returns the file that contains the rows."""
    if kind == "`m.weights.h5`":
        model.save_weights(folder / "m.weights.h5")
        return folder / "m.weights.h5"
    if kind == "`m.keras`":
        model.save(folder / "m.keras")
        return folder / "m.keras"
    tf.train.Checkpoint(model=model).write(str(folder / "ckpt"))
    return folder / "ckpt.data-00000-of-00001"


def _load(model: keras.Model, kind: str, folder: pathlib.Path) -> None:
    if kind == "`tf.train.Checkpoint`":
        tf.train.Checkpoint(model=model).read(str(folder / "ckpt"))
    else:
        model.load_weights(folder / kind.strip("`"))


def _flip(part: int) -> Callable[..., None]:
    """Flips a bit of the keys, rows or slots of a file."""

    def harm(path: pathlib.Path, model: keras.Model) -> None:
        table = models.layer_of(model).variable.table
        wanted = table.export()[part].numpy().tobytes()
        whole = bytearray(path.read_bytes())
        place = whole.index(wanted) + len(wanted) // 2
        whole[place] ^= 0x10
        path.write_bytes(whole)

    return harm


def _cut(path: pathlib.Path, model: keras.Model) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _remove(path: pathlib.Path, model: keras.Model) -> None:
    path.unlink()


def _nothing(path: pathlib.Path, model: keras.Model) -> None:
    pass


# The damage to the file, and the options of the model that reads it.
HARMS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "flipped bit of a key": (_flip(0), {}),
    "flipped bit of a row": (_flip(1), {}),
    "flipped bit of a slot": (_flip(2), {}),
    "cut off": (_cut, {}),
    "missing": (_remove, {}),
    "other dim": (_nothing, {"dim": 3}),
    "other value dtype": (_nothing, {"value_dtype": "float64"}),
    "other key dtype": (_nothing, {"key_dtype": "int32"}),
}


def outcome(kind: str, harm: str, way: str) -> str:
    """Returns the error. If there is none, or the table changed, the text begins with WRONG."""
    action, options = HARMS[harm]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.trained(way)
        action(_save(model, kind, pathlib.Path(folder)), model)
        other = models.trained(way, seed=2, **options)
        before = models.content(other)
        try:
            _load(other, kind, pathlib.Path(folder))
        except Exception as error:
            same = all(map(np.array_equal, before, models.content(other)))
            sentence = f"{type(error).__name__}: {plain(error, folder)}"
            return f"raises: {sentence}" if same else f"WRONG: the table was changed. {sentence}"
    return "WRONG: it was read"
