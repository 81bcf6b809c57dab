# SPDX-License-Identifier: Apache-2.0
"""Serves a SavedModel by TensorFlow's C API, in a process without the rest of TensorFlow.

    python c_api_serve.py LIBRARY SAVED_MODEL INPUT OUTPUT IDS.npy ANSWERS.npy

INPUT and OUTPUT are names of operations, of one int64 tensor and of one float32 tensor.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

FLOAT, INT64 = 1, 9


class Output(ctypes.Structure):
    """TF_Output."""

    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


def opened(path: str) -> Any:
    """The library, with the types that are not int."""
    library = ctypes.CDLL(path)
    pointers = (
        *("TF_NewStatus", "TF_NewGraph", "TF_NewSessionOptions", "TF_LoadSessionFromSavedModel"),
        *("TF_GraphOperationByName", "TF_AllocateTensor", "TF_TensorData"),
    )
    for name in pointers:
        getattr(library, name).restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    library.TF_Dim.restype = ctypes.c_int64
    return library


def main(library: str, saved: str, source: str, sink: str, ids_file: str, answers: str) -> None:
    tf = opened(library)
    status = ctypes.c_void_p(tf.TF_NewStatus())

    def check() -> None:
        if tf.TF_GetCode(status):
            raise SystemExit(tf.TF_Message(status).decode())

    graph = ctypes.c_void_p(tf.TF_NewGraph())
    tags = (ctypes.c_char_p * 1)(b"serve")
    options = ctypes.c_void_p(tf.TF_NewSessionOptions())
    session = ctypes.c_void_p(
        tf.TF_LoadSessionFromSavedModel(options, None, saved.encode(), tags, 1, graph, None, status)
    )
    check()

    ids = np.ascontiguousarray(np.load(ids_file), np.int64)
    dims = (ctypes.c_int64 * ids.ndim)(*ids.shape)
    fed = ctypes.c_void_p(tf.TF_AllocateTensor(INT64, dims, ids.ndim, ctypes.c_size_t(ids.nbytes)))
    ctypes.memmove(tf.TF_TensorData(fed), ids.ctypes.data, ids.nbytes)
    ends = [Output(tf.TF_GraphOperationByName(graph, name.encode()), 0) for name in (source, sink)]
    got = ctypes.c_void_p()
    tf.TF_SessionRun(
        session, None, ctypes.byref(ends[0]), ctypes.byref(fed), 1, ctypes.byref(ends[1]),
        ctypes.byref(got), 1, None, 0, None, status,
    )  # fmt: skip
    check()
    if tf.TF_TensorType(got) != FLOAT:
        raise SystemExit("The output is not float32.")
    shape = [tf.TF_Dim(got, axis) for axis in range(tf.TF_NumDims(got))]
    found = np.zeros(shape, np.float32)
    ctypes.memmove(found.ctypes.data, tf.TF_TensorData(got), found.nbytes)
    assert "tensorflow" not in sys.modules and "tf_embed" not in sys.modules
    np.save(answers, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
