# SPDX-License-Identifier: Apache-2.0
"""`Snapshots` and its callback, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
import keras
import numpy as np
from hostile_call import Call, variable
from hostile_values import kind

import tf_embed as te

NAMES = {
    "'..'": lambda: "..",
    "'.'": lambda: ".",
    "'x/y'": lambda: "x/y",
    "'/x'": lambda: "/x",
    "line": lambda: "x\ny",
}
NEW_NAME = kind({"a name": "'x'"}, NAMES)
OLD_NAME = kind({}, NAMES)
PATH = kind({"a path": "'x', long"})
TABLES = kind({"layers that will have tables": "[], array of no rows"})


def _snapshots() -> te.Snapshots:
    """The snapshots "one" and "two" of a table."""
    v = variable(policy=te.TablePolicy(track_changes=True))
    snapshots = te.Snapshots(tempfile.mkdtemp(), v)
    snapshots.save("one")
    snapshots.save("two", since="one")
    return snapshots


def _empty() -> te.Snapshots:
    """A folder of snapshots, opened for an empty table."""
    snapshots = _snapshots()
    return te.Snapshots(snapshots.path, te.Variable(dim=2, name="hostile_table"))


def _method(name: str, make: Callable[[], te.Snapshots] = _snapshots) -> Callable[[], Any]:
    return lambda: getattr(make(), name)


def _use(snapshots: te.Snapshots) -> None:
    """Lists the snapshots of a folder, which may not exist."""
    snapshots.list_snapshots()


def _fit(callback: te.callbacks.Snapshot) -> None:
    """Trains a model, if the callback's folder is temporary."""
    if not str(callback._path).startswith(tempfile.gettempdir()):
        return
    layer = te.layers.DynamicEmbedding(2, optimizer="sgd", name="hostile_layer")
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.array([[1], [2]]), np.array([0.0, 1.0]), callbacks=[callback], verbose=0)


def _folder() -> str:
    return str(pathlib.Path(tempfile.mkdtemp()) / "snapshots")


SNAPSHOT_CALLS = {
    "Snapshots": Call(
        lambda: te.Snapshots,
        lambda: {"path": _folder(), "tables": variable()},
        {"path": PATH, "tables": TABLES},
    ),
    "Snapshots.save": Call(
        _method("save"),
        lambda: {"name": "three"},
        {
            "name": NEW_NAME,
            "since": OLD_NAME.optional(),
            "wait": k.FLAG,
            "if_busy": kind(),
            "progress": k.PROGRESS,
        },
    ),
    "Snapshots.fold": Call(
        _method("fold"),
        lambda: {"name": "two"},
        {"name": OLD_NAME, "to": NEW_NAME.optional()},
    ),
    "Snapshots.load": Call(
        _method("load", _empty),
        lambda: {"name": "two"},
        {"name": OLD_NAME, "progress": k.PROGRESS},
    ),
    "Snapshots.remove": Call(_method("remove"), dict, {"name": OLD_NAME}),
    "Snapshots.keep": Call(_method("keep"), dict, {"last": k.LARGE_INT}),
    "callbacks.Snapshot": Call(
        lambda: te.callbacks.Snapshot,
        lambda: {"path": _folder()},
        {
            "path": PATH,
            "every_n_batches": k.LARGE_INT,
            "keep": k.LARGE_INT.optional(),
            "whole_every": kind({k.RANGE: "3, 2**63-1"}),
            "tables": k.NONE,
        },
        _fit,
    ),
}
