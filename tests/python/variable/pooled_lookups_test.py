# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups, sums by key and unique rows, against the same computations in TensorFlow's ops.

The oracle looks up a row for each id and pools the rows; see `unfused`. Sums of a few numbers in
another order differ by a few float32 units in the last place: 1e-5 relative. For bfloat16 rows,
with gradients rounded to 8 bits, the difference is 1e-2.
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.control_flow_cases import DIM, PLACES
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.ops import pooling_ops
from tf_embed.optimizers.gradients import sum_equal_keys

KNOWN = 12
COMBINERS = ("sum", "mean", "sqrtn")
CONTAINERS = ("lines", "ragged", "deep", "sparse", "unsorted")
CLOSE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 2e-3}


def layer_of(combiner: str | None, **options: Any) -> Any:
    """A layer with a table of the keys 0 to KNOWN - 1."""
    options.setdefault("initializer", keras.initializers.RandomNormal(seed=SEED))
    layer = DynamicEmbedding(DIM, combiner=combiner, name="rows", **options)
    layer.build()
    rows = np.random.default_rng(SEED).normal(size=[KNOWN, DIM])
    dtype = tf.as_dtype(layer.value_dtype)
    layer.variable.upsert(range(KNOWN), rows.astype(dtype.as_numpy_dtype))
    return layer


def ids_of(container: str) -> Any:
    """Ids from 0 to 19 in 5 or more bags. Some ids repeat, and ids from KNOWN on have no row."""
    rng = np.random.default_rng(SEED)
    if container == "lines":
        return tf.constant(rng.integers(0, 20, [2, 3, 4]))
    flat = tf.constant(rng.integers(0, 20, 24))
    if container == "ragged":
        return tf.RaggedTensor.from_row_lengths(flat, [0, 9, 1, 0, 14, 0])
    if container == "deep":
        return tf.RaggedTensor.from_nested_row_lengths(flat, [[2, 0, 3], [5, 0, 12, 6, 1]])
    places = np.stack([rng.integers(0, 6, 24), rng.permutation(24)], 1)
    sparse = tf.SparseTensor(places, flat, [6, 24])
    return tf.sparse.reorder(sparse) if container == "sparse" else sparse


def flat_of(ids: Any) -> tf.Tensor:
    """The ids in a vector, in the order of the container."""
    if isinstance(ids, tf.SparseTensor):
        return ids.values
    return ids.flat_values if isinstance(ids, tf.RaggedTensor) else tf.reshape(ids, [-1])


def with_flat(ids: Any, flat: tf.Tensor) -> Any:
    """The container of `ids` with other values."""
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, flat, ids.dense_shape)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(flat)
    return tf.reshape(flat, tf.shape(ids))


def unfused(layer: Any, ids: Any, weights: tf.Tensor | None, training: bool = False) -> tf.Tensor:
    """The rows of the bags, [bags, DIM], by a lookup of all rows and TensorFlow's ops."""
    flat = flat_of(ids)
    if isinstance(ids, tf.SparseTensor):
        numbers, count = ids.indices[:, 0], 6
    elif isinstance(ids, tf.RaggedTensor):
        splits = ids.nested_row_splits[-1]
        inner = tf.RaggedTensor.from_row_splits(flat, splits)
        numbers, count = inner.value_rowids(), inner.nrows()
    else:
        numbers, count = np.arange(24) // 4, 6
    known = flat < KNOWN
    rows = tf_embed.embedding_lookup(layer.variable, flat)
    if layer.unknown_value is not None and not training:
        served = tf.where(known[:, None], rows, tf.cast(layer.unknown_value, rows.dtype))
        rows += tf.stop_gradient(served - rows)  # the gradient is the row's, as in a lookup
    rows = tf.cast(rows, pooling_ops.compute_dtype(rows.dtype))
    factors = tf.ones(tf.shape(flat), rows.dtype) if weights is None else weights
    if layer.padding_id is not None:
        factors = tf.where(flat == layer.padding_id, tf.zeros([], rows.dtype), factors)
    total = tf.math.unsorted_segment_sum(factors[:, None] * rows, numbers, count)
    if layer.combiner == "sum":
        return total
    power = factors if layer.combiner == "mean" else factors**2
    divisor = tf.math.unsorted_segment_sum(power, numbers, count)
    if layer.combiner == "sqrtn":
        divisor = tf.where(divisor > 0, tf.sqrt(tf.where(divisor > 0, divisor, 1)), 0)
    return tf.math.divide_no_nan(total, divisor[:, None])


def by_key(slices: tf.IndexedSlices) -> np.ndarray:
    """A gradient of rows as the gradient of the ids 0 to 19."""
    values = tf.cast(slices.values, tf.float64)
    return tf.math.unsorted_segment_sum(values, tf.cast(slices.indices, tf.int64), 20).numpy()


def flat_rows(pooled: Any) -> tf.Tensor:
    if isinstance(pooled, tf.RaggedTensor):
        return pooled.flat_values
    return tf.reshape(pooled, [-1, pooled.shape[-1]])


def loss_and_gradients(layer: Any, pool: Any, weights: Any) -> Any:
    with tf.GradientTape() as tape:
        sources = [layer.variable.anchor.value]
        if weights is not None:
            tape.watch(weights)
            sources.append(weights)
        pooled = pool(weights)
        loss = tf.reduce_sum(tf.sin(tf.cast(pooled, tf.float32)))
    return pooled, tape.gradient(loss, sources)


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, layer: Any, container: str, weighted: bool, way: str = "eager") -> None:
        ids = ids_of(container)
        dtype = pooling_ops.compute_dtype(tf.as_dtype(layer.value_dtype))
        weights = None
        if weighted:
            weights = tf.constant(np.random.default_rng(SEED).normal(size=24) + 2.0, dtype)

        def fused(weights: Any) -> Any:
            given = [] if weights is None else [with_flat(ids, weights)]
            return flat_rows(layer(ids, *given))

        def run(pool: Any) -> Any:
            return loss_and_gradients(layer, pool, weights)

        if way == "inside":
            call = run
            run = lambda pool: tf.function(lambda: call(pool))()  # noqa: E731
        pool = tf.function(fused) if way == "outside" else fused
        pooled, gradients = run(pool)
        wanted, wanted_gradients = loss_and_gradients(
            layer, lambda weights: unfused(layer, ids, weights), weights
        )
        close = CLOSE[layer.value_dtype]
        self.assertEqual(pooled.dtype, layer.compute_dtype)
        self.assertAllClose(pooled, wanted, rtol=close, atol=close)
        self.assertAllClose(
            by_key(gradients[0]), by_key(wanted_gradients[0]), rtol=close, atol=4 * close
        )
        keys = gradients[0].indices.numpy().tolist()
        self.assertLen(set(keys), len(keys))
        if layer.padding_id is not None:
            self.assertNotIn(layer.padding_id, keys)
        if weighted:
            self.assertAllClose(gradients[1], wanted_gradients[1], rtol=1e-4, atol=4 * close)
            self.assertGreater(np.abs(gradients[1].numpy()).max(), 0.01)

    @parameterized.product(
        combiner=COMBINERS, container=CONTAINERS, weighted=(False, True), padding_id=(None, 3)
    )
    def test_a_pooled_lookup_is_the_unfused_one(self, combiner, container, weighted, padding_id):
        self.check(layer_of(combiner, padding_id=padding_id), container, weighted)

    @parameterized.product(
        combiner=COMBINERS,
        container=CONTAINERS,
        weighted=(False, True),
        way=("inside", "outside"),
    )
    def test_in_a_function(self, combiner, container, weighted, way):
        self.check(layer_of(combiner, padding_id=3), container, weighted, way)

    @parameterized.product(
        combiner=COMBINERS, value_dtype=("float64", "bfloat16", "float16"), weighted=(False, True)
    )
    @pytest.mark.smoke
    def test_in_every_dtype(self, combiner, value_dtype, weighted):
        policy = "float64" if value_dtype == "float64" else "float32"
        layer = layer_of(combiner, value_dtype=value_dtype, dtype=policy)
        self.check(layer, "ragged", weighted)

    @parameterized.product(
        combiner=COMBINERS,
        container=("lines", "unsorted"),
        options=(
            {"devices": ["/CPU:0"] * 2},
            {"devices": ["/CPU:0"] * 3, "partitioner": lambda keys, shards: (keys // 7) % shards},
            {"initializer": "ones", "unknown_value": -2.0},
            {"initializer": "normal", "key_dtype": "int32"},
        ),
    )
    def test_with_shards_partitioners_and_defaults(self, combiner, container, options):
        layer = layer_of(combiner, **options)
        if options.get("key_dtype") == "int32":
            ids = tf.cast(flat_of(ids_of(container)), tf.int32)
            pooled = flat_rows(layer(with_flat(ids_of(container), ids)))
            wanted = unfused(layer, with_flat(ids_of(container), ids), None)
            self.assertAllClose(pooled, wanted, rtol=1e-5)
        else:
            self.check(layer, container, weighted=True)

    def test_a_partitioner_that_names_no_shard_is_refused(self):
        layer = DynamicEmbedding(
            1, combiner="sum", devices=["/CPU:0"] * 2, partitioner=lambda keys, shards: keys
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Received: 5 for key 5"):
            layer(tf.constant([[0, 1], [5, 0]]))

    def test_a_callable_draws_rows_for_absent_keys_and_not_for_padding(self):
        shapes = []

        def draw(shape: Any, dtype: Any = None) -> Any:
            shapes.append(tuple(shape))
            return tf.ones(shape, dtype)

        layer = DynamicEmbedding(2, combiner="sum", initializer=draw, padding_id=0)
        self.assertAllEqual(layer(tf.constant([[7, 0, 8], [8, 7, 0]])), [[2.0, 2.0], [2.0, 2.0]])
        self.assertEqual(shapes[-1], (2, 2))

    @parameterized.parameters(*COMBINERS)
    def test_no_bags_and_empty_bags(self, combiner):
        layer = layer_of(combiner)
        no_ids = tf.zeros([0], tf.int64)
        empty = {
            (0, DIM): tf.zeros([0, 3], tf.int64),
            (2, DIM): tf.zeros([2, 0], tf.int64),
            (3, DIM): tf.RaggedTensor.from_row_lengths(no_ids, [0, 0, 0]),
            (4, DIM): tf.SparseTensor(np.zeros([0, 2], np.int64), no_ids, [4, 5]),
        }
        for shape, ids in empty.items():
            for call in (layer, tf.function(layer)):
                with tf.GradientTape() as tape:
                    pooled = call(ids)
                    loss = tf.reduce_sum(pooled)
                self.assertAllEqual(pooled, np.zeros(shape))
                gradient = tape.gradient(loss, layer.variable.anchor.value)
                self.assertEqual(gradient.values.shape, (0, DIM))

    def test_weights_that_cancel_out_give_zeros_and_no_nan(self):
        layer = layer_of("sqrtn")
        weights = tf.zeros([1, 2])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            pooled = layer(tf.constant([[1, 2]]), weights)
        self.assertAllEqual(pooled, np.zeros([1, DIM]))
        self.assertAllEqual(tape.gradient(pooled, weights), np.zeros([1, 2]))


class StructureTest(tf.test.TestCase, parameterized.TestCase):
    def op_types(self, layer: Any, weighted: bool) -> list[str]:
        @tf.function
        def gradient(ids: Any, weights: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(layer(ids, *([weights] if weighted else [])))
            rows, of_weights = tape.gradient(loss, [layer.variable.anchor.value, weights])
            return rows.values, of_weights

        graph = gradient.get_concrete_function(tf.zeros([2, 3], tf.int64), tf.ones([2, 3])).graph
        return [op.type for op in graph.get_operations()]

    def test_dense_ids_need_one_op_and_one_for_the_gradient(self):
        layer = layer_of("mean", padding_id=0)
        types = self.op_types(layer, weighted=False)
        self.assertEqual(types.count("TfEmbedFindPooled"), 1)
        self.assertEqual(types.count("TfEmbedSumByKey"), 1)
        others = {"Placeholder", "Const", "Identity", "NoOp", "ReadVariableOp", "TfEmbedToken"}
        loss = {"Sum", "Fill", "Reshape", "Tile", "Shape", "Cast"}
        self.assertContainsSubset(types, {*others, *loss, "TfEmbedFindPooled", "TfEmbedSumByKey"})

    def test_rows_for_the_gradient_of_weights_are_found_by_the_same_op(self):
        types = self.op_types(layer_of("sum", padding_id=0), weighted=True)
        self.assertNotIn("TfEmbedFind", types)
        self.assertEqual(types.count("TfEmbedFindPooled"), 1)

    @parameterized.product(in_function=(False, True), watched=(False, True))
    def test_a_weighted_lookup_finds_each_row_once(self, in_function, watched):
        layer, weights = layer_of("sum"), tf.ones([1, 3])

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                tape.watch([weights] if watched else [])
                loss = tf.reduce_sum(layer(tf.constant([[0, 1, KNOWN]]), weights))
            return tape.gradient(loss, [layer.variable.anchor.value, weights])

        _, of_weights = (tf.function(gradient) if in_function else gradient)()
        self.assertEqual(of_weights is not None, watched)
        stats = layer.variable.stats()
        self.assertEqual((stats["hits"], stats["misses"]), (2, 1))

    def test_an_exported_model_serves_pooled_rows_by_the_op(self):
        layer = layer_of("mean", padding_id=0)
        model = keras.Sequential([keras.Input([None], dtype="int64"), layer])
        ids = np.array([[1, 2, 0], [0, 0, 0], [11, 11, 3]])
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        model.export(folder, verbose=False)
        loaded = tf.saved_model.load(folder)
        self.assertAllClose(loaded.serve(tf.constant(ids)), layer(ids), rtol=1e-6)
        nodes = loaded.signatures["serve"].graph.as_graph_def(use_pybind11_proto=False)
        types = [node.op for function in nodes.library.function for node in function.node_def]
        types += [node.op for node in nodes.node]
        self.assertIn("TfEmbedFindPooled", types)
        self.assertNotIn("TfEmbedFind", types)


class TapesTest(tf.test.TestCase, parameterized.TestCase):
    IDS = np.array([[0, 1, 1], [2, 0, 3], [3, 3, 15], [4, 0, 2]])

    @parameterized.product(
        place=("plain", "for_loop", "map_fn", "scan", "cond", "vectorized_map", "function_in_cond"),
        combiner=("sum", "sqrtn"),
    )
    def test_bags_in_loops_and_conditions_are_unfused_ones_outside(self, place, combiner):
        fused = layer_of(combiner)
        flat = layer_of(None)
        divisor = {"sum": 1.0, "sqrtn": 3.0**0.5}[combiner]

        def gradient(embed: Any, layer: Any) -> Any:
            # Places add up rows to the shape [3, DIM], so each id is a bag of three.
            @tf.function
            def run(ids: Any) -> Any:
                with tf.GradientTape() as tape:
                    rows = PLACES[place](embed, ids)
                    loss = tf.reduce_sum(tf.sin(rows))
                return loss, tape.gradient(loss, layer.variable.anchor.value)

            loss, slices = run(tf.constant(self.IDS))
            return loss.numpy(), by_key(slices)

        def bags(ids: Any) -> Any:
            return tf.stack([ids, (ids + 5) % 16, ids], axis=-1)

        loss, of_rows = gradient(lambda ids: fused(bags(ids)), fused)
        wanted_loss, wanted = gradient(
            lambda ids: tf.reduce_sum(flat(bags(ids)), axis=-2) / divisor, flat
        )
        self.assertGreater(np.abs(wanted).max(), 0.1)
        self.assertAllClose(loss, wanted_loss, rtol=1e-5)
        self.assertAllClose(of_rows, wanted, rtol=1e-4, atol=1e-5)

    @parameterized.product(
        combiner=COMBINERS, container=CONTAINERS, padding_id=(None, 3), in_function=(False, True)
    )
    def test_gradients_of_gradients(self, combiner, container, padding_id, in_function):
        layer, ids = layer_of(combiner, padding_id=padding_id), ids_of(container)
        weights = tf.constant(np.random.default_rng(SEED).normal(size=24) + 2.0, tf.float32)
        anchor = layer.variable.anchor.value
        probe = tf.constant(np.random.default_rng(SEED).normal(size=[20, DIM]), tf.float32)

        def second(pool: Any) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(weights)
                with tf.GradientTape() as inner:
                    loss = tf.reduce_sum(tf.sin(pool()))
                slices = inner.gradient(loss, anchor)
                # This number does not depend on whether equal keys are already summed.
                penalty = tf.reduce_sum(slices.values * tf.gather(probe, slices.indices))
            rows, of_weights = outer.gradient(penalty, [anchor, weights])
            return penalty, rows, of_weights

        fused = lambda: flat_rows(layer(ids, with_flat(ids, weights)))  # noqa: E731
        run = tf.function(lambda: second(fused)) if in_function else lambda: second(fused)
        penalty, rows, of_weights = run()
        wanted_penalty, wanted_rows, wanted = second(lambda: unfused(layer, ids, weights))
        self.assertAllClose(penalty, wanted_penalty, rtol=1e-4)
        self.assertAllClose(by_key(rows), by_key(wanted_rows), rtol=1e-3, atol=1e-4)
        self.assertAllClose(of_weights, wanted, rtol=1e-3, atol=1e-4)

    @parameterized.product(combiner=COMBINERS, in_function=(False, True))
    def test_gradients_of_gradients_of_padding_alone_are_zero(self, combiner, in_function):
        layer, ids = layer_of(combiner, padding_id=3), tf.fill([2, 2], tf.constant(3, tf.int64))
        weights, anchor = tf.ones([2, 2]), layer.variable.anchor.value

        def second() -> Any:
            with tf.GradientTape() as outer:
                outer.watch(weights)
                with tf.GradientTape() as inner:
                    loss = tf.reduce_sum(tf.sin(layer(ids, weights)))
                penalty = tf.reduce_sum(inner.gradient(loss, anchor).values)
            return penalty, outer.gradient(penalty, weights)

        penalty, of_weights = (tf.function(second) if in_function else second)()
        self.assertEqual(float(penalty), 0.0)
        self.assertAllEqual(of_weights, tf.zeros([2, 2]))

    @parameterized.parameters(*COMBINERS)
    def test_a_step_trains_the_rows_that_the_unfused_lookup_trains(self, combiner):
        trained = []
        for pool in ("fused", "unfused"):
            layer, ids = layer_of(combiner), ids_of("ragged")
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
            optimizer.build(layer.trainable_variables)
            for _ in range(3):
                with tf.GradientTape() as tape:
                    rows = layer(ids) if pool == "fused" else unfused(layer, ids, None, True)
                    loss = tf.reduce_sum(tf.sin(rows))
                gradients = tape.gradient(loss, layer.trainable_variables)
                optimizer.apply(gradients, layer.trainable_variables)
            trained.append(layer.variable.lookup(range(20)))
        self.assertAllClose(*trained, rtol=1e-5, atol=1e-5)


class SumsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        key_dtype=("int64", "int32", "uint64", "uint32"),
        dtypes=(
            ("float32", "float32"),
            ("float16", "float32"),
            ("bfloat16", "float32"),
            ("float64", "float64"),
            ("float32", "float64"),
        ),
    )
    def test_equal_keys_are_summed_in_the_order_in_which_they_come(self, key_dtype, dtypes):
        rng = np.random.default_rng(SEED)
        keys = rng.integers(0, 50, 300).astype(key_dtype)
        keys[::7] = np.iinfo(key_dtype).max
        gradients = tf.cast(rng.normal(size=[300, DIM]), dtypes[0])
        distinct, sums = sum_equal_keys(tf.constant(keys), gradients, tf.as_dtype(dtypes[1]))
        self.assertAllEqual(distinct, list(dict.fromkeys(keys)))
        self.assertEqual(sums.dtype, dtypes[1])
        wide = tf.cast(gradients, dtypes[1]).numpy()
        for key, total in zip(distinct.numpy(), sums.numpy(), strict=True):
            self.assertAllClose(total, wide[keys == key].sum(0), rtol=1e-5, atol=1e-6)

    def test_gradients_of_another_shape_are_refused(self):
        keys = tf.zeros([3], tf.int64)
        with self.assertRaisesRegex(
            (ValueError, tf.errors.InvalidArgumentError), r"`gradients` must have shape \[3,2\]"
        ):
            pooling_ops.sum_by_key(keys, tf.zeros([4, 2]), sum_dtype=tf.float32)

    def test_row_splits_that_are_none_are_refused(self):
        ids = tf.RaggedTensor.from_row_splits(
            tf.zeros([3], tf.int64), tf.constant([0, 2, 1, 3], tf.int64), validate=False
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Row splits must begin with 0"):
            layer_of("sum")(ids)


class UniqueRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_dtype=("int64", "int32", "uint64", "uint32"), shards=(1, 3))
    def test_each_distinct_id_is_looked_up_once(self, key_dtype, shards):
        v = tf_embed.Variable(
            dim=2, key_dtype=key_dtype, devices=["/CPU:0"] * shards, initializer="normal"
        )
        ids = np.random.default_rng(SEED).integers(0, 9, [4, 8]).astype(key_dtype)
        v.upsert(range(5), np.ones([5, 2]))
        rows, inverse = tf_embed.unique_rows(v, ids)
        self.assertEqual(rows.shape, (len(set(ids.flat)), 2))
        self.assertEqual(inverse.shape, ids.shape)
        self.assertAllEqual(tf.gather(rows, inverse), tf_embed.embedding_lookup(v, ids))
        self.assertAllEqual(rows, v.lookup(list(dict.fromkeys(ids.flat))))
        self.assertEqual(int(v.size()), 5)

    @parameterized.parameters("eager", "graph", "loop")
    def test_its_gradient_is_that_of_the_lookup(self, way):
        v = tf_embed.Variable(dim=2, initializer="normal")
        ids = tf.constant(np.random.default_rng(SEED).integers(0, 9, [4, 8]))

        def unique(ids: Any) -> Any:
            return tf.gather(*tf_embed.unique_rows(v, ids))

        def gradient(lookup: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.sin(lookup(ids)))
            return tape.gradient(loss, v.anchor.value)

        wanted = by_key(gradient(lambda ids: tf_embed.embedding_lookup(v, ids)))
        if way == "loop":
            place = lambda ids: PLACES["map_fn"](lambda line: unique(line), ids)  # noqa: E731
        else:
            place = unique
        run = lambda: gradient(place)  # noqa: E731
        found = run() if way == "eager" else tf.function(run)()
        self.assertAllClose(by_key(found), wanted, rtol=1e-5)
        if way != "loop":
            self.assertLen(set(found.indices.numpy().tolist()), found.indices.shape[0])

    def test_it_wants_a_variable(self):
        with self.assertRaisesRegex(TypeError, "`params` must be a tf_embed.Variable"):
            tf_embed.unique_rows(tf.Variable([1.0]), [0])


if __name__ == "__main__":
    tf.test.main()
