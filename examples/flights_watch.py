# SPDX-License-Identifier: Apache-2.0
"""Watches a training run of flights.py: the progress bar, and the run's record."""

import dataclasses
import sys
import time
from collections.abc import Callable

import keras

BAR_WIDTH = 24
NOTES_PER_RUN = 60


@dataclasses.dataclass
class Run:
    """The record of a training run.

    Attributes:
        steps: the steps after which the two lists below were written.
        losses: mean training loss of the steps since the previous entry.
        rows: rows in each table; empty for a model without tables that grow.
        steps_per_second: without the first step, in which TensorFlow traces the model.
        auc: of the test flights; filled in after testing the model.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    rows: list[dict[str, int]] = dataclasses.field(default_factory=list)
    steps_per_second: float = 0.0
    auc: float = 0.0


class Watch(keras.callbacks.Callback):
    """Writes `run` and redraws the progress bar, NOTES_PER_RUN times.

    Args:
        title: shown in front of the bar.
        num_flights, batch_size, epochs: numbers of the training run.
        rows: gives the rows in each table.
    """

    def __init__(
        self,
        title: str,
        num_flights: int,
        batch_size: int,
        epochs: int,
        rows: Callable[[], dict[str, int]],
    ):
        super().__init__()
        self.run = Run()
        self._title = title
        self._num_flights = num_flights
        self._batch_size = batch_size
        self._num_steps = epochs * -(-num_flights // batch_size)
        self._interval = max(1, self._num_steps // NOTES_PER_RUN)
        self._rows = rows
        self._step = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._flights_noted, self._loss_noted = 0, 0.0

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step == 1:
            self._clock_started = time.perf_counter()
        if self._step % self._interval and self._step != self._num_steps:
            return
        seconds = time.perf_counter() - self._clock_started
        self.run.steps_per_second = (self._step - 1) / max(seconds, 1e-9)
        self._note(batch, logs["loss"])
        self._draw()

    def _note(self, batch: int, mean_loss: float) -> None:
        """Converts Keras's mean loss since the epoch began into the loss since the last note."""
        flights_seen = min((batch + 1) * self._batch_size, self._num_flights)
        loss_seen = mean_loss * flights_seen
        news = (loss_seen - self._loss_noted) / (flights_seen - self._flights_noted)
        self._flights_noted, self._loss_noted = flights_seen, loss_seen
        self.run.steps.append(self._step)
        self.run.losses.append(news)
        self.run.rows.append(self._rows())

    def _draw(self) -> None:
        last = self._step == self._num_steps
        if not (last or sys.stdout.isatty()):
            return  # a log file gets the finished bar only
        done = BAR_WIDTH * self._step // self._num_steps
        bar = "#" * done + "." * (BAR_WIDTH - done)
        rows = sum(self.run.rows[-1].values())
        print(
            f"\r  {self._title:<8} [{bar}] step {self._step:,}/{self._num_steps:,}"
            f"  loss {self.run.losses[-1]:.4f}  {self.run.steps_per_second:5.0f} steps/s"
            + (f"  {rows:,} rows" if rows else ""),
            end="\n" if last else "",
            flush=True,
        )
