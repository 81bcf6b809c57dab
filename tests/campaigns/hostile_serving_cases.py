# SPDX-License-Identifier: Apache-2.0
"""`serving` and its callback, with the kind of each argument; see `hostile_cases`."""

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

PATH = kind({"a path": "'x', long"})
MODEL = kind({"layers that will have tables": "[], array of no rows"})
SECONDS = kind({k.RANGE: "3, 1.5"})


def _folder() -> str:
    return str(pathlib.Path(tempfile.mkdtemp()) / "published")


def _publisher() -> te.serving.Publisher:
    """A publisher of a table that it has published once."""
    publisher = te.serving.Publisher(variable(policy=te.TablePolicy(track_changes=True)), _folder())
    publisher.publish()
    return publisher


def _follower() -> te.serving.Follower:
    follower = te.serving.Follower(te.Variable(dim=2, name="hostile_table"), _publisher().path)
    follower.update()
    return follower


def _publish(publisher: te.serving.Publisher) -> None:
    """Publishes twice, if the folder is temporary and there are tables."""
    if publisher.path.startswith(tempfile.gettempdir()) and publisher._sources:
        publisher.publish()
        publisher.publish()


def _update(follower: te.serving.Follower) -> None:
    follower.update()


def _fit(callback: te.callbacks.Publish) -> None:
    """Trains a model, if the callback's folder is temporary."""
    if not callback.path.startswith(tempfile.gettempdir()):
        return
    layer = te.layers.DynamicEmbedding(2, optimizer="sgd", name="hostile_layer")
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.array([[1], [2]]), np.array([0.0, 1.0]), callbacks=[callback], verbose=0)


def _stop(follower: te.serving.Follower) -> None:
    follower.stop()


def _method(make: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(make(), name)


SERVING_CALLS = {
    "serving.Publisher": Call(
        lambda: te.serving.Publisher,
        lambda: {"model": variable(), "path": _folder()},
        {"model": MODEL, "path": PATH, "keep": k.LARGE_INT, "whole_every": k.LARGE_INT},
        _publish,
    ),
    "serving.Publisher.publish": Call(
        _method(_publisher, "publish"), dict, {"whole": k.FLAG, "wait": k.FLAG}
    ),
    "serving.Follower": Call(
        lambda: te.serving.Follower,
        lambda: {"model": variable(), "path": _folder()},
        {"model": kind(), "path": PATH},
        _update,
    ),
    "serving.Follower.follow": Call(
        _method(_follower, "follow"), dict, {"every_seconds": SECONDS}, _stop
    ),
    "serving.Follower.wait_for": Call(
        _method(_follower, "wait_for"),
        lambda: {"timeout_seconds": 0.01},
        {"version": kind(), "timeout_seconds": SECONDS},
    ),
    "callbacks.Publish": Call(
        lambda: te.callbacks.Publish,
        lambda: {"path": _folder()},
        {
            "path": PATH,
            "every_seconds": SECONDS,
            "keep": k.LARGE_INT,
            "whole_every": k.LARGE_INT,
            "model": k.NONE,
        },
        _fit,
    ),
}
