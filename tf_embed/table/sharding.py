# SPDX-License-Identifier: Apache-2.0
"""The shard that owns a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tf_embed import validation

# Takes keys [n] and the number of shards, returns the shard of each key [n], int32 or int64.
PartitionFn: TypeAlias = Callable[[tf.Tensor, int], Any]


def default_partition_fn(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """Spreads keys over shards by their remainder.

    The remainder is the remainder of floor division, so negative keys have a shard too, and the
    same shard on every device.

    Args:
        keys: Integer tensor of any shape.
        shard_num: Number of shards, at least 1.

    Returns:
        The shard of each key, int32, of the shape of `keys`.

    Raises:
        TypeError: If the keys are not integers. A table shards a string by the remainder of its
            64-bit key for the string, which only the table has.
        ValueError: If `shard_num` is less than 1.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> tf_embed.default_partition_fn(tf.constant([-1, 0, 7], tf.int64), 3).numpy().tolist()
        [2, 0, 1]
    """
    if not isinstance(keys, tf.Tensor):
        keys = validation.as_tensor(keys, "keys", "default_partition_fn")
    if not keys.dtype.is_integer:
        raise TypeError(
            "`keys` must be integers: strings have no remainder. Spread them by a hash, such as "
            "tf.strings.to_hash_bucket_fast, or leave the partitioner out. Received: dtype="
            f"{keys.dtype.name}"
        )
    # The remainder is taken in the dtype of the keys.
    shard_num = validation.int_in(shard_num, "shard_num", most=min(2**31, keys.dtype.max))
    if shard_num == 1:
        return tf.zeros(tf.shape(keys), tf.int32)
    return tf.cast(tf.math.floormod(keys, tf.cast(shard_num, keys.dtype)), tf.int32)


def owners(
    keys: tf.Tensor, shard_num: int, partition_fn: PartitionFn, name: str
) -> tf.Tensor | None:
    """The shard of each key, as the ops take it. The keys may have any shape.

    Returns:
        int32 [number of keys]; or None for the default function, which the table computes faster
        itself.

    Raises:
        TypeError: If the function returns neither int32 nor int64.
        ValueError: If the shapes of the result and of the keys differ.
    """
    if partition_fn is default_partition_fn or shard_num == 1:
        return None
    flat = tf.reshape(keys, [-1])
    shards = validation.call_of(partition_fn, "partitioner", name, flat, shard_num)
    shards = validation.as_tensor(shards, "partitioner(keys, shard_num)", name)
    if shards.dtype not in (tf.int32, tf.int64):
        raise TypeError(
            f"`partitioner` of {name!r} must give int32 or int64. Received: dtype="
            f"{shards.dtype.name}"
        )
    if not flat.shape.is_compatible_with(shards.shape):
        raise ValueError(
            f"`partitioner` of {name!r} must give one shard for each key, shape {flat.shape}. "
            f"Received: shape={shards.shape}"
        )
    same = tf.debugging.assert_equal(
        tf.shape(shards),
        tf.shape(flat),
        f"`partitioner` of {name!r} must give one shard for each key.",
    )
    shards = validation.with_dependencies(shards, same)
    # The table refuses an invalid shard number. A number that int32 can't hold would arrive as
    # another number, so it is clipped to the nearest int32, which is also invalid.
    return tf.cast(tf.clip_by_value(shards, tf.int32.min, tf.int32.max), tf.int32)
