# SPDX-License-Identifier: Apache-2.0
"""A tf.data transformation that promotes rows to the cache before the step that uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.table.table import Table


def with_prefetch(
    dataset: tf.data.Dataset,
    prefetch: Callable[[Any], list[tf.Operation]],
    ids: Callable[[Any], Any] | None,
    buffer_size: int,
    owner: str,
    tables: Iterable[Table],
) -> tf.data.Dataset:
    """Returns a dataset of the same elements, each available once its rows are in the cache.

    Args:
        prefetch: Takes the output of `ids` and returns the ops that load the rows.
        ids: Maps an element to its ids; None: `ids_of_element`.
        owner: The layer's name, for messages.

    Raises:
        TypeError: If `dataset` is not a dataset, `ids` not a function, or `buffer_size` not an int.
        ValueError: If `buffer_size` is out of range, `ids` is missing and the element has several
            inputs, or a table is sharded over workers.
    """
    for table in tables:
        if table.spread.is_collective:
            raise ValueError(
                f"{owner!r} can't prefetch for a dataset: {table.options.name!r} is "
                f"{table.spread.where}, which wait for each other, and their datasets may end at "
                "different batches. Call `prefetch` of the layer's variable on all workers, in the "
                f"same order. Received: dataset={validation.shown(dataset)}"
            )
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"`dataset` must be a tf.data.Dataset. Received: dataset={validation.shown(dataset)} "
            f"of type {type(dataset).__name__}"
        )
    # AUTOTUNE is -1.
    validation.int_in(buffer_size, "buffer_size", least=tf.data.AUTOTUNE)
    if ids is not None:
        validation.function_of(ids, "ids")
    # TensorFlow passes only the items of a tuple as separate arguments.
    is_tuple = type(dataset.element_spec) is tuple

    def bring_up(*items: Any) -> Any:
        element = items if is_tuple else items[0]
        chosen = (
            ids_of_element(element, owner)
            if ids is None
            else validation.call_of(ids, "ids", owner, element)
        )
        return _after(element, prefetch, chosen)

    # Sequential calls: the table must get the batches in the order of their use.
    mapped = dataset.map(bring_up, num_parallel_calls=1, deterministic=True)
    return mapped.prefetch(buffer_size)


def ids_of_element(element: Any, owner: str) -> Any:
    """Returns an element's inputs: its first item if it is (x, y[, sample_weight]), or itself.

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
    """Returns the element after the rows of the chosen ids are in the cache."""
    # Composites are unchanged, with their static shapes. They need no dependency: TensorFlow runs
    # all ops of a function that have effects.
    with tf.control_dependencies(prefetch(chosen)):
        return tf.nest.map_structure(
            lambda part: tf.identity(part) if isinstance(part, tf.Tensor) else part, element
        )
