# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of tables on a GPU: devices, marks, rows of a variable, copies of a step."""

from __future__ import annotations

import collections
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tf_embed
from tf_embed.ops import process_ops

GPU, CPU = "/GPU:0", "/CPU:0"
DIM = 5

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow has no GPU"),
    pytest.mark.skipif(not process_ops.has_gpu_tables(), reason="this build has no GPU support"),
]


def rows_of(variable: tf_embed.Variable) -> dict[int, list[float]]:
    keys, rows = variable.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


def copies_of(call: Callable[[], Any]) -> list[tuple[str, tf.DType]]:
    """Names and dtypes of the tensors that a call copies between a GPU's memory and the host's.

    Args:
        call: Calls a tf.function that is traced and has not run yet.
    """
    folder = tempfile.mkdtemp()
    with tf.summary.create_file_writer(folder).as_default():
        # Twice, because a trace also has the ops that ran since the trace before.
        for step, run in enumerate((lambda: None, call)):
            tf.summary.trace_on(graph=True)
            run()
            tf.summary.trace_export("run", step)
    traced = tf.compat.v1.RunMetadata()
    for event in tf.compat.v1.train.summary_iterator(os.path.join(folder, os.listdir(folder)[0])):
        for value in event.summary.value:
            traced.ParseFromString(value.tensor.string_val[0])
    # A tensor goes from memory to memory by two nodes, whose ops say whether it is the host's.
    in_gpu: dict[tuple[Any, ...], list[bool]] = collections.defaultdict(list)
    names = "tensor_name", "send_device", "recv_device"
    for function in traced.function_graphs:
        for graph in function.partition_graphs:
            for node in graph.node:
                if node.op in ("_Send", "_HostSend", "_Recv", "_HostRecv"):
                    ends = [node.attr[name].s for name in names]
                    key = (*ends, node.attr["T"].type or node.attr["tensor_type"].type)
                    in_gpu[key].append("GPU" in node.device and "Host" not in node.op)
    return [
        (name.decode(), tf.as_dtype(dtype))
        for (name, _, _, dtype), ends in in_gpu.items()
        if len(set(ends)) > 1
    ]
