# SPDX-License-Identifier: Apache-2.0
"""TFRA's `dynamic_embedding.data_flow`: aliases of TensorFlow functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[tf.Tensor]:
    """Calls tf.dynamic_partition.

    Args:
        data: A tensor.
        partitions: The partition number of each slice of `data`, int32, from 0.
        num_partitions: Number of partitions, an int.
        name: Name of the operation.

    Returns:
        A list of `num_partitions` tensors.

    Example:
        >>> from tf_embed.tfra import data_flow
        >>> [part.numpy().tolist() for part in data_flow.dynamic_partition([5, 6, 7], [0, 1, 0], 2)]
        [[5, 7], [6]]
    """
    return tf.dynamic_partition(data, partitions, num_partitions, name)


def dynamic_stitch(
    indices: Any, data: Any, use_fast: bool = True, name: str | None = None
) -> tf.Tensor:
    """Calls tf.dynamic_stitch.

    Args:
        indices: A list of int32 tensors, the output positions of the slices of each of `data`.
        data: A list of tensors.
        use_fast: Ignored; accepted for TFRA compatibility.
        name: Name of the operation.

    Returns:
        The slices, merged into one tensor.

    Example:
        >>> from tf_embed.tfra import data_flow
        >>> data_flow.dynamic_stitch([[0, 2], [1]], [[5, 7], [6]]).numpy().tolist()
        [5, 6, 7]
    """
    del use_fast
    return tf.dynamic_stitch(indices, data, name)
