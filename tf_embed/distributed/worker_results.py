# SPDX-License-Identifier: Apache-2.0
"""`fetched`: the result of a call that a coordinator has scheduled, also if its worker dies."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

_SECONDS_BETWEEN_COPIES = 0.05


def fetched(result: tf.distribute.coordinator.RemoteValue) -> Any:
    """Waits for the result of a call on a worker and returns it.

    Two threads copy a result from its worker: this one, and the coordinator's. If the worker dies
    meanwhile, both copies fail, and the coordinator calls the function on another worker. So a
    failed copy is no error of the call. An error of the call is kept in `result`, which raises the
    same object each time.

    Args:
        result: The result that `ClusterCoordinator.schedule` returned.

    Raises:
        tf.errors.OpError: If the function failed, or a server has died.
    """
    last = None
    while True:
        try:
            return result.get()
        except tf.errors.OpError as error:
            if error is last:
                raise
            last = error
        time.sleep(_SECONDS_BETWEEN_COPIES)
