# SPDX-License-Identifier: Apache-2.0
"""Steps of an optimizer, for sections with different optimizers: forward, backward and update.

The gradient of the loss is a constant tensor, so that only the embedding's work is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from floors import FLOOR, Array
from ids import distribution
from peers import ours, tfra
from rows import OURS, Row
from sections.work import check_same, fill, side_by_side
from settings import Settings

KEYS = 10**6
TFRA = "TFRA"
SLOTS = {"Adam": 2, "Adagrad": 1, "SGD": 0}
SHORT = {"uniform": "uniform", "1.2": "zipf"}  # for names of figures

Case = tuple[int, str]  # number of ids, distribution


def trainers(optimizer: str, dim: int) -> dict[str, Any]:
    """The trainers of tf_embed and of TFRA, and the floor."""
    return {
        OURS: ours.Trainer(dim, optimizer),
        TFRA: tfra.Trainer(dim, optimizer),
        FLOOR: Array(KEYS, dim, SLOTS[optimizer]),
    }


def rows(
    section: str,
    trainers: Mapping[str, Any],
    dim: int,
    cases: Sequence[Case],
    settings: Settings,
    figures: Callable[[Case, Mapping[str, float]], Mapping[str, float]],
) -> Iterator[Row]:
    """Steps of trainers on tables of 10^6 keys that were each trained once."""
    fill([trainer.step for trainer in trainers.values()], KEYS, dim)
    for batch, name in cases:
        ids = distribution(name, KEYS)
        gradients = tf.random.normal([batch, dim], stddev=0.01)
        yield side_by_side(
            section,
            f"dim {dim}, {batch} ids, {ids.name}",
            {name: trainer.step for name, trainer in trainers.items()},
            lambda ids=ids, batch=batch, gradients=gradients: (
                tf.constant(ids.keys(batch)),
                gradients,
            ),
            ids=batch,
            rounds=settings.rounds,
            figures=lambda ratios, case=(batch, name): figures(case, ratios),
        )
    check_same(trainers, distribution("uniform", KEYS).keys(1000))
