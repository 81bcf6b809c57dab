"""`TablePolicy`: which rows come, which stay and which leave.

The table itself goes by it, in C++; here a policy is said, checked and saved in configs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from tf_embed import arguments

# What a table can keep of the use of each row, 8 bytes each, and the bits by which ops name it.
STATISTICS = {"last_step": 1, "last_time_ms": 2, "count": 4, "score": 8}

# Which of these an order goes by.
ORDERS = {
    "lru": ("last_step",),
    "lfu": ("last_step", "count"),
    "ttl": ("last_step", "last_time_ms"),
    "score": ("score",),
}

_MOST_COUNT = 2**32 - 1
_MOST_BLOOM_COUNT = 2**16 - 1  # a cell of a filter has at most 16 bits


@dataclasses.dataclass(frozen=True)
class _Config:
    """A dataclass as Keras saves it: its arguments."""

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """One of these arguments."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True)
class CounterAdmission(_Config):
    """A key gets a row in the `n`-th training step that holds it, counted exactly.

    Until then it has its initial row, and its gradients are dropped. A key that waits takes about
    20 bytes. One that finds no room in its `n`-th step gets its row in the next one that has room;
    one whose row has left waits anew. A restored table goes on counting from another
    CounterAdmission; from a BloomAdmission it begins anew.

    Args:
        n: Number of steps, from 1; 1 gives each key its row at once.
        max_keys: How many keys wait at most. Beyond that, about the half that has not come for the
            longest is forgotten. Default: no bound.

    Raises:
        TypeError: An argument is no int.
        ValueError: An argument is out of range.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(
        ...     dim=2, policy=tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2))
        ... )
    """

    n: int
    max_keys: int | None = None

    def __post_init__(self) -> None:
        arguments.positive_int(self.n, "n", most=_MOST_COUNT)
        if self.max_keys is not None:
            arguments.positive_int(self.max_keys, "max_keys")

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "admission": "counter",
            "admission_threshold": self.n,
            "admission_max_keys": self.max_keys or 0,
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True)
class BloomAdmission(_Config):
    """A key gets a row in the `n`-th training step that holds it, or, rarely, in an earlier one.

    As `CounterAdmission`, but keys are counted in Bloom filters. These take a few bytes for each
    key, the fewer the lower `n` and the higher `error_rate`, and may take it for others. They can't
    forget one key alone: while they remember it, a key whose row has left gets it back in its next
    step. A restored table goes on counting from a BloomAdmission of the same `n`; from another
    admission it begins anew.

    Args:
        n: Number of steps, from 1 to 65535.
        error_rate: The chance, from 1e-9 to 0.5, that a key gets its row early. None comes late.
        max_keys: How many keys wait at most. Beyond that, about the half that has not come for the
            longest is forgotten. Default: no bound, and the filters grow.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument is out of range.

    Reference:
        Fan, Cao, Almeida and Broder, "Summary cache: a scalable wide-area web cache sharing
        protocol", 2000.
    """

    n: int
    error_rate: float
    max_keys: int | None = None

    def __post_init__(self) -> None:
        arguments.positive_int(self.n, "n", most=_MOST_BLOOM_COUNT)
        _check_number(self.error_rate, "error_rate")
        if not 1e-9 <= self.error_rate <= 0.5:
            raise ValueError(
                f"`error_rate` must be from 1e-9 to 0.5. Received: error_rate={self.error_rate}"
            )
        if self.max_keys is not None:
            arguments.positive_int(self.max_keys, "max_keys")

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "admission": "bloom",
            "admission_threshold": self.n,
            "admission_error_rate": self.error_rate,
            "admission_max_keys": self.max_keys or 0,
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True)
class TablePolicy(_Config):
    """By which rows come and leave.

    A use of a row is a training step with its key, an `upsert`, an `accum`, or a lookup with
    `training=True`; other lookups leave no trace. A step ends with each call that changes rows, and
    in it a key counts once, however often it is used.

    A bound holds at each moment: what inserts a row beyond it evicts others first. Rows that the
    present step uses stay; where there are more than the bound, the rest of the new keys are
    refused, and counted in `Variable.stats()`. Of a variable's shards each has its part of the
    bound. A key that was evicted and comes back starts with its initial row and fresh optimizer
    slots.

    Args:
        max_rows: The most rows, at least one for each shard. Default: no bound.
        eviction: Which rows leave first, for a bound and by `Variable.restrict`: "lru", not used
            for the most steps; "lfu", used in the fewest steps, and of these not used for the most;
            "ttl", not used for the longest time; "score", of the lowest score, see
            `Variable.set_scores`. Keeps 8 bytes beside each row, or 16 ("lfu", "ttl", and "score"
            with a bound). None keeps nothing, and goes with `max_rows=None`.
        admission: When a key that is trained gets its row, a `CounterAdmission` or
            `BloomAdmission`. `upsert`, `accum` and restoring need none. Default: at once.
        ttl_seconds: A row that was not used for so long is expired: training takes it for absent,
            and calls that insert, and `Variable.restrict`, take expired rows out. At least 0.001.
            Default: never.
        log_evicted: Whether rows that were evicted or expired are kept for
            `Variable.drain_evicted`, in memory until then.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument out of range.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(max_rows=2, eviction="lru"))
        >>> for key in (1, 2, 3):
        ...     v.upsert([key], [[1.0]])
        >>> sorted(v.export()[0].numpy().tolist())
        [2, 3]
    """

    max_rows: int | None = None
    eviction: str | None = "lru"
    admission: CounterAdmission | BloomAdmission | None = None
    ttl_seconds: float | None = None
    log_evicted: bool = False

    def __post_init__(self) -> None:
        if self.max_rows is not None:
            arguments.positive_int(self.max_rows, "max_rows")
        if self.eviction is not None and self.eviction not in tuple(ORDERS):
            raise ValueError(
                f"`eviction` must be None or one of {', '.join(ORDERS)}. Received: "
                f"eviction={self.eviction!r}"
            )
        if self.max_rows is not None and self.eviction is None:
            raise ValueError(
                "`eviction` must say which rows leave where there is a bound. Received: "
                f"max_rows={self.max_rows}, eviction=None"
            )
        known = (CounterAdmission, BloomAdmission)
        if self.admission is not None and not isinstance(self.admission, known):
            raise TypeError(
                "`admission` must be a CounterAdmission or a BloomAdmission. Received: "
                f"admission={self.admission!r}"
            )
        if self.ttl_seconds is not None:
            _check_number(self.ttl_seconds, "ttl_seconds")
            if not 0.001 <= self.ttl_seconds < 1e12:
                raise ValueError(
                    "`ttl_seconds` must be from 0.001 to 1e12. Received: "
                    f"ttl_seconds={self.ttl_seconds}"
                )
        if not isinstance(self.log_evicted, (bool, np.bool_)):
            raise TypeError(
                f"`log_evicted` must be a bool. Received: log_evicted={self.log_evicted!r}"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        """What a table keeps of the use of each row, names of `STATISTICS`."""
        kept = () if self.eviction is None else ORDERS[self.eviction]
        # A bound tells the rows in use by their last step.
        of_bound = () if self.max_rows is None else ("last_step",)
        of_ttl = () if self.ttl_seconds is None else ("last_time_ms",)
        return (*kept, *of_bound, *of_ttl)

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "max_rows": self.max_rows or 0,
            "eviction": self.eviction or "lru",
            "ttl_milliseconds": round(1000 * self.ttl_seconds) if self.ttl_seconds else 0,
            "log_evicted": bool(self.log_evicted),
            **({} if self.admission is None else self.admission.attributes()),
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        admission = keras.saving.serialize_keras_object(self.admission)
        return {**super().get_config(), "admission": admission}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TablePolicy:
        """One of these arguments."""
        admission = keras.saving.deserialize_keras_object(config["admission"])
        return cls(**{**config, "admission": admission})


def _check_number(value: Any, argument: str) -> None:
    """Refuses what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={value!r}")
