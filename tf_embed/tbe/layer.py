# SPDX-License-Identifier: Apache-2.0
"""`TableBatchedEmbeddingBags`: FBGEMM's table-batched embeddings as a Keras layer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.configs import as_bool, as_enum
from tf_embed.layers.ids_layer import IdsLayer
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import deserialized, serialized
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.saving import keras_files
from tf_embed.sharded.new_table import check_one_process
from tf_embed.sharded.worker_sharding import WorkerSharding, as_sharding
from tf_embed.table.policies import TablePolicy
from tf_embed.table.storage import Storage, check_storage
from tf_embed.tbe import inputs as batches
from tf_embed.tbe import layer_arguments
from tf_embed.tbe.batch_anchor import BatchAnchor, UntrainedAnchor
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.bounds import BoundsCheck
from tf_embed.tbe.cache_sizes import CacheSizes
from tf_embed.tbe.fbgemm_optimizer_args import (
    CounterBasedRegularizationDefinition,
    CowClipDefinition,
    EmainplaceModeDefinition,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    OptimType,
    WeightDecayMode,
)
from tf_embed.tbe.fbgemm_types import (
    BoundsCheckMode,
    CacheAlgorithm,
    MultiPassPrefetchConfig,
    PoolingMode,
    RecordCacheMetrics,
    SparseType,
    TBEStatsReporterConfig,
    UserEnabledConfigDefinition,
)
from tf_embed.tbe.hyper_parameters import HyperParameters
from tf_embed.tbe.make_optimizer import (
    OptimizerSettings,
    as_optim_type,
    optimizer_of_type,
    present_settings,
)
from tf_embed.tbe.output_layout import OutputLayout
from tf_embed.tbe.resets import RowResets
from tf_embed.tbe.saving import TablesSaver
from tf_embed.tbe.state_views import TableViews
from tf_embed.tbe.table_specs import Member, Tables, TableSpec, place_together
from tf_embed.tbe.tiers import Tiers, check_gathers, check_records
from tf_embed.tbe.worker_lookup import new_lookup
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.table_text import rows_here, size_texts
from tf_embed.variable.variable import Variable

# Attributes that can't be assigned once a layer is made.
_FIXED = frozenset(
    {
        *("bounds_check_mode", "distribution", "feature_names", "feature_table_map"),
        *("max_gradient", "optimizer_type", "output_dtype", "padding_id", "pooling_mode"),
        *("settings", "stochastic_rounding", "table_names", "weights_precision"),
    }
)

_COMBINERS = {PoolingMode.SUM: "sum", PoolingMode.MEAN: "mean", PoolingMode.NONE: "sum"}


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class TableBatchedEmbeddingBags(IdsLayer):
    """Looks up bags of ids in many tables at once, and trains the tables in one step.

    FBGEMM's SplitTableBatchedEmbeddingBagsCodegen as a Keras layer, with the same description of
    tables, layout of inputs and output, and optimizers. A table is an array of rows. If its number
    of rows is None, it is a dynamic table, and every int64 is an id. Several features may look up
    in one table. One op looks up in all tables. Another op trains them bag by bag, so gradients of
    single ids are never materialized.

    The layer takes the ids in one of two forms. The first is one vector of all ids, ordered by
    feature:

        layer(indices, offsets, per_sample_weights=None)

    Bag b of feature f has the ids from offsets[f * B + b] up to the next offset. The second form
    has separate ids for each feature, in a list, or in a dict with the `feature_names`:

        layer([ids_of_feature_0, ids_of_feature_1, ...], per_sample_weights=[...])

    Each is a tf.RaggedTensor [B, None], a tf.SparseTensor [B, L], a tensor [B, L], or a tensor [B]
    with an id per bag. The output is [B, sum of the dims of features], with features side by side.
    With PoolingMode.NONE it is [number of ids, dim]. Features may have different numbers of bags
    with `batch_size_per_feature_per_rank`, which lists the bags per rank for each feature. The
    output is then one vector, ordered by rank, and within a rank by feature. Empty bags are 0.
    `per_sample_weights` [n] multiply rows. They have gradients for the features whose number in
    `feature_requires_grad` is not 0. PoolingMode.MEAN divides by the number of ids in a bag, with
    weights too.

    Keras takes tensors and arrays by position, but Python lists of numbers only by keyword:
    layer(indices=[4, 0, 2], offsets=[0, 1, 3]).

    The layer's own optimizer trains the tables. It makes a step each time the model's optimizer,
    which may be any Keras optimizer, applies gradients. Its `iterations` counts the steps. The
    forward pass changes nothing. Callbacks that set a learning rate, such as LearningRateScheduler,
    set only the model's: give `learning_rate` a schedule, or call `set_learning_rate` too. The
    layer's variable has the gradient of the pooled values, so tf.clip_by_global_norm uses their
    norm instead of the rows'; `gradient_clipping` clips either way. `optimizer=None` leaves
    training to a `tf_embed.DynamicEmbeddingOptimizer`, and OptimType.NONE to the caller. Each
    table's gradient is then a tf.IndexedSlices of distinct ids.

    Ids of arrays must be row numbers. `bounds_check_mode` decides about other ids and malformed
    offsets: FATAL raises an error that names table, position and id; WARNING counts them all in
    `bounds_check_warning`, and logs them in ever fewer calls; IGNORE counts them; NONE does
    nothing. Such ids are dropped: no row replaces them, and the caller's tensors do not change. -1
    is a pruned id: it is dropped, but is not a fault. A malformed offset is replaced by the nearest
    legal offset, but with NONE it is an error.

    Differences from FBGEMM:
        - Any dim is allowed, the features of a table may be in any order, and every optimizer runs
          without a GPU.
        - Ids out of bounds are dropped. FBGEMM uses row 0 instead, and trains it.
        - A first offset other than 0 is a fault, and is corrected. FBGEMM leaves it.
        - `per_sample_weights` are refused with PoolingMode.NONE. FBGEMM ignores them.
        - `total_unique_indices` of a call is ignored. FBGEMM needs it for OptimType.NONE.
        - Weighted means have the right gradients of weights and rows.
        - Evaluation counts no step, and steps are saved.
        - With DECOUPLE_GLOBAL, lookups show the decay of the steps that left a row out only with
          `training=True`. FBGEMM's show it in training mode, which is its default.
        - `max_norm` and weight decay always apply, or are refused.
        - Positional arguments are as in FBGEMM 1.2 to 1.8, up to `extra_optimizer_config`. Later
          versions have three more after `weight_decay_mode`: pass later arguments by keyword.

    Args:
        embedding_specs: For each table (rows, dim), (rows, dim, EmbeddingLocation) or (rows, dim,
            EmbeddingLocation, ComputeDevice). Tables are on the first GPU if none of them has
            EmbeddingLocation.HOST, if a GPU can hold them (see `tf_embed.Variable`), and if no
            `optimizer_state_dtypes` is narrow. Then the rows of tables of DEVICE, or without a
            location, are in GPU memory, of MANAGED tables in pinned host memory, and of
            MANAGED_CACHING tables in host memory under a cache in GPU memory (see
            `tf_embed.Storage`). Otherwise all tables are on the CPU. MTIA is refused. With a
            `storage` that has a `path`, MANAGED_CACHING means a cache in host memory over rows on
            disk. A dynamic table without `max_rows` has no cache on a GPU: MANAGED_CACHING then
            means MANAGED.
        feature_table_map: The number of each feature's table. Default: one feature per table.
        cache_algorithm: CacheAlgorithm.LRU or LFU. With either, a cache evicts approximately by
            last use; rows have the same values.
        cache_load_factor: The share of a table's rows that its cache has room for, above 0. It
            applies to tables of EmbeddingLocation.MANAGED_CACHING: on a GPU if they have no
            `storage`, on the CPU if their `storage` has a `path` and no size of a cache.
            `embedding_specs` gives their number of rows; for a dynamic table, `max_rows` of its
            `policy` does. A cache has whole sets of 32 rows. A row is its weights, its statistics
            and the slots of the layer's own optimizer.
        cache_sets: If not 0, the total number of 32-row sets in the caches of these tables, in
            place of `cache_load_factor`. Each table has its own cache, in proportion to its rows.
        cache_reserved_memory: Accepted without effect, as are `cache_precision`, `enforce_hbm`,
            `device`, `uvm_non_rowwise_momentum`, `use_experimental_tbe`, `stats_reporter_config`,
            `multipass_prefetch_config` and `uvm_host_mapped`. Each is checked, and logged once. At
            least 0.
        weights_precision: The type of stored rows: SparseType.FP32, FP16, BF16 or INT8. INT8 rows
            are not trained and need OptimType.NONE: `upsert` the results of
            `tf_embed.tbe.quantized_rows.quantize` into `tables`, whose dim is larger by 8.
        output_dtype: The type of the output: FP32, FP16 or BF16. Sums are computed in float32.
        optimizer: An OptimType, or None. Any enum argument may also be given by name or value, such
            as "ADAM" or "adam".
        record_cache_metrics: A `tf_embed.tbe.RecordCacheMetrics`. With
            `record_cache_miss_counter`, `get_cache_miss_counter` reports, and with
            `record_tablewise_cache_miss`, `get_table_wise_cache_miss`.
        gather_uvm_cache_stats: Whether `get_uvm_cache_stats` reports. Counting is always on.
        stochastic_rounding: Whether rows of FP16 and BF16 are rounded at random after a step,
            without bias, rather than to the nearest.
        gradient_clipping: Whether each element of the output's gradient is clipped before the
            gradients of rows and weights are computed from it. An optimizer that scales the loss is
            then refused.
        max_gradient: The absolute value to clip to. Default: 1.
        max_norm: A setting of the optimizer, as are `learning_rate`, `eps`, `momentum`,
            `weight_decay`, `weight_decay_mode`, `eta`, `beta1` and `beta2`; see
            `tf_embed.optimizers`. A setting that the chosen optimizer does not use must keep its
            default.
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule or a callable.
        ensemble_mode: Settings of ENSEMBLE_ROWWISE_ADAGRAD.
        emainplace_mode: Settings of EMAINPLACE_ROWWISE_ADAGRAD.
        counter_based_regularization: Settings of EXACT_ROWWISE_ADAGRAD with
            WeightDecayMode.COUNTER.
        cowclip_regularization: Settings of EXACT_ROWWISE_ADAGRAD with COWCLIP.
        pooling_mode: PoolingMode.SUM, MEAN or NONE. With NONE, all tables must have the same dim.
        bounds_check_mode: See above.
        prefetch_pipeline: Whether `prefetch` will be called for later batches. It needs
            CacheAlgorithm.LRU, as in FBGEMM, and changes nothing else: a lookup reads rows that
            were not prefetched or were evicted too early.
        table_names: Names of the tables, all different. Initial rows depend on them. Default: the
            layer's name, "/table_" and a number.
        optimizer_state_dtypes: A dict from "momentum1" or "momentum2", the states of
            `split_optimizer_states`, to SparseType.FP32, the default, FP16 or BF16. The optimizer
            must have the state. Steps compute in float32 and round a state once, to the nearest. So
            a sum of squares in BF16 stops growing at a few hundred times the increment of a step.
            FBGEMM has this for PARTIAL_ROWWISE_ADAM, and for momentum2 of ENSEMBLE_ROWWISE_ADAGRAD.
            Saved states are float32, and load into layers of other types.
        global_weight_decay: Settings of EXACT_ROWWISE_ADAGRAD with DECOUPLE_GLOBAL.
        extra_optimizer_config: `use_rowwise_bias_correction` of ADAM.
        initializer: Initial rows as in `tf_embed.Variable`, but not a callable: a value for all
            tables, or a list with a value for each. Glorot, He, LeCun and other initializers that
            scale by a shape use (rows, dim) for an array, and (1, dim) for a dynamic table.
            Default: zeros, as in FBGEMM. If the rows of zero tables are only used in products, such
            as a dot product, they have no gradients and never train: set initializer="uniform", or
            call `init_embedding_weights_uniform(low, high)`.
        feature_names: Names of the features, for inputs in a dict.
        policy: Admission and eviction of the rows of dynamic tables: a `tf_embed.TablePolicy`, or a
            list with a policy or None for each table. An array's policy must have no `max_rows`,
            `admission` or `ttl_seconds`; with `track_changes`, snapshots can save only the changes.
        storage: The tiers of each table, in place of its EmbeddingLocation: a `tf_embed.Storage`,
            or a list with a storage or None for each table. A single storage bounds each table
            separately. If a storage has a `path` and no `gpu_bytes`, all tables are on the CPU.
            `host_bytes` may be left out beside a `path`, see `cache_load_factor`.
        padding_id: The padding id of all features: it is dropped, as -1 is in arrays, and pooling
            does not count it. `model.export` makes a signature for dense ids, so a model of ragged
            or sparse ids is served dense ids padded with it. Without it every export of such a
            model raises ValueError, as with DynamicEmbedding.
        distribution: How tables made in the scope of a tf.distribute.MultiWorkerMirroredStrategy
            are spread over its workers. Default: each key has a row on one worker. A
            `tf_embed.distributed.WorkerSharding` says how. "local": each worker has its own tables.
            The steps of sharded tables run on the owners of the rows, so with `optimizer=None` and
            OptimType.NONE a gradient has the keys that this worker owns. All workers must call the
            same methods in the same order.
        name: Name of the layer.
        **kwargs: Arguments of keras.layers.Layer.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or the optimizer does not use a setting that is
            given; or in the scope of a ParameterServerStrategy.

    Example:
        >>> import keras, tensorflow as tf, tf_embed
        >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags(
        ...     [(3, 1), (None, 2)], learning_rate=0.5)
        >>> optimizer = keras.optimizers.Adam()
        >>> ids = [tf.ragged.constant([[0, 2], []], dtype=tf.int64), tf.constant([7, 9])]
        >>> with tf.GradientTape() as tape:
        ...     bags = layer(ids)
        ...     loss = tf.reduce_sum(bags)
        >>> bags.shape
        TensorShape([2, 3])
        >>> variables = layer.trainable_variables
        >>> optimizer.apply(tape.gradient(loss, variables), variables)
        >>> layer.tables[0].lookup([0, 1, 2]).numpy().tolist()
        [[-0.5], [0.0], [-0.5]]

    Reference:
        FBGEMM, "Table Batched Embedding (TBE) Training Module".
    """

    _records_lookups = False  # they are one op already

    def __init__(
        self,
        embedding_specs: Sequence[Any],
        feature_table_map: Sequence[int] | None = None,
        cache_algorithm: CacheAlgorithm = CacheAlgorithm.LRU,
        cache_load_factor: float = 0.2,
        cache_sets: int = 0,
        cache_reserved_memory: float = 0.0,
        cache_precision: SparseType | None = None,
        weights_precision: SparseType = SparseType.FP32,
        output_dtype: SparseType = SparseType.FP32,
        enforce_hbm: bool = False,
        optimizer: OptimType | str | None = OptimType.EXACT_SGD,
        record_cache_metrics: RecordCacheMetrics | None = None,
        gather_uvm_cache_stats: bool | None = False,
        stochastic_rounding: bool = True,
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        max_norm: float = 0.0,
        learning_rate: Any = 0.01,
        eps: float = 1.0e-8,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE,
        eta: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        ensemble_mode: EnsembleModeDefinition | None = None,
        emainplace_mode: EmainplaceModeDefinition | None = None,
        counter_based_regularization: CounterBasedRegularizationDefinition | None = None,
        cowclip_regularization: CowClipDefinition | None = None,
        pooling_mode: PoolingMode = PoolingMode.SUM,
        device: Any = None,
        bounds_check_mode: BoundsCheckMode = BoundsCheckMode.WARNING,
        uvm_non_rowwise_momentum: bool = False,
        use_experimental_tbe: bool = False,
        prefetch_pipeline: bool = False,
        stats_reporter_config: TBEStatsReporterConfig | None = None,
        table_names: Sequence[str] | None = None,
        optimizer_state_dtypes: Mapping[str, SparseType] | None = None,
        multipass_prefetch_config: MultiPassPrefetchConfig | None = None,
        global_weight_decay: GlobalWeightDecayDefinition | None = None,
        uvm_host_mapped: bool = False,
        extra_optimizer_config: UserEnabledConfigDefinition | None = None,
        *,
        initializer: Any = None,
        feature_names: Sequence[str] | None = None,
        policy: TablePolicy | Sequence[TablePolicy | None] | None = None,
        storage: Storage | Sequence[Storage | None] | None = None,
        padding_id: int | None = None,
        distribution: WorkerSharding | dict[str, Any] | str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        # First, while the locals are only the arguments.
        given = {key: value for key, value in locals().items() if key in _ARGUMENTS}
        if name is not None:
            validation.name_of(name)
        super().__init__(name=name, autocast=False, **kwargs)
        self._has_own_name = name is not None
        described = validation.items_of(embedding_specs, "embedding_specs")
        if not described:
            raise ValueError(
                "`embedding_specs` must describe one table or more. Received: embedding_specs="
                f"{validation.shown(embedding_specs)}"
            )
        self._specs = [TableSpec.of(spec, i) for i, spec in enumerate(described)]
        num_tables = len(self._specs)
        self.feature_table_map = layer_arguments.feature_table_map(feature_table_map, num_tables)
        self.weights_precision = as_enum(weights_precision, "weights_precision", SparseType)
        self.output_dtype = as_enum(output_dtype, "output_dtype", SparseType)
        self.pooling_mode = as_enum(pooling_mode, "pooling_mode", PoolingMode)
        self.bounds_check_mode = as_enum(
            bounds_check_mode, "bounds_check_mode", BoundsCheckMode
        ).plain
        self.optimizer_type = as_optim_type(optimizer)
        self.stochastic_rounding = as_bool(stochastic_rounding, "stochastic_rounding")
        self.max_gradient = layer_arguments.clip_value(gradient_clipping, max_gradient)
        self.settings = OptimizerSettings(
            **{key: deserialized(given[key], key) for key in OptimizerSettings.__dataclass_fields__}
        )
        self.table_names = layer_arguments.names(
            table_names, "table_names", num_tables, f"{self.name}/table"
        )
        num_features = len(self.feature_table_map)
        self.feature_names = None
        if feature_names is not None:
            self.feature_names = layer_arguments.names(
                feature_names, "feature_names", num_features, "feature"
            )
        self.padding_id = None
        if padding_id is not None:
            self.padding_id = validation.int_in(padding_id, "padding_id", least=-(2**63))
        self._initializers = [
            spec.initializer(deserialized(one, "initializer"))
            for spec, one in zip(
                self._specs,
                layer_arguments.each(initializer, num_tables, "initializer"),
                strict=True,
            )
        ]
        self._policies = [
            deserialized(one, "policy")
            for one in layer_arguments.each(policy, num_tables, "policy")
        ]
        self._storages = [
            deserialized(one, "storage")
            for one in layer_arguments.each(storage, num_tables, "storage")
        ]
        for one in self._storages:
            if one is not None:
                check_storage(one)
        self.distribution = deserialized(distribution, "distribution")
        as_sharding(self.distribution)
        layer_arguments.check_precisions(
            self.weights_precision,
            self.output_dtype,
            cache_precision,
            self.optimizer_type,
        )
        self._optimizer = optimizer_of_type(self.optimizer_type, self.settings)
        self._state_dtypes = layer_arguments.state_dtypes(
            optimizer_state_dtypes, self._optimizer, self.optimizer_type
        )
        feature_dims = [self._specs[table].dim for table in self.feature_table_map]
        self._check_dims(feature_dims)
        narrow = any(dtype != tf.float32 for dtype in self._state_dtypes.values())
        self._placement = place_together(
            self._specs, self.weights_precision, narrow, self._storages
        )
        self._arguments = {**given, **layer_arguments.check_ignored(given)}
        layer_arguments.warn_ignored(
            self._arguments,
            _PARAMETERS,
            self._specs,
            self._storages,
            self._policies,
            self._placement.devices[0],
        )
        self._features = batches.Features(
            self.name,
            num_features,
            self.feature_names,
            has_padding=self.padding_id is not None,
        )
        self._layout = OutputLayout(
            features=self._features,
            feature_tables=self.feature_table_map,
            dims=feature_dims,
            is_pooled=self.pooling_mode != PoolingMode.NONE,
            dtype=self.output_dtype.dtype,
        )
        # Tables do not depend on input shapes. So an optimizer can be built on the layer's
        # variables.
        with keras.name_scope(self.name):
            self._make_tables()
        self._make_parts()
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        # The parts were made with these values. A later change would misstate the layer's behavior.
        if name in _FIXED and getattr(self, "_is_made", False):
            raise AttributeError(
                f"`{name}` of {self.name!r} is fixed when the layer is made: make another layer. "
                f"Received: {name}={validation.shown(value)}"
            )
        super().__setattr__(name, value)

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: the layer has its tables from the start."""
        self.built = True

    def count_params(self) -> int:
        """The number of weights in arrays, and in the present rows of dynamic tables.

        For tables that are sharded over workers, it counts the rows of this worker. `summary` shows
        it at the layer. The totals of a model leave it out: Keras computes them from the shapes of
        variables, and the anchor has no rows; see `tf_embed.print_tables`.
        """
        rows = [
            rows_here(table.table) if count is None else count
            for table, (count, _) in zip(self.tables, self.embedding_specs, strict=True)
        ]
        return sum(n * dim for n, (_, dim) in zip(rows, self.embedding_specs, strict=True))

    def __repr__(self) -> str:
        if not vars(self).get("_is_made", False):  # in an `__init__` that fails
            return f"<{type(self).__name__}, not made>"
        tables = [variable.table for variable in self.tables]
        dims = sorted({spec.dim for spec in self._specs})
        texts = [
            f"name={validation.shown(self.name)}",
            f"tables={len(tables)}",
            f"features={len(self.feature_table_map)}",
            f"dims={dims[0] if len(dims) == 1 else f'{dims[0]} to {dims[-1]}'}",
            f"weights_precision={self.weights_precision.name}",
            f"pooling_mode={self.pooling_mode.name}",
            f"device={tables[0].options.device}",
            *size_texts(tables),
        ]
        if self._optimizer is not None:
            texts.append(f"optimizer={type(self._optimizer).__name__}")
        return f"<{type(self).__name__} {', '.join(texts)}>"

    def _make_tables(self) -> None:
        check_one_process(f"The table-batched layer {self.name!r}")
        trains_itself = self._optimizer is not None
        sizes = CacheSizes(
            self._arguments["cache_load_factor"],
            self._arguments["cache_sets"],
            self.weights_precision,
            self._optimizer,
            self._state_dtypes,
            self._placement.devices[0],
        )
        storages = sizes.storages(self._storages, self._specs, self._policies, self.table_names)
        variables = [
            spec.variable(
                name=self.table_names[i],
                devices=self._placement,
                precision=self.weights_precision,
                initializer=self._initializers[i],
                policy=self._policies[i],
                storage=storages[i],
                trainable=not trains_itself,
                distribution=self.distribution,
            )
            for i, spec in enumerate(self._specs)
        ]
        with tf.init_scope():  # a checkpoint that waits for the tables is restored here, at once
            self._tables = Tables(variables)
        tables = [variable.table for variable in variables]
        if self.padding_id is None:
            for table in tables:
                table.check_functions = self._features.given.check
        if self._optimizer is None:
            self._anchors: list[Anchor] = [one for v in variables for one in v.trainable_variables]
            if not self._anchors:
                self._anchors = [UntrainedAnchor(tables, self.name)]
        else:
            anchor = BatchAnchor(tables, self.name)
            anchor.has_automatic_name = not self._has_own_name
            trainer = BatchTrainer(
                tables,
                self._optimizer,
                _COMBINERS[self.pooling_mode],
                self.stochastic_rounding,
                self._state_dtypes,
            )
            trainer.check_strategy()
            anchor.own_trainer = trainer
            with tf.init_scope():
                # As an attribute, it is in checkpoints, with the trainer's state.
                self._anchor = anchor
            self._anchors = [anchor]
        for anchor in self._anchors:
            anchor.set_initially_frozen(frozen=not self.trainable)
            anchor.clips_gradient = self.max_gradient > 0

    def _make_parts(self) -> None:
        """Makes the objects that work on the tables. They do not reference the layer."""
        rows = [spec.rows for spec in self._specs]
        members = [Member(*one) for one in zip(self._tables.members, rows, strict=True)]
        trainer = self._trainer
        self._bounds = BoundsCheck(
            self.name,
            [rows[table] for table in self.feature_table_map],
            [self.table_names[table] for table in self.feature_table_map],
            self.bounds_check_mode,
            self.padding_id,
            self._tables.num_faults,
        )
        self._lookup = new_lookup(
            members,
            self.feature_table_map,
            [spec.dim for spec in self._specs],
            combiner=_COMBINERS[self.pooling_mode],
            max_gradient=self.max_gradient,
            anchor=None if trainer is None else self._anchor,
            trainer=trainer,
        )
        self._hyper_parameters = HyperParameters(self.name, self._optimizer)
        self._views = TableViews(self.name, members, trainer)
        self._resets = RowResets(self.name, members, self._optimizer)
        self._tiers = Tiers(self.name, members, self.feature_table_map)
        self._saver = TablesSaver(
            self.name, self._features.given, [one.table.table for one in members], trainer
        )

    @property
    def tables(self) -> list[Variable]:
        """The `tf_embed.Variable` of each table; arrays take row numbers as keys."""
        return list(self._tables.members)

    @property
    def embedding_specs(self) -> list[tuple[int | None, int]]:
        """Number of rows, None for a dynamic table, and dim of each table."""
        return [(spec.rows, spec.dim) for spec in self._specs]

    @property
    def optimizer(self) -> RowRuleOptimizer | None:
        """The optimizer of the tables; None with OptimType.NONE and `optimizer=None`."""
        return self._optimizer

    @property
    def bounds_check_warning(self) -> tf.Tensor:
        """The number of out-of-bounds ids and malformed offsets so far, an int64 scalar.

        With several workers it is the sum over workers, and all must read it at the same point. At
        a restore, each worker gets an equal share, rounded down.
        """
        # A tensor, because the variable of a strategy has no `int` and `float`.
        return tf.convert_to_tensor(self._tables.num_faults)

    @property
    def _trainer(self) -> BatchTrainer | None:
        trainer = self._anchors[0].own_trainer if self._anchors else None
        return trainer if isinstance(trainer, BatchTrainer) else None

    # Lookups.

    @given_in_step
    def call(
        self,
        indices: Any,
        offsets: Any = None,
        per_sample_weights: Any = None,
        feature_requires_grad: Any = None,
        batch_size_per_feature_per_rank: Any = None,
        total_unique_indices: int | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Looks up bags; see the class. `total_unique_indices` is ignored."""
        del total_unique_indices
        features, counts = self._features, None
        if batch_size_per_feature_per_rank is not None:
            if self.pooling_mode == PoolingMode.NONE:
                raise ValueError(
                    f"`batch_size_per_feature_per_rank` of {self.name!r} needs pooling. Received: "
                    "pooling_mode=PoolingMode.NONE"
                )
            counts = features.counts_by_rank(batch_size_per_feature_per_rank)
        batch = features.batch(indices, offsets, per_sample_weights, counts)
        num_offsets = batch.offsets.shape[0]
        if self.pooling_mode == PoolingMode.NONE:
            if batch.weights is not None:
                raise ValueError(
                    f"`per_sample_weights` of {self.name!r} need pooling. Received: "
                    "pooling_mode=PoolingMode.NONE"
                )
            # Features end at offsets, so offsets are corrected before they are read.
            batch = batches.each_alone(self._bounds.with_checked_offsets(batch))
        batch = self._bounds.checked(batch)
        if feature_requires_grad is not None and batch.weights is not None:
            batch = batches.with_gradients_of(batch, feature_requires_grad, self.name)
        pieces, size = self._layout.pieces(batch.num_bags, counts)
        values = self._lookup.find(batch, pieces, size, validation.is_training(training))
        return self._layout.output(values, counts, num_offsets)

    # Shapes.

    @override
    def compute_output_spec(
        self,
        indices: Any,
        offsets: Any = None,
        per_sample_weights: Any = None,
        feature_requires_grad: Any = None,
        batch_size_per_feature_per_rank: Any = None,
        total_unique_indices: int | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        del per_sample_weights, feature_requires_grad, total_unique_indices, training
        sizes = batch_size_per_feature_per_rank
        shape = self.compute_output_shape(
            batches.shapes_of(indices),
            batches.shapes_of(offsets),
            batch_size_per_feature_per_rank_shape=() if sizes is not None else None,
        )
        return keras.KerasTensor(shape, dtype=self._layout.dtype.name)

    @override
    def compute_output_shape(
        self,
        indices_shape: Any,
        offsets_shape: Any = None,
        per_sample_weights_shape: Any = None,
        feature_requires_grad_shape: Any = None,
        batch_size_per_feature_per_rank_shape: Any = None,
    ) -> tuple[int | None, ...]:
        del per_sample_weights_shape, feature_requires_grad_shape
        by_rank = batch_size_per_feature_per_rank_shape is not None
        return self._layout.shape(indices_shape, offsets_shape, by_rank)

    # Hyper-parameters.

    def set_learning_rate(self, lr: Any) -> None:
        """Sets the learning rate from the next step on, also of steps that are traced already.

        Args:
            lr: A float.

        Raises:
            TypeError: If the learning rate is a schedule, or `lr` is not a number.
            ValueError: If the layer has no optimizer of its own.
        """
        self._hyper_parameters.set_learning_rate(lr)

    def get_learning_rate(self) -> float:
        """The learning rate of the next step; in eager execution.

        Raises:
            ValueError: If the layer has no optimizer of its own.
        """
        return self._hyper_parameters.learning_rate()

    def set_optimizer_step(self, step: int) -> None:
        """Sets the number of steps made so far: the next step is `step` + 1.

        Args:
            step: At least 0.

        Raises:
            TypeError: If `step` is not an int.
            ValueError: If `step` is negative, or the layer has no optimizer of its own.
        """
        self._hyper_parameters.set_step(step)

    def update_hyper_parameters(self, params_dict: Mapping[str, Any]) -> None:
        """Sets hyper-parameters from the next step on, also of steps that are traced already.

        Either all are set, or none.

        Args:
            params_dict: A float for each of some of the names "lr", "eps", "beta1", "beta2",
                "weight_decay" and "lower_bound", the lower bound of a GlobalWeightDecayDefinition.

        Raises:
            TypeError: If a value is not a number, or the learning rate is a schedule.
            ValueError: If a name is unknown, a value is out of range, the optimizer does not use
                it, or the layer has no optimizer of its own.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags(
            ...     [(10, 4)], optimizer=tf_embed.tbe.OptimType.ADAM)
            >>> layer.update_hyper_parameters({"lr": 0.5, "beta2": 0.99})
            >>> layer.get_learning_rate()
            0.5
        """
        self._hyper_parameters.update(params_dict)

    # Views.

    def split_embedding_weights(self) -> list[Any]:
        """Returns writable views of each table's weights, which show later steps.

        Returns:
            A `RowsView` for each table; within a tf.function, a tensor of the weights at run time.
            An array has the shape [rows, dim]; rows that were never written have initial values. A
            dynamic table has the shape [n, dim], with the rows of its current ids in the order of
            `table.export()`, which also returns their keys. With DECOUPLE_GLOBAL each row is in the
            state after its last step.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags([(3, 2)])
            >>> (weights,) = layer.split_embedding_weights()
            >>> weights[1] = 0.5
            >>> weights.numpy().tolist()
            [[0.0, 0.0], [0.5, 0.5], [0.0, 0.0]]
        """
        return self._views.weights()

    def split_optimizer_states(self) -> list[list[Any]]:
        """Returns writable views of the optimizer's states of each table's rows.

        Rows are in the order of `split_embedding_weights`, if nothing was written in between. Rows
        that were never trained have initial states. Writing the state of a row that was never
        written also stores the row.

        Returns:
            For each table a list of `RowsView`, or of tensors within a tf.function. The shapes are
            [rows, dim] or [rows], the dtypes float32 or as in `optimizer_state_dtypes`:
                EXACT_SGD: none.
                EXACT_ADAGRAD: the sum [rows, dim].
                EXACT_ROWWISE_ADAGRAD: the sum [rows]; with COUNTER, COWCLIP and DECOUPLE_GLOBAL
                    prev_iter [rows]; with the first two row_counter [rows].
                EMAINPLACE_ROWWISE_ADAGRAD: the sum [rows].
                ENSEMBLE_ROWWISE_ADAGRAD: the sum [rows], sparse_ema [rows, dim].
                ADAM, LAMB: exp_avg and exp_avg_sq [rows, dim]; with the bias correction by rows
                    row_counter [rows].
                PARTIAL_ROWWISE_ADAM, PARTIAL_ROWWISE_LAMB: exp_avg [rows, dim], exp_avg_sq [rows].
                LARS_SGD: the momentum [rows, dim].

        Raises:
            ValueError: If the layer has no optimizer of its own.
        """
        return [list(states.values()) for states in self._views.states("split_optimizer_states")]

    def get_optimizer_state(self) -> list[dict[str, Any]]:
        """Returns `split_optimizer_states` by name, and the step count if the rule uses it.

        Returns:
            A dict for each table. It has the existing states of "sum", "momentum1", "exp_avg",
            "exp_avg_sq", "sparse_ema", "prev_iter" and "row_counter", and "iter", an int64 scalar
            tensor that `set_optimizer_step` sets.

        Raises:
            ValueError: If the layer has no optimizer of its own.
        """
        return self._views.states_by_name("get_optimizer_state")

    # Resets.

    def init_embedding_weights_uniform(
        self, min_val: float, max_val: float, seed: int | None = None
    ) -> None:
        """Writes all rows of arrays, with weights drawn uniformly from `min_val` to `max_val`.

        Drawn values depend on the seed, the table's name and the row number. Optimizer states do
        not change.

        A dynamic table starts empty and draws the row of an id when it is inserted. So its
        initializer must be a keras.initializers.RandomUniform of the same range; its rows are then
        reset to their initial values. Rows of INT8 are drawn in float32 and quantized; a dynamic
        table of INT8 is refused.

        Args:
            min_val: The least weight.
            max_val: The largest weight.
            seed: An int; None draws a seed from Keras's global seed, `keras.utils.set_random_seed`.

        Raises:
            TypeError: If an argument is not a number.
            ValueError: If `min_val` is above `max_val`, or a dynamic table has another initializer
                or INT8. Then nothing is written.
        """
        self._resets.draw_uniform(min_val, max_val, seed)

    def reset_embedding_weight_momentum(
        self,
        pruned_indices: Any,
        pruned_indices_offsets: Any,
        logical_table_ids: Any,
        buffer_ids: Any,
    ) -> None:
        """Sets rows to 0, and their optimizer states to their initial values.

        FBGEMM's method does this with EXACT_ROWWISE_ADAGRAD, and nothing with other optimizers. An
        id without a row in a dynamic table does not get a row. Call it in eager execution, and not
        during other writes to the tables.

        Args:
            pruned_indices: Ids, int64 [n], table by table.
            pruned_indices_offsets: The offset of each table's ids, and n; integers [m + 1].
            logical_table_ids: Numbers of tables, integers [k].
            buffer_ids: Integers [k]: table logical_table_ids[i] has the ids from
                pruned_indices_offsets[buffer_ids[i]] up to the next offset.

        Raises:
            ValueError: If an id, an offset or a number is out of range, or the layer has no
                optimizer of its own. Then nothing is written.
        """
        self._resets.prune(pruned_indices, pruned_indices_offsets, logical_table_ids, buffer_ids)

    # The caches of tables with tiers.

    def flush(self) -> None:
        """Does nothing: saves read rows in the cache as well as rows below it."""

    def reset_cache_states(self) -> None:
        """Does nothing: it would lose rows that are only in the cache."""

    def prefetch(
        self,
        indices: Any,
        offsets: Any,
        forward_stream: Any = None,
        batch_size_per_feature_per_rank: Any = None,
    ) -> None:
        """Brings the rows of a later batch up to their caches; see `tf_embed.Variable.prefetch`.

        Does nothing for tables without a cache. A batch may be used without a prefetch, and a
        prefetched batch need not be used. Faults are neither counted nor logged here.

        Args:
            indices: Integers [n], int32 or int64.
            offsets: Integers [bags + 1], int32 or int64.
            forward_stream: None; TensorFlow has no streams to choose from.
            batch_size_per_feature_per_rank: As in `call`.

        Raises:
            TypeError: If indices or offsets are not integers.
            ValueError: If they are not vectors, or `forward_stream` is given.
        """
        self._features.check_prefetch(indices, offsets, forward_stream)
        counts = None
        if batch_size_per_feature_per_rank is not None:
            counts = self._features.counts_by_rank(batch_size_per_feature_per_rank)
        if any(table.table.options.has_tiers for table in self.tables):
            self._tiers.prefetch(self._features.batch(indices, offsets, None, counts))

    def get_uvm_cache_stats(self, use_local_cache: bool = False) -> tf.Tensor:
        """Counts of all caches together, since the layer was made or the last reset.

        Args:
            use_local_cache: Must be False: counts of a single step are not kept.

        Returns:
            int64 [6], in FBGEMM's order: number of calls, requested indices, unique indices, unique
            misses, unique conflict misses, conflict misses. Requested indices are the indices that
            have a row, and unique misses are rows promoted to a cache, by use or by `prefetch`. The
            others are not counted, and are -1. `table.stats()` of `tables` has more.

        Raises:
            ValueError: If the layer was made without `gather_uvm_cache_stats`, or `use_local_cache`
                is True.
            RuntimeError: If it is called while a graph is traced.
        """
        gathers = bool(self._arguments["gather_uvm_cache_stats"])
        check_gathers(gathers, "gather_uvm_cache_stats", self.name)
        if as_bool(use_local_cache, "use_local_cache"):
            raise ValueError(
                "`use_local_cache` must be False: counts of a single step are not kept. Received: "
                "use_local_cache=True"
            )
        return self._tiers.cache_stats()

    def get_cache_miss_counter(self) -> tf.Tensor:
        """Counts the misses of the caches of all tables together.

        Returns:
            int64 [2], in FBGEMM's order: number of calls with a miss, which is not counted and is
            -1, and unique misses, the sum of `get_table_wise_cache_miss`.

        Raises:
            ValueError: If the layer was made without a `record_cache_metrics` that has
                `record_cache_miss_counter`.
            RuntimeError: If it is called while a graph is traced.
        """
        metrics = self._arguments["record_cache_metrics"]
        check_records(metrics, "record_cache_miss_counter", self.name)
        return self._tiers.miss_counter()

    def get_table_wise_cache_miss(self) -> tf.Tensor:
        """Counts the unique misses of each table since it was made or the last reset.

        A unique miss is a row that was promoted to a cache because a step or `prefetch` needed it.
        Evaluation lookups promote no rows and count none.

        Returns:
            int64 [tables].

        Raises:
            ValueError: If the layer was made without a `record_cache_metrics` that has
                `record_tablewise_cache_miss`.
            RuntimeError: If it is called while a graph is traced.
        """
        metrics = self._arguments["record_cache_metrics"]
        check_records(metrics, "record_tablewise_cache_miss", self.name)
        return self._tiers.misses_by_table()

    def reset_uvm_cache_stats(self) -> None:
        """Sets the counts of the caches that these methods report to 0.

        Raises:
            RuntimeError: If it is called while a graph is traced.
        """
        self._tiers.reset_stats()

    # Saving.

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows and slots of all tables, their seeds and their optimizer's step.

        Keras calls it for .keras and .weights.h5 files.
        """
        self._saver.save(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the result of `save_own_variables`, and replaces the tables' contents.

        Raises:
            ValueError: If the file has no rows, damaged rows, or rows of other tables. Then the
                tables do not change.
        """
        self._saver.load(store, self.built)

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        keras_files.refuse_old_format(self.name)
        device = self._arguments["device"]
        values = {
            **self._arguments,
            **vars(present_settings(self.settings, self._optimizer)),
            "embedding_specs": [spec.get_config() for spec in self._specs],
            "feature_table_map": self.feature_table_map,
            "table_names": self.table_names,
            "feature_names": self.feature_names,
            "initializer": self._initializers,
            "policy": self._policies,
            "storage": self._storages,
            "device": None if device is None else str(device),
        }
        del values["distribution"]  # not plain if it has a function
        plain = {name: layer_arguments.plain(value) for name, value in values.items()}
        plain["distribution"] = serialized(self.distribution)
        return {**super().get_config(), **plain}

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> TableBatchedEmbeddingBags:
        return super().from_config(layer_arguments.with_initializers_of_before(config))

    # Checks.

    def _check_dims(self, feature_dims: Sequence[int]) -> None:
        if self.pooling_mode == PoolingMode.NONE and len(set(feature_dims)) > 1:
            raise ValueError(
                "With PoolingMode.NONE all tables of `embedding_specs` must have one dim. "
                f"Received: {sorted(set(feature_dims))}"
            )
        if self._optimizer is not None:
            for spec, table in zip(self._specs, self.table_names, strict=True):
                self._optimizer.check_dim(spec.dim, table)


_PARAMETERS = inspect.signature(TableBatchedEmbeddingBags.__init__).parameters
_ARGUMENTS = tuple(
    name
    for name, parameter in _PARAMETERS.items()
    if name not in ("self", "name") and parameter.kind != parameter.VAR_KEYWORD
)
