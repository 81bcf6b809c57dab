# SPDX-License-Identifier: Apache-2.0
"""The table-batched layer and its settings, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
import keras
import numpy as np
import tensorflow as tf
from hostile_call import Call
from hostile_values import Kind, kind

import tf_embed as te

RANGE = k.RANGE
SCALAR = "a tensor of one number"
NUMBER = kind({RANGE: "-1, 0, 3, 1.5, 2**63-1, 2**63, -2**63-1", SCALAR: "tensor int8"})
FROM_ZERO = kind({RANGE: "0, 3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"})
FROM_ONE = kind({RANGE: "3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"})
ABOVE_ZERO = FROM_ONE
SHARE = kind({RANGE: "0", SCALAR: "tensor int8"})
BELOW_ONE = kind({RANGE: "0"})
INT = kind({RANGE: "-1, 0, 3, 2**63-1"})
BOOL = kind({"a bool": "True"})


def members(names: str) -> Kind:
    """The kind of an enum argument; the values of these names are values of its members."""
    return kind({"the value of a member": names} if names else {})


def _layer(**options: Any) -> Any:
    given = {"embedding_specs": [(3, 2), (None, 2)], "name": "hostile_layer"}
    return te.tbe.TableBatchedEmbeddingBags(**{**given, **options})


def _make_layer(**good: Any) -> dict[str, Any]:
    return {"embedding_specs": [(3, 2), (None, 2)], "name": "hostile_layer", **good}


def use_layer(layer: Any) -> None:
    """Looks up, makes a step, reads the rows and serializes the layer."""
    variables = layer.trainable_variables
    before = [table.lookup([0, 2]) for table in layer.tables]
    bags = [tf.constant([0, 2])] * len(layer.feature_table_map)
    with tf.GradientTape() as tape:
        values = layer(bags)
        loss = tf.reduce_sum(values)
    gradients = tape.gradient(loss, variables)
    if layer.optimizer is not None:
        keras.optimizers.SGD().apply(gradients, variables)
    for table, first in zip(layer.tables, before, strict=True):
        rows = table.lookup([0, 2])
        if _are_finite(first) and not _are_finite(rows):
            raise AssertionError(f"Rows are not finite: {rows}")
    json.dumps(keras.saving.serialize_keras_object(layer))


def _are_finite(rows: tf.Tensor) -> bool:
    return bool(np.isfinite(tf.cast(rows, tf.float32)).all())


def use_settings(made: Any) -> None:
    """Serializes settings, and compares them with the settings made from their config."""
    config = made.get_config()
    if type(made).from_config(json.loads(json.dumps(config))) != made:
        raise AssertionError(f"{config} is of others than {made}")


def _settings(which: Any, then: Callable[[Any], None] = use_settings, **kinds: Kind) -> Call:
    return Call(lambda: which, dict, kinds, then)


def _method(name: str, **options: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(_layer(**options), name)


SPECS = kind(
    {"rows are kept where they are written": "2**62 rows", "a list": "a list of two"},
    {
        "2**62 rows": lambda: [(2**62, 2)],
        "a list of two": lambda: [[3, 2]],
        "[(0, 2)]": lambda: [(0, 2)],
        "[(3, 0)]": lambda: [(3, 0)],
        "[(True, 2)]": lambda: [(True, 2)],
        "[(3, 2**31)]": lambda: [(3, 2**31)],
        "[(2**63, 2)]": lambda: [(2**63, 2)],
        "[(3, None)]": lambda: [(3, None)],
        "[('3', 2)]": lambda: [("3", 2)],
        "[(3.0, 2)]": lambda: [(3.0, 2)],
        "[(3, 2, 9)]": lambda: [(3, 2, 9)],
        "[(3, 2, None)]": lambda: [(3, 2, None)],
        "[(3, 2, MTIA)]": lambda: [(3, 2, te.tbe.EmbeddingLocation.MTIA)],
        "[(3, 2, 3, 7)]": lambda: [(3, 2, 3, 7)],
        "[(3, 2, 3, 0, 1)]": lambda: [(3, 2, 3, 0, 1)],
        "[{3, 2}]": lambda: [{3, 2}],
        "[{'a': 1, 'b': 2}]": lambda: [{"a": 1, "b": 2}],
        "(3, 2)": lambda: (3, 2),
        "'32'": lambda: "32",
        "['32']": lambda: ["32"],
        "array of specs": lambda: np.array([[3.0, 2.0]]),
        "tensor of specs": lambda: tf.constant([[3, 2]]),
        "[iterator]": lambda: [iter([3, 2])],
    },
)
MAP = kind(
    {k.DEFAULT: "None"},
    {
        "[0, 2]": lambda: [0, 2],
        "[0, -1]": lambda: [0, -1],
        "[0, 0]": lambda: [0, 0],
        "[False, True]": lambda: [False, True],
        "[0.0, 1.0]": lambda: [0.0, 1.0],
        "'01'": lambda: "01",
        "b'\\0\\1'": lambda: b"\0\1",
        "{0: 1, 1: 0}": lambda: {0: 1, 1: 0},
        "{0, 1}": lambda: {0, 1},
        "2-d": lambda: [[0], [1]],
    },
)
NAMES = kind(
    {k.DEFAULT: "None"},
    {
        "'ab'": lambda: "ab",
        "[1, 2]": lambda: [1, 2],
        "['a', None]": lambda: ["a", None],
        "['a', 'a']": lambda: ["a", "a"],
        "['a', '']": lambda: ["a", ""],
        "['a', nul]": lambda: ["a", "b\0"],
        "['a', surrogate]": lambda: ["a", "\ud800"],
        "{'a': 1, 'b': 2}": lambda: {"a": 1, "b": 2},
        "{'a', 'b'}": lambda: {"a", "b"},
        "[b'a', b'b']": lambda: [b"a", b"b"],
    },
)
DEVICE = kind({"a device, which is logged": "None, 0, 3, 'x'"})
STATE_DTYPES = kind(
    {k.DEFAULT: "None", "no state": "{}"},
    {
        "[('momentum1', 'fp16')]": lambda: [("momentum1", "fp16")],
        "{'momentum1': None}": lambda: {"momentum1": None},
        "{'momentum1': 'x'}": lambda: {"momentum1": "x"},
        "{'momentum1': INT8}": lambda: {"momentum1": te.tbe.SparseType.INT8},
        "{'momentum9': FP16}": lambda: {"momentum9": te.tbe.SparseType.FP16},
        "{1: FP16}": lambda: {1: te.tbe.SparseType.FP16},
    },
)


def _without(one: Kind, names: str) -> Kind:
    """A kind that refuses the values of these names too, and refuses all values at once."""
    gone = names.split(", ")
    takes = {name: why for name, why in one.takes.items() if name not in gone}
    return dataclasses.replace(one, takes=takes, late={})


ONE_EACH = "one for each table"
# The layer can't draw rows by a Python function.
INITIALIZER = _without(
    k.INITIALIZER,
    "function, divides by zero, without dtype, gives None, gives another dim, gives strings, "
    "gives one row, Orthogonal(), class Orthogonal",
)
# A list has an initializer for each table.
INITIALIZERS = _without(INITIALIZER, "[1], [-1], [1.5], [2**63], deep list").taking(
    ONE_EACH, "ragged list, two rows"
)
LEARNING_RATE = NUMBER.taking(k.CALLED, "function")
ADJUSTED = kind(
    {"nothing to set": "{}"},
    {
        "{'lr': nan}": lambda: {"lr": float("nan")},
        "{'lr': 10**400}": lambda: {"lr": 10**400},
        "{'lr': None}": lambda: {"lr": None},
        "{'lr': 'x'}": lambda: {"lr": "x"},
        "{'eps': -1}": lambda: {"eps": -1},
        "{'beta1': 1}": lambda: {"beta1": 1},
        "{'lower_bound': 0}": lambda: {"lower_bound": 0},
        "{1: 1}": lambda: {1: 1},
        "{None: 1}": lambda: {None: 1},
        "pairs": lambda: [("lr", 1.0)],
    },
)

OF_LAYER = {
    "embedding_specs": SPECS,
    "feature_table_map": MAP,
    "cache_algorithm": members("0"),
    "cache_load_factor": ABOVE_ZERO,
    "cache_sets": k.LARGE_OR_ZERO,
    "cache_reserved_memory": FROM_ZERO,
    "cache_precision": k.NONE,
    "weights_precision": members(""),
    "output_dtype": members(""),
    "enforce_hbm": BOOL,
    "optimizer": k.NONE,
    "record_cache_metrics": kind({k.DEFAULT: "None", "all at their defaults": "{}"}),
    "gather_uvm_cache_stats": BOOL.optional(),
    "stochastic_rounding": BOOL,
    "gradient_clipping": BOOL,
    "max_gradient": kind({k.DEFAULT: "tensor int8"}),
    "max_norm": kind({k.DEFAULT: "0"}),
    "learning_rate": LEARNING_RATE,
    "eps": kind(),
    "momentum": kind(),
    "weight_decay": kind({k.DEFAULT: "0"}),
    "weight_decay_mode": members("0"),
    "eta": kind(),
    "beta1": kind(),
    "beta2": kind(),
    "ensemble_mode": k.NONE,
    "emainplace_mode": k.NONE,
    "counter_based_regularization": k.NONE,
    "cowclip_regularization": k.NONE,
    "pooling_mode": members("0"),
    "device": DEVICE,
    "bounds_check_mode": members("0, 3"),
    "uvm_non_rowwise_momentum": BOOL,
    "use_experimental_tbe": BOOL,
    "prefetch_pipeline": BOOL,
    "stats_reporter_config": kind({k.DEFAULT: "None", "all at their defaults": "{}"}),
    "table_names": NAMES,
    "optimizer_state_dtypes": STATE_DTYPES,
    "multipass_prefetch_config": kind({k.DEFAULT: "None", "all at their defaults": "{}"}),
    "global_weight_decay": k.NONE,
    "uvm_host_mapped": BOOL,
    "extra_optimizer_config": kind({k.DEFAULT: "None", "all at their defaults": "{}"}),
    "initializer": INITIALIZERS,
    "feature_names": NAMES,
    "policy": k.POLICY,
    "storage": k.STORAGE,
    "padding_id": k.PADDING,
    "distribution": k.DISTRIBUTION,
    "name": k.LAYER_NAME,
}


def _layer_of(use: Any = use_layer, **good: Any) -> Callable[..., Call]:
    def call(**kinds: Kind) -> Call:
        return Call(
            lambda: te.tbe.TableBatchedEmbeddingBags, lambda: _make_layer(**good), kinds, use
        )

    return call


ONE_FEATURE = "the ids of the one feature"
MENDED = "faults are mended or dropped, and counted"
INDICES = kind(
    {"integers": "[1], [-1], tf.Variable", k.SYMBOLIC: "KerasTensor", MENDED: "out of bounds"},
    {
        "2**63 as uint64": lambda: tf.constant([2**63, 1], tf.uint64),
        "strings": lambda: tf.constant(["a", "b"]),
        "2-d": lambda: tf.constant([[0, 1]]),
        "out of bounds": lambda: tf.constant([-5, 2**62]),
    },
)
OFFSETS = kind(
    {ONE_FEATURE: "None", k.SYMBOLIC: "KerasTensor", MENDED: "falling, negative, beyond"},
    {
        "falling": lambda: tf.constant([2, 1, 0]),
        "negative": lambda: tf.constant([-1, 1, 2]),
        "beyond": lambda: tf.constant([0, 1, 2**62]),
        "2**63 as uint64": lambda: tf.constant([0, 2**63], tf.uint64),
        "floats": lambda: tf.constant([0.0, 1.0, 2.0]),
        "2-d": lambda: tf.constant([[0, 1, 2]]),
    },
)
WEIGHTS = kind(
    {k.DEFAULT: "None", k.SYMBOLIC: "KerasTensor"},
    {
        "one more": lambda: tf.constant([1.0, 2.0, 3.0]),
        "strings": lambda: tf.constant(["a", "b"]),
        "2-d": lambda: tf.constant([[1.0, 2.0]]),
    },
)
BATCH_SIZES = kind(
    {k.DEFAULT: "None", k.SYMBOLIC: "KerasTensor"},
    {
        "[[-1, 3]]": lambda: [[-1, 3]],
        "[[2**62, 2**62, 2**62, 2**62, 2]]": lambda: [[2**62, 2**62, 2**62, 2**62, 2]],
        "[[1]]": lambda: [[1]],
        "[[2], [0]]": lambda: [[2], [0]],
        "[[1.5]]": lambda: [[1.5]],
    },
)


PREFETCHED = kind({"integers, for a cache that there is none of": "[1], [-1], tf.Variable"})


def _array_layer(**options: Any) -> Any:
    layer = _layer(embedding_specs=[(3, 2)], **options)
    layer.build()
    return layer


def _see(values: Any) -> None:
    if not isinstance(values, keras.KerasTensor):
        np.asarray(values)


def _call(layer: Callable[[], Any], **good: Any) -> Callable[..., Call]:
    def call(**kinds: Kind) -> Call:
        of_keras = {name: one.refused_by(k.KERAS, k.UNPRINTABLE) for name, one in kinds.items()}
        return Call(layer, lambda: good, of_keras, _see, says=("ids",))

    return call


BATCH_CALLS: dict[str, Call] = {
    "tbe.TableBatchedEmbeddingBags": _layer_of()(**OF_LAYER),
    "tbe.TableBatchedEmbeddingBags [dynamic]": _layer_of(embedding_specs=[(None, 2)])(
        initializer=INITIALIZER.taking(ONE_EACH, "[None]"),
        policy=k.POLICY.taking(ONE_EACH, "[None]"),
        storage=k.STORAGE.taking(ONE_EACH, "[None]"),
        name=k.LAYER_NAME,
    ),
    "tbe.TableBatchedEmbeddingBags [bytes]": _layer_of(optimizer=None, weights_precision="int8")(
        initializer=k.NONE, optimizer=k.NONE
    ),
    "tbe.TableBatchedEmbeddingBags [clips]": _layer_of(gradient_clipping=True)(
        max_gradient=ABOVE_ZERO
    ),
    "tbe.TableBatchedEmbeddingBags [adam]": _layer_of(optimizer="ADAM")(
        learning_rate=LEARNING_RATE,
        eps=FROM_ZERO,
        beta1=BELOW_ONE,
        beta2=BELOW_ONE,
        weight_decay=FROM_ZERO,
        extra_optimizer_config=OF_LAYER["extra_optimizer_config"],
        optimizer_state_dtypes=STATE_DTYPES,
    ),
    "tbe.TableBatchedEmbeddingBags [lars]": _layer_of(optimizer="LARS_SGD")(
        momentum=FROM_ZERO, eta=FROM_ZERO
    ),
    "tbe.TableBatchedEmbeddingBags [row-wise]": _layer_of(optimizer="EXACT_ROWWISE_ADAGRAD")(
        max_norm=FROM_ZERO, weight_decay=kind({k.DEFAULT: "0"}), weight_decay_mode=members("0")
    ),
    "tbe.TableBatchedEmbeddingBags [averages]": _layer_of(optimizer="ENSEMBLE_ROWWISE_ADAGRAD")(
        ensemble_mode=kind({k.DEFAULT: "None, {}"})
    ),
    "tbe.TableBatchedEmbeddingBags()": _call(
        _array_layer, indices=tf.constant([0, 1]), offsets=tf.constant([0, 1, 2])
    )(
        indices=INDICES,
        offsets=OFFSETS,
        per_sample_weights=WEIGHTS,
        batch_size_per_feature_per_rank=BATCH_SIZES,
        total_unique_indices=k.IGNORED,
        training=k.LAYER_TRAINING,
    ),
    "tbe.TableBatchedEmbeddingBags() [weights]": _call(
        _array_layer,
        indices=tf.constant([0, 1]),
        offsets=tf.constant([0, 1, 2]),
        per_sample_weights=tf.constant([1.0, 2.0]),
    )(
        feature_requires_grad=WEIGHTS.taking(
            "one number", "[1], [-1], [1.5], array of 1.5, tensor [1.5], tf.Variable"
        )
    ),
    "tbe.TableBatchedEmbeddingBags() [containers]": _call(
        _array_layer, indices=[tf.ragged.constant([[1], [2]], dtype=tf.int64)]
    )(
        indices=k.SPARSE_IDS.taking("ids in a container", "RaggedTensor, SparseTensor")
        .taking("one id a bag", "tf.Variable, no axis")
        .taking(k.SYMBOLIC, "KerasTensor")
        .taking(MENDED, "row splits that fall, row splits beyond"),
        per_sample_weights=k.SPARSE_WEIGHTS.taking(k.SYMBOLIC, "KerasTensor"),
    ),
    "tbe.TableBatchedEmbeddingBags.set_learning_rate": Call(
        _method("set_learning_rate"), dict, {"lr": NUMBER}
    ),
    "tbe.TableBatchedEmbeddingBags.set_optimizer_step": Call(
        _method("set_optimizer_step"), dict, {"step": k.LARGE_OR_ZERO}
    ),
    "tbe.TableBatchedEmbeddingBags.update_hyper_parameters": Call(
        _method("update_hyper_parameters", optimizer="adam"),
        dict,
        {"params_dict": ADJUSTED},
        says=("lr", "eps", "beta1", "lower_bound"),
    ),
    "tbe.TableBatchedEmbeddingBags.init_embedding_weights_uniform": Call(
        _method("init_embedding_weights_uniform", embedding_specs=[(3, 2)]),
        lambda: {"min_val": -1.0, "max_val": 1.0},
        {
            "min_val": NUMBER,
            "max_val": NUMBER,
            "seed": INT.optional(),
        },
    ),
    "tbe.TableBatchedEmbeddingBags.reset_embedding_weight_momentum": Call(
        _method("reset_embedding_weight_momentum", optimizer="exact_row_wise_adagrad"),
        lambda: {
            "pruned_indices": [1, 2],
            "pruned_indices_offsets": [0, 1, 2],
            "logical_table_ids": [0, 1],
            "buffer_ids": [0, 1],
        },
        {
            "pruned_indices": kind({}, {"[1, 2**63]": lambda: [1, 2**63]}),
            "pruned_indices_offsets": kind(
                {},
                {
                    "falling": lambda: [0, 2, 1],
                    "beyond": lambda: [0, 1, 3],
                    "negative": lambda: [-1, 1, 2],
                },
            ),
            "logical_table_ids": kind({}, {"[0, 2]": lambda: [0, 2]}),
            "buffer_ids": kind({}, {"[0, 2]": lambda: [0, 2]}),
        },
        says=("buffer_ids",),
    ),
    "tbe.TableBatchedEmbeddingBags.prefetch": Call(
        _method("prefetch", embedding_specs=[(3, 2)]),
        lambda: {"indices": [0, 1], "offsets": [0, 1, 2]},
        {
            "indices": PREFETCHED,
            "offsets": PREFETCHED,
            "forward_stream": k.NONE,
            "batch_size_per_feature_per_rank": k.NONE,
        },
    ),
    "tbe.TableBatchedEmbeddingBags.get_uvm_cache_stats": Call(
        _method("get_uvm_cache_stats", embedding_specs=[(3, 2)], gather_uvm_cache_stats=True),
        dict,
        {"use_local_cache": k.OBJECT},
    ),
    "tbe.TailIdThreshold": _settings(te.tbe.TailIdThreshold, val=NUMBER, is_ratio=BOOL),
    "tbe.CounterBasedRegularizationDefinition": _settings(
        te.tbe.CounterBasedRegularizationDefinition,
        counter_weight_decay_mode=members("0, 3"),
        counter_halflife=INT,
        adjustment_iter=INT,
        adjustment_ub=FROM_ZERO,
        learning_rate_mode=members("-1, 0"),
        grad_sum_decay=members("-1"),
        tail_id_threshold=kind({"all at their defaults": "{}"}),
        max_counter_update_freq=k.LARGE_INT,
    ),
    "tbe.CowClipDefinition": _settings(
        te.tbe.CowClipDefinition,
        counter_weight_decay_mode=members("0"),
        counter_halflife=INT,
        weight_norm_coefficient=FROM_ZERO,
        lower_bound=FROM_ZERO,
    ),
    "tbe.GlobalWeightDecayDefinition": _settings(
        te.tbe.GlobalWeightDecayDefinition, start_iter=INT, lower_bound=SHARE
    ),
    "tbe.EnsembleModeDefinition": _settings(
        te.tbe.EnsembleModeDefinition,
        step_ema=FROM_ONE,
        step_swap=FROM_ONE,
        step_start=NUMBER,
        step_ema_coef=SHARE,
        step_mode=members("0"),
    ),
    "tbe.EmainplaceModeDefinition": _settings(
        te.tbe.EmainplaceModeDefinition, step_ema=FROM_ONE, step_start=NUMBER, step_ema_coef=SHARE
    ),
    "tbe.RecordCacheMetrics": _settings(
        te.tbe.RecordCacheMetrics, record_cache_miss_counter=BOOL, record_tablewise_cache_miss=BOOL
    ),
    "tbe.TBEStatsReporterConfig": _settings(te.tbe.TBEStatsReporterConfig, interval=INT),
    "tbe.MultiPassPrefetchConfig": _settings(
        te.tbe.MultiPassPrefetchConfig,
        num_passes=k.LARGE_INT,
        min_splitable_pass_size=k.LARGE_INT,
    ),
    "tbe.UserEnabledConfigDefinition": _settings(
        te.tbe.UserEnabledConfigDefinition, use_rowwise_bias_correction=BOOL
    ),
}
