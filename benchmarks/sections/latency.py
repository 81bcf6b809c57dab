# SPDX-License-Identifier: Apache-2.0
"""The latency of single lookups, alone and during training: percentiles, compared with TFRA's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ids import distribution
from machine import LoadWatch
from peers import ours, tfra
from rows import OURS, Row
from sections.concurrency import together
from sections.work import check_same, fill
from settings import Settings
from timing import rotated

TFRA = "TFRA"
LOOKED_UP = 1024  # ids in a lookup
TRAINED = 8192  # ids in a step
TOGETHER = 50  # lookups in a call
SECONDS = 2.0
ZIPF = "1.2"
PERCENTILES = (50.0, 99.0, 99.9)


class Reader:
    """Looks up and records the times within a graph, so that they exclude Python."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        spec = tf.TensorSpec([TOGETHER, LOOKED_UP], tf.int64)
        self.call = tf.function(self._call, input_signature=[spec])
        self.seconds: list[np.ndarray] = []

    def _call(self, ids: tf.Tensor) -> tf.Tensor:
        seconds = tf.TensorArray(tf.float64, TOGETHER, element_shape=[])
        for i in tf.range(TOGETHER):
            some = ids[i]
            with tf.control_dependencies([some]):
                begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                rows = self._trainer.lookup(some)
            with tf.control_dependencies([rows]):
                seconds = seconds.write(i, tf.timestamp() - begin)
        return seconds.stack()


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a number of keys and a dim, such as "1e6x64"."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    trainers = {OURS: ours.Trainer(dim, "Adam"), TFRA: tfra.Trainer(dim, "Adam")}
    fill([trainer.variable.upsert for trainer in trainers.values()], keys, dim)
    check_same(trainers, distribution("uniform", keys).keys(1000))
    readers = {name: Reader(trainer) for name, trainer in trainers.items()}
    ids = distribution(ZIPF, keys)
    gradients = tf.random.normal([TRAINED, dim])
    found: dict[str, dict[str, list[np.ndarray]]] = {
        case: {name: [] for name in trainers} for case in ("alone", "beside training")
    }
    steps: dict[str, int] = dict.fromkeys(trainers, 0)
    rounds = settings.rounds
    watch = LoadWatch()
    for number in range(-1, rounds):
        looked_up = [
            tf.reshape(tf.constant(ids.keys(TOGETHER * LOOKED_UP)), [TOGETHER, LOOKED_UP])
            for _ in range(8)
        ]
        trained = [tf.constant(ids.keys(TRAINED)) for _ in range(8)]
        for name in rotated(list(trainers), number):

            def read(count: int, name=name, looked_up=looked_up) -> None:
                readers[name].seconds.append(readers[name].call(looked_up[count % 8]).numpy())

            def train(count: int, name=name, trained=trained) -> None:
                trainers[name].step(trained[count % 8], gradients)

            for case, works in (("alone", [read]), ("beside training", [read, train])):
                counts = together(works, SECONDS)
                if number >= 0:  # the first round traces and warms up
                    found[case][name] += readers[name].seconds
                    steps[name] += counts[1] if len(counts) == 2 else 0
                readers[name].seconds.clear()
    load = watch.load()
    about = f"{keys:,} keys, dim {dim}, {LOOKED_UP} ids, {ids.name}"
    for case, times in found.items():
        lookups = {name: np.concatenate(some) for name, some in times.items()}
        said = ", ".join(f"{name} {some.size:,}" for name, some in lookups.items())
        for percentile in PERCENTILES:
            values = {
                n: float(np.percentile(some, percentile)) * 1e6 for n, some in lookups.items()
            }
            yield Row(
                "latency",
                f"p{percentile:g} of lookups {case}, {about}",
                "us",
                values,
                load,
                ratios={TFRA: values[TFRA] / values[OURS]},
                note=f"lookups: {said}",
            )
    yield Row(
        "latency",
        f"steps of Adam beside the lookups, {TRAINED} ids",
        "/s",
        {name: count / (rounds * SECONDS) for name, count in steps.items()},
        load,
    )
