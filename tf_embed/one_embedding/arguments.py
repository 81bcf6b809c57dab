# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of layers of many tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.one_embedding.initializers import WeightInitializer
from tf_embed.table.policies import TablePolicy, share_of


def native(tables: list[list[WeightInitializer]], seed: int) -> Any:
    """The initializer that all columns share, if the engine can draw it; otherwise None."""
    first = tables[0][0]
    alike = all(one == first for columns in tables for one in columns)
    return first.of_table(seed) if alike and first.is_native else None


def devices_of(devices: Any, paths: Sequence[str]) -> list[Any]:
    """The devices of the table in each folder.

    Raises:
        ValueError: If there is a folder for each shard but the number of devices differs.
    """
    if len(paths) == 1:
        return [devices]
    if devices is None or isinstance(devices, str):
        return [devices] * len(paths)
    if len(devices) != len(paths):
        raise ValueError(
            "`persistent_path` must be a path, or a list with one for each of `devices`. Received: "
            f"persistent_path={validation.shown(list(paths))}, devices={validation.shown(devices)}"
        )
    return list(devices)


def shares_of(
    policy: TablePolicy | None, capacity: int | None, num_tables: int, num_shards: int
) -> list[TablePolicy | None]:
    """The policies of the tables of rows, whose bounds add up to the layer's bound.

    Args:
        capacity: The store's capacity. It is the bound of a policy that evicts and has no
            `max_rows`.

    Raises:
        ValueError: If the bound is less than a row for each shard.
    """
    if policy is None:
        return [None] * num_tables
    bound, argument, owner = policy.max_rows, "max_rows", "policy"
    if bound is None and policy.eviction is not None:
        bound, argument, owner = capacity, "capacity", "store_options"
    if bound is None:
        return [policy] * num_tables
    least = num_tables * num_shards
    if bound < least:
        raise ValueError(
            f"`{argument}` of `{owner}` must be at least {least}, a row for each shard of the "
            f"tables of rows. Received: {argument}={bound}"
        )
    whole = dataclasses.replace(policy, max_rows=bound)
    return [share_of(whole, number, num_tables) for number in range(num_tables)]


def dtype_policy_of(dtype: Any) -> Any:
    """A dtype or a dtype policy as Keras takes it."""
    if isinstance(dtype, (tf.DType, np.dtype, type)):
        try:
            return tf.as_dtype(dtype).name
        except TypeError as error:
            raise TypeError(
                "`dtype` must be float32, float16, bfloat16 or a Keras dtype policy. Received: "
                f"dtype={validation.shown(dtype)}"
            ) from error
    if isinstance(dtype, (str, dict, type(None), keras.DTypePolicy)):
        try:
            return keras.dtype_policies.get(dtype)
        except Exception as error:
            raise ValueError(
                "`dtype` must be float32, float16, bfloat16 or a Keras dtype policy. Received: "
                f"dtype={validation.shown(dtype)}"
            ) from error
    raise TypeError(
        "`dtype` must be float32, float16, bfloat16 or a Keras dtype policy. Received: "
        f"dtype={validation.shown(dtype)}"
    )


def padding_of(padding_idx: Any, key_type: tf.DType) -> int | None:
    """The argument `padding_idx`.

    Raises:
        TypeError: If it is not an int.
        ValueError: If the key type does not hold it.
    """
    if padding_idx is None:
        return None
    return validation.int_in(
        padding_idx, "padding_idx", least=int(key_type.min), most=int(key_type.max)
    )
