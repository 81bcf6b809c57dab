# SPDX-License-Identifier: Apache-2.0
"""`look_up_together`: lookups of several layers, for a training loop of the user."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras

from tf_embed.layers.ids_layer import IdsLayer
from tf_embed.models.joined_lookups import answered
from tf_embed.table import lookups
from tf_embed.validation import flag, items_of, shown

# Layers whose lookups are in the layer's own tf.functions.
_look_up_apart: weakref.WeakSet[keras.layers.Layer] = weakref.WeakSet()


def look_up_together(
    calls: Sequence[tuple[Any, ...]], *, training: bool | None = None
) -> list[Any]:
    """Calls several layers, whose tables look up together.

    Tables of one process are looked up by one op for rows and one for bags. Tables on workers share
    their exchanges: a single table needs three collectives for a lookup, and here all together need
    three. The result equals the result of separate calls. Use it in a custom training loop: a
    `tf_embed.Model` and a `tf_embed.distributed.Model` do the same in their steps.

    Args:
        calls: A tuple of the layer and its arguments for each call, such as `(items, item_ids)`.
            Layers that are called separately: layers without tables, unbuilt layers, table-batched
            layers, and layers that look up in a tf.function that they call.
        training: The argument `training` of each layer, a bool. Default: None, not passed.

    Returns:
        The outputs of the calls, in their order. Gradients flow through them.

    Raises:
        TypeError: If `calls` is not a list, or `training` is not a bool.
        ValueError: If a call is not a tuple of a layer and its arguments.

    Example:
        >>> items = tf_embed.layers.DynamicEmbedding(8, optimizer="adam", name="items")
        >>> users = tf_embed.layers.DynamicEmbedding(4, optimizer="adam", name="users")
        >>> rows = tf_embed.distributed.look_up_together(
        ...     [(items, tf.constant([3, 5])), (users, tf.constant([7, 7]))], training=True
        ... )
        >>> [one.shape.as_list() for one in rows]
        [[2, 8], [2, 4]]
    """
    calls = items_of(calls, "calls")
    for call in calls:
        is_call = isinstance(call, tuple) and len(call) > 1
        if not is_call or not isinstance(call[0], keras.layers.Layer):
            raise ValueError(
                "`calls` must have tuples of a layer and its arguments. Received: "
                f"calls=[..., {shown(call)}, ...]"
            )
    kwargs = {} if training is None else {"training": flag(training, "training")}
    with lookups.recorded() as recording:
        for layer, *args in calls:
            # Other layers must be called only once: a second call could change their state.
            if _can_record(layer):
                _record(layer, *args, **kwargs)
    together = [one for one in recording.lookups if one.table.joins(one)]
    with answered(recording.lookups, together):
        return [layer(*args, **kwargs) for layer, *args in calls]


def _can_record(layer: keras.layers.Layer) -> bool:
    is_apart = not isinstance(layer, IdsLayer) or layer in _look_up_apart
    return not is_apart and layer.built and layer._records_lookups


def _record(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> None:
    """Records the lookups of a layer's call, except lookups in the layer's own tf.function."""
    if not lookups.call_to_record(layer, *args, **kwargs):
        # The next time, the tf.function has a trace, and recording would run its exchanges.
        _look_up_apart.add(layer)
