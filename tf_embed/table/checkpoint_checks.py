# SPDX-License-Identifier: Apache-2.0
"""The parts of a table that a checkpoint or a SavedModel saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tf_embed import callers


def saves_all(name: str) -> bool:
    """Whether slots and statistics are saved, as a checkpoint does.

    A SavedModel is for serving, so it has neither. TensorFlow requests the tensors of both in the
    same way.

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


def check_copy(check_functions: Callable[[Iterable[Any]], None] | None, name: str) -> None:
    """Checks the functions of a SavedModel. TensorFlow copies each table to write a SavedModel.

    Args:
        check_functions: Raises to refuse the concrete functions, or None.
        name: The name of the table.

    Raises:
        RuntimeError: If the functions can't be found.
        ValueError: See `Table.check_functions`.
    """
    if check_functions is None or not callers.saves_a_model():
        return
    functions = callers.functions_to_save()
    if functions is None:
        raise RuntimeError(
            f"The functions with lookups in {name!r} are not where this version of TensorFlow is "
            "known to list them: set a `padding_id`."
        )
    check_functions(functions)
