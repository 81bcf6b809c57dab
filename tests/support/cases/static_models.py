# SPDX-License-Identifier: Apache-2.0
"""Models of each kind for the tests of `export_static`, with a batch and its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.one_embedding_cases import constant_tables, layer, store, uniform_tables
from tf_embed import one_embedding, sok, tbe
from tf_embed import tfra as de
from tf_embed.layers import DynamicEmbedding

DIM = 8
KEYS = np.array([5, -9, 10**15, 7, 0, 2**63 - 1, -(2**63)])
IDS = np.array([[5, 5, 0], [-9, 1, 7], [10**15, 2, 2**62], [3, 3, 3]])
WORDS = np.array([["zürich", "", "new york"], ["a" * 300, "b\0c", "zürich"]], object)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model to export.

    Attributes:
        model: The model.
        inputs: The arguments of a call.
        signature: `input_signature`, or None.
    """

    model: Any
    inputs: tuple[Any, ...]
    signature: Any = None

    @property
    def answers(self) -> list[np.ndarray]:
        """The model's own answers."""
        return arrays_of(tf.function(self.model)(*self.inputs))


def arrays_of(answers: Any) -> list[np.ndarray]:
    """The tensors of an answer as arrays, bfloat16 as its bits."""
    flat = tf.nest.flatten(answers, expand_composites=True)
    return [(tf.bitcast(a, tf.uint16) if a.dtype == tf.bfloat16 else a).numpy() for a in flat]


class Served(tf.Module):
    """A function, and the variables and layers that it uses."""

    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.parts = list(parts)
        self._function = function

    def __call__(self, *inputs: tf.Tensor) -> Any:
        return self._function(*inputs)


def module(function: Callable[..., Any], inputs: Any, *parts: Any) -> Case:
    """A case of a function of tensors with a first axis of any size."""
    inputs = tuple(map(tf.constant, inputs))
    specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in inputs]
    return Case(Served(function, *parts), inputs, specs)


def filled(keys: Any = KEYS, **options: Any) -> tf_embed.Variable:
    """A variable with random rows of some keys."""
    v = tf_embed.Variable(**{"dim": DIM, "name": "filled", **options})
    fill(v, keys)
    return v


def fill(v: tf_embed.Variable, keys: Any = KEYS) -> None:
    rng = np.random.default_rng(len(keys))
    shape = [len(keys), v.dim]
    if v.value_dtype == tf.string:
        rows = tf.constant(rng.integers(0, 9, shape).astype("S"))
    elif v.value_dtype.is_floating:
        rows = tf.cast(rng.normal(0, 1, shape), v.value_dtype)
    else:
        rows = tf.cast(rng.integers(0, 2, shape), v.value_dtype)
    v.upsert(tf.constant(keys, v.key_dtype), rows)


def trained(*layers: Any, ids: np.ndarray = IDS, **input_options: Any) -> keras.Model:
    """A model of layers, after some training."""
    input_options = {"dtype": "int64", **input_options}
    inputs = keras.Input(ids.shape[1:], **input_options)
    outputs = inputs
    for one in layers:
        outputs = one(outputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(outputs))
    model = keras.Model(inputs, outputs)
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    x = tf.constant(ids)
    model.fit(x[: len(ids) // 2], np.ones(len(ids) // 2), epochs=2, verbose=0)
    return model


def of_layer(one: Any, ids: np.ndarray = IDS, **input_options: Any) -> Case:
    """A trained model with a single layer."""
    return Case(trained(one, ids=ids, **input_options), (tf.constant(ids),))


# Variables.


def lookup(v: tf_embed.Variable, ids: Any) -> Case:
    ids = tf.constant(ids) if v.key_dtype == tf.string else tf.constant(ids, v.key_dtype)
    return module(lambda ids: v.lookup(ids, return_exists=True), [ids], v)


def key_dtype_case(key_dtype: str) -> Case:
    kind = np.iinfo(key_dtype)
    keys = np.array([kind.min, 0, 1, 77, kind.max // 2 + 1, kind.max], key_dtype)
    ids = np.array([*keys, 2, kind.max - 1, kind.min + 5], key_dtype)
    v = filled(keys, key_dtype=key_dtype, initializer=keras.initializers.RandomNormal(seed=2))
    return lookup(v, ids)


def string_case(**options: Any) -> Case:
    v = filled(
        ["zürich", "", "b\0c"],
        key_dtype=tf.string,
        initializer=keras.initializers.TruncatedNormal(seed=3),
        **options,
    )
    return lookup(v, WORDS)


INITIALIZERS = {
    "zeros": None,
    "number": 0.3,
    "row": np.arange(DIM) / 7,
    "uniform": keras.initializers.RandomUniform(-0.3, 0.2, seed=1),
    "normal": keras.initializers.RandomNormal(0.1, 3.0, seed=2),
    "truncated": keras.initializers.TruncatedNormal(-0.7, 0.3, seed=3),
    "he": keras.initializers.HeNormal(seed=4),
    "glorot": keras.initializers.GlorotUniform(seed=5),
    "function": lambda shape, dtype: tf.ones(shape, dtype) * 3,
}
VALUE_DTYPES = ("float16", "bfloat16", "float64", "int8", "int32", "int64", "bool", "string")


def sparse_lookup(v: tf_embed.Variable, ids: Any, weights: Any, **options: Any) -> Any:
    """Pools the ids other than 3, from a sparse and from a ragged tensor."""
    places = tf.where(tf.not_equal(ids, 3))
    shape = tf.shape(ids, tf.int64)
    of_ids = tf.SparseTensor(places, tf.gather_nd(ids, places), shape)
    of_weights = tf.SparseTensor(places, tf.gather_nd(weights, places), shape)
    ragged = tf.RaggedTensor.from_sparse(of_ids)
    return (
        tf_embed.embedding_lookup_sparse(v, of_ids, of_weights, **options),
        tf_embed.safe_embedding_lookup_sparse(v, ragged, default_id=7, **options),
    )


def in_control_flow(v: tf_embed.Variable, ids: tf.Tensor) -> Any:
    mapped = tf.map_fn(lambda one: v.lookup(one), ids, fn_output_signature=tf.float32)
    chosen = tf.cond(tf.reduce_sum(ids) > 0, lambda: v.lookup(ids), lambda: v.lookup(-ids))
    total = tf.zeros([DIM])
    for one in ids:  # a loop of the graph
        total += tf.reduce_sum(tf_embed.embedding_lookup(v, one), 0)
    return mapped, chosen, total


WEIGHTS = np.array([[1, 2, 0.5], [0, 0, 0], [-1, 1, 3], [2, 2, 2]], np.float32) / 3


def variable_cases() -> dict[str, Callable[[], Case]]:
    normal = INITIALIZERS["normal"]

    def embedded(function: Callable[..., Any], **options: Any) -> Callable[[], Case]:
        def make() -> Case:
            v = filled(initializer=normal, **options)
            return module(lambda ids: function(v, ids), [IDS], v)

        return make

    def sparse(**options: Any) -> Callable[[], Case]:
        def make() -> Case:
            v = filled(initializer=normal)
            return module(
                lambda ids, weights: sparse_lookup(v, ids, weights, **options), [IDS, WEIGHTS], v
            )

        return make

    return {
        **{
            f"keys {dtype}": lambda dtype=dtype: key_dtype_case(dtype)
            for dtype in ("int64", "int32", "uint64", "uint32")
        },
        "keys string": string_case,
        "values string": lambda: lookup(
            filled(value_dtype=tf.string, dim=2, initializer=["x", "y"]), IDS
        ),
        **{
            f"values {dtype}": lambda dtype=dtype: lookup(filled(value_dtype=dtype), IDS)
            for dtype in VALUE_DTYPES
        },
        **{
            f"initializer {name}": lambda one=one: lookup(filled(initializer=one), IDS)
            for name, one in INITIALIZERS.items()
        },
        **{
            f"{name} of {dtype}": lambda one=INITIALIZERS[name], dtype=dtype: lookup(
                filled(initializer=one, value_dtype=dtype), IDS
            )
            for name in ("number", "truncated")
            for dtype in ("float16", "bfloat16", "float64")
        },
        "no rows": lambda: lookup(tf_embed.Variable(dim=DIM, initializer=normal), IDS),
        "shards": lambda: lookup(filled(devices=["/CPU:0"] * 3, initializer=normal), IDS),
        "bounded": lambda: lookup(filled(policy=tf_embed.TablePolicy(max_rows=3)), IDS),
        "control flow": embedded(in_control_flow),
        "max_norm": embedded(lambda v, ids: tf_embed.embedding_lookup(v, ids, max_norm=0.5)),
        "unique": embedded(tf_embed.embedding_lookup_unique),
        "unique_rows": embedded(tf_embed.unique_rows),
        "sparse sum": sparse(combiner="sum"),
        "sparse mean": sparse(combiner="mean"),
        "sparse sqrtn": sparse(combiner="sqrtn"),
        "sparse clipped": sparse(combiner="mean", max_norm=0.7),
    }


# Layers.


def weighted(combiner: str) -> Case:
    one = DynamicEmbedding(DIM, combiner=combiner, initializer=INITIALIZERS["normal"])
    one.build()
    fill(one.variable)
    return module(lambda ids, weights: one(ids, weights), [IDS, WEIGHTS], one)


def containers(**options: Any) -> Case:
    """Ragged and sparse ids, made from dense ids."""
    one = DynamicEmbedding(DIM, initializer=INITIALIZERS["uniform"], **options)
    one.build()
    fill(one.variable)

    def call(ids: tf.Tensor) -> Any:
        sparse = tf.sparse.from_dense(ids)
        return one(sparse), one(tf.RaggedTensor.from_sparse(sparse))

    return module(call, [IDS], one)


class Subclassed(keras.Model):
    """Layers in a list and a dict, and a lookup table of TensorFlow's."""

    def __init__(self) -> None:
        super().__init__()
        self.some = [DynamicEmbedding(DIM, combiner="sum"), DynamicEmbedding(DIM, combiner="mean")]
        self.more = {"dense": keras.layers.Dense(3)}
        self.numbers = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([5, 7], tf.int64), tf.constant([50, 70], tf.int64)
            ),
            default_value=-1,
        )

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        rows = [one(ids) for one in self.some]
        return self.more["dense"](tf.concat(rows, 1)) + tf.cast(
            self.numbers.lookup(ids), tf.float32
        )


def subclassed() -> Case:
    model = Subclassed()
    model.compile(tf_embed.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(tf.constant(IDS), np.ones([4, 3]), verbose=0)
    return Case(model, (tf.constant(IDS),), [keras.InputSpec(dtype="int64", shape=(None, 3))])


def several_tables() -> Case:
    """A functional model with a dict of inputs, a vocabulary and a shared layer."""
    inputs = {
        "user": keras.Input([3], dtype="int64", name="user"),
        "word": keras.Input([3], dtype="string", name="word"),
        "city": keras.Input([1], dtype="string", name="city"),
        "price": keras.Input([1], name="price"),
    }
    user = DynamicEmbedding(DIM, combiner="mean", optimizer="adam")
    word = DynamicEmbedding(4, key_dtype="string", padding_id="", combiner="sqrtn")
    city = keras.layers.StringLookup(vocabulary=["zürich", "new york"])(inputs["city"])
    city = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(city))
    parts = [user(inputs["user"]), word(inputs["word"]), city, inputs["price"]]
    outputs = keras.layers.Dense(2)(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, outputs)
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    batch = {
        "user": tf.constant(IDS[:2]),
        "word": tf.constant(WORDS),
        "city": tf.constant([["zürich"], ["oslo"]]),
        "price": tf.constant([[1.0], [2.0]]),
    }
    model.fit({name: one[:1] for name, one in batch.items()}, np.ones([1, 2]), verbose=0)
    return Case(model, (batch,))


def layer_cases() -> dict[str, Callable[[], Case]]:
    normal = INITIALIZERS["normal"]

    def dynamic(ids: np.ndarray = IDS, **options: Any) -> Callable[[], Case]:
        return lambda: of_layer(DynamicEmbedding(DIM, **options), ids)

    def words(**options: Any) -> Callable[[], Case]:
        return lambda: of_layer(
            DynamicEmbedding(DIM, key_dtype="string", initializer=normal, **options),
            WORDS,
            dtype="string",
        )

    unsigned = np.array([[5, 2**64 - 1, 2**63], [2**64 - 1, 2**64 - 2, 0]], np.uint64)
    return {
        "rows": dynamic(),
        "padding": dynamic(padding_id=3),
        **{f"pooled {name}": dynamic(combiner=name) for name in ("sum", "mean", "sqrtn")},
        "pooled padding": dynamic(combiner="mean", padding_id=5, initializer=normal),
        "pooled half": dynamic(combiner="mean", value_dtype="float16", initializer=normal),
        "pooled bfloat16": dynamic(combiner="sqrtn", value_dtype="bfloat16", initializer=normal),
        "pooled double": dynamic(combiner="sqrtn", value_dtype="float64", dtype="float64"),
        "unknown": dynamic(unknown_value=-7.0),
        "unknown pooled": dynamic(unknown_value=np.arange(DIM), combiner="sum"),
        "function pooled": dynamic(
            combiner="sum", padding_id=5, initializer=INITIALIZERS["function"]
        ),
        "words": words(),
        "words pooled": words(combiner="mean", padding_id=""),
        "unsigned": lambda: of_layer(
            DynamicEmbedding(DIM, key_dtype="uint64", padding_id=2**64 - 1, combiner="mean"),
            unsigned,
            dtype="uint64",
        ),
        **{
            f"weighted {name}": lambda name=name: weighted(name)
            for name in ("sum", "mean", "sqrtn")
        },
        "containers": containers,
        "containers pooled": lambda: containers(combiner="mean"),
        "containers padded": lambda: containers(combiner="sqrtn", padding_id=7),
        "subclassed": subclassed,
        "several tables": several_tables,
        "mixed": lambda: of_layer(DynamicEmbedding(DIM, dtype="mixed_bfloat16", combiner="sum")),
        "tfra rows": lambda: of_layer(de.keras.layers.Embedding(DIM, max_norm=0.05)),
        **{
            f"tfra {name}": lambda name=name: of_layer(
                de.keras.layers.SquashedEmbedding(DIM, combiner=name)
            )
            for name in ("sum", "mean", "max", "std")
        },
        "tfra clipped": lambda: of_layer(
            de.keras.layers.SquashedEmbedding(DIM, combiner="mean", max_norm=0.04)
        ),
        "tfra fields": lambda: of_layer(
            de.keras.layers.FieldWiseEmbedding(DIM, 3, slot_map_fn=lambda keys: keys % 3)
        ),
        "sok rows": lambda: of_layer(
            sok.All2AllDenseEmbedding(
                max_vocabulary_size_per_gpu=99, embedding_vec_size=DIM, slot_num=3, nnz_per_slot=1
            )
        ),
        "sok bags": sok_bags,
    }


def sok_bags() -> Case:
    one = sok.DistributedEmbedding(
        combiner="mean",
        max_vocabulary_size_per_gpu=99,
        embedding_vec_size=DIM,
        slot_num=2,
        max_nnz=3,
    )
    one.build()
    fill(one.variable)
    return module(lambda ids: one(tf.sparse.from_dense(ids), training=False), [IDS], one)


# Many tables.


def bags(specs: Any = ((None, 4), (7, DIM), (None, 2)), **options: Any) -> Case:
    """A layer with several features. The first and the third share a table."""
    of_layer_ = tbe.TableBatchedEmbeddingBags(list(specs), [0, 1, 0, 2], **options)
    of_layer_.build()
    rng = np.random.default_rng(3)
    for table in of_layer_.tables:
        keys = np.arange(0, 7, 2)
        rows = rng.normal(0, 1, [4, table.dim]).astype(np.float32)
        if table.value_dtype == tf.int8:
            rows = tbe.quantized_rows.quantize(rows[:, :-8])
        table.upsert(keys, tf.cast(rows, table.value_dtype))
    lengths = rng.integers(0, 4, 12)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(-1, 8, offsets[-1])
    weights = rng.normal(0, 1, len(indices)).astype(np.float32)
    if options.get("pooling_mode") == tbe.PoolingMode.NONE:
        return module(lambda *batch: of_layer_(*batch), [indices, offsets], of_layer_)
    return module(lambda *batch: of_layer_(*batch), [indices, offsets, weights], of_layer_)


def bags_by_rank() -> Case:
    one = tbe.TableBatchedEmbeddingBags([(None, 4), (None, 2)], name="ranks")
    one.build()
    sizes = [[1, 2], [3, 0]]
    indices, offsets = np.arange(8), np.array([0, 1, 3, 3, 5, 6, 8])
    return module(
        lambda *batch: one(*batch, batch_size_per_feature_per_rank=sizes), [indices, offsets], one
    )


def bags_in_lists() -> Case:
    one = tbe.TableBatchedEmbeddingBags([(None, 4), (9, 2), (None, 2)], padding_id=3)
    one.build()
    fill(one.tables[0])

    def call(ids: tf.Tensor) -> tf.Tensor:
        sparse = tf.sparse.from_dense(ids)
        return one([ids, tf.RaggedTensor.from_tensor(tf.abs(ids) % 9), sparse])

    return module(call, [IDS], one)


def multi_table(tables: Any, key_type: str = "int64", **options: Any) -> Case:
    one = layer(tables, key_type, dim=options.pop("dim", DIM), optimizer="sgd", **options)
    ids = (np.abs(IDS) % 11).astype(key_type)
    inputs = keras.Input([3], dtype=key_type)
    model = keras.Model(inputs, one(inputs))
    model.compile("sgd", "mse")
    model.fit(ids[:2], np.ones([2, *model.output_shape[1:]]), verbose=0)
    return Case(model, (tf.constant(ids),))


def many_table_cases() -> dict[str, Callable[[], Case]]:
    make = one_embedding
    normal = make.make_normal_initializer(0.1, 0.5)
    mixed = [
        make.make_table(make.make_uniform_initializer(-1.0, 1.0)),
        make.make_table(normal),
        make.make_table(make.make_trunc_normal_initializer(0.0, 0.3)),
    ]
    return {
        "bags": lambda: bags(bounds_check_mode=tbe.BoundsCheckMode.IGNORE),
        "bags mean": lambda: bags(
            pooling_mode=tbe.PoolingMode.MEAN, bounds_check_mode=tbe.BoundsCheckMode.WARNING
        ),
        "bags half": lambda: bags(
            weights_precision=tbe.SparseType.FP16, bounds_check_mode=tbe.BoundsCheckMode.IGNORE
        ),
        "bags bytes": lambda: bags(
            weights_precision=tbe.SparseType.INT8,
            optimizer=tbe.OptimType.NONE,
            bounds_check_mode=tbe.BoundsCheckMode.NONE,
        ),
        "bags alone": lambda: bags(
            [(None, 4), (7, 4), (None, 4)],
            pooling_mode=tbe.PoolingMode.NONE,
            bounds_check_mode=tbe.BoundsCheckMode.IGNORE,
        ),
        "bags by rank": bags_by_rank,
        "bags in lists": bags_in_lists,
        "tables packed": lambda: multi_table(uniform_tables(0.1, 0.1, 0.1), "int32"),
        "tables of their own": lambda: multi_table(mixed, "uint32"),
        "tables apart": lambda: multi_table(mixed, "int64", padding_idx=4),
        "tables shared": lambda: multi_table(
            constant_tables(1.0, 2.0, 3.0), "uint64", shared_ids=True
        ),
    }


def tiered_case(folder: str) -> Case:
    """A table whose rows are mostly on disk."""
    storage = tf_embed.Storage(host_bytes=2**16, path=folder)
    v = filled(np.arange(3000), storage=storage, dim=16, initializer=INITIALIZERS["normal"])
    return lookup(v, np.arange(2990, 3010).reshape([4, 5]))


def cases() -> dict[str, Callable[[], Case]]:
    """All cases, by name."""
    return {**variable_cases(), **layer_cases(), **many_table_cases()}


__all__ = ["Case", "arrays_of", "cases", "store", "tiered_case"]
