"""`DynamicEmbedding`: keras.layers.Embedding without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import arguments, stored_rows
from tf_embed.distributed.sharding import PartitionFn, default_partition_fn
from tf_embed.initializers import with_own_seed
from tf_embed.layers.ids import cast_ids, check_kind
from tf_embed.layers.pooling import COMBINERS, Embedder
from tf_embed.lookup import gradient_token
from tf_embed.ops import Bags, compute_dtype
from tf_embed.optimizers.rules import step_variable
from tf_embed.optimizers.trainer import TableTrainer, own_optimizer
from tf_embed.policies import TablePolicy
from tf_embed.policy_methods import check_policies
from tf_embed.variable import Variable

_TRAINER = "optimizer_"  # what its arrays in a file begin with
_TRAINABLE_DTYPES = tuple(dtype for dtype in arguments.VALUE_DTYPES if dtype.is_floating)


@keras.saving.register_keras_serializable(package="tf_embed")
class DynamicEmbedding(keras.layers.Layer):
    """Turns integers of any size into dense vectors, without a vocabulary.

    The layer owns a table that grows by training: an id gets a row with the first gradient that
    reaches it. Until then a lookup gives its initial row and stores nothing, so evaluation and
    prediction never change a table.

    A table is trained in one of two ways: by its own optimizer, `optimizer=`, whatever the model
    is compiled with, or by the model's, wrapped in `tf_embed.DynamicEmbeddingOptimizer`. Its own
    wins. Only the rows that a step touches change.

    `.keras` files, `.weights.h5` files and tf.train.Checkpoint carry rows, optimizer slots and
    step; `model.export` and tf.saved_model.save carry the rows. `get_weights` and `set_weights`,
    and so keras.callbacks.EarlyStopping(restore_best_weights=True), carry the rows and, as for any
    weight, nothing of the optimizer; arrays that NumPy made of those of `get_weights` are refused.
    tf.train.Checkpoint finds layers in lists and dicts by the model's optimizer alone, once that is
    built: Keras leaves them out. `layer.trainable = False` stops updates, also in a step that Keras
    has traced. `model.export` makes a signature for dense ids, so a model that is served takes
    dense ids with `padding_id` in place of ragged ones.

    A keras.Sequential without a keras.Input casts ids to int64 (uint64 for uint64 keys) before the
    layer sees them, as Keras does for any first layer; with an Input of the ids' dtype, ids that do
    not fit the key dtype are refused.

    A layer may be called in loops, maps and conditions (tf.while_loop, tf.map_fn, tf.cond, a
    keras.layers.RNN cell), but not in keras.remat; see `tf_embed.embedding_lookup`.

    Args:
        dim: Number of weights in a row, at least 1.
        key_dtype: "int64", "int32", "uint64", "uint32" or "string". Ids of another integer dtype
            are cast; one that does not fit is an error. Strings are any bytes, and different ones
            never share a row.
        value_dtype: "float32", "float16", "bfloat16" or "float64": how weights are stored. The
            output has the compute dtype of the layer's dtype policy. Narrow weights are trained in
            float32 and rounded after each step, so a step that is small beside the weight, less
            than 1/512 of it in bfloat16, 1/4096 in float16, can be lost.
        initializer: The row of an id that has none; see `tf_embed.Variable`.
        combiner: None, or how rows are pooled over the last axis of ids: "sum"; "mean", which
            divides by the sum of the weights; or "sqrtn", which divides by the root of the sum of
            their squares. An empty bag is 0.
        optimizer: The table's own optimizer: a Keras optimizer, or a name ("adam",
            "rowwise_adagrad"); see `tf_embed.DynamicEmbeddingOptimizer` for what they do. Not with
            `use_ema` and `loss_scale_factor`, which take the model's. The layer keeps a copy, so
            one may be given to several layers; what to change later is
            `layer.optimizer.learning_rate`. The model's optimizer then leaves the table alone: its
            clipping, decay and schedule do not reach the table, and a `global_clipnorm` of its own
            is the norm of this table's gradient.
        padding_id: An id that stands for nothing, a str where keys are strings: its row is zeros,
            it is never stored and trains nothing, and pooling does not count it. Makes a mask
            where there is no combiner.
        devices: The device of each shard; see `tf_embed.Variable`.
        partitioner: Chooses the shard of a key; see `tf_embed.Variable`.
        restrict_policy: The class that `layer.variable.restrict` goes by; see `tf_embed.Variable`.
        init_size: Rows to make room for; see `tf_embed.Variable`.
        kv_creator: Stored.
        bp_v2: Stored.
        unknown_value: None; or the row, a number or an array [dim], of ids that have none when
            the layer is not training. In training they always get their initial row.
        policy: A `tf_embed.TablePolicy`, by which rows come and leave. A call with `training=True`
            is a use of the rows then.
        name: Name of the layer and of its table.
        **kwargs: `trainable` and `dtype` of keras.layers.Layer.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument out of range, or an optimizer that can't train tables.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, initializer="ones", padding_id=0)
        >>> layer(tf.constant([[10**12, 0]])).numpy().tolist()
        [[[1.0, 1.0], [0.0, 0.0]]]
        >>> pooled = tf_embed.layers.DynamicEmbedding(2, initializer="ones", combiner="sum")
        >>> pooled(tf.ragged.constant([[1, 2, 3], []], dtype=tf.int64)).numpy().tolist()
        [[3.0, 3.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        dim: int,
        key_dtype: Any = "int64",
        value_dtype: Any = "float32",
        initializer: Any = "uniform",
        combiner: str | None = None,
        *,
        optimizer: Any = None,
        padding_id: int | str | None = None,
        devices: Sequence[str] | str | None = None,
        partitioner: PartitionFn | dict[str, Any] | None = None,
        restrict_policy: Any = None,
        init_size: int = 0,
        kv_creator: Any = None,
        bp_v2: bool = False,
        unknown_value: Any = None,
        policy: TablePolicy | dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, autocast=False, **kwargs)
        self.supports_jit = False  # XLA has no table
        self.supports_masking = True
        self.dim = arguments.positive_int(dim, "dim")
        self.key_dtype = arguments.dtype_of(key_dtype, arguments.KEY_DTYPES, "key_dtype").name
        self.value_dtype = arguments.dtype_of(value_dtype, _TRAINABLE_DTYPES, "value_dtype").name
        self.initializer = with_own_seed(_deserialized(initializer))
        if combiner is not None and combiner not in COMBINERS:
            raise ValueError(
                f"`combiner` must be None or one of {', '.join(COMBINERS)}. Received: "
                f"combiner={combiner!r}"
            )
        self.combiner = combiner
        self.optimizer = None if optimizer is None else own_optimizer(optimizer)
        self.padding_id = None if padding_id is None else self._padding_id(padding_id)
        self.devices = devices if isinstance(devices, (str, type(None))) else list(devices)
        self.partitioner = _deserialized(partitioner)
        self.restrict_policy = _registered_class(restrict_policy)
        self.policy = _deserialized(policy)
        num_shards = 1 if isinstance(self.devices, (str, type(None))) else len(self.devices)
        check_policies(self.policy, self.restrict_policy, num_shards)
        self.init_size = arguments.positive_int(init_size, "init_size", least=0)
        self.kv_creator = _deserialized(kv_creator)
        self.bp_v2 = bool(bp_v2)
        self.unknown_value = self._unknown_row(unknown_value)
        self._variable: Variable | None = None
        self._trainer: TableTrainer | None = None
        self._load_error: Exception | None = None

    def build(self, input_shape: Any = None) -> None:
        """Makes the table. Its shape does not depend on that of the ids."""
        if self._variable is not None:
            return
        variable = Variable(
            key_dtype=self.key_dtype,
            value_dtype=self.value_dtype,
            dim=self.dim,
            devices=self.devices,
            partitioner=self.partitioner or default_partition_fn,
            name=self.name,
            initializer=self.initializer,
            init_size=self.init_size,
            kv_creator=self.kv_creator,
            restrict_policy=self.restrict_policy,
            bp_v2=self.bp_v2,
            policy=self.policy,
        )
        (anchor,) = variable.trainable_variables
        with tf.init_scope():  # a checkpoint that waits for the table is restored here, at once
            self._variable = variable
            # As an attribute of the layer it is one of the layer's weights.
            self._anchor = anchor
        anchor.frozen = not self.trainable
        if self.optimizer is not None:
            trainer = TableTrainer(anchor, self.optimizer, is_own=True)
            trainer.check_strategy()
            trainer.bind()
            anchor.own_trainer = self._trainer = trainer
        self.built = True

    @property
    def variable(self) -> Variable:
        """The table.

        Raises:
            AttributeError: The layer is not built, so it has none yet.
        """
        if self._variable is None:
            raise AttributeError(
                f"{self.name!r} has no table yet: call the layer, or `layer.build()`, first."
            )
        return self._variable

    @property
    def compute_dtype(self) -> str:
        """Dtype of the output; of the ids until the layer is built.

        A keras.Sequential without an Input makes one of its first layer's compute dtype, and
        would round ids to float32. Not int32 either: Keras casts ids to it without a word, and
        `call` could not refuse those that do not fit.
        """
        if self.built:
            return self.dtype_policy.compute_dtype
        if self.key_dtype == "string":
            return "string"
        return "uint64" if self.key_dtype == "uint64" else "int64"

    def call(self, ids: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks ids up.

        Args:
            ids: Integers, or strings: a tensor of any shape, a tf.RaggedTensor or a
                tf.SparseTensor. Absent places of a sparse one give zeros.
            weights: With a combiner: the weight of each id, in the container of the ids.
            training: Whether the layer is training, on which `unknown_value` and `policy` depend.

        Returns:
            Rows, ids.shape + [dim], ragged where the ids are. With a combiner the last axis of
            ids is gone, and the result is ragged only where an axis that remains is.

        Raises:
            TypeError: The ids are neither integers nor, where keys are, strings.
            ValueError: Weights without a combiner, or of another kind or shape than the ids.
            tf.errors.InvalidArgumentError: An id does not fit the key dtype.
        """
        embedder = Embedder(
            rows=lambda keys: self._rows(keys, bool(training)),
            pooled=lambda keys, bags, weights: self._pooled(keys, bags, weights, bool(training)),
            dim=self.dim,
            combiner=self.combiner,
            name=self.name,
        )
        outputs = embedder(self._keys(ids), weights)
        dtype = tf.as_dtype(self.dtype_policy.compute_dtype)
        return outputs if outputs.dtype == dtype else tf.cast(outputs, dtype)

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        """Which ids are no padding, where each id has a row; else None."""
        if self.combiner is not None:
            return None
        if self.padding_id is None:
            return previous_mask
        if isinstance(ids, keras.KerasTensor):
            return self._symbolic_mask(ids)
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            return None
        return tf.logical_not(self._is_padding(self._keys(tf.convert_to_tensor(ids))))

    def _symbolic_mask(self, ids: keras.KerasTensor) -> keras.KerasTensor | None:
        """The mask of symbolic ids: of Keras ops, which a functional model can save."""
        if getattr(ids, "ragged", False) or ids.sparse:
            return None
        if ids.dtype != self.key_dtype:
            ids = keras.ops.cast(ids, self.key_dtype)
        padding_id: Any = self.padding_id
        if isinstance(padding_id, int) and padding_id >= 2**63:
            padding_id = np.uint64(padding_id)
        return keras.ops.not_equal(ids, padding_id)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """The shape of the output from that of the ids."""
        shape = tuple(input_shape)
        return (*(shape if self.combiner is None else shape[:-1]), self.dim)

    def compute_output_spec(self, ids: Any, weights: Any = None, training: Any = None) -> Any:
        """The output, symbolic."""
        check_kind(tf.as_dtype(ids.dtype), tf.as_dtype(self.key_dtype), self.name)
        shape = self.compute_output_shape(ids.shape)
        # The axes that remain of ragged ids are ragged, but for the first.
        ragged = getattr(ids, "ragged", False) and (self.combiner is None or len(shape) > 2)
        options = {"ragged": True} if ragged else {}
        return keras.KerasTensor(shape, dtype=self.dtype_policy.compute_dtype, **options)

    # Saving.

    def save_own_variables(self, store: Any) -> None:
        """Writes rows, slots, seed and the step of the table's own optimizer.

        Keras calls it for .keras and .weights.h5 files.
        """
        if self._variable is None:
            return
        beside = {}
        if self._trainer is not None:
            step = step_variable(self._trainer.optimizer).numpy()
            beside = {"step": step, **self._trainer.arrays(_TRAINER)}
        stored_rows.save(self._variable.table, store, beside)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote, in place of what is in the table.

        Raises:
            ValueError: There are no rows in the file, they are damaged, or those of a table of
                another dim or dtype. The table is as it was then.
        """
        if self._variable is None and not store.keys():
            return  # saved before it was built
        self.build()
        try:
            beside = stored_rows.load(self.variable.table, store)
        except Exception as error:
            # Keras tries again wherever else it meets the layer, where the file has nothing of it,
            # and tells the last error alone.
            before, self._load_error = self._load_error, error
            if before is not None and not store.keys():
                self._load_error = before
                raise ValueError(f"{error} Before that: {before}") from before
            raise
        self._load_error = None
        # Keras loads the optimizer too, but not into one that has a schedule where the other has
        # a number, or the other way round.
        if self._trainer is not None and "step" in beside:
            step_variable(self._trainer.optimizer).assign(beside["step"])
            self._trainer.load(beside, _TRAINER)

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        stored_rows.refuse_old_format(self.name)
        unknown = self.unknown_value
        return {
            **super().get_config(),
            "dim": self.dim,
            "key_dtype": self.key_dtype,
            "value_dtype": self.value_dtype,
            "initializer": _serialized(self.initializer),
            "combiner": self.combiner,
            "optimizer": _serialized(self.optimizer),
            "padding_id": self.padding_id,
            "devices": self.devices,
            "partitioner": _serialized(self.partitioner),
            "restrict_policy": _registered_name(self.restrict_policy),
            "init_size": self.init_size,
            "kv_creator": _serialized(self.kv_creator),
            "bp_v2": self.bp_v2,
            "unknown_value": None if unknown is None else unknown.tolist(),
            "policy": _serialized(self.policy),
        }

    def _keys(self, ids: Any) -> Any:
        """Ids in the key dtype, in the same container."""
        key_dtype = tf.as_dtype(self.key_dtype)
        if isinstance(ids, tf.SparseTensor):
            values = cast_ids(ids.values, key_dtype, self.name)
            return tf.SparseTensor(ids.indices, values, ids.dense_shape)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(cast_ids(ids.flat_values, key_dtype, self.name))
        return cast_ids(tf.convert_to_tensor(ids), key_dtype, self.name)

    def _is_padding(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.equal(keys, tf.constant(self.padding_id, keys.dtype))

    def _rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Rows of keys, keys.shape + [dim]; padding is never looked up."""
        if self.padding_id is None:
            return self._find(keys, training)
        flat = tf.reshape(keys, [-1])
        places = tf.where(tf.logical_not(self._is_padding(flat)))
        rows = self._find(tf.gather_nd(flat, places), training)
        rows = tf.scatter_nd(places, rows, [tf.size(flat, tf.int64), self.dim])
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [self.dim]], 0))
        return tf.ensure_shape(rows, keys.shape.concatenate([self.dim]))

    def _find(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        variable = self.variable
        rows, _ = variable.table.find(
            keys, self._defaults(training), gradient_token(variable), training=training
        )
        return rows

    def _pooled(
        self, keys: tf.Tensor, bags: Bags, weights: tf.Tensor | None, training: bool
    ) -> tf.Tensor:
        """A row for each bag; padding counts for nothing."""
        variable = self.variable
        assert self.combiner is not None  # or there are no bags
        if weights is not None:
            weights = tf.cast(weights, compute_dtype(variable.value_dtype))
        return variable.table.find_pooled(
            keys,
            bags,
            weights,
            combiner=self.combiner,
            padding=self.padding_id,
            defaults=self._defaults(training),
            token=gradient_token(variable),
            training=training,
        )

    def _defaults(self, training: bool) -> tf.Tensor | None:
        """The row of ids that have none; None for their initial rows."""
        if self.unknown_value is None or training:
            return None
        row = np.broadcast_to(self.unknown_value, [self.dim])
        return tf.cast(tf.constant(row), self.variable.value_dtype)

    def _padding_id(self, padding_id: Any) -> int | str:
        key_dtype = tf.as_dtype(self.key_dtype)
        if key_dtype == tf.string:
            if not isinstance(padding_id, str):
                raise TypeError(
                    "`padding_id` must be a str, for the key dtype is string. Received: "
                    f"padding_id={padding_id!r}"
                )
            return padding_id
        least = min(key_dtype.min, -(2**63))
        padding_id = arguments.positive_int(padding_id, "padding_id", least=least, most=2**64 - 1)
        if not key_dtype.min <= padding_id <= key_dtype.max:
            raise ValueError(
                f"`padding_id` must fit the key dtype {self.key_dtype}. Received: "
                f"padding_id={padding_id}"
            )
        return padding_id

    def _unknown_row(self, unknown_value: Any) -> np.ndarray | None:
        if unknown_value is None:
            return None
        row = np.asarray(unknown_value)
        if row.dtype.kind not in "iuf":
            raise TypeError(
                "`unknown_value` must be a number or an array of numbers. Received: "
                f"unknown_value={unknown_value!r}"
            )
        if row.shape not in ((), (self.dim,)):
            raise ValueError(
                f"`unknown_value` must be a number or of shape ({self.dim},). Received: "
                f"shape={row.shape}"
            )
        return row.astype(np.float64)


def _serialized(value: Any) -> Any:
    """Something that JSON can hold."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if tf.is_tensor(value):
        return value.numpy().tolist()
    return keras.saving.serialize_keras_object(value)


def _deserialized(value: Any) -> Any:
    """What `_serialized` was given, but for arrays, which come back as lists."""
    if isinstance(value, dict):
        return keras.saving.deserialize_keras_object(value)
    return value


def _registered_name(policy: type | None) -> str | None:
    """The name that Keras knows a class by."""
    return None if policy is None else keras.saving.get_registered_name(policy)


def _registered_class(policy: Any) -> Any:
    """The class of such a name; a class as it is.

    Raises:
        ValueError: Keras knows no class of that name.
    """
    if not isinstance(policy, str):
        return policy
    known = keras.saving.get_registered_object(policy)
    if known is None:
        raise ValueError(
            "`restrict_policy` must be registered, by keras.saving.register_keras_serializable, "
            f"before a layer with it is loaded. Received: restrict_policy={policy!r}"
        )
    return known
