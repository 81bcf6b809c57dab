# SPDX-License-Identifier: Apache-2.0
"""`get_variable`: a registry of variables by name, as in TFRA."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.table.initializers import RowInitializer, keras_initializer, row_initializer
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.tfra.variable import Variable

_variables: dict[str, tuple[Variable, Any]] = {}  # each with its initializer as given
# Reentrant, because the restrict policy of a new variable may call `get_variable`, as TFRA's do.
_lock = threading.RLock()


def get_variable(
    name: str,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    dim: int = 1,
    devices: Any = None,
    partitioner: PartitionFn = default_partition_fn,
    shared_name: str | None = "get_variable",
    initializer: Any = None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator: Any = None,
    restrict_policy: Any = None,
    bp_v2: bool = False,
    short_file_name: bool = False,
    policy: Any = None,
    storage: Any = None,
    distribution: Any = None,
) -> Variable:
    """Returns the variable of a name, or creates it if there is none.

    The variable lives until `forget_variable`, even if the caller does not keep it. So a function
    may call this each time it runs.

    Args:
        name: Name of the variable. A `tf.compat.v1.variable_scope` prefixes its own name and "/".
        key_dtype: As in `tf_embed.tfra.Variable`, and so are all others.

    Returns:
        The variable; the same object for the same name.

    Raises:
        ValueError: If a variable of that name has another `key_dtype`, `value_dtype`, `dim` or
            `initializer`. Other arguments for an existing variable are not compared.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.tfra.get_variable("users", dim=4)
        >>> v is tf_embed.tfra.get_variable("users", dim=4)
        True
        >>> tf_embed.tfra.forget_variable("users")
    """
    name = validation.name_of(name)
    scope = tf.compat.v1.get_variable_scope().name
    if scope:
        name = validation.name_of(f"{scope}/{name}")
    with _lock:
        if name in _variables:
            variable, made_by = _variables[name]
            same = initializer is not None and initializer is made_by
            _check_same(variable, key_dtype, value_dtype, dim, initializer, same)
            return variable
        # Within the lock, so that two threads never make two variables with the same name.
        variable = Variable(
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            dim=dim,
            devices=devices,
            partitioner=partitioner,
            shared_name=shared_name,
            name=name,
            initializer=initializer,
            trainable=trainable,
            checkpoint=checkpoint,
            init_size=init_size,
            kv_creator=kv_creator,
            restrict_policy=restrict_policy,
            bp_v2=bp_v2,
            short_file_name=short_file_name,
            policy=policy,
            storage=storage,
            distribution=distribution,
        )
        _variables[name] = variable, initializer
        return variable


def forget_variable(name: str) -> None:
    """Drops the reference of `get_variable` to a variable.

    The memory is freed with the last reference. An unknown name is ignored.

    Args:
        name: The `name` of the variable, with its scope's name.

    Raises:
        TypeError: If `name` is not a str.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.tfra.get_variable("items", dim=4)
        >>> tf_embed.tfra.forget_variable("items")
        >>> tf_embed.tfra.get_variable("items", dim=8).dim
        8
        >>> tf_embed.tfra.forget_variable("items")
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a str. Received: name={validation.shown(name)}")
    with _lock:
        _variables.pop(name, None)


def _check_same(
    variable: Variable, key_dtype: Any, value_dtype: Any, dim: int, initializer: Any, same: bool
) -> None:
    """Checks that a variable has the requested dtypes, dim and initializer.

    `same` tells that the initializer is the object that made the variable.

    Raises:
        ValueError: If any of them differs.
    """
    keys = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype")
    values = validation.dtype_of(value_dtype, validation.VALUE_DTYPES, "value_dtype")
    wanted = {
        "key_dtype": (variable.key_dtype.name, keys.name),
        "value_dtype": (variable.value_dtype.name, values.name),
        "dim": (variable.dim, validation.int_in(dim, "dim")),
    }
    for argument, (present, asked) in wanted.items():
        if present != asked:
            raise ValueError(_another(variable.name, argument, present, asked))
    if same:  # reading it may draw another seed
        return
    asked = row_initializer(
        initializer, dim=dim, value_dtype=variable.value_dtype, name=variable.name
    )
    present = variable.initializer
    # Each copy of such an initializer has drawn another seed.
    if _has_own_seed(keras_initializer(initializer, variable.value_dtype)):
        present, asked = (dataclasses.replace(one, seed=0) for one in (present, asked))
    if present != asked and not _are_alike(present.draw, asked.draw):
        raise ValueError(_another(variable.name, "initializer", _shown(present), _shown(asked)))


def _has_own_seed(initializer: Any) -> bool:
    """Returns whether the initializer has no explicit seed, so that each copy draws its own."""
    if isinstance(initializer, (str, dict, type)):
        initializer = keras.initializers.get(initializer)
    if not isinstance(initializer, keras.initializers.Initializer):
        return False
    return initializer.get_config().get("seed", 0) is None


def _are_alike(present: Any, asked: Any) -> bool:
    """Returns whether two initializers have the same class and a known, equal config."""
    if type(present) is not type(asked) or not hasattr(present, "get_config"):
        return False
    config = present.get_config()
    # An initializer with attributes and an empty config can't be compared.
    tells = bool(config) or not vars(present)
    return tells and config == asked.get_config()


def _another(name: str, argument: str, present: Any, asked: Any) -> str:
    return (
        f"`{argument}` must be that of the variable {name!r} that is there already, {present}: "
        f"take another name, or tf_embed.tfra.forget_variable({name!r}) first. Received: "
        f"{argument}={asked}"
    )


def _shown(initializer: RowInitializer) -> str:
    if initializer.draw is not None:
        return repr(initializer.draw)
    return f"{initializer.kind}{initializer.strings or initializer.values}"
