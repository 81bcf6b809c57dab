# SPDX-License-Identifier: Apache-2.0
"""`get_variable`: variables by name, as TFRA has them."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.table.initializers import RowInitializer, row_initializer
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.variable.variable import Variable

_variables: dict[str, Variable] = {}
_lock = threading.Lock()


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
    """Gives the variable of this name, which it makes when there is none.

    The variable lives until `forget_variable`, whether the caller keeps it or not, so a function
    may ask for it at each call.

    Args:
        name: Its name.
        key_dtype: As in `tf_embed.Variable`, and so the arguments below.
        value_dtype: Dtype of the weights.
        dim: Number of weights in a row.
        devices: The device of each shard.
        partitioner: What chooses the shard of a key.
        shared_name: Accepted for the sake of old code.
        initializer: The row of a key that has none.
        trainable: Whether optimizers may change rows.
        checkpoint: Whether tf.train.Checkpoint carries the rows.
        init_size: Rows to make room for.
        kv_creator: What kind of table it is.
        restrict_policy: What `restrict` goes by.
        bp_v2: Stored.
        short_file_name: Accepted for the sake of old code.
        policy: By which rows come and leave.
        storage: What a table on a GPU may take of which memory.
        distribution: How the rows are spread over workers.

    Returns:
        The variable; for the same name, the same object.

    Raises:
        ValueError: There is one of that name with another `key_dtype`, `value_dtype`, `dim` or
            `initializer`. What else is asked for an existing variable is not compared.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.tfra.get_variable("users", dim=4)
        >>> v is tf_embed.tfra.get_variable("users", dim=4)
        True
        >>> tf_embed.tfra.forget_variable("users")
    """
    name = validation.name_of(name)
    with _lock:
        variable = _variables.get(name)
        if variable is not None:
            _check_same(variable, key_dtype, value_dtype, dim, initializer)
            return variable
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
        _variables[name] = variable
        return variable


def forget_variable(name: str) -> None:
    """Lets go of the variable that `get_variable` has under a name.

    Its memory is freed once nobody else has it. A name that is not there is ignored.

    Args:
        name: The name.

    Raises:
        TypeError: `name` is no str.

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
    variable: Variable, key_dtype: Any, value_dtype: Any, dim: int, initializer: Any
) -> None:
    """Refuses a variable that is not what was asked for.

    Raises:
        ValueError: It is not.
    """
    keys = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype")
    values = validation.dtype_of(value_dtype, validation.VALUE_DTYPES, "value_dtype")
    wanted = {
        "key_dtype": (variable.key_dtype.name, keys.name),
        "value_dtype": (variable.value_dtype.name, values.name),
        "dim": (variable.dim, validation.positive_int(dim, "dim")),
    }
    for argument, (present, asked) in wanted.items():
        if present != asked:
            raise ValueError(_another(variable.name, argument, present, asked))
    asked = row_initializer(
        initializer, dim=dim, value_dtype=variable.value_dtype, name=variable.name
    )
    present = variable.initializer
    if _has_own_seed(initializer):
        present, asked = (dataclasses.replace(one, seed=0) for one in (present, asked))
    if present != asked and not _are_alike(present.draw, asked.draw):
        raise ValueError(_another(variable.name, "initializer", _shown(present), _shown(asked)))


def _has_own_seed(initializer: Any) -> bool:
    """Whether two of this kind differ in nothing but seeds that nobody gave."""
    if isinstance(initializer, (str, dict, type)):
        initializer = keras.initializers.get(initializer)
    if not isinstance(initializer, keras.initializers.Initializer):
        return False
    return initializer.get_config().get("seed", 0) is None


def _are_alike(present: Any, asked: Any) -> bool:
    """Whether two initializers are of one class and config, as TensorFlow's are at each call."""
    if type(present) is not type(asked) or not hasattr(present, "get_config"):
        return False
    config = present.get_config()
    # One that has attributes and tells nothing of them may be another.
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
