"""The methods of `Variable` about rows that come and go."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import arguments
from tf_embed.ops import policy_ops
from tf_embed.table.policies import STATISTICS, TablePolicy
from tf_embed.table.restrict_policies import RestrictPolicy, number_of_rows
from tf_embed.table.table import Table

# The vector that the table gives, in its order.
_COUNTS = (
    "rows",
    "payload_bytes",
    "index_bytes",
    "slack_bytes",
    "admission_bytes",
    "undrained",
    "index_places",
    "probed_keys",
    "probed_buckets",
    "admitted",
    "held_back",
    "refused",
    "evicted",
    "expired",
    "hits",
    "misses",
    "pinned_bytes",
)


class PolicyMethods(tf.Module):
    """A variable, as far as its policies go. `Variable` has the rest."""

    _table: Table
    restrict_policy: RestrictPolicy | None

    @property
    def policy(self) -> TablePolicy | None:
        """By which rows come and leave."""
        return self._table.options.policy

    def restrict(self, num_reserved: Any, **kwargs: Any) -> Any:
        """Removes rows, by the policy, until `num_reserved` are left, and gives memory back.

        With a `restrict_policy` it is that one's `apply_restriction`. With a `policy` alone,
        expired rows go, and then those that are first in its order, until exactly `num_reserved`
        are left in all shards together. Slots go with their rows, and other variables are left
        alone.

        Args:
            num_reserved: How many rows stay at most, an int or an integer scalar.
            **kwargs: What the `restrict_policy` takes besides, such as `trigger`: rows are removed
                only where there are more than so many.

        Returns:
            How many rows were removed, int64 scalar; or what a `restrict_policy` of the user's
            gives. None, after a warning, for a variable without any policy.

        Raises:
            TypeError: An argument of a wrong type, or one that the policy does not take.
            ValueError: `num_reserved` is negative, or the policy has no order.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 2, 3], [[0.0]] * 3)
            >>> v.upsert([2, 3], [[1.0]] * 2)
            >>> v.upsert([3], [[2.0]])
            >>> int(v.restrict(2))
            1
            >>> sorted(v.export()[0].numpy().tolist())
            [2, 3]
        """
        if self.restrict_policy is not None:
            return self.restrict_policy.apply_restriction(num_reserved, **kwargs)
        name = self._table.options.name
        if self.policy is None:
            logging.warning("%r has no policy by which it could be restricted.", name)
            return None
        if kwargs:
            raise TypeError(
                f"`restrict` of {name!r} takes `num_reserved` alone, without a restrict_policy. "
                f"Received: {', '.join(kwargs)}"
            )
        if self.policy.eviction is None:
            raise ValueError(
                f"The policy of {name!r} does not say which rows leave first. Received: "
                f"policy={self.policy}"
            )
        return self._table.restrict(
            number_of_rows(num_reserved, "num_reserved"), self.policy.eviction
        )

    def stats(self) -> dict[str, Any]:
        """What the variable is made of, and what has happened to it since it was made.

        Cheap: it reads counters, and looks at a sample of some keys.

        Returns:
            A dict, of Python numbers in eager execution, else of scalars:

            - rows: Number of keys.
            - payload_bytes: Bytes of weights, slots and statistics of all rows.
            - index_bytes: Bytes of the index from keys to rows.
            - slack_bytes: Bytes of rows that are freed, or not used yet.
            - pinned_bytes: Of these two, the bytes of rows of a table on a GPU that are in the
              host's memory, see `GpuStorage`.
            - admission_bytes: Bytes of what counts the keys that wait for a row.
            - load: How full the index is, from 0 to 1.
            - mean_probe_length: Cache lines of the index that a lookup reads, in the mean over a
              sample; 0 without rows.
            - admitted: Rows that came by a policy with a bound, admission or TTL.
            - held_back: Times that a key did not get a row for want of steps, once for each step.
            - refused: Times that one did not for want of room.
            - evicted: Rows that left for others, or by `restrict`.
            - expired: Rows that left because they were not used.
            - undrained: Rows that wait for `drain_evicted`.
            - hits, misses: Keys that lookups of all kinds found, and did not.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=4)
            >>> v.upsert([1, 2], [[0.0] * 4] * 2)
            >>> _ = v.lookup([1, 2, 3])
            >>> stats = v.stats()
            >>> stats["rows"], stats["payload_bytes"], stats["hits"], stats["misses"]
            (2, 32, 2, 1)
        """
        vector = policy_ops.stats(self._table.resource_handle)
        eager = tf.executing_eagerly()
        numbers = vector.numpy().tolist() if eager else tf.unstack(vector)
        counts = dict(zip(_COUNTS, numbers, strict=True))
        places, probed, read = (counts.pop(one) for one in _COUNTS[6:9])
        return {
            **counts,
            "load": _ratio(counts["rows"], places),
            "mean_probe_length": _ratio(read, probed),
        }

    def drain_evicted(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the rows that have left by the policy since the last call, and forgets them.

        Rows that were evicted by a bound or by `restrict`, and rows that expired; not those that
        `remove` and `clear` took out. So whatever leaves can be kept elsewhere.

        Returns:
            Keys [n] in the order in which they left, where a key that came back and left again
            stands twice, and rows [n, dim] as they were then.

        Raises:
            ValueError: The variable keeps no log: its policy is without `log_evicted`.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(2, log_evicted=True))
            >>> for key in (1, 2, 3):
            ...     v.upsert([key], [[key / 2]])
            >>> [tensor.numpy().tolist() for tensor in v.drain_evicted()]
            [[1], [[0.5]]]
        """
        if self.policy is None or not self.policy.log_evicted:
            raise ValueError(
                f"{self._table.options.name!r} keeps no evicted rows: make it with "
                f"policy=tf_embed.TablePolicy(..., log_evicted=True). Received: {self.policy}"
            )
        options = self._table.options
        return policy_ops.drain_evicted(
            self._table.resource_handle,
            key_dtype=options.key_dtype,
            value_dtype=options.value_dtype,
            dim=options.dim,
        )

    def row_statistics(self, keys: Any) -> dict[str, tf.Tensor]:
        """What is kept of the use of rows, as policies need it. Is no use itself.

        Args:
            keys: Integers of any shape.

        Returns:
            A dict of tensors of keys.shape: "exists", bool; and int64, 0 for absent keys, those of
            the following that the variable keeps: "last_step", the step of the last use, which
            counts the calls that changed rows; "last_time_ms", its time in milliseconds since 1970;
            "count", the number of steps with a use; "score"; "last_epoch", the latest epoch of a
            use.

        Raises:
            TypeError: A wrong dtype.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 1], [[0.0], [1.0]])
            >>> _ = v.lookup([1], training=True)
            >>> statistics = v.row_statistics([1, 2])
            >>> {name: value.numpy().tolist() for name, value in statistics.items()}
            {'exists': [True, False], 'last_step': [2, 0], 'count': [2, 0]}
        """
        numbers, exists = self._table.row_statistics(self._keys(keys))
        kept = self._table.options.statistics
        by_name = zip(STATISTICS, tf.unstack(numbers, axis=-1), strict=True)
        return {"exists": exists, **{name: one for name, one in by_name if name in kept}}

    def set_scores(self, keys: Any, scores: Any) -> tf.Operation | None:
        """Says which rows are worth more, for `eviction="score"`. A new row has the score 0.

        Args:
            keys: Integers of any shape. Those that are not there are passed over; of a key that
                stands several times the last position wins.
            scores: Integers, keys.shape; the lowest leave first.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: A wrong dtype.
            ValueError: The variable keeps no scores, or shapes that do not go together.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(2, eviction="score"))
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.set_scores([1], [5])
            >>> v.upsert([3], [[0.0]])
            >>> sorted(v.export()[0].numpy().tolist())
            [1, 3]
        """
        name = self._table.options.name
        if "score" not in self._table.options.statistics:
            raise ValueError(
                f"{name!r} keeps no scores: make it with policy=tf_embed.TablePolicy("
                f'eviction="score"). Received: {self.policy}'
            )
        keys = self._keys(keys)
        scores = arguments.tensor_of(scores, tf.int64, "scores", name)
        if not scores.shape.is_compatible_with(keys.shape):
            raise ValueError(
                f"`scores` of {name!r} must have the shape of the keys, {keys.shape}. Received: "
                f"scores.shape={scores.shape}"
            )
        return self._table.set_scores(keys, scores)

    def set_clock(
        self, step: Any = None, time_ms: Any = None, epoch: Any = None
    ) -> tf.Operation | None:
        """Sets the clock by which uses of rows are noted, to replay a log or to test a policy.

        Without this, steps are counted from 1, one for each call that changes rows, and the time is
        the system's.

        Args:
            step: The number of the present step, from 1 to 2**62. Default: leaves it.
            time_ms: The time in milliseconds since 1970, at which the clock stands until the next
                call; "system" to go by the system's time again. Default: leaves it.
            epoch: The number of the present epoch, from 0 to 2**31 - 1, for an `eviction` that goes
                by epochs. With `steps_per_epoch` the next one still begins where it would have. A
                row keeps the latest epoch of its uses, whatever comes later. Default: leaves it to
                the steps.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument is no integer.
            ValueError: An argument is out of range, or the variable keeps no epochs.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(ttl_seconds=60))
            >>> v.set_clock(time_ms=0)
            >>> v.upsert([1], [[0.0]])
            >>> v.set_clock(time_ms=60_000)
            >>> v.upsert([2], [[0.0]])
            >>> _ = v.restrict(2)
            >>> v.export()[0].numpy().tolist()
            [2]
        """
        for argument, value in (("step", step), ("time_ms", time_ms), ("epoch", epoch)):
            if tf.is_tensor(value):
                arguments.scalar_of(value, argument)
        if step is None:
            step = -1
        elif not tf.is_tensor(step):
            step = arguments.positive_int(step, "step", most=2**62)
        if time_ms is None:
            time_ms = -2
        elif isinstance(time_ms, str) and time_ms == "system":
            time_ms = -1
        elif not tf.is_tensor(time_ms):
            time_ms = arguments.positive_int(time_ms, "time_ms", least=0, most=2**62)
        if epoch is None:
            epoch = -1
        elif "last_epoch" not in self._table.options.statistics:
            raise ValueError(
                f"{self._table.options.name!r} keeps no epochs: make it with eviction="
                f'"epoch_lru" or "epoch_lfu" in its policy. Received: epoch={epoch}'
            )
        elif not tf.is_tensor(epoch):
            epoch = arguments.positive_int(epoch, "epoch", least=0, most=2**31 - 1)
        return policy_ops.set_clock(self._table.resource_handle, step, time_ms, epoch)

    def export_keys_and_scores(
        self, split_size: int, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies all keys, and of each row the number by which it stays, as of one moment.

        Args:
            split_size: How many rows are copied at a time, at most 65536.
            name: Name of the operation.

        Returns:
            Keys [n] in no order and, int64 [n], what the order goes by, the lowest leave first:
            the last step for "lru", the number of steps for "lfu", the last time in milliseconds
            since 1970 for "ttl", the score for "score"; for "epoch_lru" and "epoch_lfu" the latest
            epoch times 2**32, plus the last step or the number of steps, at most 2**32 - 1.

        Raises:
            TypeError: The variable has no order, or `split_size` is no int.
            ValueError: `split_size` is not positive.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.upsert([2], [[0.0]])
            >>> keys, scores = v.export_keys_and_scores(1024)
            >>> sorted(zip(keys.numpy().tolist(), scores.numpy().tolist()))
            [(1, 1), (2, 2)]
        """
        order = None if self.policy is None else self.policy.eviction
        if order is None and self.restrict_policy is not None:
            order = self.restrict_policy.order
        if not order:
            raise TypeError(
                f"{self._table.options.name!r} keeps no scores: make it with policy="
                "tf_embed.TablePolicy(eviction=...), or with a tf_embed.tfra.HkvHashTableCreator. "
                f"Received: policy={self.policy}"
            )
        split_size = arguments.positive_int(split_size, "split_size")
        with arguments.scope(name, "export_keys_and_scores"):
            return self._table.export_scores(order, split_size)

    def _keys(self, keys: Any) -> tf.Tensor:
        options = self._table.options
        return arguments.tensor_of(keys, options.key_dtype, "keys", options.name)


def check_policies(policy: Any, restrict_policy: Any, num_shards: int) -> None:
    """Refuses what is no policy, or none for a table.

    Args:
        policy: A TablePolicy, or None.
        restrict_policy: A subclass of RestrictPolicy, or None.
        num_shards: Number of shards.

    Raises:
        TypeError: One of them is no policy.
        ValueError: The bound has no row for each shard.
    """
    if policy is not None and not isinstance(policy, TablePolicy):
        raise TypeError(
            f"`policy` must be a tf_embed.TablePolicy. Received: policy={arguments.shown(policy)}"
        )
    if restrict_policy is not None and not (
        isinstance(restrict_policy, type) and issubclass(restrict_policy, RestrictPolicy)
    ):
        raise TypeError(
            "`restrict_policy` must be a subclass of tf_embed.RestrictPolicy, the class itself. "
            f"Received: restrict_policy={arguments.shown(restrict_policy)}"
        )
    if restrict_policy is not None:
        for statistic in restrict_policy.statistics:
            if statistic not in STATISTICS:
                raise ValueError(
                    f"`statistics` of {restrict_policy.__name__} must be of "
                    f"{', '.join(STATISTICS)}, for it to be a `restrict_policy`. Received: "
                    f"{statistic!r}"
                )
    if policy is not None and policy.max_rows is not None and policy.max_rows < num_shards:
        raise ValueError(
            f"`max_rows` of `policy` must be at least one for each of {num_shards} shards. "
            f"Received: max_rows={policy.max_rows}"
        )


def notes_updates(restrict_policy: type[RestrictPolicy]) -> bool:
    """Whether a policy wants to know of each step."""
    return restrict_policy.apply_update is not RestrictPolicy.apply_update


def _ratio(part: Any, whole: Any) -> Any:
    """A quotient, 0.0 where there is nothing to divide by."""
    if tf.is_tensor(part):
        return tf.math.divide_no_nan(tf.cast(part, tf.float64), tf.cast(whole, tf.float64))
    return part / whole if whole else 0.0
