# SPDX-License-Identifier: Apache-2.0
"""`SquashedEmbedding`: pools all ids of an example into one row."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.pooling import Embedder
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.tfra.keras.layers.embedding import Embedding
from tf_embed.tfra.keras.layers.examples import by_example, listed
from tf_embed.tfra.keras.layers.reduction import one_row_each


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
class SquashedEmbedding(Embedding):
    """Pools all ids of an example into one row.

    The first axis of the ids is the examples; ids with a single axis are one example. All other
    axes are pooled at once, so a mean is the mean of all ids, not of means. The output of an
    example without ids is 0.

    Args:
        embedding_size: As in `Embedding`, and so are all others.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.tfra.keras.layers.SquashedEmbedding(2, initializer="ones")
        >>> layer(tf.constant([[15, 2], [4, 92], [22, 4]])).numpy().tolist()
        [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
        >>> layer(tf.constant([2, 7, 4, 1, 5])).numpy().tolist()
        [5.0, 5.0]
        >>> layer(tf.ragged.constant([[1, 2, 3], []])).numpy().tolist()
        [[3.0, 3.0], [0.0, 0.0]]
    """

    @given_in_step
    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks up ids and pools the rows of each example.

        Args:
            ids: As in `Embedding`, with at least one axis.
            training: As in `Embedding`.

        Returns:
            [examples, embedding_size]; [embedding_size] for ids with a single axis.

        Raises:
            TypeError: If the ids and the keys are not both strings or both integers.
            ValueError: If the ids have no axis, or a combiner function returns a wrong shape.
            tf.errors.InvalidArgumentError: If an id does not fit the key dtype.
        """
        keys = self._keys(ids)
        squashed = self._squashed(by_example(keys, self.name), validation.is_training(training))
        return self._as_outputs(squashed[0] if keys.shape.rank == 1 else squashed)

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        """None: the output has no axis of ids."""
        return None

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        shape = tuple(input_shape)
        return (*shape[: min(1, len(shape) - 1)], self.dim)

    @override
    def compute_output_spec(self, ids: Any, training: Any = None) -> Any:
        return self._output_spec(ids, is_ragged=False)

    def _squashed(self, keys: Any, training: bool) -> tf.Tensor:
        """Pools keys with two axes to rows [examples, dim]."""
        fused = self._fused_combiner()
        if fused is not None:
            return Embedder(
                rows=lambda keys: self._rows(keys, training),
                pooled=lambda keys, bags, weights: self._pooled(
                    keys, bags, weights, fused, training
                ),
                dim=self.dim,
                combiner=fused,
                name=self.name,
            )(keys)
        if isinstance(keys, tf.Tensor) and callable(self.combiner) and self.padding_id is None:
            rows = self._clipped_rows(keys, training)
            reduced = one_row_each(self.combiner, rows, self.dim, self.name)
            # Without ids, a maximum is the lowest number, and a product is 1.
            return tf.where(tf.shape(keys)[1] > 0, reduced, tf.zeros_like(reduced))
        return self._reduced(*listed(keys), training)
