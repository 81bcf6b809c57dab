# SPDX-License-Identifier: Apache-2.0
"""Bags, of a single table and of many, on a GPU: rows and gradients as on the CPU.

`make test-gpu` runs this; see gpu_tables_test.py.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.gpus import CPU, DIM, GPU, NEEDS_GPU, rows_of
from support.cases.table_batches import Bags, apply, make_tables
from support.cases.table_batches import rows_of as table_rows
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.layers import DynamicEmbedding
from tf_embed.ops import pooling_ops
from tf_embed.ops.lookup_gradient import token_of
from tf_embed.tbe import TableBatchedEmbeddingBags
from tf_embed.tbe.batch_anchor import BatchAnchor

pytestmark = NEEDS_GPU
COMBINERS, CONTAINERS = ("sum", "mean", "sqrtn"), ("lines", "ragged", "sparse", "unsorted")
# Each combiner with each container, eagerly; and each dtype of rows, in a graph.
GRID = [
    *(
        (combiner, container, "float32", False)
        for combiner in COMBINERS
        for container in CONTAINERS
    ),
    *(("mean", "ragged", dtype, True) for dtype in ("float32", "float16", "bfloat16", "float64")),
]


def bags_of(container: str, key_dtype: str) -> Any:
    """Ids from -9 to 9 in 8 bags. Some are empty if allowed."""
    rng = np.random.default_rng(SEED)
    flat = tf.cast(rng.integers(-9, 10, 24) % (10 if key_dtype[0] == "u" else 100), key_dtype)
    if container == "lines":
        return tf.reshape(flat, [8, 3])
    if container == "ragged":
        return tf.RaggedTensor.from_row_lengths(flat, [0, 9, 1, 0, 10, 0, 4, 0])
    places = np.stack([rng.integers(0, 8, 24), rng.permutation(24)], 1)
    sparse = tf.SparseTensor(places, flat, [8, 24])
    return tf.sparse.reorder(sparse) if container == "sparse" else sparse


def like(ids: Any, values: np.ndarray, dtype: tf.DType) -> Any:
    """A value for each id, in the container of the ids."""
    values = tf.constant(values, dtype)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(values)
    return tf.reshape(values, ids.shape)


class BagsTest(tf.test.TestCase, parameterized.TestCase):
    def layers(self, **options: Any) -> list[DynamicEmbedding]:
        """Layers on the GPU and on the CPU, with the same rows."""
        layers = []
        for device in (GPU, CPU):
            layer = DynamicEmbedding(
                DIM,
                devices=device,
                name="bags",
                initializer=keras.initializers.RandomNormal(seed=3),
                **options,
            )
            layer.build()
            keys = tf.cast(tf.range(5), layer.variable.key_dtype)
            rows = np.random.default_rng(SEED).normal(size=[5, DIM])
            layer.variable.upsert(keys, tf.cast(rows, layer.variable.value_dtype))
            layers.append(layer)
        return layers

    @parameterized.parameters(*GRID)
    def test_pooled_rows_are_those_of_the_cpu_to_the_bit(
        self, combiner, container, value_dtype, in_graph
    ):
        ids = bags_of(container, "int64")
        factors = np.random.default_rng(SEED).normal(size=24)
        outputs = []
        for layer in self.layers(combiner=combiner, value_dtype=value_dtype, padding_id=1):
            weights = like(ids, factors, pooling_ops.compute_dtype(tf.as_dtype(value_dtype)))

            def pool(layer=layer, weights=weights):
                return layer(ids), layer(ids, weights=weights), layer(ids, training=True)

            outputs.append((tf.function(pool) if in_graph else pool)())
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)

    @parameterized.parameters((*case, weighted) for case in GRID for weighted in (False, True))
    def test_gradients_of_pooled_rows_are_those_of_the_cpu_to_the_bit(
        self, combiner, container, value_dtype, in_graph, weighted
    ):
        ids = bags_of(container, "int64")
        dtype = pooling_ops.compute_dtype(tf.as_dtype(value_dtype))
        factors = like(ids, np.random.default_rng(SEED).normal(size=24), dtype)
        weights = {"weights": factors} if weighted else {}
        outputs = []
        for layer in self.layers(combiner=combiner, value_dtype=value_dtype, padding_id=1):

            def gradient(layer=layer):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(ids, **weights) ** 2)
                slices = tape.gradient(loss, layer.variable.anchor)
                return slices.indices, slices.values

            outputs.append((tf.function(gradient) if in_graph else gradient)())
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)
        if not in_graph:
            self.assertIn("GPU:0", outputs[0][1].device)
            self.assertIn("CPU:0", outputs[1][1].device)

    @parameterized.parameters("int64", "uint64", "int32", "uint32")
    def test_keys_of_any_type_are_pooled(self, key_dtype):
        ids = bags_of("ragged", key_dtype)
        outputs = []
        for layer in self.layers(combiner="mean", key_dtype=key_dtype):
            with tf.GradientTape() as tape:
                pooled = layer(ids)
                loss = tf.reduce_sum(pooled**2)
            gradient = tape.gradient(loss, layer.variable.anchor)
            outputs.append([pooled, gradient.indices, gradient.values])
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)

    def test_distinct_keys_are_found_where_the_table_is(self):
        ids = bags_of("lines", "int64")
        outputs = []
        for layer, device in zip(self.layers(combiner="sum"), ("GPU:0", "CPU:0"), strict=True):
            rows, inverse = tf_embed.unique_rows(layer.variable, ids)
            self.assertIn(device, inverse.device)
            outputs.append((rows, inverse))
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)

    @parameterized.parameters(None, 0.5)
    def test_bags_of_several_shards_are_those_of_one(self, unknown_value):
        ids = bags_of("ragged", "int64")
        weights = ids.with_flat_values(tf.range(24, dtype=tf.float32))
        outputs = []
        for devices in ([GPU] * 3, GPU, [CPU] * 3):
            layer = DynamicEmbedding(
                DIM,
                devices=devices,
                name="bags",
                combiner="mean",
                unknown_value=unknown_value,
                initializer=keras.initializers.RandomNormal(seed=3),
            )
            layer.build()
            layer.variable.upsert(tf.range(9, dtype=tf.int64), tf.ones([9, DIM]))
            outputs.append([layer(ids), layer(ids, weights=weights)])
        for others in outputs[1:]:
            for ours, wanted in zip(outputs[0], others, strict=True):
                self.assertAllEqual(ours, wanted)

    def test_a_pooled_lookup_is_on_the_gpu(self):
        layer, _ = self.layers(combiner="sum")
        pooled = tf.function(lambda: layer(bags_of("lines", "int64"))).get_concrete_function()
        (op,) = [one for one in pooled.graph.get_operations() if one.type == "TfEmbedFindPooled"]
        self.assertIn("GPU:0", op.device or layer.variable.devices[0])

    def test_splits_that_fall_are_refused(self):
        layer, _ = self.layers(combiner="sum")
        ids = tf.RaggedTensor.from_row_splits(
            tf.range(3, dtype=tf.int64), tf.constant([0, 2, 1, 3], tf.int64), validate=False
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "never fall"):
            layer(ids)

    @parameterized.product(combiner=("sum", "mean"), container=("lines", "ragged", "sparse"))
    def test_fit_by_bags_gives_the_rows_that_it_gives_on_the_cpu(self, combiner, container):
        ids = bags_of(container, "int64")
        y = np.random.default_rng(SEED).normal(size=[8, DIM]).astype("f")
        layers = self.layers(combiner=combiner)
        for layer in layers:
            kinds = {"lines": {}, "ragged": {"ragged": True}, "sparse": {"sparse": True}}
            inputs = keras.Input(ids.shape[1:], dtype="int64", **kinds[container])
            model = keras.Model(inputs, layer(inputs))
            model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
            model.fit(ids, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
        ours, wanted = (rows_of(layer.variable) for layer in layers)
        self.assertEqual(ours.keys(), wanted.keys())
        for key, row in wanted.items():
            self.assertAllClose(ours[key], row, rtol=2e-5, atol=2e-6)


class ManyTablesTest(tf.test.TestCase, parameterized.TestCase):
    """More cases of steps are in table_batch_steps_test.py, which `make test-gpu` runs too."""

    def step_of(self, tables: list[tf_embed.Variable], combiner: str) -> Any:
        anchor = BatchAnchor([table.table for table in tables], "all")

        def step(bags: Bags) -> tuple[tf.Tensor, tf.IndexedSlices]:
            with tf.GradientTape() as tape:
                token = token_of(anchor.value, tf.int64)
                values = bags.find(tables, combiner, packs=True, tokens=[token])
                loss = tf.reduce_sum(values * bags.gradient)
            return values, tape.gradient(loss, anchor.value)

        return step

    @parameterized.product(combiner=("sum", "mean"), weighted=(False, True), in_graph=(False, True))
    def test_lookups_and_steps_are_those_of_the_cpu_to_the_bit(self, combiner, weighted, in_graph):
        outputs = []
        for device in (GPU, CPU):
            rng = np.random.default_rng(SEED)
            tables = make_tables(devices=device)
            step = self.step_of(tables, combiner)
            run = tf.function(step) if in_graph else step
            for number in (1, 2, 3):
                values, slices = run(Bags(rng, len(tables), 6, weighted))
                apply(tables, slices, combiner, number)
                outputs.append(values)
            outputs.extend(map(table_rows, tables))
        half = len(outputs) // 2
        for ours, wanted in zip(outputs[:half], outputs[half:], strict=True):
            self.assertAllEqual(ours, wanted)

    def test_gradients_of_weights_and_of_each_table_are_those_of_the_cpu(self):
        outputs = []
        for device in (GPU, CPU):
            tables = make_tables(devices=device)
            bags = Bags(np.random.default_rng(SEED), len(tables), 6, True)
            bags.weights = tf.constant(bags.weights)
            anchors = [table.anchor.value for table in tables]
            with tf.GradientTape() as tape:
                tape.watch(bags.weights)
                tokens = [token_of(anchor, tf.int64) for anchor in anchors]
                loss = tf.reduce_sum(bags.find(tables, "mean", tokens=tokens) * bags.gradient)
            of_weights, *slices = tape.gradient(loss, [bags.weights, *anchors])
            outputs.append([of_weights] + [tf.cast(one.values, "float32") for one in slices])
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)


class TableBatchedLayerTest(tf.test.TestCase, parameterized.TestCase):
    def layer(self, location: Any, rows: int | None = 50, **options: Any) -> Any:
        keras.utils.clear_session()
        return TableBatchedEmbeddingBags(
            [(rows, 4, location), (None, 6, location)],
            feature_table_map=[1, 0, 1],
            table_names=["a", "b"],
            **({"learning_rate": 0.1} | options),
        )

    def test_it_is_on_the_gpu_where_no_table_wants_the_host(self):
        for location in tbe.EmbeddingLocation:
            if location == tbe.EmbeddingLocation.MTIA:
                continue
            wanted = CPU if location == tbe.EmbeddingLocation.HOST else GPU
            for table in self.layer(location).tables:
                self.assertEqual(table.devices, [wanted])
        device, host = tbe.EmbeddingLocation.DEVICE, tbe.EmbeddingLocation.HOST
        layers = [
            TableBatchedEmbeddingBags([(5, 4, device), (5, 4, host)]),
            self.layer(
                device,
                optimizer=tbe.OptimType.PARTIAL_ROWWISE_ADAM,
                optimizer_state_dtypes={"momentum1": tbe.SparseType.BF16},
            ),
        ]
        for layer in layers:
            self.assertEqual([table.devices for table in layer.tables], [[CPU], [CPU]])

    @parameterized.product(
        optimizer=("EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD", "ADAM", "NONE"),
        pooling=("SUM", "MEAN"),
        precision=("FP32", "FP16"),
    )
    def test_fit_gives_the_rows_that_it_gives_on_the_cpu(self, optimizer, pooling, precision):
        rng = np.random.default_rng(SEED)
        ids = [
            tf.RaggedTensor.from_row_lengths(tf.constant(rng.integers(0, 50, 40)), [4, 0, 9, 7] * 2)
            for _ in range(3)
        ]
        y = rng.normal(size=[8, 16]).astype("f")
        outputs = []
        for location in (
            tbe.EmbeddingLocation.DEVICE,
            tbe.EmbeddingLocation.HOST,
        ):
            options = {} if optimizer != "NONE" else {"learning_rate": 0.01}
            layer = self.layer(
                location,
                optimizer=tbe.OptimType[optimizer] if optimizer != "NONE" else None,
                pooling_mode=tbe.PoolingMode[pooling],
                weights_precision=tbe.SparseType[precision],
                initializer=keras.initializers.RandomNormal(seed=4),
                **options,
            )
            inputs = [keras.Input([None], dtype="int64", ragged=True) for _ in range(3)]
            model = keras.Model(inputs, layer(inputs))
            dense = keras.optimizers.Adam(0.05)
            model.compile(
                tf_embed.DynamicEmbeddingOptimizer(dense) if optimizer == "NONE" else dense, "mse"
            )
            model.fit(ids, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
            outputs.append([rows_of(table) for table in layer.tables])
        for ours, wanted in zip(*outputs, strict=True):
            self.assertEqual(ours.keys(), wanted.keys())
            for key, row in wanted.items():
                self.assertAllClose(ours[key], row, rtol=2e-5, atol=2e-6)

    def test_ids_out_of_bounds_and_bytes_are_as_on_the_cpu(self):
        outputs = []
        for location in (
            tbe.EmbeddingLocation.DEVICE,
            tbe.EmbeddingLocation.HOST,
        ):
            layer = self.layer(
                location,
                optimizer=tbe.OptimType.NONE,
                weights_precision=tbe.SparseType.INT8,
                bounds_check_mode=tbe.BoundsCheckMode.IGNORE,
                learning_rate=0.01,
            )
            rng = np.random.default_rng(SEED)
            for table, dim in zip(layer.tables, (4, 6), strict=True):
                rows = tbe.quantized_rows.quantize(rng.normal(size=[20, dim]).astype("f"))
                table.upsert(tf.range(20, dtype=tf.int64), rows)
            indices = tf.constant(rng.integers(-20, 80, 30))
            outputs.append(layer(indices, tf.range(0, 31, 5)))
            outputs.append(layer.bounds_check_warning.numpy())
        self.assertAllEqual(outputs[0], outputs[2])
        self.assertEqual(outputs[1], outputs[3])
        self.assertGreater(outputs[1], 0)


if __name__ == "__main__":
    tf.test.main()
