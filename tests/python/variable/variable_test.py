# SPDX-License-Identifier: Apache-2.0
"""`tf_embed.Variable`: its verbs behave as documented."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS, SEED


class MakingTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_deep_copy_is_a_variable_of_its_own(self):
        v = tf_embed.Variable(dim=1, devices=["/CPU:0"] * 2, initializer=3.0)
        v.upsert([1, 2], [[5.0], [6.0]])
        copied = copy.deepcopy(v)
        v.upsert([1, 3], [[0.0], [0.0]])
        del v
        gc.collect()
        self.assertEqual(int(copied.size()), 2)
        self.assertAllEqual(copied.lookup([1, 2, 3]), [[5.0], [6.0], [3.0]])

    def test_variables_that_differ_in_names_rows_and_policies_share_one_eager_kernel(self):
        """TensorFlow never frees the kernel for a set of attributes of an op."""
        made = []

        class Recorder:
            def __getattr__(self, name: str) -> Any:
                op = getattr(raw, name)

                def call(**arguments: Any) -> Any:
                    # All others are inputs: two strings, and numbers as arrays.
                    given = {
                        key: one
                        for key, one in arguments.items()
                        if key not in ("label", "settings") and not isinstance(one, np.ndarray)
                    }
                    made.append((name, given))
                    return op(**arguments)

                return call

        raw = tf_embed.ops.new_table_ops._raw
        with mock.patch.object(tf_embed.ops.new_table_ops, "_raw", Recorder()):
            for i in range(3):
                initializer = keras.initializers.RandomUniform(-i - 1, i, seed=i)
                options = {"init_size": i + 8, "policy": tf_embed.TablePolicy(max_rows=i + 9)}
                tf_embed.Variable(dim=2, name=f"v{i}", initializer=initializer, **options)
        tables = [given for name, given in made if name == "tf_embed_new_table"]
        self.assertLen(tables, 3)
        self.assertEqual(tables[0], tables[1])
        self.assertEqual(tables[0], tables[2])
        self.assertNotIn("tf_embed_table", [name for name, _ in made])

    def test_a_pickle_is_refused_with_a_way_out(self):
        with self.assertRaisesRegex(TypeError, "can't be pickled: save it with"):
            pickle.dumps(tf_embed.Variable(name="mine"))

    @parameterized.parameters("dim", "init_size")
    def test_a_number_beyond_int64_is_refused(self, argument):
        with self.assertRaisesRegex(ValueError, f"`{argument}` must be at most"):
            tf_embed.Variable(**{argument: 10**20})

    def test_more_rows_than_memory_can_index_are_refused(self):
        with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "`init_size` of table"):
            tf_embed.Variable(init_size=10**15)

    def test_the_signature_is_that_of_the_documentation(self):
        parameters = inspect.signature(tf_embed.Variable.__init__).parameters
        self.assertEqual(
            {name: one.default for name, one in parameters.items() if name != "self"},
            {
                "key_dtype": tf.int64,
                "value_dtype": tf.float32,
                "dim": 1,
                "name": "DynamicEmbedding_Variable",
                "initializer": None,
                "trainable": True,
                "checkpoint": True,
                "init_size": 0,
                "policy": None,
                "storage": None,
                "devices": None,
                "partitioner": tf_embed.default_partition_fn,
                "distribution": None,
            },
        )
        names = list(parameters)[1:]
        self.assertEqual(names[:3], ["key_dtype", "value_dtype", "dim"])
        kinds = {parameters[name].kind for name in names[3:]}
        self.assertEqual(kinds, {inspect.Parameter.KEYWORD_ONLY})

    def test_defaults_are_one_shard_of_zeros(self):
        v = tf_embed.Variable()
        self.assertEqual((v.dim, v.key_dtype, v.value_dtype), (1, tf.int64, tf.float32))
        self.assertEqual((v.name, len(v.devices)), ("DynamicEmbedding_Variable", 1))
        self.assertEqual(int(v.size()), 0)
        self.assertAllEqual(v.lookup([3]), [[0.0]])
        if not tf.config.list_physical_devices("GPU"):
            self.assertEqual(v.devices, ["/CPU:0"])

    @parameterized.parameters(
        ({"key_dtype": tf.float32}, TypeError, "`key_dtype` must be one of int64, int32, uint64"),
        ({"key_dtype": tf.bool}, TypeError, "Received: key_dtype="),
        ({"value_dtype": tf.complex64}, TypeError, "`value_dtype` must be one of float32"),
        ({"value_dtype": "nothing"}, TypeError, "Received: value_dtype='nothing'"),
        ({"dim": 0}, ValueError, "`dim` must be at least 1. Received: dim=0"),
        ({"dim": 2.0}, TypeError, "`dim` must be an int"),
        ({"dim": True}, TypeError, "`dim` must be an int"),
        ({"init_size": -1}, ValueError, "`init_size` must be at least 0"),
        ({"devices": []}, ValueError, "at least one device"),
        ({"devices": ["/TPU:0"]}, ValueError, "Received: devices="),
        ({"devices": "nowhere"}, ValueError, "must be CPUs or GPUs of this machine.*'nowhere'"),
        ({"partitioner": 3}, TypeError, "`partitioner` must be callable"),
        ({"name": ""}, TypeError, "`name` must be a non-empty string"),
        ({"name": "a\0b"}, ValueError, r"`name` must have no control .*name='a\\x00b'"),
        ({"name": "x" * 100_000}, ValueError, "`name` must be at most 1024 bytes.*100000 char"),
        ({"name": "\ud800"}, ValueError, "`name` must be .* bytes of UTF-8"),
        ({"key_dtype": 3}, TypeError, "`key_dtype` must be one of .*Received: key_dtype=3"),
        ({"value_dtype": 1}, TypeError, "`value_dtype` must be one of .*value_dtype=1"),
        ({"devices": 3}, TypeError, "`devices` must be a name, .*Received: devices=3"),
        ({"devices": ["/CPU:0", None]}, TypeError, "`devices` must be a name"),
        ({"devices": ["/CPU:99"]}, ValueError, "`devices` must be devices .*'/CPU:99'"),
        ({"devices": "/job:localhost/replica:3/CPU:0"}, ValueError, "`devices` must be devices"),
        ({"partitioner": dict}, TypeError, "`partitioner` must be callable.*class 'dict'"),
        ({"trainable": "False"}, TypeError, "`trainable` must be a bool.*trainable='False'"),
        ({"checkpoint": None}, TypeError, "`checkpoint` must be a bool"),
        ({"dim": 10**400}, ValueError, "`dim` must be at most 2147483647"),
    )
    def test_wrong_arguments_are_quoted(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            tf_embed.Variable(**arguments)

    @parameterized.parameters(
        (1000, 1, 1000), (1000, 3, 333), (2, 4, 0), (0, 1, 8192), (0, 4, 2048)
    )
    def test_init_size_is_shared_by_the_shards(self, init_size, shards, each):
        v = tf_embed.Variable(devices=["/CPU:0"] * shards, init_size=init_size)
        self.assertEqual(v.table.options.init_size, each)

    def test_init_size_comes_from_the_environment_when_a_variable_is_made(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TF_HASHTABLE_INIT_SIZE", "300")
            self.assertEqual(tf_embed.Variable().table.options.init_size, 300)
            shards = tf_embed.Variable(devices=["/CPU:0"] * 2)
            self.assertEqual(shards.table.options.init_size, 150)
            self.assertEqual(tf_embed.Variable(init_size=7).table.options.init_size, 7)
            patch.setenv("TF_HASHTABLE_INIT_SIZE", "many")
            with self.assertRaisesRegex(
                ValueError, "must be a number of rows. Received: .*='many'"
            ):
                tf_embed.Variable()

    def test_two_variables_of_one_name_share_nothing(self):
        one = tf_embed.Variable(name="same")
        two = tf_embed.Variable(name="same")
        one.upsert([1], [[1.0]])
        self.assertEqual((int(one.size()), int(two.size())), (1, 0))

    @parameterized.parameters(
        ("float16", [[1e9]], "must fit dtype float16, whose largest number is 65504. .*1000000000"),
        ("float16", np.array([[70_000]]), "Received: 70000"),
        ("bfloat16", [[1e39]], "must fit dtype bfloat16"),
        ("float32", [[-1e39]], "must fit dtype float32"),
    )
    def test_numbers_that_would_become_infinite_are_refused(self, value_dtype, values, message):
        v = tf_embed.Variable(value_dtype=value_dtype)
        with self.assertRaisesRegex(ValueError, f"`values` of .*{message}"):
            v.upsert([1], values)
        self.assertEqual(int(v.size()), 0)
        v.upsert([1], [[np.inf]])
        self.assertAllEqual(tf.cast(v.lookup([1]), tf.float32), [[np.inf]])

    @parameterized.parameters(
        (object(), TypeError, "`keys` of 'v' must be a tensor, .*<object object"),
        ([[1], [2, 3]], ValueError, r"`keys` of 'v' must have lists of one length.*\[2, 3\]\]"),
        ({1: 2}, TypeError, r"`keys` of 'v' must be a tensor, .*\{1: 2\} of type dict"),
        (keras.Input(()), TypeError, "`keys` of 'v' must be a tensor"),
    )
    def test_what_is_no_tensor_is_refused_by_name(self, keys, error, message):
        with self.assertRaisesRegex(error, message):
            tf_embed.Variable(name="v").lookup(keys)

    def test_any_text_is_a_name(self):
        v = tf_embed.Variable(name="a b/c:0-é")
        v.upsert([1], [[1.0]])
        self.assertEqual(v.name, "a b/c:0-é")
        self.assertIn("a b/c:0-é", repr(v))

    def test_a_variable_may_be_made_inside_a_function(self):
        made = []

        @tf.function
        def function() -> tf.Tensor:
            if not made:
                made.append(tf_embed.Variable(dim=2))
            made[0].upsert([1], [[1.0, 2.0]])
            return made[0].lookup([1])

        self.assertAllEqual(function(), [[1.0, 2.0]])
        self.assertAllEqual(made[0].lookup([1]), [[1.0, 2.0]])

    def test_a_graph_without_eager_execution_is_refused(self):
        with tf.Graph().as_default(), self.assertRaisesRegex(RuntimeError, "in a tf.Graph"):
            tf_embed.Variable()

    def test_a_table_is_shown_by_name(self):
        v = tf_embed.Variable(dim=3, name="users")
        self.assertEqual(repr(v.table), "<table of 'users', dim=3, shards=1>")


class VerbsTest(tf.test.TestCase, parameterized.TestCase):
    def test_rows_of_bool_are_kept_and_have_no_sum(self):
        v = tf_embed.Variable(value_dtype=tf.bool, dim=2, initializer=[True, False], name="flags")
        v.upsert([1, 2], [[True, True], [False, False]])
        self.assertAllEqual(v.lookup([2, 1, 3]), [[False, False], [True, True], [True, False]])
        self.assertFalse(v.trainable)
        with self.assertRaisesRegex(
            TypeError, "needs values that have a sum; 'flags' has value_dtype=bool"
        ):
            v.accum([1], [[True, True]], [[True, True]], [True])
        with self.assertRaisesRegex(TypeError, "must be of dtype bool. Received: dtype=int64"):
            v.upsert([1], [[1, 0]])
        with self.assertRaisesRegex(ValueError, "must be a whole number that bool .* Received: 2"):
            tf_embed.Variable(value_dtype=tf.bool, initializer=2)

    @parameterized.parameters("int64", "int32", "uint64", "uint32")
    @pytest.mark.smoke
    def test_every_key_is_legal(self, key_dtype):
        v = tf_embed.Variable(key_dtype, dim=2, devices=["/CPU:0"] * 3)
        keys = np.array(EXTREME_KEYS[key_dtype], key_dtype)
        rows = np.arange(len(keys) * 2, dtype=np.float32).reshape(-1, 2)
        v.upsert(keys, rows)
        self.assertAllEqual(v.lookup(tf.constant(keys)), rows)
        exported_keys, exported = reference.sorted_rows(*v.export())
        self.assertAllEqual(exported_keys, np.sort(keys))
        self.assertAllEqual(exported, rows[np.argsort(keys)])
        v.remove(keys)
        self.assertEqual(int(v.size()), 0)

    @parameterized.parameters("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64")
    def test_every_value_dtype_is_served(self, value_dtype):
        v = tf_embed.Variable(value_dtype=value_dtype, dim=2, initializer=3)
        v.upsert([1], tf.constant([[1, -2]], value_dtype))
        self.assertEqual(v.lookup([1]).dtype, tf.as_dtype(value_dtype))
        self.assertAllEqual(tf.cast(v.lookup([1, 2]), tf.int32), [[1, -2], [3, 3]])
        floating = tf.as_dtype(value_dtype).is_floating
        self.assertEqual((v.trainable, len(v.trainable_variables)), (floating, int(floating)))

    @parameterized.parameters(((),), ((0,),), ((2, 3),), ((2, 1, 3),))
    def test_keys_and_values_have_any_rank(self, shape):
        v = tf_embed.Variable(dim=2)
        keys = np.arange(int(np.prod(shape))).reshape(shape)
        rows = np.random.default_rng(SEED).normal(size=(*shape, 2)).astype(np.float32)
        v.upsert(keys, rows)
        values, exists = v.lookup(keys, return_exists=True)
        self.assertAllEqual(values, rows)
        self.assertAllEqual(exists, np.ones(shape, bool))

    def test_python_numbers_are_taken_exactly(self):
        v = tf_embed.Variable(tf.uint64, dim=1)
        v.upsert([2**64 - 1, 1], [[1], [2.5]])
        self.assertAllEqual(v.lookup([1, 2**64 - 1]), [[2.5], [1.0]])
        v.upsert(np.array([7], np.int8), np.array([[3]], np.int64))
        self.assertAllEqual(v.lookup(7), [3.0])
        with self.assertRaisesRegex(ValueError, "must fit dtype uint64. Received: -1"):
            v.lookup([-1])

    def test_accum_has_the_four_cases_of_the_documentation(self):
        v = tf_embed.Variable(dim=2)
        v.upsert([1, 2], [[10, 10], [20, 20]])
        old = [[1.0, 2.0]] * 4
        new = [[5.0, 5.0]] * 4
        v.accum([1, 2, 3, 4], old, new, [True, False, True, False])
        self.assertAllEqual(v.lookup([1, 2]), [[14, 13], [20, 20]])
        values, exists = v.lookup([3, 4], return_exists=True)
        self.assertAllEqual(exists, [False, True])
        self.assertAllEqual(values[1], [5, 5])

    def test_lookup_inserts_nothing_and_tells_what_exists(self):
        v = tf_embed.Variable(dim=1, initializer=9.0)
        v.upsert([1], [[1.0]])
        values, exists = v.lookup([[1, 2]], return_exists=True)
        self.assertAllEqual(values, [[[1.0], [9.0]]])
        self.assertAllEqual(exists, [[True, False]])
        self.assertEqual(int(v.size()), 1)

    def test_remove_and_clear(self):
        v = tf_embed.Variable(devices=["/CPU:0"] * 2)
        v.upsert([1, 2, 3], [[1], [2], [3]])
        v.remove([[2, 2], [77, 3]])
        self.assertAllEqual(v.export()[0], [1])
        v.clear()
        self.assertEqual(int(v.size()), 0)
        self.assertEqual(v.export()[1].shape, (0, 1))

    def test_size_counts_all_shards(self):
        v = tf_embed.Variable(devices=["/CPU:0"] * 4)
        v.upsert([0, 4, 8, 1, -1], np.zeros([5, 1]))
        self.assertEqual(v.size().dtype, tf.int64)
        self.assertEqual(int(v.size()), 5)

    def test_writers_return_the_operation_in_a_graph_and_none_in_eager(self):
        v = tf_embed.Variable()
        calls = {
            "upsert": ([1], [[1.0]]),
            "accum": ([1], [[1.0]], [[2.0]], [True]),
            "remove": ([1],),
            "clear": (),
        }
        operations: dict[str, Any] = {}

        @tf.function
        def call_all() -> None:
            for verb, arguments in calls.items():
                operations[verb] = getattr(v, verb)(*arguments)

        call_all.get_concrete_function()
        for verb, arguments in calls.items():
            self.assertIsNone(getattr(v, verb)(*arguments))
            self.assertIsInstance(operations[verb], tf.Operation)

    def test_verbs_in_a_function_run_in_order_at_each_call(self):
        v = tf_embed.Variable(dim=1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            old, exists = v.lookup(keys, return_exists=True)
            v.accum(keys, old, old + 1.0, exists)
            middle = v.size()
            v.remove(keys[:1])
            return middle, v.size()

        self.assertAllEqual(step(tf.constant([1, 2], tf.int64)), [2, 1])
        self.assertAllEqual(step(tf.constant([3, 2], tf.int64)), [2, 1])
        self.assertAllEqual(v.lookup([2]), [[2.0]])

    def test_lookup_in_a_data_pipeline(self):
        v = tf_embed.Variable(dim=1)
        v.upsert([0, 1, 2, 3], [[0], [10], [20], [30]])
        data = tf.data.Dataset.range(5).batch(2).map(v.lookup, num_parallel_calls=2)
        got = np.concatenate(list(data.as_numpy_iterator()))
        self.assertAllEqual(got[:, 0], [0, 10, 20, 30, 0])

    def test_writers_and_readers_run_at_once(self):
        v = tf_embed.Variable(dim=16, devices=["/CPU:0"] * 2)
        torn = []

        def write(number: int) -> None:
            rng = np.random.default_rng(number)
            for _ in range(30):
                keys = rng.integers(0, 400, 200)
                v.upsert(keys, np.repeat(rng.normal(size=[200, 1]), 16, axis=1))

        def read() -> None:
            for _ in range(60):
                rows = v.lookup(np.arange(400)).numpy()
                torn.append(np.ptp(rows, axis=1).max())

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        threads.append(threading.Thread(target=read))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(max(torn), 0.0)  # a row is read whole
        self.assertLen(torn, 60)


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_wrong_dtype_is_a_type_error_that_names_both(self):
        v = tf_embed.Variable(dim=1, name="mine")
        for call in (
            lambda: v.lookup(tf.constant([1], tf.uint64)),
            lambda: v.lookup([1.0]),
            lambda: v.lookup(np.array([1.0])),
            lambda: v.remove(tf.constant([1], tf.uint64)),
            lambda: v.upsert(tf.constant([1.0]), [[1.0]]),
        ):
            with self.assertRaisesRegex(TypeError, "of 'mine' must be of dtype int64. Received: "):
                call()
        with self.assertRaisesRegex(TypeError, "float32. Received: dtype=float64"):
            v.upsert([1], tf.constant([[1.0]], tf.float64))
        with self.assertRaisesRegex(TypeError, "`exists` of 'mine' must be of dtype bool"):
            v.accum([1], [[1.0]], [[1.0]], [1])
        with self.assertRaisesRegex(TypeError, "must be of dtype int8. Received: dtype=float64"):
            tf_embed.Variable(value_dtype=tf.int8).upsert([1], [[0.5]])
        with self.assertRaisesRegex(TypeError, "must be dense. Received: RaggedTensor"):
            v.lookup(tf.ragged.constant([[1]], dtype=tf.int64))
        self.assertEqual(int(v.size()), 0)

    def test_a_wrong_shape_names_both(self):
        v = tf_embed.Variable(dim=2)
        for values in ([1.0, 2.0], [[1.0]], [[1.0, 2.0]] * 2, 1.0):
            with self.assertRaisesRegex(ValueError, r"\(1, 2\). Received: keys.shape=\(1,\)"):
                v.upsert([1], values)
        with self.assertRaisesRegex(ValueError, r"`old_values` .*old_values.shape=\(2, 2\)"):
            v.accum([1], [[0.0, 0.0]] * 2, [[0.0, 0.0]], [True])
        with self.assertRaisesRegex(ValueError, r"\(1,\). Received: exists.shape=\(2,\)"):
            v.accum([1], [[0.0, 0.0]], [[0.0, 0.0]], [True, True])
        self.assertEqual(int(v.size()), 0)

    def test_a_wrong_shape_unknown_until_it_runs_names_both(self):
        v = tf_embed.Variable(dim=2, name="mine")

        @tf.function(
            input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)]
        )
        def upsert(keys: tf.Tensor, values: tf.Tensor) -> None:
            v.upsert(keys, values)

        upsert(tf.constant([1], tf.int64), tf.constant([[1.0, 2.0]]))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, r"'mine' must have shape \[2,2\].*\[2\].*\[2,3\]"
        ):
            upsert(tf.constant([1, 2], tf.int64), tf.ones([2, 3]))
        self.assertEqual(int(v.size()), 1)

    def test_a_dimension_that_would_broadcast_is_refused(self):
        v = tf_embed.Variable(dim=2)

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([None, 2], tf.float32),
                tf.TensorSpec([None, 2], tf.float32),
                tf.TensorSpec([None], tf.bool),
            ]
        )
        def accum(keys: tf.Tensor, old: tf.Tensor, new: tf.Tensor, exists: tf.Tensor) -> None:
            v.accum(keys, old, new, exists)

        keys, one, two = tf.constant([1, 2], tf.int64), tf.ones([1, 2]), tf.ones([2, 2])
        for arguments in ((one, two, [False] * 2), (two, one, [False] * 2), (two, two, [False])):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                accum(keys, *arguments)
        self.assertEqual(int(v.size()), 0)


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    def step(self, v: tf_embed.Variable, ids: Any, optimizer: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, ids))
        optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

    @parameterized.parameters("int64", "int32", "uint64", "uint32")
    def test_the_gradient_is_slices_whose_indices_are_the_ids(self, key_dtype):
        v = tf_embed.Variable(key_dtype, dim=2, devices=["/CPU:0"] * 2)
        ids = np.array([EXTREME_KEYS[key_dtype][-2:], EXTREME_KEYS[key_dtype][:2]], key_dtype)
        with tf.GradientTape() as tape:
            rows = tf_embed.embedding_lookup(v, ids)
            loss = tf.reduce_sum(rows * tf.reshape(tf.range(8.0), [2, 2, 2]))
        (gradient,) = tape.gradient(loss, v.trainable_variables)
        self.assertIsInstance(gradient, tf.IndexedSlices)
        # TensorFlow merges the ids as int64 with the same bits.
        wanted = ids.view(np.int64) if key_dtype == "uint64" else ids.astype(np.int64)
        self.assertAllEqual(gradient.indices, wanted.ravel())
        self.assertAllEqual(gradient.values, tf.reshape(tf.range(8.0), [4, 2]))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([gradient], v.trainable_variables)
        self.assertAllEqual(v.lookup(ids), -tf.reshape(tf.range(8.0), [2, 2, 2]))

    def test_the_gradient_of_two_lookups_adds_up(self):
        v = tf_embed.Variable(dim=1)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                one = tf_embed.embedding_lookup(v, [1, 2, 1])
                two = tf_embed.embedding_lookup(v, [[2], [3]])
                loss = tf.reduce_sum(one) + 10.0 * tf.reduce_sum(two)
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        step()
        self.assertAllEqual(v.lookup([1, 2, 3]), [[-2.0], [-11.0], [-10.0]])

    def test_a_variable_that_is_not_trainable_is_never_updated(self):
        v = tf_embed.Variable(dim=1, trainable=False)
        self.assertEqual(v.trainable_variables, ())
        self.assertIsNone(v.anchor)
        with tf.GradientTape() as tape:
            one = tf.Variable(1.0)
            loss = tf.reduce_sum(one * tf_embed.embedding_lookup(v, [1]))
        self.assertAllEqual(tape.gradient(loss, one), 0.0)

    def test_lookup_is_on_no_tape(self):
        v = tf_embed.Variable(dim=1)
        with tf.GradientTape() as tape:
            rows = v.lookup([1])
        self.assertIsNone(tape.gradient(rows, v.trainable_variables[0]))

    def test_a_removed_row_starts_anew(self):
        v = tf_embed.Variable(dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1.0))
        self.step(v, [1], optimizer)
        first = v.lookup([1]).numpy()
        self.step(v, [1], optimizer)
        v.remove([1])
        self.step(v, [1], optimizer)
        self.assertAllEqual(v.lookup([1]), first)

    @parameterized.parameters(1, 3)
    def test_distinct_keys_are_written_as_any(self, shards):
        v = tf_embed.Variable(dim=2, devices=["cpu:0"] * shards)
        keys = np.random.default_rng(1).permutation(10000)
        for times in (1.0, 2.0):
            rows = times * np.stack([keys, -keys], axis=1).astype(np.float32)
            v.upsert(keys, rows, distinct=True)
            self.assertAllEqual(v.lookup(keys), rows)
        self.assertEqual(int(v.size()), len(keys))

    def test_a_key_said_to_be_distinct_that_is_not_has_one_of_its_rows(self):
        v = tf_embed.Variable(dim=1)
        v.upsert([7, 8, 7], [[1.0], [2.0], [3.0]], distinct=True)
        self.assertEqual(int(v.size()), 2)
        self.assertIn(float(v.lookup([7])[0, 0]), (1.0, 3.0))
        self.assertAllEqual(v.lookup([8]), [[2.0]])

    def test_upsert_keeps_the_slots(self):
        v = tf_embed.Variable(dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1.0))
        self.step(v, [1], optimizer)
        v.upsert([1], [[0.0]])
        self.step(v, [1], optimizer)
        self.assertAllClose(v.lookup([1]), [[-1.0 / np.sqrt(2.1)]])

    def test_embedding_lookup_wants_a_variable(self):
        with self.assertRaisesRegex(TypeError, "`params` must be a tf_embed.Variable"):
            tf_embed.embedding_lookup(tf.Variable([1.0]), [0])


if __name__ == "__main__":
    tf.test.main()
