# SPDX-License-Identifier: Apache-2.0
"""`DistributedEmbedding`: the keys of each slot pooled."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.sok.sok_layer import SokLayer

COMBINERS = ("sum", "mean")


@keras.saving.register_keras_serializable(package="tf_embed.sok")
class DistributedEmbedding(SokLayer):
    """Looks up the keys of each slot and pools their rows, in a table sharded over workers.

    The table is the same as in `All2AllDenseEmbedding`, with one key space for all slots.

    Args:
        combiner: "sum" or "mean" of the rows of a slot. A slot without keys gives zeros.
        max_vocabulary_size_per_gpu: The maximum number of rows on a worker; see
            `All2AllDenseEmbedding`.
        embedding_vec_size: Number of weights in a row.
        slot_num: Number of slots (feature fields) of a sample.
        max_nnz: The maximum number of keys in a slot.
        max_feature_num: The maximum number of keys in a sample. It has no effect, because no memory
            is reserved for it. Default: None, `slot_num * max_nnz`.
        use_hashtable: As in `All2AllDenseEmbedding`, and so are all others below.
        key_dtype: Default: None, tf.int64.
        embedding_initializer: Default: "random_uniform", from -0.05 to 0.05.
        optimizer: The table's own optimizer. Default: None, the model's optimizer.
        name: Name of the layer and of its table.
        **kwargs: `trainable` and `dtype` of keras.layers.Layer.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import sok
        >>> layer = sok.DistributedEmbedding(
        ...     combiner="sum", max_vocabulary_size_per_gpu=1024, embedding_vec_size=1,
        ...     slot_num=2, max_nnz=3, embedding_initializer="ones",
        ... )
        >>> keys = tf.sparse.SparseTensor([[0, 0], [0, 1], [3, 0]], tf.constant([7, 8, 9]), [4, 3])
        >>> layer(keys).numpy().tolist()  # 2 samples of 2 slots
        [[[2.0], [0.0]], [[0.0], [1.0]]]
    """

    def __init__(
        self,
        combiner: str,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        max_nnz: int,
        max_feature_num: int | None = None,
        use_hashtable: bool = True,
        key_dtype: Any = tf.int64,
        embedding_initializer: Any = "random_uniform",
        *,
        optimizer: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        validation.one_of(combiner, COMBINERS, "combiner")
        max_nnz = validation.int_in(max_nnz, "max_nnz")
        if max_feature_num is not None:
            max_feature_num = validation.int_in(max_feature_num, "max_feature_num")
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            optimizer,
            name,
            **kwargs,
        )
        self.combiner = combiner
        self.max_nnz = max_nnz
        self.max_feature_num = max_feature_num

    @given_in_step
    def call(self, inputs: Any, training: bool = True) -> tf.Tensor:
        """Looks up keys and pools their rows.

        Args:
            inputs: A tf.SparseTensor [batch * slot_num, max_nnz]: the slots of the first sample,
                then of the second, and so on. The second size may be less than `max_nnz`.
            training: Whether the layer is training.

        Returns:
            [batch, slot_num, embedding_vec_size].

        Raises:
            TypeError: If the inputs are not a tf.SparseTensor of integers.
            ValueError: If they have another shape.
            tf.errors.InvalidArgumentError: If a key does not fit the key dtype, or is not a row
                number and `use_hashtable` is False. Also in place of ValueError, if the shape is
                not known before run time.
        """
        is_training = validation.is_training(training)
        if not isinstance(inputs, tf.SparseTensor):
            raise TypeError(_must_be_sparse(self.name, type(inputs).__name__))
        self._check_shape(inputs.shape)
        if not inputs.shape.is_fully_defined():
            inputs = self._checked(inputs)
        keys = self._keys(inputs)
        pooled = self._pooled(
            self._known_keys(keys.values, keys.indices),
            (keys.indices, keys.dense_shape),
            None,
            self.combiner,
            is_training,
        )
        rows = inputs.shape[0]
        batch = -1 if rows is None else rows // self.slot_num
        shape = [batch, self.slot_num, self.embedding_vec_size]
        return self._as_outputs(tf.reshape(pooled, shape))

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        self._check_shape(tf.TensorShape(input_shape))
        rows = input_shape[0]
        batch = None if rows is None else rows // self.slot_num
        return (batch, self.slot_num, self.embedding_vec_size)

    @override
    def compute_output_spec(self, inputs: Any, training: Any = True) -> Any:
        if not (isinstance(inputs, tf.SparseTensor) or getattr(inputs, "sparse", False)):
            raise TypeError(_must_be_sparse(self.name, "a keras.Input without sparse=True"))
        return self._output_spec(inputs, is_ragged=False)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: slots are pooled."""

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "max_nnz": self.max_nnz,
            "max_feature_num": self.max_feature_num,
        }

    def _check_shape(self, shape: tf.TensorShape) -> None:
        """Refuses other shapes, as far as the shape is known.

        Raises:
            ValueError: If the shape is wrong.
        """
        if shape.rank is None:
            return
        wrong = shape.rank != 2
        if not wrong:
            rows, columns = shape
            wrong = rows is not None and rows % self.slot_num != 0
            wrong |= columns is not None and columns > self.max_nnz
        if wrong:
            raise ValueError(f"{self._must_have_shape()} Received: inputs.shape={shape}")

    def _checked(self, inputs: tf.SparseTensor) -> tf.SparseTensor:
        """The inputs, with checks of their shape at run time."""
        message = self._must_have_shape()
        shape = tf.ensure_shape(inputs.dense_shape, [2])
        checks = [
            tf.debugging.assert_equal(shape[0] % self.slot_num, tf.constant(0, tf.int64), message),
            tf.debugging.assert_less_equal(shape[1], tf.constant(self.max_nnz, tf.int64), message),
        ]
        # Each reader of the inputs reads the shape, so the checks are dependencies of it.
        return tf.SparseTensor(
            inputs.indices, inputs.values, validation.with_dependencies(shape, *checks)
        )

    def _must_have_shape(self) -> str:
        return (
            f"`inputs` of {self.name!r} must have the shape [batch * slot_num, max_nnz] = "
            f"[batch * {self.slot_num}, {self.max_nnz}]; fewer columns are allowed."
        )


def _must_be_sparse(name: str, received: str) -> str:
    return (
        f"`inputs` of {name!r} must be a tf.SparseTensor; tf_embed.sok.All2AllDenseEmbedding takes "
        f"dense ones. Received: {received}"
    )
