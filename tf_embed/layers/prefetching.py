# SPDX-License-Identifier: Apache-2.0
"""A tf.data transformation that brings rows to the cache before the step that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed import validation


def with_prefetch(
    dataset: tf.data.Dataset,
    prefetch: Callable[[Any], list[tf.Operation]],
    ids: Callable[[Any], Any] | None,
    buffer_size: int,
    owner: str,
) -> tf.data.Dataset:
    """The same elements, each of them after the rows of its ids were brought up.

    Args:
        dataset: A dataset of batches.
        prefetch: Takes the output of `ids` and returns the ops that load their rows.
        ids: From an element to its ids; None: `ids_of_element`.
        buffer_size: How many elements are ahead.
        owner: The layer's name, for messages.

    Raises:
        TypeError: If `dataset` is not a dataset, `ids` not a function, or `buffer_size` not an int.
        ValueError: If `buffer_size` is out of range, or `ids` is missing and the element has
            several inputs.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"`dataset` must be a tf.data.Dataset. Received: dataset={validation.shown(dataset)} "
            f"of type {type(dataset).__name__}"
        )
    # AUTOTUNE is -1.
    validation.int_in(buffer_size, "buffer_size", least=tf.data.AUTOTUNE)
    if ids is not None:
        validation.function_of(ids, "ids")
    # TensorFlow passes the items of a tuple as separate arguments, and nothing else.
    is_tuple = type(dataset.element_spec) is tuple

    def bring_up(*items: Any) -> Any:
        element = items if is_tuple else items[0]
        chosen = (
            ids_of_element(element, owner)
            if ids is None
            else validation.call_of(ids, "ids", owner, element)
        )
        return _after(element, prefetch, chosen)

    # One call at a time: a table takes batches in the order in which they will be used.
    mapped = dataset.map(bring_up, num_parallel_calls=1, deterministic=True)
    return mapped.prefetch(buffer_size)


def ids_of_element(element: Any, owner: str) -> Any:
    """The inputs of an element: the element, or its first item if it is (x, y[, sample_weight]).

    Raises:
        ValueError: If there are several inputs.
    """
    inputs = element[0] if type(element) is tuple and element else element
    if isinstance(inputs, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return inputs
    raise ValueError(
        f"`ids` must be a function from an element of the dataset to the ids of {owner!r}, such as "
        "`lambda element: element[0]['item']`, if the model has several inputs. Received: ids=None "
        f"and inputs of type {type(inputs).__name__}"
    )


@tf.autograph.experimental.do_not_convert
def _after(element: Any, prefetch: Callable[[Any], list[tf.Operation]], chosen: Any) -> Any:
    """The element, once the rows of the chosen ids were brought up."""
    # Composites stay as they are, with their static shapes: TensorFlow runs the ops of a function
    # that have effects, whether anything depends on them or not.
    with tf.control_dependencies(prefetch(chosen)):
        return tf.nest.map_structure(
            lambda part: tf.identity(part) if isinstance(part, tf.Tensor) else part, element
        )
