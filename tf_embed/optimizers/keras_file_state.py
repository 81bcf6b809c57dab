# SPDX-License-Identifier: Apache-2.0
"""The state of a `DynamicEmbeddingOptimizer` in the files of Keras, beside the inner optimizer's.

It is the step, and the state that trainers keep for tables outside of rows and slots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_embed.optimizers.joined_tables import Places
from tf_embed.optimizers.rules import step_variable
from tf_embed.optimizers.trainer import TableTrainer
from tf_embed.saving import keras_files

_STEP, _CLASS = "step", "class"
_NAME = re.compile(r"table_(\d+)_name")


def save(store: Any, rule_optimizer: Any, trainers: Sequence[TableTrainer]) -> None:
    """Writes the step, and the state of the trainers."""
    arrays = {
        _STEP: step_variable(rule_optimizer).numpy(),
        _CLASS: keras_files.array_of_text(type(rule_optimizer).__name__),
    }
    for i, trainer in enumerate(trainers):
        arrays[f"table_{i}_name"] = keras_files.array_of_text(trainer.table.options.name)
        arrays.update(trainer.arrays(f"table_{i}_"))
    keras_files.write(store, arrays)


def load_step(store: Any, owner: str, rule_optimizer: Any) -> dict[str, np.ndarray] | None:
    """Sets the step to the saved step, and returns the arrays for `load_tables`.

    If another kind of optimizer was saved, nothing is set, and the result is None.

    Raises:
        ValueError: If the arrays are damaged.
    """
    if not {_STEP, "checksum"}.intersection(store.keys()):
        return None
    arrays = keras_files.read(store, owner)
    own_class = keras_files.array_of_text(type(rule_optimizer).__name__)
    # Older files don't have it.
    if not np.array_equal(arrays.get(_CLASS, own_class), own_class):
        return None
    step_variable(rule_optimizer).assign(arrays[_STEP])
    return arrays


def load_tables(
    arrays: dict[str, np.ndarray], trainers: Sequence[TableTrainer], places: Places
) -> None:
    """Sets the state of trainers, found by the names of their tables.

    Raises:
        ValueError: If a table can't be matched to the saved tables.
    """
    found = {int(one.group(1)): arrays[one.string] for one in map(_NAME.fullmatch, arrays) if one}
    # In the order of joining. Older files have numbers instead of names.
    saved = {
        str(number): keras_files.text_of(found[number])
        for number in sorted(found)
        if found[number].dtype == np.uint8
    }
    in_order = [str(number) for number in range(len(trainers))]
    for place, trainer in zip(
        places.places_in(saved) if saved else in_order, trainers, strict=True
    ):
        # Without arrays, its state starts again.
        trainer.load({} if place is None else arrays, f"table_{place}_")
