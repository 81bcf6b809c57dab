# SPDX-License-Identifier: Apache-2.0
"""`export_static`, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import hostile_kinds as k
import tensorflow as tf
from hostile_call import Call, variable
from hostile_values import kind

import tf_embed as te


class _Lookup(tf.Module):
    """A lookup in a table, as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.v = variable()

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        return self.v.lookup(ids)


def _good() -> dict[str, Any]:
    return {
        "model": _Lookup(),
        "path": str(pathlib.Path(tempfile.mkdtemp()) / "static"),
        "input_signature": [tf.TensorSpec([None], tf.int64)],
    }


EXPORT_CALLS = {
    "export_static": Call(
        lambda: te.export_static,
        _good,
        {
            "model": k.OBJECT,
            "path": kind({"a path": "'x', long"}),
            "quantize": kind({k.DEFAULT: "None"}),
            "absent": kind(),
            "input_signature": kind(),
            "overwrite": k.FLAG,
        },
    ),
}
