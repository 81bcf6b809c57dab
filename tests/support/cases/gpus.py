# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of tables on a GPU: the devices, the marks, the rows of a variable."""

from __future__ import annotations

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
