# SPDX-License-Identifier: Apache-2.0
"""Tokens of anchors, and the anchors whose tokens a graph has.

A lookup that can be trained takes its anchor's token. So the tokens of a traced step name the
tables that the step looks up, and an optimizer in the same step can tell which of them it lacks.
"""

from __future__ import annotations

import threading
import weakref

import tensorflow as tf

from tf_embed.ops import lookup_gradient
from tf_embed.ops.function_graphs import outermost_graph
from tf_embed.variable.anchor import Anchor

# Weak, so that neither a graph nor a table lives longer. Like any variable, an anchor has no hash.
_Anchors = weakref.WeakValueDictionary[int, Anchor]
_anchors_of: weakref.WeakKeyDictionary[tf.Graph, _Anchors] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def token_of(
    anchor: Anchor, key_dtype: tf.DType, rows: int = -1, dtype: tf.DType | None = None
) -> tf.Tensor:
    """Returns the anchor's token, and notes the anchor if a tf.function is traced.

    Args:
        anchor: The anchor.
        key_dtype, rows, dtype: As in `lookup_gradient.token_of`.
    """
    if not tf.executing_eagerly():
        with _lock:
            _anchors_of.setdefault(outermost_graph(), _Anchors())[id(anchor)] = anchor
    return lookup_gradient.token_of(anchor.value, key_dtype, rows, dtype)


def anchors_of_step() -> list[Anchor]:
    """Returns the anchors whose tokens the outermost tf.function has so far; none if eager.

    A function that it calls counts only if it was traced within it.
    """
    if tf.executing_eagerly():
        return []
    with _lock:
        return list(_anchors_of.get(outermost_graph(), {}).values())
