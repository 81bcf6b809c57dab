# SPDX-License-Identifier: Apache-2.0
"""What TFRA's `dynamic_embedding.data_flow` has: names of TensorFlow's own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[tf.Tensor]:
    """tf.dynamic_partition."""
    return tf.dynamic_partition(data, partitions, num_partitions, name)


def dynamic_stitch(
    indices: Any, data: Any, use_fast: bool = True, name: str | None = None
) -> tf.Tensor:
    """tf.dynamic_stitch. `use_fast` is accepted for the sake of old code."""
    del use_fast
    return tf.dynamic_stitch(indices, data, name)
