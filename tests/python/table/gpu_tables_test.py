# SPDX-License-Identifier: Apache-2.0
"""Tables on a GPU: the same rows as on the CPU, moves between both, and the limits of a GPU.

`make test-gpu` runs this, and tests that were not written for GPUs, on a fake GPU, which is the
host; see tests/cc/gpu/fake_gpu_plugin.cc. Otherwise it needs a GPU and a build for it.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.gpus import CPU, DIM, GPU, NEEDS_GPU, copies_of, rows_of
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

KEYS = np.array([3, -1, 7, 3, 2**62, 0, -(2**63)])

pytestmark = NEEDS_GPU


def pair(**options: object) -> tuple[tf_embed.Variable, tf_embed.Variable]:
    """A variable on the GPU, and a variable with the same seed and name on the CPU."""
    options = {
        "dim": DIM,
        "name": "mine",
        "initializer": keras.initializers.RandomNormal(seed=1),
    } | options
    return tf_embed.Variable(devices=GPU, **options), tf_embed.Variable(devices=CPU, **options)


def training(
    variable: tf_embed.Variable,
    optimizer: str,
    in_graph: bool,
    loss: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], None]:
    """A step that trains the rows of its keys by a loss on the rows."""
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

    @parameterized.parameters(
        *itertools.product(
            ("sgd", "adam", "adagrad", "nadam", "tf_embed>SmartDecayAdam"),
            (False, True),
            ("float32",),
        ),
        *itertools.product(("adam", "nadam"), (True,), ("float16", "bfloat16")),
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
            written = tf.train.Checkpoint(v=on_gpu).write(path)  # with the counts of admission
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
            v.restrict(1)  # all expired rows leave, also rows that the write did not find
            keys, rows = v.drain_evicted()
            self.assertAllEqual(rows, np.stack([keys, -keys], 1))
            self.assertEqual(v.stats()["undrained"], 0)
            outputs.append((sorted(keys.numpy().tolist()), rows_of(v)))
        self.assertEqual(*outputs)
        self.assertEqual(outputs[0][0], list(range(50)))

    def test_expired_rows_are_counted_and_their_time_to_live_begins_again(self):
        for v in pair(policy=tf_embed.TablePolicy(ttl_seconds=1)):
            v.set_clock(time_ms=0)
            v.upsert(np.arange(20), np.ones([20, DIM]))
            v.set_clock(time_ms=900)
            v.upsert(np.arange(5), np.ones([5, DIM]))
            v.set_clock(time_ms=1500)
            self.assertEqual(int(v.restart_ttl()), 15)
            times = v.row_statistics(np.arange(20))["last_time_ms"]
            self.assertAllEqual(times, [1500] * 20)

    def test_an_error_for_want_of_memory_says_what_leaves_some_to_tables(self):
        rows = 4 * 10**6  # rows of 64 MiB each
        with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "set_memory_growth"):
            tf_embed.Variable(dim=2**24, init_size=rows)
        with self.assertRaises(tf.errors.ResourceExhaustedError) as raised:
            tf_embed.Variable(init_size=10**15, devices="/CPU:0")
        self.assertNotIn("set_memory_growth", str(raised.exception))

    def test_a_gpu_has_no_strings(self):
        self.assertEqual(tf_embed.Variable(key_dtype=tf.string).devices, [CPU])
        with self.assertRaisesRegex(ValueError, "a table of strings can't be on a GPU"):
            tf_embed.Variable(key_dtype=tf.string, devices=GPU)


def last_digit(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """A partitioner that leaves the last shard empty."""
    return tf.cast(tf.abs(keys) % 10 % (shard_num - 1), tf.int32)


class SnapshotTest(tf.test.TestCase):
    def test_changes_of_tables_on_both_devices_are_of_one_moment(self):
        policy = tf_embed.TablePolicy(track_changes=True)
        folder = tempfile.mkdtemp()

        def tables(*devices: str) -> list[tf_embed.Variable]:
            named = zip(("a", "b"), devices, strict=True)
            return [tf_embed.Variable(dim=DIM, name=n, devices=d, policy=policy) for n, d in named]

        saved, loaded = tables(GPU, CPU), tables(CPU, GPU)
        snapshots = tf_embed.Snapshots(folder, saved)
        for table in saved:
            table.upsert(np.arange(100), np.ones([100, DIM], np.float32))
        snapshots.save("one")
        for table in saved:
            table.remove([5, 6])
            table.upsert([7, 200], np.full([2, DIM], 3.0, np.float32))
        expected = [rows_of(table) for table in saved]
        snapshots.save("two", since="one", wait=False)
        for table in saved:
            table.upsert(np.arange(300), np.zeros([300, DIM], np.float32))
        snapshots.wait()
        tf_embed.Snapshots(folder, loaded).load("two")
        for table, rows in zip(loaded, expected, strict=True):
            self.assertEqual(rows_of(table), rows)


class ShardsTest(tf.test.TestCase, parameterized.TestCase):
    def variables(self, **options: object) -> list[tf_embed.Variable]:
        """Variables with three shards on the GPU, three on the CPU, and one shard on the GPU."""
        options = {
            "dim": DIM,
            "name": "mine",
            "initializer": keras.initializers.RandomNormal(seed=1),
        } | options
        return [
            tf_embed.Variable(devices=devices, **options) for devices in ([GPU] * 3, [CPU] * 3, GPU)
        ]

    def sizes(self, variable: tf_embed.Variable) -> list[int]:
        return [int(variable.table.size(shard)) for shard in range(len(variable.devices))]

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

    def test_shards_are_on_gpus_of_this_process(self):
        self.assertEqual(len(tf_embed.Variable(devices=["GPU:0", "/gpu:0"]).devices), 2)
        for devices, error in (
            ([GPU, "/GPU:99"], "devices that this process has"),
            ([GPU, CPU], "must all be on GPUs or all on CPUs"),
        ):
            with self.assertRaisesRegex(ValueError, error):
                tf_embed.Variable(devices=devices)


class CopiesTest(tf.test.TestCase):
    """Numbers of a step that ops take on the host. The host waits for the GPU at each copy."""

    # No number of a step has the dtypes of these tables. Their keys and rows are copied if the GPU
    # is emulated, which slices none.
    KEY_DTYPE, VALUE_DTYPE = tf.uint64, tf.float16

    def copies(
        self, tables: int, own: str | None, steps: int | None = None
    ) -> list[tuple[str, tf.DType]]:
        """The copies of a step of some tables.

        Args:
            own: The name of the optimizer of each table. None: one optimizer for all.
            steps: The optimizer's `gradient_accumulation_steps`.
        """
        dtypes = {"key_dtype": self.KEY_DTYPE, "value_dtype": self.VALUE_DTYPE}
        config = {"learning_rate": 0.05, "gradient_accumulation_steps": steps}
        optimizer = keras.optimizers.get({"class_name": own or "adam", "config": config})
        layers = [
            DynamicEmbedding(DIM, optimizer=None if own is None else optimizer, **dtypes)
            for _ in range(tables)
        ]
        with tf.device(GPU):
            keys = tf.identity(tf.constant([3, 1, 3], self.KEY_DTYPE))
            upstream = tf.identity(tf.ones([3, DIM], self.VALUE_DTYPE))
        trainer = tf_embed.DynamicEmbeddingOptimizer(optimizer)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                rows = [layer(keys) for layer in layers]
            anchors = [layer.variable.anchor for layer in layers]
            gradients = tape.gradient(rows, anchors, output_gradients=[upstream] * tables)
            if own is None:
                trainer.apply(gradients, anchors)
                return
            for anchor, gradient in zip(anchors, gradients, strict=True):
                anchor.assign(gradient)  # as Keras's optimizers do

        step.get_concrete_function()
        copies = copies_of(step)
        for layer in layers:
            self.assertEqual(int(layer.variable.size()), 2 if steps is None else 0)
        return [
            (name, dtype)
            for name, dtype in copies
            # The value of an anchor has the dtype of rows.
            if "ReadVariableOp" in name or dtype not in (self.KEY_DTYPE, self.VALUE_DTYPE)
        ]

    def test_a_step_of_tables_with_their_own_optimizers_copies_nothing(self):
        self.assertEmpty(self.copies(3, own="adam"))

    def test_tables_of_one_optimizer_share_the_copies_of_its_numbers(self):
        one, several = (self.copies(tables, own=None) for tables in (1, 3))
        self.assertNotEmpty(one)
        self.assertLen(several, len(one))

    def numbers(self, copies: list[tuple[str, tf.DType]]) -> list[tuple[str, tf.DType]]:
        """The copies of counts and hyper-parameters; sums of gradients are float32."""
        return [one for one in copies if one[1] in (tf.int64, tf.float64)]

    def test_tables_that_accumulate_gradients_copy_no_numbers_of_their_own_optimizer(self):
        self.assertEmpty(self.numbers(self.copies(2, own="adam", steps=2)))

    def test_tables_that_accumulate_gradients_share_the_copies_of_one_optimizer(self):
        one, several = (self.numbers(self.copies(n, own=None, steps=2)) for n in (1, 3))
        self.assertNotEmpty(one)
        self.assertLen(several, len(one))

    def test_a_table_batched_layer_copies_no_numbers_of_its_features(self):
        def copies(tables: int) -> list[tuple[str, tf.DType]]:
            layer = tf_embed.tbe.TableBatchedEmbeddingBags([(9, 2)] * tables)
            optimizer = keras.optimizers.SGD()

            @tf.function
            def step(*ids: tf.Tensor) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(list(ids)))
                variables = layer.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)

            optimizer.build(layer.trainable_variables)
            ids = [tf.RaggedTensor.from_row_lengths([3, 1, 3], [1, 2]), tf.constant([[3, 1]] * 2)]
            inputs = [tf.cast(ids[i % 2], tf.int64) for i in range(tables)]
            step.get_concrete_function(*inputs)
            numbers = self.numbers(copies_of(lambda: step(*inputs)))
            # Without the ids of the features, which the emulated GPU can't concatenate.
            return [one for one in numbers if not re.search("_ids_|EnsureShape", one[0])]

        self.assertLen(copies(4), len(copies(2)))


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
