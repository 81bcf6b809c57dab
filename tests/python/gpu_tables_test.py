"""Tables on a GPU: the same rows as on the CPU, to and fro, and what a GPU can't have.

`make test-gpu` runs this, and tests that know nothing of GPUs, with a device that calls itself a
GPU and is the host; see tests/cc/gpu/host_gpu.cc. Elsewhere it wants a GPU and a build for it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from reference import SEED
from table_batch_steps_test import Bags, apply, make_tables
from table_batch_steps_test import rows_of as table_rows

import tf_embed
from tf_embed import ops
from tf_embed.batch_anchor import BatchAnchor
from tf_embed.layers import DynamicEmbedding, TableBatchedEmbeddingBags
from tf_embed.lookup_gradient import token_of

GPU, CPU = "/GPU:0", "/CPU:0"
DIM = 5
KEYS = np.array([3, -1, 7, 3, 2**62, 0, -(2**63)])

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow has no GPU"),
    pytest.mark.skipif(not ops.has_gpu_tables(), reason="this build has no GPU support"),
]


def pair(**options: object) -> tuple[tf_embed.Variable, tf_embed.Variable]:
    """A variable on the GPU, and one of the same seed and name on the CPU."""
    options = {
        "dim": DIM,
        "name": "mine",
        "initializer": keras.initializers.RandomNormal(seed=1),
    } | options
    return tf_embed.Variable(devices=GPU, **options), tf_embed.Variable(devices=CPU, **options)


def rows_of(variable: tf_embed.Variable) -> dict[int, list[float]]:
    keys, rows = variable.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


def training(
    variable: tf_embed.Variable,
    optimizer: str,
    in_graph: bool,
    loss: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], None]:
    """A step that trains the rows of its keys by a loss of them."""
    inner = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
    trainer = tf_embed.DynamicEmbeddingOptimizer(inner)

    def step(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(tf_embed.embedding_lookup(variable, keys))
        trainer.apply(tape.gradient(value, [variable.anchor]), [variable.anchor])

    return tf.function(step) if in_graph else step


class VariableTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_is_where_a_variable_is_by_default(self):
        v = tf_embed.Variable(dim=2)
        self.assertEqual(v.devices, [GPU])
        self.assertIn("GPU:0", v.lookup([1]).device)

    @parameterized.parameters("int64", "uint64", "int32", "uint32")
    def test_verbs_do_what_they_do_on_the_cpu(self, dtype):
        keys = KEYS.astype(dtype)
        rng = np.random.default_rng(SEED)
        variables = pair(key_dtype=dtype)
        rows = rng.normal(size=[len(keys), DIM]).astype("f")
        outputs = []
        for v in variables:
            first, absent = v.lookup(keys, return_exists=True)
            v.upsert(keys[:3], rows[:3])
            second, exists = v.lookup(keys, return_exists=True)
            v.accum(keys[:5], second[:5], rows[:5], exists[:5])
            v.remove(keys[2:3])
            outputs.append([first, absent, second, exists, v.lookup(keys), v.size()])
        for one, other in zip(*outputs, strict=True):
            self.assertAllEqual(one, other)
        self.assertEqual(*map(rows_of, variables))

    @parameterized.product(
        optimizer=("sgd", "adam", "adagrad", "nadam"),
        in_graph=(False, True),
        dtype=("float32", "float16", "bfloat16"),
    )
    def test_steps_give_the_rows_that_they_give_on_the_cpu(self, optimizer, in_graph, dtype):
        variables = pair(value_dtype=dtype)
        for v in variables:
            run = training(
                v, optimizer, in_graph, lambda rows: tf.reduce_sum(tf.cast(rows, "float32") ** 2)
            )
            rng = np.random.default_rng(SEED)
            for _ in range(5):
                run(tf.constant(rng.integers(-4, 5, 12)))
        ours, wanted = map(rows_of, variables)
        self.assertEqual(ours.keys(), wanted.keys())
        for key, row in wanted.items():
            self.assertAllClose(ours[key], row, rtol=2e-5, atol=2e-6)

    @parameterized.parameters("lru", "lfu", "score")
    def test_a_bound_holds(self, eviction):
        v = tf_embed.Variable(dim=2, devices=GPU, policy=tf_embed.TablePolicy(100, eviction))
        for begin in range(0, 1000, 50):
            v.upsert(tf.range(begin, begin + 50, dtype=tf.int64), tf.ones([50, 2]))
            self.assertLessEqual(int(v.size()), 100)
        self.assertEqual(int(v.size()), 100)
        self.assertEqual(v.stats()["evicted"], 900)

    @parameterized.product(
        admission=(tf_embed.CounterAdmission(3), tf_embed.BloomAdmission(2, 0.01)),
        optimizer=("adam", "nadam"),
        shards=(1, 2),
    )
    def test_an_admission_lets_in_what_it_lets_in_on_the_cpu(self, admission, optimizer, shards):
        policy = tf_embed.TablePolicy(admission=admission)
        variables = [
            tf_embed.Variable(dim=DIM, name="mine", policy=policy, devices=[device] * shards)
            for device in (GPU, CPU)
        ]
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "c")
        for half in range(2):
            for v in variables:
                trainer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.get(optimizer))
                rng = np.random.default_rng(SEED + half)
                for _ in range(4):
                    keys = rng.integers(-9, 9, 12)
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys) ** 2)
                    trainer.apply(tape.gradient(loss, [v.anchor]), [v.anchor])
            on_gpu, on_cpu = variables
            self.assertEqual(rows_of(on_gpu).keys(), rows_of(on_cpu).keys())
            self.assertEqual(on_gpu.stats()["held_back"], on_cpu.stats()["held_back"])
            written = tf.train.Checkpoint(v=on_gpu).write(path)  # with what was counted
            tf.train.Checkpoint(v=on_cpu).read(written).assert_consumed()

    def test_rows_that_leave_are_logged(self):
        outputs = []
        for device in (GPU, CPU):
            policy = tf_embed.TablePolicy(10, "lru", ttl_seconds=1, log_evicted=True)
            v = tf_embed.Variable(dim=2, policy=policy, devices=device)
            for begin in range(0, 50, 5):
                v.set_clock(time_ms=begin * 10)
                keys = np.arange(begin, begin + 5)
                v.upsert(keys, np.stack([keys, -keys], 1).astype("f"))
            v.restrict(4)
            v.set_clock(time_ms=10_000)
            v.upsert([1000], [[0.0, 0.0]])
            v.restrict(1)  # all that have expired leave, also those that the write did not meet
            keys, rows = v.drain_evicted()
            self.assertAllEqual(rows, np.stack([keys, -keys], 1))
            self.assertEqual(v.stats()["undrained"], 0)
            outputs.append((sorted(keys.numpy().tolist()), rows_of(v)))
        self.assertEqual(*outputs)
        self.assertEqual(outputs[0][0], list(range(50)))

    def test_a_gpu_has_no_strings(self):
        self.assertEqual(tf_embed.Variable(key_dtype=tf.string).devices, [CPU])
        with self.assertRaisesRegex(ValueError, "strings can't be on a GPU"):
            tf_embed.Variable(key_dtype=tf.string, devices=GPU)


def last_digit(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """A partitioner that leaves the last shard empty."""
    return tf.cast(tf.abs(keys) % 10 % (shard_num - 1), tf.int32)


class ShardsTest(tf.test.TestCase, parameterized.TestCase):
    def variables(self, **options: object) -> list[tf_embed.Variable]:
        """Three shards on the GPU, three on the CPU, and one on the GPU."""
        options = {
            "dim": DIM,
            "name": "mine",
            "initializer": keras.initializers.RandomNormal(seed=1),
        } | options
        return [
            tf_embed.Variable(devices=devices, **options) for devices in ([GPU] * 3, [CPU] * 3, GPU)
        ]

    def sizes(self, variable: tf_embed.Variable) -> list[int]:
        return [int(shard.size()) for shard in variable.tables]

    @parameterized.product(
        dtype=("int64", "uint64", "int32"),
        partitioner=(tf_embed.default_partition_fn, last_digit),
    )
    def test_verbs_do_what_they_do_on_the_cpu_and_with_one_shard(self, dtype, partitioner):
        if dtype == "uint64" and partitioner is last_digit:
            self.skipTest("tf.abs takes no unsigned numbers")
        keys = KEYS.astype(dtype)
        rng = np.random.default_rng(SEED)
        variables = self.variables(key_dtype=dtype, partitioner=partitioner)
        rows = rng.normal(size=[len(keys), DIM]).astype("f")
        outputs = []
        for v in variables:
            first, absent = v.lookup(keys, return_exists=True)
            v.upsert(keys[:3], rows[:3])
            second, exists = v.lookup(keys[None], return_exists=True)
            v.accum(keys[:5], second[0, :5], rows[:5], exists[0, :5])
            v.remove(keys[2:3])
            outputs.append([first, absent, second, exists, v.lookup(keys[:0]), v.size()])
        for ours, on_cpu, in_one in zip(*outputs, strict=True):
            self.assertAllEqual(ours, on_cpu)
            self.assertAllEqual(ours, in_one)
        on_gpu, on_cpu, in_one = variables
        self.assertEqual(rows_of(on_gpu), rows_of(on_cpu))
        self.assertEqual(rows_of(on_gpu), rows_of(in_one))
        self.assertEqual(self.sizes(on_gpu), self.sizes(on_cpu))
        self.assertEqual(on_gpu.devices, [GPU] * 3)

    @parameterized.product(optimizer=("adam", "nadam"), in_graph=(False, True))
    def test_steps_give_the_rows_of_one_shard(self, optimizer, in_graph):
        variables = self.variables()
        for v in variables:
            run = training(v, optimizer, in_graph, lambda rows: tf.reduce_sum(rows**2))
            rng = np.random.default_rng(SEED)
            for _ in range(5):
                run(tf.constant(rng.integers(-9, 9, 40)))
        ours, on_cpu, in_one = map(rows_of, variables)
        self.assertEqual(ours, in_one)
        self.assertEqual(ours.keys(), on_cpu.keys())
        for key, row in on_cpu.items():
            self.assertAllClose(ours[key], row, rtol=2e-5, atol=2e-6)
        self.assertEqual(self.sizes(variables[0]), self.sizes(variables[1]))

    def test_a_bound_is_spread_over_shards(self):
        policy = tf_embed.TablePolicy(100, "lru")
        on_gpu, on_cpu, _ = self.variables(policy=policy)
        for v in (on_gpu, on_cpu):
            for begin in range(0, 400, 40):
                v.upsert(tf.range(begin, begin + 40, dtype=tf.int64), tf.ones([40, DIM]))
        self.assertEqual(self.sizes(on_gpu), [34, 33, 33])
        self.assertEqual(rows_of(on_gpu), rows_of(on_cpu))

    @parameterized.product(first=(GPU, CPU), second=(GPU, CPU), third=(GPU, CPU))
    def test_checkpoints_go_into_any_number_of_shards(self, first, second, third):
        options = {"dim": DIM, "name": "mine", "initializer": 0.0}
        variables = [
            tf_embed.Variable(devices=[device] * shards, **options)
            for device, shards in ((first, 3), (second, 1), (third, 2))
        ]
        keys = np.arange(-50, 50)
        variables[0].upsert(keys, np.arange(100 * DIM, dtype="f").reshape([100, DIM]))
        for saved, loaded in itertools.pairwise(variables):
            path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "c")
            written = tf.train.Checkpoint(v=saved).write(path)
            tf.train.Checkpoint(v=loaded).read(written).assert_consumed()
        self.assertEqual(rows_of(variables[0]), rows_of(variables[2]))
        self.assertEqual(self.sizes(variables[2]), [50, 50])

    def test_a_wrong_shard_is_named(self):
        v = tf_embed.Variable(
            devices=[GPU] * 2, partitioner=lambda keys, n: tf.cast(keys, tf.int32)
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r"\[0, 2\).*5 for key 5"):
            v.lookup([0, 1, 5])

    def test_all_shards_are_on_one_gpu(self):
        self.assertEqual(tf_embed.Variable(devices=["GPU:0", "/gpu:0"]).shard_num, 2)
        for devices in ([GPU, "/GPU:1"], [GPU, CPU]):
            with self.assertRaisesRegex(ValueError, "are all on that one"):
                tf_embed.Variable(devices=devices)


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    def model(self, devices: str, **options: object) -> keras.Model:
        keras.utils.clear_session()
        model = keras.Sequential(
            [
                keras.Input([3], dtype="int64"),
                DynamicEmbedding(DIM, devices=devices, name="ids", **options),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2)),
            ]
        )
        model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
        return model

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(SEED)
        return rng.integers(-9, 9, [32, 3]), rng.normal(size=[32, 1]).astype("f")

    @parameterized.parameters("float32", "mixed_bfloat16")
    def test_fit_gives_the_model_that_it_gives_on_the_cpu(self, policy):
        self.addCleanup(keras.config.set_dtype_policy, "float32")
        keras.config.set_dtype_policy(policy)
        ids, y = self.data()
        outputs = []
        for device in (GPU, CPU):
            model = self.model(device, initializer=keras.initializers.RandomNormal(seed=3))
            model.fit(ids, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            outputs.append(model.predict(ids, verbose=0))
        self.assertAllClose(*outputs, rtol=1e-4, atol=1e-5)

    @parameterized.parameters((GPU, CPU), (CPU, GPU), (GPU, GPU))
    def test_weights_and_checkpoints_go_from_one_to_the_other(self, saved, loaded):
        ids, y = self.data()
        one, other, third = self.model(saved), self.model(loaded), self.model(loaded)
        one.fit(ids, y, batch_size=8, verbose=0)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        one.save_weights(os.path.join(folder, "m.weights.h5"))
        other.load_weights(os.path.join(folder, "m.weights.h5"))
        self.assertAllClose(one.predict(ids, verbose=0), other.predict(ids, verbose=0))
        path = tf.train.Checkpoint(model=one, optimizer=one.optimizer).write(folder + "/checkpoint")
        third.optimizer.build(third.trainable_variables)
        tf.train.Checkpoint(model=third, optimizer=third.optimizer).read(path).assert_consumed()
        for model in (one, third):
            model.fit(ids, y, batch_size=8, shuffle=False, verbose=0)
        self.assertAllClose(one.predict(ids, verbose=0), third.predict(ids, verbose=0), rtol=1e-5)

    def test_a_saved_model_serves(self):
        ids, y = self.data()
        model = self.model(GPU)
        model.fit(ids, y, verbose=0)
        wanted = model.predict(ids, verbose=0)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        model.export(folder, verbose=False)
        served = tf.saved_model.load(folder)
        self.assertAllClose(served.serve(tf.constant(ids)), wanted, rtol=1e-5)


def bags_of(container: str, key_dtype: str) -> Any:
    """Ids from -9 to 9 in 8 bags, of which some are empty where they can be."""
    rng = np.random.default_rng(SEED)
    flat = tf.cast(rng.integers(-9, 10, 24) % (10 if key_dtype[0] == "u" else 100), key_dtype)
    if container == "lines":
        return tf.reshape(flat, [8, 3])
    if container == "ragged":
        return tf.RaggedTensor.from_row_lengths(flat, [0, 9, 1, 0, 10, 0, 4, 0])
    places = np.stack([rng.integers(0, 8, 24), rng.permutation(24)], 1)
    sparse = tf.SparseTensor(places, flat, [8, 24])
    return tf.sparse.reorder(sparse) if container == "sparse" else sparse


class BagsTest(tf.test.TestCase, parameterized.TestCase):
    def layers(self, **options: Any) -> list[DynamicEmbedding]:
        """On the GPU and on the CPU, with the same rows."""
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

    @parameterized.product(
        combiner=("sum", "mean", "sqrtn"),
        container=("lines", "ragged", "sparse", "unsorted"),
        value_dtype=("float32", "float16", "bfloat16", "float64"),
        in_graph=(False, True),
    )
    def test_pooled_rows_are_those_of_the_cpu_to_the_bit(
        self, combiner, container, value_dtype, in_graph
    ):
        ids = bags_of(container, "int64")
        factors = np.random.default_rng(SEED).normal(size=24)
        outputs = []
        for layer in self.layers(combiner=combiner, value_dtype=value_dtype, padding_id=1):
            weights = tf.constant(factors, "float64" if value_dtype == "float64" else "float32")
            if isinstance(ids, tf.SparseTensor):
                weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
            elif isinstance(ids, tf.RaggedTensor):
                weights = ids.with_flat_values(weights)
            else:
                weights = tf.reshape(weights, ids.shape)

            def pool(layer=layer, weights=weights):
                return layer(ids), layer(ids, weights=weights), layer(ids, training=True)

            outputs.append((tf.function(pool) if in_graph else pool)())
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)

    @parameterized.parameters("int64", "uint64", "int32", "uint32")
    def test_keys_of_any_type_are_pooled(self, key_dtype):
        ids = bags_of("ragged", key_dtype)
        ours, wanted = (one(ids) for one in self.layers(combiner="mean", key_dtype=key_dtype))
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
    """table_batch_steps_test.py, which `make test-gpu` runs too, has more of a step's cases."""

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
        for location in tf_embed.EmbeddingLocation:
            if location == tf_embed.EmbeddingLocation.MTIA:
                continue
            wanted = CPU if location == tf_embed.EmbeddingLocation.HOST else GPU
            for table in self.layer(location).tables:
                self.assertEqual(table.devices, [wanted])
        device, host = tf_embed.EmbeddingLocation.DEVICE, tf_embed.EmbeddingLocation.HOST
        layers = [
            TableBatchedEmbeddingBags([(5, 4, device), (5, 4, host)]),
            self.layer(
                device,
                optimizer=tf_embed.OptimType.PARTIAL_ROWWISE_ADAM,
                optimizer_state_dtypes={"momentum1": tf_embed.SparseType.BF16},
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
        for location in (tf_embed.EmbeddingLocation.DEVICE, tf_embed.EmbeddingLocation.HOST):
            options = {} if optimizer != "NONE" else {"learning_rate": 0.01}
            layer = self.layer(
                location,
                optimizer=tf_embed.OptimType[optimizer] if optimizer != "NONE" else None,
                pooling_mode=tf_embed.PoolingMode[pooling],
                weights_precision=tf_embed.SparseType[precision],
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
        for location in (tf_embed.EmbeddingLocation.DEVICE, tf_embed.EmbeddingLocation.HOST):
            layer = self.layer(
                location,
                optimizer=tf_embed.OptimType.NONE,
                weights_precision=tf_embed.SparseType.INT8,
                bounds_check_mode=tf_embed.BoundsCheckMode.IGNORE,
                learning_rate=0.01,
            )
            rng = np.random.default_rng(SEED)
            for table, dim in zip(layer.tables, (4, 6), strict=True):
                rows = tf_embed.quantized_rows.quantize(rng.normal(size=[20, dim]).astype("f"))
                table.upsert(tf.range(20, dtype=tf.int64), rows)
            indices = tf.constant(rng.integers(-20, 80, 30))
            outputs.append(layer(indices, tf.range(0, 31, 5)))
            outputs.append(layer.bounds_check_warning.numpy())
        self.assertAllEqual(outputs[0], outputs[2])
        self.assertEqual(outputs[1], outputs[3])
        self.assertGreater(outputs[1], 0)


if __name__ == "__main__":
    tf.test.main()
