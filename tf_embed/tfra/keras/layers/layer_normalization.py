# SPDX-License-Identifier: Apache-2.0
"""`LayerNormalization`: Keras's layer, for ragged inputs too."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
class LayerNormalization(keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization that also takes tf.RaggedTensor.

    A ragged input is normalized over uniform axes that follow its ragged axes: with `axis=-1`, each
    row of [batch, (ids), dim] is normalized by itself, as in a dense tensor.

    Args:
        axis: As in keras.layers.LayerNormalization, and so are all others.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> rows = tf.ragged.constant([[[1.0, 3.0]], [[5.0, 1.0], [2.0, 6.0]]], ragged_rank=1)
        >>> layer = tf_embed.tfra.keras.layers.LayerNormalization(epsilon=1e-9)
        >>> [[round(x) for row in bag for x in row] for bag in layer(rows).to_list()]
        [[-1, 1], [1, -1, -1, 1]]
    """

    axis: Any

    @override
    def build(self, input_shape: Any) -> None:
        axes = self.axis if isinstance(self.axis, (list, tuple)) else [self.axis]
        # From the end, because ragged axes are at the beginning.
        self.axis = [axis - len(input_shape) if axis >= 0 else axis for axis in axes]
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Normalizes.

        Raises:
            ValueError: If an axis to normalize over is ragged, or precedes a ragged axis.
        """
        if not isinstance(inputs, tf.RaggedTensor):
            return super().call(inputs)
        if min(self.axis) <= -inputs.flat_values.shape.rank:
            raise ValueError(
                f"`axis` of {self.name!r} must be behind the ragged axes of a ragged input. "
                f"Received: axis={self.axis}, inputs.shape={inputs.shape}"
            )
        return inputs.with_flat_values(super().call(inputs.flat_values))

    @override
    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        shape = self.compute_output_shape(inputs.shape)
        options = {"ragged": True} if getattr(inputs, "ragged", False) else {}
        return keras.KerasTensor(shape, dtype=self.compute_dtype, **options)
