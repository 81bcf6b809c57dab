# SPDX-License-Identifier: Apache-2.0
"""`Embedding`: the layer of TensorFlow Recommenders Addons, on Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.pooling import Embedder
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import TRAINABLE_DTYPES, TableLayer, deserialized, serialized
from tf_embed.ops.pooling_ops import compute_dtype
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.table.sharding import PartitionFn
from tf_embed.table.storage import Storage
from tf_embed.tfra.keras.layers.reduction import combiner_of, reduce_bags
from tf_embed.tfra.variable import Variable
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.lookup import MAX_NORM, clipped


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
class Embedding(TableLayer):
    """Looks up a row for each id. Ids may have any value.

    It has the names and arguments of TensorFlow Recommenders Addons' layer. Its table, training and
    saving work as in `tf_embed.layers.DynamicEmbedding`. The table, `params`, exists from the
    start. Ids may repeat: their gradients are summed.

    Each layer has its own table, even if two layers have the same name. To share a table, call one
    layer several times.

    Args:
        embedding_size: Number of weights in a row, at least 1.
        key_dtype: tf.int64, tf.int32, tf.uint64, tf.uint32 or tf.string. Ids of another integer
            dtype are cast; an id that does not fit is an error.
        value_dtype: tf.float32, tf.float16, tf.bfloat16 or tf.float64: how weights are stored.
        combiner: The pooling of `SquashedEmbedding` and `FieldWiseEmbedding`; this layer keeps it
            for its subclasses. "sum", "mean", "sqrtn", "min", "max", "prod", "std" or "variance",
            or a function `combiner(rows, axis)` such as tf.reduce_logsumexp. The function gets rows
            [bags, ids, embedding_size], a tf.RaggedTensor if bags differ in length, and axis=1. It
            returns [bags, embedding_size]. To load a model with it, register the function by
            keras.saving.register_keras_serializable. The output of an empty bag is 0.
        initializer: The initial row of an id; see `tf_embed.Variable`. Default:
            keras.initializers.RandomNormal(), with a different row for each id.
        devices: The device of each shard, CPUs or one or several GPUs; see `tf_embed.Variable`.
        name: Name of the layer; the table is named `<name>-parameter`. Default: chosen by Keras.
        with_unique: Stored, without effect. The table deduplicates ids itself if that is faster.
        short_file_name: Stored, without effect.
        bp_v2: Stored, without effect.
        restrict_policy: The policy class of `layer.params.restrict`; see `tf_embed.Variable`.
        init_capacity: Number of rows to reserve; `init_size` of `tf_embed.Variable`.
        partitioner: Chooses the shard of a key; see `tf_embed.Variable`.
        kv_creator: A `tf_embed.tfra.HkvHashTableCreator`, in place of `policy`; see
            `tf_embed.Variable`.
        max_norm: None, or the maximum norm of a row, above 0. Lookups scale longer rows down to it,
            as tf.nn.embedding_lookup does. The gradient includes the scaling. Stored rows do not
            change.
        checkpoint: Whether tf.train.Checkpoint saves the rows. Other formats always save them.
        distribute_strategy: None, or a tf.distribute strategy under whose scope the table is made.
        keep_distribution: Whether the config has `devices`, so that a copy has as many shards.
        optimizer: As in DynamicEmbedding: the table's own optimizer.
        padding_id: As in DynamicEmbedding: the id of padding. Its row is zeros, and bags do not
            count it.
        unknown_value: As in DynamicEmbedding: outside of training, the row of ids without a row.
        unknown_in_training: As in DynamicEmbedding: whether it is their row in training too.
        policy: As in DynamicEmbedding: a `tf_embed.TablePolicy`.
        storage: As in DynamicEmbedding: a `tf_embed.Storage`.
        distribution: As in DynamicEmbedding: how the table is spread over workers.
        **kwargs: `trainable` and `dtype` of keras.layers.Layer. Default of `dtype`: the global
            dtype policy if it has mixed precision, otherwise `value_dtype`.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.tfra.keras.layers.Embedding(2, initializer="ones")
        >>> layer.params.upsert([15], [[1.0, 2.0]])
        >>> layer(tf.constant([[15, 10**12]])).numpy().tolist()
        [[[1.0, 2.0], [1.0, 1.0]]]
    """

    def __init__(
        self,
        embedding_size: int,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: Any = "sum",
        initializer: Any = None,
        devices: Sequence[str] | str | None = None,
        name: str | None = None,
        with_unique: bool = True,
        short_file_name: bool = False,
        *,
        bp_v2: bool = False,
        restrict_policy: Any = None,
        init_capacity: int = 0,
        partitioner: PartitionFn | dict[str, Any] | None = None,
        kv_creator: Any = None,
        max_norm: float | None = None,
        checkpoint: bool = True,
        distribute_strategy: tf.distribute.Strategy | None = None,
        keep_distribution: bool = False,
        optimizer: Any = None,
        padding_id: int | str | None = None,
        unknown_value: Any = None,
        unknown_in_training: bool = False,
        policy: TablePolicy | dict[str, Any] | None = None,
        storage: Storage | dict[str, Any] | None = None,
        distribution: WorkerSharding | dict[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        # As in TFRA, the output has the dtype of rows, unless Keras has a mixed policy.
        if kwargs.get("dtype") is None and not _is_mixed(keras.config.dtype_policy()):
            value_dtype = validation.dtype_of(value_dtype, TRAINABLE_DTYPES, "value_dtype")
            kwargs["dtype"] = value_dtype.name
        super().__init__(
            validation.int_in(embedding_size, "embedding_size", most=validation.MAX_DIM),
            key_dtype,
            value_dtype,
            keras.initializers.RandomNormal() if initializer is None else initializer,
            optimizer=optimizer,
            padding_id=padding_id,
            devices=devices,
            partitioner=partitioner,
            init_size=validation.int_in(init_capacity, "init_capacity", least=0, most=MAX_ROWS),
            unknown_value=unknown_value,
            unknown_in_training=unknown_in_training,
            policy=policy,
            storage=storage,
            distribution=distribution,
            name=name,
            table_name="{}-parameter",
            checkpoint=checkpoint,
            **kwargs,
        )
        self.embedding_size = self.dim
        self.kv_creator = deserialized(kv_creator, "kv_creator")
        self.restrict_policy = _registered_class(restrict_policy)
        self.bp_v2 = validation.flag(bp_v2, "bp_v2")
        self.combiner = combiner_of(combiner)
        self.with_unique = validation.flag(with_unique, "with_unique")
        self.short_file_name = validation.flag(short_file_name, "short_file_name")
        if max_norm is not None:
            max_norm = validation.positive_number(max_norm, "max_norm", most=MAX_NORM)
        self.max_norm = max_norm
        self.keep_distribution = validation.flag(keep_distribution, "keep_distribution")
        if not isinstance(distribute_strategy, (tf.distribute.Strategy, type(None))):
            raise TypeError(
                "`distribute_strategy` must be None or a tf.distribute.Strategy. Received: "
                f"distribute_strategy={validation.shown(distribute_strategy)}"
            )
        if distribute_strategy is None:
            self._make_table()
        else:
            with distribute_strategy.scope():
                self._make_table()
        # For lookups through `shadow`.
        self._anchor.max_norm = self.max_norm

    @override
    def _new_variable(self, **arguments: Any) -> Variable:
        return Variable(
            **arguments,
            kv_creator=self.kv_creator,
            restrict_policy=self.restrict_policy,
            bp_v2=self.bp_v2,
        )

    @property
    def params(self) -> Variable:
        """The table."""
        assert isinstance(self.variable, Variable)  # from `_new_variable`
        return self.variable

    @property
    def shadow(self) -> Anchor:
        """The Keras variable that stands for the table on a tf.GradientTape.

        Lookups through it scale rows down to `max_norm`, as the layer does.
        """
        return self._anchor

    @given_in_step
    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks up ids.

        Args:
            ids: Integers, or strings: a tensor of any shape, a tf.RaggedTensor or a
                tf.SparseTensor. Absent positions of a tf.SparseTensor give zeros.
            training: Whether the layer is training, on which `unknown_value` and `policy` depend.

        Returns:
            Rows, ids.shape + [embedding_size], ragged if the ids are.

        Raises:
            TypeError: If the ids and the keys are not both strings or both integers.
            tf.errors.InvalidArgumentError: If an id does not fit the key dtype.
        """
        embedder = Embedder(
            rows=lambda keys: self._clipped_rows(keys, validation.is_training(training)),
            pooled=lambda keys, bags, weights: self._pooled(keys, bags, weights, None, False),
            dim=self.dim,
            combiner=None,
            name=self.name,
        )
        return self._as_outputs(embedder(self._keys(ids)))

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.dim)

    @override
    def compute_output_spec(self, ids: Any, training: Any = None) -> Any:
        return self._output_spec(ids, getattr(ids, "ragged", False))

    def get_config(self) -> dict[str, Any]:
        """Returns all arguments except `distribute_strategy`, in a form that JSON can hold.

        A copy uses the strategy of the scope in which it is created. A random initializer includes
        its seed, so a copy has the same initial rows.
        """
        config = super().get_config()
        if not self.keep_distribution:
            config["devices"] = None
        return {
            "embedding_size": config.pop("dim"),
            "init_capacity": config.pop("init_size"),
            **config,
            "kv_creator": serialized(self.kv_creator),
            "restrict_policy": _registered_name(self.restrict_policy),
            "bp_v2": self.bp_v2,
            "combiner": serialized(self.combiner),
            "with_unique": self.with_unique,
            "short_file_name": self.short_file_name,
            "max_norm": self.max_norm,
            "checkpoint": self.checkpoint,
            "keep_distribution": self.keep_distribution,
        }

    def _clipped_rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Rows of keys, keys.shape + [dim], of a dtype to compute with."""
        rows = tf.cast(self._rows(keys, training), compute_dtype(self.variable.value_dtype))
        return clipped(rows, self.max_norm)

    def _fused_combiner(self) -> str | None:
        """The combiner, if the table can pool by it during the lookup; otherwise None."""
        is_fused = self.max_norm is None and self.combiner in validation.COMBINERS
        return str(self.combiner) if is_fused else None

    def _reduced(
        self, keys: tf.Tensor, bags: tf.Tensor, num_bags: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """A row for each bag, [num_bags, dim], of keys [n] in bags [n]."""
        fused = self._fused_combiner()
        if fused is not None:
            count = tf.size(keys, tf.int64)
            # A sparse matrix with a column for each id, so that the ids of a bag need not be
            # adjacent.
            places = tf.stack([bags, tf.range(count)], 1)
            shape = tf.stack([num_bags, count])
            return self._pooled(keys, (places, shape), None, fused, training)
        if self.padding_id is not None:
            counts = tf.logical_not(self._is_padding(keys))
            keys, bags = tf.boolean_mask(keys, counts), tf.boolean_mask(bags, counts)
        return reduce_bags(
            self._clipped_rows(keys, training), bags, num_bags, self.combiner, self.name
        )


BasicEmbedding = Embedding


def _is_mixed(policy: keras.dtype_policies.DTypePolicy) -> bool:
    return policy.compute_dtype != policy.variable_dtype


def _registered_name(policy: type | None) -> str | None:
    """Returns the name under which Keras has registered a class."""
    return None if policy is None else keras.saving.get_registered_name(policy)


def _registered_class(policy: Any) -> Any:
    """Returns the class of a registered name. A class is returned unchanged.

    Raises:
        ValueError: If Keras has no registered class of that name.
    """
    if not isinstance(policy, str):
        return policy
    known = keras.saving.get_registered_object(policy)
    if known is None:
        raise ValueError(
            "`restrict_policy` must be registered, by keras.saving.register_keras_serializable, "
            "before a layer with it is loaded. Received: "
            f"restrict_policy={validation.shown(policy)}"
        )
    return known
