# SPDX-License-Identifier: Apache-2.0
"""`FieldWiseEmbedding`: pools the ids of each field of an example into one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import deserialized, serialized
from tf_embed.tfra.keras.layers.embedding import Embedding
from tf_embed.tfra.keras.layers.examples import by_example, listed


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
class FieldWiseEmbedding(Embedding):
    """Pools the ids of each field of an example into one row.

    Each id belongs to a feature field, numbered from 0 to nslots - 1. `slot_map_fn` returns the
    field of an id. The first axis of the ids is the examples; ids with a single axis are one
    example. The output of a field without ids is 0.

    Args:
        embedding_size: As in `Embedding`, and so are all others except the next two.
        nslots: Number of fields, at least 1.
        slot_map_fn: A function from keys [n] to their fields, integers [n]. The keys of all
            examples are passed together, so a field must depend only on its key. To load a model
            with it, register the function by keras.saving.register_keras_serializable.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.tfra.keras.layers.FieldWiseEmbedding(
        ...     1, 3, slot_map_fn=lambda keys: keys % 3, initializer="ones"
        ... )
        >>> layer(tf.constant([[23, 12, 0], [9, 13, 10]]))[:, :, 0].numpy().tolist()
        [[2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    """

    def __init__(
        self,
        embedding_size: int,
        nslots: int,
        slot_map_fn: Callable[[tf.Tensor], tf.Tensor] | dict[str, Any] | None = None,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Any = "sum",
        initializer: Any = None,
        devices: Any = None,
        name: str | None = None,
        with_unique: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            embedding_size,
            key_dtype,
            value_dtype,
            combiner,
            initializer,
            devices,
            name,
            with_unique,
            **kwargs,
        )
        self.nslots = validation.int_in(nslots, "nslots", most=2**31 - 1)
        self.slot_map_fn = deserialized(slot_map_fn, "slot_map_fn")
        validation.function_of(self.slot_map_fn, "slot_map_fn")

    @given_in_step
    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks up ids and pools the rows of each field of each example.

        Args:
            ids: As in `Embedding`, with at least one axis.
            training: As in `Embedding`.

        Returns:
            [examples, nslots, embedding_size]; [nslots, embedding_size] for ids with a single axis.

        Raises:
            TypeError: If the ids and the keys are not both strings or both integers, or fields are
                not integers.
            ValueError: If the ids have no axis, a key has no field, or a combiner function returns
                a wrong shape.
            tf.errors.InvalidArgumentError: If an id does not fit the key dtype, or a field is not
                from 0 to nslots - 1.
        """
        keys = self._keys(ids)
        flat, examples, num_examples = listed(by_example(keys, self.name))
        # A bag for each field of each example.
        bags = examples * self.nslots + self._fields(flat)
        rows = self._reduced(
            flat, bags, num_examples * self.nslots, validation.is_training(training)
        )
        rows = tf.reshape(rows, tf.stack([num_examples, self.nslots, self.dim]))
        rows = rows[0] if keys.shape.rank == 1 else rows
        return self._as_outputs(tf.ensure_shape(rows, self.compute_output_shape(keys.shape)))

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        """None: the output has no axis of ids."""
        return None

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        shape = tuple(input_shape)
        return (*shape[: min(1, len(shape) - 1)], self.nslots, self.dim)

    @override
    def compute_output_spec(self, ids: Any, training: Any = None) -> Any:
        return self._output_spec(ids, is_ragged=False)

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "nslots": self.nslots,
            "slot_map_fn": serialized(self.slot_map_fn),
        }

    def _fields(self, keys: tf.Tensor) -> tf.Tensor:
        """The field of each key, int64 [n]; 0 for padding, which no bag counts."""
        fields = validation.call_of(self.slot_map_fn, "slot_map_fn", self.name, keys)
        fields = validation.as_tensor(fields, "slot_map_fn(keys)", self.name)
        if not fields.dtype.is_integer:
            raise TypeError(
                f"`slot_map_fn` of {self.name!r} must give integers. Received: "
                f"dtype={fields.dtype.name}"
            )
        if not fields.shape.is_compatible_with(keys.shape):
            raise ValueError(
                f"`slot_map_fn` of {self.name!r} must give a field for each key, "
                f"{keys.shape}. Received: shape={fields.shape}"
            )
        fields = tf.cast(fields, tf.int64)
        if self.padding_id is not None:
            fields = tf.where(self._is_padding(keys), tf.zeros_like(fields), fields)
        # An out-of-range number would be a field of another example.
        message = f"`slot_map_fn` of {self.name!r} must give fields from 0 to {self.nslots - 1}."
        return validation.with_dependencies(
            fields,
            tf.debugging.assert_non_negative(fields, message),
            tf.debugging.assert_less(fields, tf.constant(self.nslots, tf.int64), message),
        )
