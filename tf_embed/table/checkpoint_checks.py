# SPDX-License-Identifier: Apache-2.0
"""What is saved of a table by a checkpoint or a SavedModel."""

from __future__ import annotations

from tf_embed import callers


def saves_all(name: str) -> bool:
    """Whether slots and statistics are saved, as a checkpoint does.

    A SavedModel serves, so it has neither. TensorFlow asks for its tensors as it asks for those of
    a checkpoint.

    Args:
        name: The name of the table.

    Raises:
        ValueError: If TensorFlow would split the save by size. It drops tensors without elements
            then, such as the slots of a table without an optimizer, and can't restore the save.
    """
    if callers.splits_by_size():
        raise ValueError(
            f"The table of {name!r} can't be saved with tf.train.experimental.MaxShardSizePolicy, "
            "which drops tensors without elements: leave `experimental_sharding_callback` out, or "
            "pass tf.train.experimental.ShardByTaskPolicy()."
        )
    return not callers.saves_a_model()
