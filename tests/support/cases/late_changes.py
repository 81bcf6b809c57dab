# SPDX-License-Identifier: Apache-2.0
"""Ways to change weights after the last batch of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

WAYS = ("averages", "early_stopping", "epoch_end")


def optimizer_of(way: str, optimizer: Any) -> Any:
    """The optimizer; for "averages", its averages replace the weights after the last epoch."""
    optimizer.use_ema, optimizer.ema_momentum = way == "averages", 0.5
    return optimizer


def callbacks_of(way: str, change: Callable[[int], Any]) -> list[keras.callbacks.Callback]:
    """The callbacks that change weights.

    Args:
        way: One of `WAYS`.
        change: Changes a row after an epoch, given its number.
    """
    return {
        "averages": [],
        "early_stopping": [
            keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True)
        ],
        "epoch_end": [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: change(epoch))],
    }[way]
