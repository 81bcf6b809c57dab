# SPDX-License-Identifier: Apache-2.0
"""TFRA's restrict policies, which evict rows of a variable on demand.

`TimestampRestrictPolicy` and `FrequencyRestrictPolicy` use the table's own statistics. Users may
write other policies.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.sharded.servers import servers_of_scope
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.workers import workers_of_scope
from tf_embed.table.policies import ORDERS, STATISTICS
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.eviction import number_of_rows


class RestrictPolicy(tf.Module):
    """Decides which rows `Variable.restrict` removes.

    Pass a subclass to a variable, `restrict_policy=MyPolicy`; the variable creates the instance. A
    policy may keep state in attributes. Attributes that are variables, such as a
    `tf_embed.Variable`, are saved in checkpoints with the variable. To save the class in the config
    of a layer, register it with `keras.saving.register_keras_serializable`.

    Args:
        var: The variable.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> class KeepSmallKeys(tf_embed.tfra.RestrictPolicy):
        ...     def apply_update(self, ids):
        ...         print("used:", ids.numpy().tolist())
        ...
        ...     def apply_restriction(self, num_reserved, **kwargs):
        ...         keys = tf.sort(self.var.export()[0])
        ...         self.var.remove(keys[num_reserved:])
        >>> v = tf_embed.tfra.Variable(dim=1, restrict_policy=KeepSmallKeys)
        >>> v.upsert([7, 5, 7], [[1.0], [2.0], [3.0]])
        used: [7, 5]
        >>> v.restrict(1)
        >>> v.export()[0].numpy().tolist()
        [5]
    """

    # The usage statistics that the policy needs, names of `policies.STATISTICS`.
    statistics: tuple[str, ...] = ()

    # The eviction order of the policy, a name of `policies.ORDERS`; "" for none.
    order = ""

    def __init__(self, var: Any) -> None:
        super().__init__()
        self.var = var

    def apply_update(self, ids: tf.Tensor) -> Any:
        """Records a use of keys. Called in each training step, `upsert` and `accum`.

        Args:
            ids: The distinct keys of the step, [n], including keys that admission holds back.

        Returns:
            Anything; the result is ignored.
        """

    def apply_restriction(self, num_reserved: Any, **kwargs: Any) -> Any:
        """Removes rows until `num_reserved` are left.

        Args:
            num_reserved: The number of rows that stay, an int or an integer scalar.
            **kwargs: The further arguments of `Variable.restrict`.

        Returns:
            The result of `Variable.restrict`.

        Raises:
            NotImplementedError: If a subclass does not define this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have `apply_restriction`, which says what rows leave. "
            "Write it, or take FrequencyRestrictPolicy or TimestampRestrictPolicy."
        )

    @property
    def status(self) -> Any:
        """The state of the policy, as a subclass defines it; None by default."""
        return None

    def get_config(self) -> dict[str, Any]:
        """An empty config. Keras only registers classes that have this method."""
        return {}


@dataclasses.dataclass(frozen=True)
class PolicyStatus:
    """A view of the statistic of a policy, a number for each key.

    Attributes:
        var: The variable.
        shown: The name of the statistic in `Variable.row_statistics`.
    """

    var: Any
    shown: str

    def lookup(self, keys: Any) -> tf.Tensor:
        """The numbers of keys, int64, keys.shape + [1]; 0 for absent keys."""
        return self.var.row_statistics(keys)[self.shown][..., tf.newaxis]

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys [n] and their numbers, int64 [n, 1]."""
        keys, _ = self.var.export()
        return keys, self.lookup(keys)

    def size(self) -> tf.Tensor:
        """Number of keys of the variable, int64 scalar."""
        return self.var.size()


class _OrderPolicy(RestrictPolicy):
    """A policy that the table applies itself, by one of its eviction orders.

    The table records uses itself, so `apply_update` does nothing. To record a use explicitly, look
    up the keys with `training=True`.
    """

    shown = ""

    def __init__(self, var: Any) -> None:
        super().__init__(var)
        missing = set(self.statistics) - set(var.table.options.statistics if var else ())
        if var is not None and missing:
            raise ValueError(
                f"{type(self).__name__} goes by what the table keeps from its first row on: give "
                f"the class to the variable, tf_embed.tfra.Variable(restrict_policy="
                f"{type(self).__name__}). Received: var={var!r}, which keeps no {min(missing)!r}"
            )

    def apply_restriction(self, num_reserved: Any, trigger: Any = None) -> tf.Tensor:  # type: ignore[override]
        """Removes the first rows of the eviction order until `num_reserved` are left.

        Args:
            num_reserved: The most rows that stay, an int or an integer scalar.
            trigger: The number of rows above which rows are removed. Default: `num_reserved`.

        Returns:
            The number of removed rows, int64 scalar.

        Raises:
            TypeError: If `num_reserved` or `trigger` is not an integer.
            ValueError: If either is negative.
        """
        wanted = number_of_rows(num_reserved, "num_reserved")
        limit = None if trigger is None else number_of_rows(trigger, "trigger")
        return self.var.table.restrict(wanted, self.order, limit)

    @property
    def status(self) -> PolicyStatus:
        """A view of the policy's statistic, with `size`, `export` and `lookup`."""
        return PolicyStatus(self.var, self.shown)


@keras.saving.register_keras_serializable(package="tf_embed")
class TimestampRestrictPolicy(_OrderPolicy):
    """Removes the rows that were not used for the longest time.

    A use is a training step, an `upsert`, an `accum`, or a lookup with `training=True`. Each row
    keeps the time of its last use, in milliseconds, and the number of that step. The step breaks
    ties within a millisecond.

    Args:
        var: The variable, which creates the policy from its `restrict_policy`.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.tfra.Variable(dim=1, restrict_policy=tf_embed.tfra.TimestampRestrictPolicy)
        >>> v.upsert([1, 2], [[1.0], [2.0]])
        >>> v.upsert([3], [[3.0]])
        >>> v.upsert([1], [[4.0]])
        >>> int(v.restrict(2))
        1
        >>> sorted(v.export()[0].numpy().tolist())
        [1, 3]
    """

    order = "ttl"
    shown = "last_time_ms"
    statistics = ORDERS["ttl"]


@keras.saving.register_keras_serializable(package="tf_embed")
class FrequencyRestrictPolicy(_OrderPolicy):
    """Removes the rows that were used in the fewest steps, the longest unused of these first.

    A use is defined as in `TimestampRestrictPolicy`. A key that is used several times in a step
    counts once. A row that is removed and inserted again starts at 1.

    Args:
        var: The variable, which creates the policy from its `restrict_policy`.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.tfra.Variable(dim=1, restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy)
        >>> for keys in ([1, 2, 3], [1, 3, 3], [3]):
        ...     v.upsert(keys, [[0.0]] * len(keys))
        >>> v.row_statistics([1, 2, 3])["count"].numpy().tolist()
        [2, 1, 3]
        >>> int(v.restrict(2))
        1
        >>> sorted(v.export()[0].numpy().tolist())
        [1, 3]
    """

    order = "lfu"
    shown = "count"
    statistics = ORDERS["lfu"]


def check_policy_class(restrict_policy: Any) -> None:
    """Checks the argument `restrict_policy` of a variable or a layer.

    Raises:
        TypeError: If it is neither a subclass of RestrictPolicy nor None.
        ValueError: If a statistic that the class needs is unknown.
    """
    if restrict_policy is None:
        return
    if not (isinstance(restrict_policy, type) and issubclass(restrict_policy, RestrictPolicy)):
        raise TypeError(
            "`restrict_policy` must be a subclass of tf_embed.tfra.RestrictPolicy, the class "
            f"itself. Received: restrict_policy={validation.shown(restrict_policy)}"
        )
    for statistic in restrict_policy.statistics:
        if statistic not in STATISTICS:
            raise ValueError(
                f"`statistics` of {restrict_policy.__name__} must be of "
                f"{', '.join(STATISTICS)}, for it to be a `restrict_policy`. Received: "
                f"{statistic!r}"
            )


def check_placement(
    restrict_policy: type[RestrictPolicy], options: TableOptions, sharding: WorkerSharding | None
) -> None:
    """Refuses a policy that a table can't have at the place where it is made.

    Args:
        sharding: The sharding of the table over workers. None: each worker has its own table.

    Raises:
        ValueError: If the table is in Redis; or it is on several workers or servers, and the
            policy sees only the rows of one of them.
    """
    if options.redis is not None:
        refused = "is in Redis, and can't have this"
    elif servers_of_scope() is not None:
        if restrict_policy.order and not notes_updates(restrict_policy):
            return
        refused = (
            "is on parameter servers, which call no `apply_update`: give a policy without that "
            "method, with an `order`"
        )
    elif sharding is not None and workers_of_scope(sharding) is not None:
        if restrict_policy.order:
            return
        # Your own policy would see the rows of one worker.
        refused = (
            "is sharded over workers, and can't have this. "
            'distribution="local" gives each worker a table of its own'
        )
    else:
        return
    raise ValueError(
        f"The table of {options.name!r} {refused}. Received: restrict_policy="
        f"{validation.shown(restrict_policy)}"
    )


def notes_updates(restrict_policy: type[RestrictPolicy]) -> bool:
    """Whether a policy overrides `apply_update`, and so must be called in each step."""
    return restrict_policy.apply_update is not RestrictPolicy.apply_update
