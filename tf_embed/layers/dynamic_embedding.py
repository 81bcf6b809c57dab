# SPDX-License-Identifier: Apache-2.0
"""`DynamicEmbedding`: keras.layers.Embedding without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.earlier_configs import with_present_arguments
from tf_embed.layers.pooling import Embedder, check_axes
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import TableLayer
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.policies import TablePolicy
from tf_embed.table.sharding import PartitionFn
from tf_embed.table.storage import Storage


@keras.saving.register_keras_serializable(package="tf_embed")
class DynamicEmbedding(TableLayer):
    """Turns integers of any size into dense vectors, without a vocabulary.

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
        name: Name of the layer and of its table.
        **kwargs: `trainable` and `dtype` of keras.layers.Layer.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, the optimizer can't train tables, or not exactly
            one of `dim` and `output_dim` is given.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, initializer="ones", padding_id=0)
        >>> layer(tf.constant([[10**12, 0]])).numpy().tolist()
        [[[1.0, 1.0], [0.0, 0.0]]]
        >>> pooled = tf_embed.layers.DynamicEmbedding(2, initializer="ones", combiner="sum")
        >>> pooled(tf.ragged.constant([[1, 2, 3], []], dtype=tf.int64)).numpy().tolist()
        [[3.0, 3.0], [0.0, 0.0]]
        >>> tf_embed.layers.DynamicEmbedding(output_dim=8, name="items")
        <DynamicEmbedding name='items', dim=8, key_dtype=int64, value_dtype=float32, not built>
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
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            _one_dim(dim, output_dim),
            key_dtype,
            value_dtype,
            initializer,
            optimizer=optimizer,
            padding_id=padding_id,
            devices=devices,
            partitioner=partitioner,
            init_size=init_size,
            unknown_value=unknown_value,
            unknown_in_training=unknown_in_training,
            policy=policy,
            storage=storage,
            distribution=distribution,
            name=name,
            **kwargs,
        )
        self.combiner = validation.one_of(combiner, validation.COMBINERS, "combiner", or_none=True)

    @property
    def output_dim(self) -> int:
        """Number of weights in a row, under the name that keras.layers.Embedding uses."""
        return self.dim

    @given_in_step
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
        return {**super().get_config(), "combiner": self.combiner}

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> DynamicEmbedding:
        return super().from_config(with_present_arguments(config))


def _one_dim(dim: int | None, output_dim: int | None) -> int:
    """Returns the number of weights in a row, from whichever of the two names is given.

    Raises:
        TypeError: If the given argument is not an int.
        ValueError: If both or neither are given, or the number is out of range.
    """
    if (dim is None) == (output_dim is None):
        raise ValueError(
            "`dim` must be given, or `output_dim` in its place, and not both. Received: "
            f"dim={validation.shown(dim)}, output_dim={validation.shown(output_dim)}"
        )
    if output_dim is not None:
        return validation.int_in(output_dim, "output_dim", most=validation.MAX_DIM)
    return validation.int_in(dim, "dim", most=validation.MAX_DIM)
