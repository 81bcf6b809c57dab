# SPDX-License-Identifier: Apache-2.0
"""Ids grouped by example, each example a bag of all its ids.

An *example* is an index of the first axis; ids with a single axis are one example. The other axes
are flattened, because pooling does not depend on the arrangement of the ids within an example.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def by_example(keys: Any, layer_name: str) -> Any:
    """Reshapes keys to two axes: examples, and the keys of an example.

    Args:
        keys: A tf.Tensor, tf.RaggedTensor or tf.SparseTensor, of any rank from 1.
        layer_name: For messages.

    Returns:
        The same keys, in the same container.

    Raises:
        ValueError: If the keys have no axis, or an unknown number of axes.

    Example:
        >>> import tensorflow as tf
        >>> by_example(tf.constant([[[1, 2], [3, 4]]]), "layer").numpy().tolist()
        [[1, 2, 3, 4]]
        >>> by_example(tf.ragged.constant([[[1, 2], []], [[3]]]), "layer").to_list()
        [[1, 2], [3]]
    """
    rank = keys.shape.rank
    if not rank:
        raise ValueError(
            f"`ids` of {layer_name!r} must have a known number of axes, at least one. Received: "
            f"ids.shape={keys.shape}"
        )
    if rank == 2:
        return keys
    if isinstance(keys, tf.RaggedTensor):
        return keys.merge_dims(1, rank - 1)
    if isinstance(keys, tf.SparseTensor):
        shape = keys.dense_shape
        examples = tf.constant(1, tf.int64) if rank == 1 else shape[0]
        width = tf.reduce_prod(shape if rank == 1 else shape[1:])
        return tf.sparse.reshape(keys, tf.stack([examples, width]))
    if rank == 1:
        return keys[tf.newaxis]
    width = keys.shape[1:].num_elements()
    if width is None:
        width = tf.reduce_prod(tf.shape(keys)[1:])
    return tf.reshape(keys, [tf.shape(keys)[0], width])


def listed(keys: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the flat keys with their example numbers.

    Args:
        keys: The result of `by_example`.

    Returns:
        The keys [n], the example number of each key, int64 [n], and the number of examples, int64.

    Example:
        >>> import tensorflow as tf
        >>> _, examples, count = listed(tf.ragged.constant([[7, 8], [], [9]]))
        >>> examples.numpy().tolist(), int(count)
        ([0, 0, 2], 3)
    """
    if isinstance(keys, tf.RaggedTensor):
        examples = tf.cast(keys.value_rowids(), tf.int64)
        return keys.flat_values, examples, tf.cast(keys.nrows(), tf.int64)
    if isinstance(keys, tf.SparseTensor):
        return keys.values, keys.indices[:, 0], keys.dense_shape[0]
    shape = tf.shape(keys, tf.int64)
    return tf.reshape(keys, [-1]), tf.repeat(tf.range(shape[0]), shape[1]), shape[0]
