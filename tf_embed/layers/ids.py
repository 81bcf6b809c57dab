"""Ids, as a user has them, made into keys, as a table has them.

A cast of TensorFlow wraps numbers that do not fit, and two ids would share a row without a word.
So an id keeps its number, or is refused.
"""

from __future__ import annotations

import tensorflow as tf


def cast_ids(ids: tf.Tensor, key_dtype: tf.DType, layer_name: str) -> tf.Tensor:
    """Casts ids to keys, exactly.

    Args:
        ids: Integer tensor of any shape.
        key_dtype: Dtype of the keys.
        layer_name: For messages.

    Returns:
        The same numbers in `key_dtype`.

    Raises:
        TypeError: `ids` are not integers.
        tf.errors.InvalidArgumentError: When it runs, for an id that does not fit `key_dtype`.

    Example:
        >>> cast_ids(tf.constant([3, -1], tf.int8), tf.int64, "layer").numpy().tolist()
        [3, -1]
    """
    if ids.dtype.is_floating and _is_scratch_graph():
        return tf.cast(ids, key_dtype)
    check_integers(ids.dtype, layer_name)
    if ids.dtype == key_dtype:
        return ids
    checks = []
    message = (
        f"`ids` of {layer_name!r} must fit its key dtype {key_dtype.name}; choose a wider "
        '`key_dtype`, such as "int64" or "uint64".'
    )
    if ids.dtype.max > key_dtype.max:
        largest = tf.constant(key_dtype.max, ids.dtype)
        checks.append(tf.debugging.assert_less_equal(ids, largest, message))
    if ids.dtype.min < key_dtype.min:
        least = tf.constant(key_dtype.min, ids.dtype)
        checks.append(tf.debugging.assert_greater_equal(ids, least, message))
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.cast(ids, key_dtype)


def check_integers(dtype: tf.DType, layer_name: str) -> None:
    """Refuses ids that are not integers.

    Raises:
        TypeError: They are not.
    """
    if not dtype.is_integer:
        raise TypeError(
            f"`ids` of {layer_name!r} must be integers, for instance by keras.Input(shape, "
            f'dtype="int64"). Received: dtype={dtype.name}'
        )


def _is_scratch_graph() -> bool:
    """Whether Keras calls a model for its shapes alone, in a graph that never runs.

    It does so to build a subclassed model that it loads, of whose inputs it kept the shapes and
    not the dtypes: ids are float32 there. An error would leave the model's other layers unbuilt,
    and their weights unread. Keras has no public word for that graph, so it is known by its name.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith("scratch_graph"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
