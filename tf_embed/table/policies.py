# SPDX-License-Identifier: Apache-2.0
"""`TablePolicy`: which rows come, which stay and which leave.

The table itself goes by it, in C++; here a policy is said, checked and saved in configs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import _library, validation
from tf_embed.configs import KerasConfig

# What a table can keep of the use of each row, 8 bytes each, and the bits by which ops name it.
STATISTICS: dict[str, int] = _library.vocabulary()["statistics"]
# The bit of the word about changes, which is 8 bytes, too.
CHANGE_BIT: int = _library.vocabulary()["change_bit"]

# Which of these an order goes by.
ORDERS = {name: tuple(kept) for name, kept in _library.vocabulary()["eviction_orders"].items()}

# No machine has memory for so many, and sums of such numbers stay in 64 bits.
MAX_ROWS = 2**60
_MAX_COUNT = 2**32 - 1
_MAX_BLOOM_COUNT = 2**16 - 1  # a cell of a filter has at most 16 bits


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class CounterAdmission(KerasConfig):
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
        validation.positive_int(self.n, "n", most=_MAX_COUNT)
        if self.max_keys is not None:
            validation.positive_int(self.max_keys, "max_keys", most=MAX_ROWS)

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "admission": "counter",
            "admission_threshold": self.n,
            "admission_max_keys": self.max_keys or 0,
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class BloomAdmission(KerasConfig):
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

    Example:
        >>> import tf_embed
        >>> admission = tf_embed.BloomAdmission(3, error_rate=0.01)
        >>> v = tf_embed.Variable(dim=2, policy=tf_embed.TablePolicy(admission=admission))
        >>> v.upsert([7], [[1.0, 2.0]])  # needs no admission
        >>> int(v.size())
        1

    Reference:
        Fan, Cao, Almeida and Broder, "Summary cache: a scalable wide-area web cache sharing
        protocol", 2000.
    """

    n: int
    error_rate: float
    max_keys: int | None = None

    def __post_init__(self) -> None:
        validation.positive_int(self.n, "n", most=_MAX_BLOOM_COUNT)
        _check_number(self.error_rate, "error_rate")
        if not 1e-9 <= self.error_rate <= 0.5:
            raise ValueError(
                "`error_rate` must be from 1e-9 to 0.5. Received: error_rate="
                f"{validation.shown(self.error_rate)}"
            )
        if self.max_keys is not None:
            validation.positive_int(self.max_keys, "max_keys", most=MAX_ROWS)

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "admission": "bloom",
            "admission_threshold": self.n,
            "admission_error_rate": self.error_rate,
            "admission_max_keys": self.max_keys or 0,
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class TablePolicy(KerasConfig):
    """By which rows come and leave.

    A use of a row is a training step with its key, an `upsert`, an `accum`, or a lookup with
    `training=True`; other lookups leave no trace. A step ends with each call that changes rows, and
    in it a key counts once, however often it is used.

    A bound holds at each moment: what inserts a row beyond it evicts others first. Rows that the
    present step uses stay; where there are more than the bound, the rest of the new keys are
    refused. Of a variable's shards each has its part of the bound. A key that was evicted and
    comes back starts with its initial row and fresh optimizer slots.

    With `eviction=None` a bound evicts no row and refuses all new keys beyond it. A refused key
    has no row: its lookups give its initial row, and its gradients are dropped. `Variable.stats()`
    counts it in "refused", once for each write that holds it. It gets a row with the next write
    after `remove`, `restrict` or expiry made room. Only restoring may bring more rows than the
    bound, as from a table with a higher one or with other shards: then some of them are evicted
    and counted so.

    Args:
        max_rows: The most rows, of all tiers together, at least one for each shard. Default: no
            bound.
        eviction: Which rows leave first, for a bound and by `Variable.restrict`: "lru", not used
            for the most steps; "lfu", used in the fewest steps, and of these not used for the most;
            "ttl", not used for the longest time; "score", of the lowest score, see `score_fn` and
            `Variable.set_scores`; "epoch_lru" and "epoch_lfu", last used in the earliest epoch, and
            of these not used for the most steps, or used in the fewest since they came. Keeps 8
            bytes beside each row, 16 for "lfu", "ttl", "epoch_lru", and "score" with a bound, 24
            for "epoch_lfu". None: no rows leave, new ones are refused at the bound, and nothing is
            kept.
        admission: When a key that is trained gets its row, a `CounterAdmission` or
            `BloomAdmission`. `upsert`, `accum` and restoring need none. Default: at once.
        ttl_seconds: A row that was not used for so long is expired: training takes it for absent,
            and calls that insert, and `Variable.restrict`, take expired rows out. At least 0.001.
            Default: never.
        log_evicted: Whether rows that were evicted or expired are kept for
            `Variable.drain_evicted`, in memory until then.
        steps_per_epoch: How many steps are an epoch: the first ones are epoch 0, and so on.
            Default: an epoch lasts until `Variable.set_clock` says that it is another.
        score_fn: For eviction="score": called with the keys [n], of the variable's key dtype, of
            each `upsert`, `accum` and training step, perhaps in a graph, for their scores [n],
            int64, which the rows get with the write. In a batch a key may stand several times; the
            last position wins. A new row of a lower score than all that could leave for it is
            refused then. Default: a new row has the score 0, and always comes.
        track_changes: Whether the table knows which rows changed and which keys left since a
            snapshot, see `Snapshots`. Keeps 8 bytes beside each row. Not for tables on a GPU, nor
            for string keys or values.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument out of range, or without the `eviction` that it is for.

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
    steps_per_epoch: int | None = None
    score_fn: Callable[[tf.Tensor], Any] | None = None
    track_changes: bool = False

    def __post_init__(self) -> None:
        if self.max_rows is not None:
            validation.positive_int(self.max_rows, "max_rows", most=MAX_ROWS)
        if self.eviction is not None:
            validation.one_of(self.eviction, ORDERS, "eviction", or_none=True)
        known = (CounterAdmission, BloomAdmission)
        if self.admission is not None and not isinstance(self.admission, known):
            raise TypeError(
                "`admission` must be a CounterAdmission or a BloomAdmission. Received: "
                f"admission={validation.shown(self.admission)}"
            )
        if self.ttl_seconds is not None:
            _check_number(self.ttl_seconds, "ttl_seconds")
            if not 0.001 <= self.ttl_seconds < 1e12:
                raise ValueError(
                    "`ttl_seconds` must be from 0.001 to 1e12. Received: "
                    f"ttl_seconds={validation.shown(self.ttl_seconds)}"
                )
        if not isinstance(self.log_evicted, (bool, np.bool_)):
            raise TypeError(
                "`log_evicted` must be a bool. Received: log_evicted="
                f"{validation.shown(self.log_evicted)}"
            )
        if not isinstance(self.track_changes, (bool, np.bool_)):
            raise TypeError(
                "`track_changes` must be a bool. Received: track_changes="
                f"{validation.shown(self.track_changes)}"
            )
        if self.steps_per_epoch is not None:
            validation.positive_int(self.steps_per_epoch, "steps_per_epoch", most=2**62)
            self._check_eviction("steps_per_epoch", "epoch_lru", "epoch_lfu")
        if self.score_fn is not None:
            validation.function_of(self.score_fn, "score_fn")
            self._check_eviction("score_fn", "score")

    def _check_eviction(self, argument: str, *orders: str) -> None:
        if self.eviction not in orders:
            raise ValueError(
                f"`{argument}` goes with eviction={' or '.join(repr(one) for one in orders)}. "
                f"Received: {argument}={validation.shown(getattr(self, argument))}, "
                f"eviction={validation.shown(self.eviction)}"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        """What a table keeps of the use of each row, names of `STATISTICS`."""
        kept = () if self.eviction is None else ORDERS[self.eviction]
        # A bound that evicts tells the rows in use by their last step.
        evicts = self.max_rows is not None and self.eviction is not None
        of_bound = ("last_step",) if evicts else ()
        of_ttl = () if self.ttl_seconds is None else ("last_time_ms",)
        return (*kept, *of_bound, *of_ttl)

    def attributes(self) -> dict[str, Any]:
        """As the op that makes a table takes it."""
        return {
            "max_rows": self.max_rows or 0,
            "eviction": self.eviction or "none",
            "steps_per_epoch": self.steps_per_epoch or 0,
            "ttl_milliseconds": round(1000 * self.ttl_seconds) if self.ttl_seconds else 0,
            "log_evicted": bool(self.log_evicted),
            **({} if self.admission is None else self.admission.attributes()),
        }

    def scores(self, keys: tf.Tensor, name: str) -> list[tf.Tensor]:
        """What `score_fn` gives for keys of any shape, int64, keys.shape; nothing without one.

        Args:
            keys: The keys of a write.
            name: Name of the variable, for messages.

        Returns:
            A list of the scores, int64, or an empty list.

        Raises:
            TypeError: It gives no integers.
            ValueError: It does not give one for each key.
        """
        if self.score_fn is None:
            return []
        keys_in_line = tf.reshape(keys, [-1])
        given = validation.call_of(self.score_fn, "score_fn", name, keys_in_line)
        scores = validation.tensor_of(given, tf.int64, "score_fn(keys)", name)
        if not scores.shape.is_compatible_with(keys_in_line.shape):
            raise ValueError(
                f"`score_fn` of {name!r} must give a score for each of the keys, of shape "
                f"{keys_in_line.shape}. Received: score_fn(keys).shape={scores.shape}"
            )
        return [tf.reshape(scores, tf.shape(keys))]


def _check_number(value: Any, argument: str) -> None:
    """Refuses what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(
            f"`{argument}` must be a number. Received: {argument}={validation.shown(value)}"
        )
