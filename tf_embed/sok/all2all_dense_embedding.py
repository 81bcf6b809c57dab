# SPDX-License-Identifier: Apache-2.0
"""`All2AllDenseEmbedding`: a row for each key."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.sok.sok_layer import SokLayer


@keras.saving.register_keras_serializable(package="tf_embed.sok")
class All2AllDenseEmbedding(SokLayer):
    """Looks up a row for each key, in a table that is sharded over workers.

    In the scope of a tf.distribute.MultiWorkerMirroredStrategy, worker `key % workers` has the row
    of a key. Outside of such a scope, the process has all rows. A worker corresponds to a GPU in
    SOK: it has one table, even if it has several GPUs.

    All slots share one table, so keys must be distinct across slots. The table is trained and saved
    as in `tf_embed.layers.DynamicEmbedding`.

    Args:
        max_vocabulary_size_per_gpu: The maximum number of rows on a worker. Further keys get no
            row: lookups return their initial rows, their gradients are dropped, and
            `embedding_variable.stats()["refused"]` counts them, for each worker.
        embedding_vec_size: Number of weights in a row.
        slot_num: Number of slots (feature fields) of a sample.
        nnz_per_slot: Number of keys of a slot.
        dynamic_input: Whether inputs are any number of keys, [None], such as the results of
            `tf.unique`.
        use_hashtable: True: any number is a key. False: keys are row numbers, from 0 to
            `max_vocabulary_size_per_gpu * workers - 1`.
        key_dtype: tf.int64, tf.uint64 or tf.uint32. Inputs of another integer dtype are cast; a key
            that does not fit raises an error. Default: None, tf.int64.
        embedding_initializer: The initial row of a key; see `tf_embed.Variable`. Glorot, He, LeCun
            and other initializers that scale by a shape use the shape of SOK's table on a GPU,
            [max_vocabulary_size_per_gpu, embedding_vec_size]. Orthogonal, which makes a matrix as a
            whole, is called for the new keys of each batch. Default: "random_uniform", from -0.05
            to 0.05.
        optimizer: The table's own optimizer; see `tf_embed.layers.DynamicEmbedding`. Default: None,
            the model's optimizer, in an `OptimizerWrapper`.
        name: Name of the layer and of its table.
        **kwargs: `trainable` and `dtype` of keras.layers.Layer.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import sok
        >>> layer = sok.All2AllDenseEmbedding(
        ...     max_vocabulary_size_per_gpu=1024, embedding_vec_size=4, slot_num=2, nnz_per_slot=3
        ... )
        >>> layer(tf.ones([8, 2, 3], tf.int64)).shape
        TensorShape([8, 2, 3, 4])
    """

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: Any = tf.int64,
        embedding_initializer: Any = "random_uniform",
        *,
        optimizer: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        nnz_per_slot = validation.int_in(nnz_per_slot, "nnz_per_slot")
        dynamic_input = validation.flag(dynamic_input, "dynamic_input")
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
        self.nnz_per_slot = nnz_per_slot
        self.dynamic_input = dynamic_input

    @given_in_step
    def call(self, inputs: Any, training: bool = True) -> tf.Tensor:
        """Looks up keys.

        Args:
            inputs: Integers, [batch, slot_num, nnz_per_slot], or another shape that begins with the
                batch and has as many keys per sample; with `dynamic_input` [n].
            training: Whether the layer is training.

        Returns:
            [batch, slot_num, nnz_per_slot, embedding_vec_size]; with `dynamic_input`
            [n, embedding_vec_size].

        Raises:
            TypeError: If the inputs are not a dense tensor of integers.
            ValueError: If they have another size.
            tf.errors.InvalidArgumentError: If a key does not fit the key dtype, or is not a row
                number and `use_hashtable` is False. Also in place of ValueError, if the shape is
                not known before run time.
        """
        is_training = validation.is_training(training)
        if isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(_must_be_dense(self.name, type(inputs).__name__))
        keys = self._known_keys(self._sized(self._keys(inputs)))
        return self._as_outputs(self._rows(keys, is_training))

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        self._check_size(tf.TensorShape(input_shape))
        if self.dynamic_input:
            return (*tuple(input_shape), self.embedding_vec_size)
        return (input_shape[0], self.slot_num, self.nnz_per_slot, self.embedding_vec_size)

    @override
    def compute_output_spec(self, inputs: Any, training: Any = True) -> Any:
        if getattr(inputs, "sparse", False) or getattr(inputs, "ragged", False):
            raise TypeError(_must_be_dense(self.name, "a sparse or ragged keras.Input"))
        return self._output_spec(inputs, is_ragged=False)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: there is no padding key."""

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        return {
            **super().get_config(),
            "nnz_per_slot": self.nnz_per_slot,
            "dynamic_input": self.dynamic_input,
        }

    def _sized(self, keys: tf.Tensor) -> tf.Tensor:
        """The keys in their shape: [batch, slot_num, nnz_per_slot], or [n]."""
        self._check_size(keys.shape)
        if self.dynamic_input:
            return tf.ensure_shape(keys, [None])
        batch = keys.shape[0]
        if not keys.shape.is_fully_defined():
            size = tf.shape(keys)[0] * (self.slot_num * self.nnz_per_slot)
            check = tf.debugging.assert_equal(tf.size(keys), size, self._must_have_size())
            keys = validation.with_dependencies(keys, check)
        shape = [-1 if batch is None else batch, self.slot_num, self.nnz_per_slot]
        if batch is None:
            shape[0] = tf.shape(keys)[0]
        return tf.reshape(keys, shape)

    def _check_size(self, shape: tf.TensorShape) -> None:
        """Refuses a shape of another size.

        Raises:
            ValueError: If it has another size.
        """
        if shape.rank is None:
            return
        if self.dynamic_input:
            wrong = shape.rank != 1
        else:
            rest = list(shape)[1:]
            known = None not in rest
            size = self.slot_num * self.nnz_per_slot
            wrong = shape.rank == 0 or (known and math.prod(rest) != size)
        if wrong:
            raise ValueError(f"{self._must_have_size()} Received: inputs.shape={shape}")

    def _must_have_size(self) -> str:
        if self.dynamic_input:
            return (
                f"`inputs` of {self.name!r} must be keys [n], because dynamic_input=True: use "
                "tf.reshape(inputs, [-1])."
            )
        return (
            f"`inputs` of {self.name!r} must have the shape [batch, slot_num, nnz_per_slot] = "
            f"[batch, {self.slot_num}, {self.nnz_per_slot}], or as many keys for each sample."
        )


def _must_be_dense(name: str, received: str) -> str:
    return (
        f"`inputs` of {name!r} must be a dense tensor; tf_embed.sok.DistributedEmbedding takes "
        f"sparse ones. Received: {received}"
    )
