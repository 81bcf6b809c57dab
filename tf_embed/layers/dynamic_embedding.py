# SPDX-License-Identifier: Apache-2.0
"""`DynamicEmbedding`: keras.layers.Embedding without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers import keras_arguments
from tf_embed.layers.earlier_configs import with_present_arguments
from tf_embed.layers.pooling import Embedder, check_axes
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import TableLayer, serialized
from tf_embed.ops import pooling_ops
from tf_embed.ops.function_graphs import innermost_graph
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.lookups import Lookup
from tf_embed.table.policies import TablePolicy
from tf_embed.table.sharding import PartitionFn
from tf_embed.table.storage import Storage
from tf_embed.variable.lookup import gradient_token


@keras.saving.register_keras_serializable(package="tf_embed")
class DynamicEmbedding(TableLayer):
    """Turns integers of any size into dense vectors, without a vocabulary.

    The layer also takes the arguments of keras.layers.Embedding, so `DynamicEmbedding(1000, 16)` is
    the layer that `Embedding(1000, 16)` is, except that ids may be any integers.

    The layer owns a table that grows as you train: an id gets its row with the first gradient that
    reaches it. Until then a lookup returns its initial row and stores nothing, so evaluation and
    prediction never change a table.

    A table is trained in one of two ways: by its own optimizer, `optimizer=`, whatever the model
    is compiled with, or by the model's optimizer, wrapped in `tf_embed.DynamicEmbeddingOptimizer`.
    Its own optimizer takes precedence. Only the rows that a step touches change.

    `.keras` files, `.weights.h5` files and tf.train.Checkpoint save rows, optimizer slots and step.
    `model.export` and tf.saved_model.save save the rows. `get_weights` and `set_weights`, and so
    keras.callbacks.EarlyStopping(restore_best_weights=True), copy the rows and, as for any weight,
    no optimizer state. `set_weights` refuses arrays that NumPy computed from the result of
    `get_weights`. tf.train.Checkpoint finds layers in lists and dicts only through the model's
    optimizer, once that is built, because Keras leaves them out. `layer.trainable = False` stops
    updates, even in a step that Keras has traced. `model.export` makes a signature for dense ids,
    so a served model takes dense ids with `padding_id` in place of ragged or sparse ids. Without
    `padding_id`, every export of such a model raises ValueError, unless its function converts the
    layer's ids to ragged or sparse ids again.

    A keras.Sequential without a keras.Input casts ids to int64 (uint64 for uint64 keys) before the
    layer sees them, as Keras does for any first layer. With an Input of the ids' dtype, ids that do
    not fit the key dtype are refused. If the layer is in a model within a model, the outer model
    needs an Input of that dtype; otherwise Keras casts ids to floats and back.

    Ids must not lose digits before the layer sees them. float32 is exact only for whole numbers
    below 2^24, float64 below 2^53, and an Input of "int32" wraps wider ids. In a graph, as in `fit`
    and `predict`, the layer refuses ids that a cast has wrapped, and ids from floats that are not
    below that limit, even if the floats were computed. It finds a cast through slices, gathers,
    concatenations and similar ops. It can't find a cast in eager execution (a call of the model, or
    `run_eagerly=True`), in a tf.data pipeline, in NumPy, or across a tf.function.

    A layer may be called in loops, maps and conditions (tf.while_loop, tf.map_fn, tf.cond, a
    keras.layers.RNN cell), but not in keras.remat; see `tf_embed.embedding_lookup`.

    Args:
        dim: Number of weights in a row, an int from 1. Required, unless `output_dim` is given.
        key_dtype: "int64", "int32", "uint64", "uint32" or "string". Ids of another integer dtype
            are cast; an id that does not fit is an error. Strings are any bytes, and different
            strings never share a row.
        value_dtype: "float32", "float16", "bfloat16" or "float64": how weights are stored. The
            output has the compute dtype of the layer's dtype policy. Narrow weights are trained in
            float32 and rounded after each step, so a step that is small relative to the weight,
            less than 1/512 of it in bfloat16, 1/4096 in float16, can be lost.
        initializer: The initial row of an id; see `tf_embed.Variable`.
        combiner: None, or how rows are pooled over the last axis of ids: "sum"; "mean", which
            divides by the sum of the weights; or "sqrtn", which divides by the root of the sum of
            their squares. An empty bag is 0. Ids must then have two axes or more, because ids of
            shape [batch] have nothing to pool: each example has a single id.
        optimizer: The table's own optimizer: a Keras optimizer, or a name ("adam",
            "rowwise_adagrad"); see `tf_embed.DynamicEmbeddingOptimizer` for their effect on tables.
            `use_ema` and `loss_scale_factor` work only in the model's optimizer. The layer keeps a
            copy, so several layers may share an argument; change the rate later by
            `layer.optimizer.learning_rate`. The model's optimizer then leaves the table alone: its
            clipping, decay and schedule do not apply to the table. A `global_clipnorm` of the
            table's optimizer clips the norm of this table's gradient. `load_weights` takes step and
            rate from the file, as Keras does: set the rate again if the file is of another
            optimizer.
        padding_id: The id of padding, a str if keys are strings. Its row is zeros, it is never
            stored or trained, and pooling does not count it. Without a combiner, the layer computes
            a mask from it.
        devices: The device of each shard, CPUs or one or several GPUs; see `tf_embed.Variable`.
        partitioner: Chooses the shard of a key; see `tf_embed.Variable`.
        init_size: Number of rows to reserve; see `tf_embed.Variable`.
        unknown_value: None; or the output, a number or an array [dim], for ids without a row when
            the layer is not training. In training they get their initial row.
        unknown_in_training: Whether ids without a row also get `unknown_value` in training, so that
            ids that are not yet admitted contribute nothing. Lookups then are the same in training
            and outside. The step that adds an id's row also sees `unknown_value`; the gradient
            trains the initial row. Default: False.
        policy: A `tf_embed.TablePolicy` for the admission, eviction and expiry of rows. A call with
            `training=True` then counts as a use of the rows.
        storage: A `tf_embed.Storage`: which memories, and which folder on disk, hold the rows, and
            how many bytes of each. Default: None, a single memory without a bound.
        distribution: How the table is spread over the workers of a
            tf.distribute.MultiWorkerMirroredStrategy; see `tf_embed.Variable`.
        output_dim: The name of `dim` in keras.layers.Embedding. Give either `dim` or `output_dim`.
            Default: None, `dim` is given.
        input_dim: The expected number of ids, as in keras.layers.Embedding; None if it is unknown.
            It is no bound: any integer stays an id, and further ids get rows. It reserves rows, as
            `init_size` does, and Glorot, He and LeCun initializers are scaled for the shape
            (input_dim, output_dim). May be the first argument, if `output_dim` is the second; give
            all others by name then.
        embeddings_initializer: Another name of `initializer`. Give either. Default: None.
        embeddings_regularizer: None; or a Keras regularizer, its name, or a function of rows
            [n, dim]. Each call with `training=True` adds to `losses` its value for the n distinct
            rows that the call looks up. A row counts once, however often its id occurs, and padding
            does not count. A frozen layer adds nothing, as in Keras. keras.layers.Embedding adds
            the value for its whole matrix, in evaluation too. So the losses are equal if a call
            looks up all rows. Otherwise the rows that a step does not look up are not pulled to 0,
            and `evaluate` reports the loss without this part. With a tf.distribute strategy each
            replica adds the value for its own ids, and the mean of the replicas counts. The layer
            then can't be called in loops, maps and conditions.
        mask_zero: Whether 0 is padding: True is another way to say `padding_id=0`. Unlike in
            keras.layers.Embedding, the output for 0 is zeros, and not a row.
        weights: None; or a matrix [n, dim] of pretrained rows, or a list with it. Row i becomes
            the row of the id i. If `input_dim` is given, it must be n. For other ids use
            `layer.variable.upsert(ids, rows)`. A config does not hold them.
        name: Name of the layer and of its table.
        **kwargs: `trainable`, `dtype` and `activity_regularizer` of keras.layers.Layer.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, the optimizer can't train tables, not exactly
            one of `dim` and `output_dim` is given, or an argument of keras.layers.Embedding is
            given that has no meaning for a table: `embeddings_constraint`, `lora_rank`,
            `lora_alpha` or `quantization_config`.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, initializer="ones", padding_id=0)
        >>> layer(tf.constant([[10**12, 0]])).numpy().tolist()
        [[[1.0, 1.0], [0.0, 0.0]]]
        >>> pooled = tf_embed.layers.DynamicEmbedding(2, initializer="ones", combiner="sum")
        >>> pooled(tf.ragged.constant([[1, 2, 3], []], dtype=tf.int64)).numpy().tolist()
        [[3.0, 3.0], [0.0, 0.0]]
        >>> tf_embed.layers.DynamicEmbedding(1000, 8, mask_zero=True, name="items")
        <DynamicEmbedding name='items', dim=8, key_dtype=int64, value_dtype=float32, not built>
        >>> pretrained = tf_embed.layers.DynamicEmbedding(output_dim=2, weights=[[1, 2], [3, 4]])
        >>> pretrained(tf.constant([1])).numpy().tolist()
        [[3.0, 4.0]]
    """

    def __init__(
        self,
        dim: int | None = None,
        key_dtype: Any = "int64",
        value_dtype: Any = "float32",
        initializer: Any = "uniform",
        combiner: str | None = None,
        *,
        optimizer: Any = None,
        padding_id: int | str | None = None,
        devices: Sequence[str] | str | None = None,
        partitioner: PartitionFn | dict[str, Any] | None = None,
        init_size: int = 0,
        unknown_value: Any = None,
        unknown_in_training: bool = False,
        policy: TablePolicy | dict[str, Any] | None = None,
        storage: Storage | dict[str, Any] | None = None,
        distribution: WorkerSharding | dict[str, Any] | str | None = None,
        output_dim: int | None = None,
        input_dim: int | None = None,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs = keras_arguments.supported(kwargs)
        dim, key_dtype, input_dim = keras_arguments.sizes(
            dim, key_dtype, value_dtype, output_dim, input_dim
        )
        super().__init__(
            dim,
            key_dtype,
            value_dtype,
            keras_arguments.initializer_of(initializer, embeddings_initializer, input_dim, dim),
            optimizer=optimizer,
            padding_id=keras_arguments.padding_id_of(padding_id, mask_zero, key_dtype),
            devices=devices,
            partitioner=partitioner,
            init_size=keras_arguments.init_size_of(init_size, input_dim),
            unknown_value=unknown_value,
            unknown_in_training=unknown_in_training,
            policy=policy,
            storage=storage,
            distribution=distribution,
            name=name,
            **kwargs,
        )
        self.combiner = validation.one_of(combiner, validation.COMBINERS, "combiner", or_none=True)
        self.embeddings_regularizer = keras_arguments.regularizer_of(embeddings_regularizer)
        matrix = keras_arguments.matrix_of(weights, self.key_dtype, input_dim, dim)
        if matrix is not None:
            self._put_matrix(matrix)

    @property
    def output_dim(self) -> int:
        """Number of weights in a row, under the name that keras.layers.Embedding uses."""
        return self.dim

    @property
    def embeddings(self) -> NoReturn:
        """Not there, because a table has no matrix of all rows.

        Raises:
            AttributeError: Always. The message says how to get rows.
        """
        raise AttributeError(
            f"{self.name!r} has no `embeddings`, a matrix of all rows: look rows up by "
            "`layer(ids)`, or export all ids and rows by `layer.variable.export()`."
        )

    def call(self, ids: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks up ids.

        Args:
            ids: Integers, or strings: a tensor of any shape, a tf.RaggedTensor or a
                tf.SparseTensor. Absent positions of a sparse tensor give zeros. Floats are refused,
                except in a graph: Keras exports a subclassed model with inputs of float32, so
                whole numbers that float32 holds exactly are ids there.
            weights: With a combiner: the weight of each id, in the same container as the ids.
            training: Whether the layer is training. `unknown_value` and `policy` depend on it.

        Returns:
            Rows, ids.shape + [dim], ragged if the ids are ragged. A combiner removes the last axis
            of ids, and the result is ragged only if a remaining axis is ragged.

        Raises:
            TypeError: If the ids and the keys are not both integers or both strings, or `training`
                is a tensor.
            ValueError: If there are weights but no combiner, or their container or shape differs
                from the ids', or ids have fewer than two axes with a combiner.
            tf.errors.InvalidArgumentError: If an id does not fit the key dtype, or a cast in the
                graph has changed it.
        """
        is_training = validation.is_training(training)
        outputs = self._outputs(ids, weights, is_training)
        if self.embeddings_regularizer is not None and is_training and self.trainable:
            self.add_loss(self._penalty(ids))
        return outputs

    @given_in_step
    def _outputs(self, ids: Any, weights: Any, is_training: bool) -> Any:
        """Returns the result of `call`."""
        embedder = Embedder(
            rows=lambda keys: self._rows(keys, is_training),
            pooled=lambda keys, bags, weights: self._pooled(
                keys, bags, weights, self.combiner, is_training
            ),
            dim=self.dim,
            combiner=self.combiner,
            name=self.name,
        )
        return self._as_outputs(embedder(self._keys(ids), weights))

    @given_in_step
    def _penalty(self, ids: Any) -> tf.Tensor:
        """Returns the regularizer's value for the distinct rows of ids in a training step."""
        if tf.compat.v1.get_default_graph() is not innermost_graph():
            raise ValueError(
                f"`embeddings_regularizer` of {self.name!r} must be None in a loop or a condition, "
                "whose losses Keras can't collect: regularize the rows that it returns."
            )
        keys = self._keys(ids)
        if isinstance(keys, tf.SparseTensor):
            keys = keys.values
        elif isinstance(keys, tf.RaggedTensor):
            keys = keys.flat_values
        keys = tf.reshape(keys, [-1])
        if self.padding_id is not None:
            keys = tf.boolean_mask(keys, tf.logical_not(self._is_padding(keys)))
        variable = self.variable
        # The lookup of the outputs has counted the use of the rows, so this one does not.
        lookup = Lookup(
            variable.table,
            tf.unique(keys)[0],
            training=False,
            token=gradient_token(variable),
            defaults=self._defaults(training=True),
        )
        rows = variable.table.look_up(lookup)
        # Sums of half precision would overflow.
        rows = tf.cast(rows, pooling_ops.compute_dtype(variable.value_dtype))
        function, argument = self.embeddings_regularizer, "embeddings_regularizer"
        penalty = validation.call_of(function, argument, self.name, rows)
        return validation.as_tensor(penalty, f"{argument}(rows)", self.name)

    def _put_matrix(self, matrix: np.ndarray) -> None:
        """Writes the rows of the ids 0, 1, 2, ..., except for padding, which has no row."""
        ids = np.arange(len(matrix))
        if self.padding_id is not None:
            kept = ids != self.padding_id
            ids, matrix = ids[kept], matrix[kept]
        with tf.init_scope():
            self._table_made().upsert(tf.cast(ids, self.key_dtype), matrix, distinct=True)

    def set_weights(self, weights: Any) -> None:
        """Replaces the rows by the rows of another layer, or of this layer at another time.

        Args:
            weights: What `get_weights` gave, or copies or pickles of it.

        Raises:
            TypeError: If it is not a list of arrays.
            ValueError: If it is a matrix, or has rows of another dim or dtype, or the layer is not
                built.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.layers.DynamicEmbedding(2, weights=[[1, 2], [3, 4]])
            >>> layer.build()
            >>> before = layer.get_weights()
            >>> layer.variable.upsert([0], [[5.0, 6.0]])
            >>> layer.set_weights(before)
            >>> layer.variable.lookup([0]).numpy().tolist()
            [[1.0, 2.0]]
        """
        keras_arguments.check_set_weights(weights, self.weights, self.name)
        super().set_weights(weights)

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        """Returns the mask of ids that are not padding, or None with a combiner."""
        return None if self.combiner is not None else super().compute_mask(ids, previous_mask)

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        shape = tuple(input_shape)
        check_axes(shape, self.combiner, self.name)
        return (*(shape if self.combiner is None else shape[:-1]), self.dim)

    @override
    def compute_output_spec(self, ids: Any, weights: Any = None, training: Any = None) -> Any:
        # For ragged ids, all remaining axes except the first are ragged.
        pools_all = self.combiner is not None and len(ids.shape) <= 2
        return self._output_spec(ids, getattr(ids, "ragged", False) and not pools_all)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments. A random initializer has its seed, so a copy has the same rows."""
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "embeddings_regularizer": serialized(self.embeddings_regularizer),
        }

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> DynamicEmbedding:
        return super().from_config(with_present_arguments(config))
