# SPDX-License-Identifier: Apache-2.0
"""`TablePolicy`: admission and eviction of rows.

The table applies the policy, in C++. Here it is defined, checked, and converted to a config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import _library, validation
from tf_embed.configs import KerasConfig, as_bool

# The usage statistics that a table can keep for each row, 8 bytes each, and their bits in ops.
STATISTICS: dict[str, int] = _library.vocabulary()["statistics"]
# The bit of the change word, which takes 8 bytes, too.
CHANGE_BIT: int = _library.vocabulary()["change_bit"]

# The statistics that each eviction order needs.
ORDERS = {name: tuple(kept) for name, kept in _library.vocabulary()["eviction_orders"].items()}

# More than any machine can hold, and small enough that sums fit in 64 bits.
MAX_ROWS = 2**60
_MAX_COUNT = 2**32 - 1
_MAX_BLOOM_COUNT = 2**16 - 1  # a cell of a filter has at most 16 bits


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class CounterAdmission(KerasConfig):
    """Admits a key in the `n`-th training step that contains it, counted exactly.

    Until then the key has its initial row, and its gradients are dropped. A key that waits for
    admission takes about 20 bytes. If there is no room in its `n`-th step, it gets its row in its
    next step with room. A key whose row was evicted is counted from 0 again. A restored table
    continues the counts of another CounterAdmission, but not the counts of a BloomAdmission.

    Args:
        n: Number of steps, from 1; 1 gives each key its row at once.
        max_keys: The most keys that wait. Beyond that, about half of them are forgotten, the
            longest unseen first. Default: no bound.

    Raises:
        TypeError: If an argument is not an int.
        ValueError: If an argument is out of range.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(
        ...     dim=2, policy=tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2))
        ... )
    """

    n: int
    max_keys: int | None = None

    def __post_init__(self) -> None:
        validation.int_in(self.n, "n", most=_MAX_COUNT)
        if self.max_keys is not None:
            validation.int_in(self.max_keys, "max_keys", most=MAX_ROWS)

    def settings(self) -> dict[str, Any]:
        """The settings of the op that creates a table."""
        return {
            "admission": "counter",
            "admission_threshold": int(self.n),
            "admission_max_keys": self.max_keys and int(self.max_keys),
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class BloomAdmission(KerasConfig):
    """Admits a key in the `n`-th training step that contains it, or rarely in an earlier step.

    Like `CounterAdmission`, but the counts are in counting Bloom filters. These take only a few
    bytes for each key, fewer for a lower `n` or a higher `error_rate`, and may mistake a key for
    others. They can't forget a single key. While the filters remember a key, it gets its row back
    in the first step after its eviction. A restored table continues the counts of a BloomAdmission
    with the same `n`. Otherwise it counts from 0 again.

    Args:
        n: Number of steps, from 1 to 65535.
        error_rate: The probability, from 1e-9 to 0.5, that a key is admitted early. No key is
            admitted late.
        max_keys: The most keys that wait. Beyond that, about half of them are forgotten, the
            longest unseen first. Default: no bound, and the filters grow.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

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
        validation.int_in(self.n, "n", most=_MAX_BLOOM_COUNT)
        _check_number(self.error_rate, "error_rate")
        self._check("error_rate", "from 1e-9 to 0.5", 1e-9 <= self.error_rate <= 0.5)
        if self.max_keys is not None:
            validation.int_in(self.max_keys, "max_keys", most=MAX_ROWS)

    def settings(self) -> dict[str, Any]:
        """The settings of the op that creates a table."""
        return {
            "admission": "bloom",
            "admission_threshold": int(self.n),
            "admission_error_rate": float(self.error_rate),
            "admission_max_keys": self.max_keys and int(self.max_keys),
        }


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, repr=False)
class TablePolicy(KerasConfig):
    """The policy of admission and eviction of a table.

    A use of a row is a training step with its key, an `upsert`, an `accum`, or a lookup with
    `training=True`. Other lookups are not recorded. Each call that changes rows is a step, and a
    key counts only once per step. A lookup with `training=True` counts for the step that follows.

    A bound holds at every moment: a write that inserts rows beyond it evicts other rows first. Rows
    that the present step uses are not evicted, also if only lookups with `training=True` used them.
    If a step needs more rows than the bound, the rest of its new keys are refused. Each shard of a
    variable has its part of the bound. A key that returns after eviction is re-initialized,
    optimizer slots included.

    With `eviction=None` a bound evicts no row and refuses all new keys beyond it. A refused key
    has no row: lookups return its initial row, and its gradients are dropped. `Variable.stats()`
    counts it in "refused", once for each write that contains it. It gets a row with the next write
    after `remove`, `restrict` or expiry made room. Only a restore can exceed such a bound, for
    example from a table with a higher bound or with other shards. Then the excess rows are evicted,
    and counted as evicted.

    Args:
        max_rows: The most rows, in all tiers together, at least one for each shard. Default: no
            bound.
        eviction: The eviction order, for a bound and for `Variable.restrict`:

            - "lru": first the rows that were not used for the most steps.
            - "lfu": first the rows that were used in the fewest steps, then by "lru".
            - "ttl": first the rows that were not used for the longest time.
            - "score": first the rows of the lowest score, see `score_fn` and `Variable.set_scores`.
            - "epoch_lru": first the rows whose last use was in the earliest epoch, then by "lru".
              Only the lowest 32 bits of the step of a use count.
            - "epoch_lfu": the same, then by the fewest steps with a use since the row's insertion.
            - None: evicts no rows, refuses new keys at the bound, and keeps no statistics.

            An order keeps 8 bytes for each row; 16 for "lfu", "ttl", "epoch_lru", and "score" with
            a bound; 24 for "epoch_lfu".
        admission: A `CounterAdmission` or `BloomAdmission`, which decides when training gives a key
            its row. `upsert`, `accum` and restoring bypass it. Default: at once.
        ttl_seconds: The time after which an unused row expires. Training treats an expired row as
            absent. Calls that insert rows, and `Variable.restrict`, remove expired rows. At least
            0.001. Default: never.
        log_evicted: Whether evicted and expired rows are kept in memory until
            `Variable.drain_evicted`.
        steps_per_epoch: The number of steps in an epoch. Epochs count from 0. Default: only
            `Variable.set_clock` changes the epoch.
        score_fn: For eviction="score": a function of the keys [n] of an `upsert`, `accum` or
            training step that returns their scores [n], int64. It may be called in a graph. The
            rows get the scores with the write. If a key occurs more than once, its last position
            wins. A new row is refused if its score is lower than the score of every row that could
            be evicted for it. Default: a new row has the score 0, and is never refused for it.
        track_changes: Whether the table tracks the rows that changed and the keys that left since a
            snapshot, see `Snapshots`. Takes 8 bytes for each row. Not for string keys or values.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or does not apply to this `eviction`.

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
            validation.int_in(self.max_rows, "max_rows", most=MAX_ROWS)
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
            self._check("ttl_seconds", "from 0.001 to 1e12", 0.001 <= self.ttl_seconds < 1e12)
        self._take(as_bool, "log_evicted", "track_changes")
        if self.steps_per_epoch is not None:
            validation.int_in(self.steps_per_epoch, "steps_per_epoch", most=2**62)
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
        """The usage statistics that a table keeps for each row, names of `STATISTICS`."""
        kept = () if self.eviction is None else ORDERS[self.eviction]
        # A bound that evicts recognizes the rows of the present step by their last step.
        evicts = self.max_rows is not None and self.eviction is not None
        of_bound = ("last_step",) if evicts else ()
        of_ttl = () if self.ttl_seconds is None else ("last_time_ms",)
        return (*kept, *of_bound, *of_ttl)

    def settings(self) -> dict[str, Any]:
        """The settings of the op that creates a table."""
        milliseconds = self.ttl_seconds and round(1000 * self.ttl_seconds)
        return {
            "max_rows": self.max_rows and int(self.max_rows),
            "eviction": self.eviction or "none",
            "steps_per_epoch": self.steps_per_epoch and int(self.steps_per_epoch),
            "ttl_milliseconds": milliseconds,
            "log_evicted": self.log_evicted or None,
            **({} if self.admission is None else self.admission.settings()),
        }

    def scores(self, keys: tf.Tensor, name: str) -> list[tf.Tensor]:
        """Calls `score_fn`.

        Args:
            keys: The keys of a write, any shape.
            name: Name of the variable, for messages.

        Returns:
            A list of the scores, int64, keys.shape; or an empty list without a `score_fn`.

        Raises:
            TypeError: If `score_fn` does not return integers.
            ValueError: If it does not return a score for each key.
        """
        if self.score_fn is None:
            return []
        # The user's function gets a vector, whatever the shape of the keys.
        keys_in_line = tf.reshape(keys, [-1])
        given = validation.call_of(self.score_fn, "score_fn", name, keys_in_line)
        scores = validation.tensor_of(given, tf.int64, "score_fn(keys)", name)
        if not scores.shape.is_compatible_with(keys_in_line.shape):
            raise ValueError(
                f"`score_fn` of {name!r} must give a score for each of the keys, of shape "
                f"{keys_in_line.shape}. Received: score_fn(keys).shape={scores.shape}"
            )
        return [tf.reshape(scores, tf.shape(keys))]


def share_of(policy: TablePolicy, number: int, count: int) -> TablePolicy:
    """The policy of one of several tables, whose bounds add up to the bound of the policy.

    Args:
        policy: The policy of all tables. REQUIRES: it has `max_rows`, at least `count`.
    """
    assert policy.max_rows is not None
    # The first tables take the remainder.
    least, more = divmod(policy.max_rows, count)
    return dataclasses.replace(policy, max_rows=least + (number < more))


def check_policy(policy: Any, num_shards: int) -> None:
    """Checks the policy of a table.

    Raises:
        TypeError: If it is neither a TablePolicy nor None.
        ValueError: If its bound is less than a row for each shard.
    """
    if policy is None:
        return
    if not isinstance(policy, TablePolicy):
        raise TypeError(
            f"`policy` must be a tf_embed.TablePolicy. Received: policy={validation.shown(policy)}"
        )
    if policy.max_rows is not None and policy.max_rows < num_shards:
        raise ValueError(
            f"`max_rows` of `policy` must be at least one for each of {num_shards} shards. "
            f"Received: max_rows={policy.max_rows}"
        )


def _check_number(value: Any, argument: str) -> None:
    """Checks that an argument is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(
            f"`{argument}` must be a number. Received: {argument}={validation.shown(value)}"
        )
