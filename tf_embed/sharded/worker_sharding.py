# SPDX-License-Identifier: Apache-2.0
"""`WorkerSharding`: how a table is spread over the workers of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import KerasConfig

# Each worker has its own table, and nothing is exchanged.
LOCAL = "local"
# Each key has a row on one of the workers.
SHARDED = "sharded"

OWNER_RULES = ("hash", "remainder")
WIRE_DTYPES = ("bfloat16", "float16")


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSharding(KerasConfig):
    """The sharding of a table over the workers of a tf.distribute.MultiWorkerMirroredStrategy.

    Args:
        owner: Which worker has the row of a key. "hash": by a hash of the key, which spreads any
            set of keys evenly. "remainder": worker `key % workers`, by floor division, for keys
            that are integers. Or a function of keys [n] and the number of workers, which gives the
            worker of each key, int32 or int64 [n]. Default: "hash".
        wire_dtype: "bfloat16" or "float16": rows and gradients of float32 are rounded to it in
            messages, which halves their bytes. Default: None, they are sent unchanged.
        timeout_seconds: Seconds after which an exchange fails if another worker does not take part
            in it, a number above 0. Default: 300.
        communication_hint: Which implementation TensorFlow's collectives use, "auto", "ring" or
            "nccl". Default: "auto".

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tf_embed
        >>> tf_embed.distributed.WorkerSharding(owner="remainder").owner
        'remainder'
    """

    owner: str | Callable[[Any, int], Any] = "hash"
    wire_dtype: str | None = None
    timeout_seconds: float = 300.0
    communication_hint: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.owner, str):
            validation.one_of(self.owner, OWNER_RULES, "owner")
        else:
            validation.function_of(self.owner, "owner")
        validation.one_of(self.wire_dtype, WIRE_DTYPES, "wire_dtype", or_none=True)
        seconds = validation.positive_number(self.timeout_seconds, "timeout_seconds", most=1e6)
        object.__setattr__(self, "timeout_seconds", float(seconds))
        validation.one_of(self.communication_hint, ("auto", "ring", "nccl"), "communication_hint")


def as_sharding(distribution: Any) -> WorkerSharding | None:
    """The argument `distribution` of a table's owner; None: each worker has its own table.

    Args:
        distribution: None or "sharded", "local", or a WorkerSharding.

    Raises:
        TypeError: If `distribution` is of another type.
        ValueError: If `distribution` is another str.
    """
    if distribution is None:
        return WorkerSharding()
    if isinstance(distribution, WorkerSharding):
        return distribution
    if isinstance(distribution, str):
        validation.one_of(distribution, (SHARDED, LOCAL), "distribution")
        return WorkerSharding() if distribution == SHARDED else None
    raise TypeError(
        '`distribution` must be "sharded", "local" or a tf_embed.distributed.WorkerSharding. '
        f"Received: distribution={validation.shown(distribution)}"
    )
