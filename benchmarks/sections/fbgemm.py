# SPDX-License-Identifier: Apache-2.0
"""Steps and forward compared with FBGEMM on a CPU, which has arrays, no hashing and no Adam."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from ids import distribution, keys_of
from peers import ours
from peers.fbgemm import Server
from rows import OURS, Row
from sections.steps import KEYS, SHORT
from sections.work import FILL_BATCH, side_by_side
from settings import Settings

DIM = 64
FBGEMM = "FBGEMM"


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures an optimizer."""
    server = Server(part, KEYS, DIM)
    trainer = ours.Trainer(DIM, f"{part} from 0")
    for first in range(0, KEYS, FILL_BATCH):
        _step(server, trainer, np.arange(first, min(KEYS, first + FILL_BATCH)))

    def measured(case: str, batch: int, name: str, verb: str, figure: str | None) -> Row:
        numbers = distribution(name, KEYS)
        gradients = tf.fill([batch, DIM], 0.01)

        def draw() -> tuple[tf.Tensor]:
            drawn = numbers.numbers(batch)
            server.take(drawn)
            return (tf.constant(keys_of(drawn)),)

        def figures(ratios: Mapping[str, float]) -> dict[str, float]:
            return {figure: ratios[FBGEMM]} if figure else {}

        calls = {
            "step": {
                OURS: lambda keys: trainer.step(keys, gradients),
                FBGEMM: lambda keys: server.step(),
            },
            "forward": {OURS: trainer.lookup, FBGEMM: lambda keys: server.forward()},
        }
        return side_by_side(
            "fbgemm",
            f"{case}, {batch} ids, {numbers.name}",
            calls[verb],
            draw,
            ids=batch,
            rounds=settings.rounds,
            uncounted_calls=1,
            figures=figures,
            pids=(os.getpid(), server.pid),
        )

    for name, short in SHORT.items():
        yield measured(part, 65536, name, "step", f"step_vs_fbgemm_{short}")
    if part == "Adagrad":
        yield measured("forward", 65536, "uniform", "forward", "forward_vs_fbgemm")
        yield measured("forward", 65536, "1.2", "forward", None)
        yield measured("forward", 8192, "uniform", "forward", None)
    _check_same(server, trainer)


def _step(server: Server, trainer: ours.Trainer, numbers: np.ndarray) -> None:
    server.take(numbers)
    server.step()
    trainer.step(tf.constant(keys_of(numbers)), tf.fill([len(numbers), DIM], 0.01))


def _check_same(server: Server, trainer: ours.Trainer) -> None:
    """Raises if the rows differ, because both ran the same rule on the same batches.

    Rounding may differ: FBGEMM adds up the gradients of equal ids in another order.
    """
    numbers = distribution("uniform", KEYS).numbers(1000)
    rows = trainer.lookup(tf.constant(keys_of(numbers))).numpy()
    difference = np.abs(rows - server.rows_of(numbers)).max()
    if not rows.any() or difference > 1e-4:
        raise RuntimeError(f"Rows of FBGEMM differ from ours by {difference:g}.")
