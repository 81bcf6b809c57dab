# SPDX-License-Identifier: Apache-2.0
"""Ids that a model declared ragged or sparse, and gets dense.

`model.export` makes a signature for dense ids of them, because signatures take tensors. The filler
in short rows of a dense batch would be looked up like any other id.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class DeclaredInputs:
    """The symbolic ids on which a layer was called while a functional model was built."""

    def __init__(self) -> None:
        self._shapes: set[Any] = set()
        self._dense_shapes: set[Any] = set()

    def declare(self, ids: Any, feature: int = 0) -> None:
        """Keeps the shape of symbolic ids.

        Args:
            ids: A keras.KerasTensor, or anything else, which is not kept.
            feature: The number of the feature that they are of.
        """
        if not isinstance(ids, keras.KerasTensor):
            return
        is_dense = not getattr(ids, "ragged", False) and not getattr(ids, "sparse", False)
        (self._dense_shapes if is_dense else self._shapes).add((feature, tuple(ids.shape)))

    def check(self, ids: Any, owner: str, feature: int = 0) -> None:
        """Refuses dense ids in a graph, of the shape in which ragged or sparse ones were declared.

        Dense ids pass if dense ones of that shape were declared too, because a layer may serve
        several inputs. In eager execution nothing is refused: shapes have no unknown lengths there.

        Args:
            ids: The ids that the layer is called on. The layer has no padding id.
            owner: The name of the layer.
            feature: As in `declare`.

        Raises:
            ValueError: If the ids are dense and only ragged or sparse ones were declared.
        """
        if tf.executing_eagerly() or not isinstance(ids, tf.Tensor) or ids.shape.rank is None:
            return
        shape = tuple(ids.shape)
        if (feature, shape) in self._shapes - self._dense_shapes:
            raise ValueError(
                f"`padding_id` of {owner!r} must be set for dense ids in place of the ragged or "
                "sparse ones of its keras.Input, as in the signature that `model.export` makes: "
                "without it, what fills short lines is looked up as an id. Received: "
                f"padding_id=None, ids of shape={shape}"
            )
