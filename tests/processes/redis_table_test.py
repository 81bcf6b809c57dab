# SPDX-License-Identifier: Apache-2.0
"""Tables in Redis equal tables in memory, and can be shared."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import re
import tempfile
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.processes.redis_servers import RedisProcess, free_port
from tf_embed import tfra as de
from tf_embed.ops import new_table_ops

_server: RedisProcess


def setUpModule():
    global _server
    _server = RedisProcess()


def tearDownModule():
    _server.close()


def pair(dim=4, value_dtype=tf.float32):
    """A variable in Redis and a variable in memory that draw the same initial rows."""
    uniform = keras.initializers.RandomUniform(-1.0, 1.0, seed=5)
    initializer = uniform if value_dtype.is_floating else 1
    storage = _server.storage()
    return [
        tf_embed.Variable(dim=dim, value_dtype=value_dtype, initializer=initializer, storage=one)
        for one in (storage, None)
    ]


def rows_of(variable):
    keys, values = (one.numpy() for one in variable.export())
    order = np.argsort(keys)
    return keys[order], values[order]


class SameAsInMemoryTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, variables):
        (keys, values), (wanted_keys, wanted) = map(rows_of, variables)
        self.assertAllEqual(keys, wanted_keys)
        self.assertAllEqual(values, wanted)

    @parameterized.parameters(tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.bool)
    def test_lookups_and_writes_have_the_same_bits(self, dtype):
        variables = pair(value_dtype=dtype)
        random = np.random.default_rng(3)
        for _ in range(4):
            keys = random.integers(-20, 20, 30)
            values = tf.cast(random.integers(0, 2, (30, 4)), dtype)
            absent = random.integers(100, 120, (2, 3))
            for v in variables:
                v.upsert(keys, values)
                v.remove(keys[:4])
            self.assertAllEqual(*(v.lookup(keys) for v in variables))
            self.assertAllEqual(*(v.lookup(absent) for v in variables))
            self.assertEqual(*(int(v.size()) for v in variables))
        self.assert_same(variables)

    def test_accum_is_the_same(self):
        variables = pair()
        exists = [True, False, True, False]
        old, new = np.zeros((4, 4), np.float32), np.ones((4, 4), np.float32)
        for v in variables:
            v.upsert([1, 2], np.full((2, 4), 5.0, np.float32))
            v.accum([1, 2, 3, 4], old, new, exists)
        self.assert_same(variables)

    @parameterized.parameters("sgd", "adagrad", "adam", "ftrl")
    def test_forty_steps_of_training_have_the_same_bits(self, name):
        variables = pair()
        optimizers = [
            tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.get(name)) for _ in variables
        ]
        random = np.random.default_rng(4)
        targets = random.normal(size=(50, 4)).astype(np.float32)
        for _ in range(40):
            keys = random.integers(0, 50, 20)
            for v, optimizer in zip(variables, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(v, tf.constant(keys))
                    loss = tf.reduce_sum((rows - targets[keys]) ** 2)
                trained = v.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        self.assert_same(variables)

    @parameterized.product(name=("sgd", "adam"), table=(None, "accumulated"))
    def test_steps_of_accumulated_gradients_are_the_same(self, name, table):
        variables = [
            tf_embed.Variable(dim=1, initializer=0.0, storage=storage, name=f"waits_{name}")
            for storage in (_server.storage(table=table and f"{table}_{name}"), None)
        ]
        for v in variables:
            v.upsert(range(4), np.ones([4, 1]))
            optimizer = tf_embed.DynamicEmbeddingOptimizer(
                keras.optimizers.get(
                    {"class_name": name, "config": {"gradient_accumulation_steps": 2}}
                )
            )
            for keys in ([1], [1, 2], [3, 7], [7], [1]):  # key 0 has no gradient
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(v, tf.constant(keys, tf.int64))
                    loss = tf.reduce_sum(rows)
                trained = v.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
                self.assertEqual(v.lookup([0]).numpy(), [[1.0]])
        self.assert_same(variables)

    @pytest.mark.smoke
    def test_a_layer_trains_as_in_memory(self):
        models = []
        for storage in (_server.storage(), None):
            keras.utils.set_random_seed(1)
            initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=5)
            model = keras.Sequential(
                [
                    tf_embed.layers.DynamicEmbedding(
                        4,
                        initializer=initializer,
                        optimizer="adam",
                        storage=storage,
                        name="items",
                    ),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adam", "mse")
            random = np.random.default_rng(6)
            keys, labels = random.integers(0, 99, (64, 2)), random.normal(size=(64, 1))
            model.fit(keys, labels, batch_size=16, epochs=3, verbose=0)
            models.append((model, model.predict(keys, verbose=0)))
        self.assertAllEqual(models[0][1], models[1][1])


class SharedTest(tf.test.TestCase):
    @pytest.mark.smoke
    def test_another_variable_of_the_name_has_the_same_rows(self):
        server = _server.server()
        one, other = (
            tf_embed.Variable(dim=2, storage=tf_embed.Storage(redis=server)) for _ in range(2)
        )
        one.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        self.assertAllEqual(other.lookup([2]), [[3.0, 4.0]])
        other.remove([1])
        self.assertEqual(int(one.size()), 1)
        other.clear()
        self.assertEqual(int(one.size()), 0)

    def test_other_models_and_tables_keep_their_rows(self):
        def variable(model, table):
            return tf_embed.Variable(dim=1, storage=_server.storage(model=model, table=table))

        names = (("a", "x"), ("a", "x:0"), ("a", "y"), ("b", "x"), ("a", "x*"), ("a", "[x]"))
        variables = [variable(*one) for one in names]
        for i, v in enumerate(variables):
            v.upsert([1, 2], [[float(i)], [float(i)]])
        variables[0].clear()
        variables[4].clear()
        self.assertEqual([int(v.size()) for v in variables], [0, 2, 2, 2, 0, 2])
        self.assertAllEqual(variables[3].lookup([1]), [[3.0]])

    def test_a_table_of_another_kind_is_refused(self):
        server = _server.server()
        tf_embed.Variable(dim=2, storage=tf_embed.Storage(redis=server))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "float32 values, dim 2.*Received: float32 values, dim 3"
        ):
            tf_embed.Variable(dim=3, storage=tf_embed.Storage(redis=server))

    def test_rows_in_slices_are_the_same_rows(self):
        v = tf_embed.Variable(dim=1, storage=_server.storage(slices=5, keys_per_command=7))
        keys = np.arange(100)
        v.upsert(keys, keys[:, None].astype(np.float32))
        self.assertEqual(int(v.size()), 100)
        self.assertAllEqual(rows_of(v)[1][:, 0], keys)

    def test_a_flushed_server_is_an_empty_table(self):
        server = RedisProcess()
        self.addCleanup(server.close)
        v = tf_embed.Variable(dim=1, initializer=7.0, storage=server.storage())
        v.upsert([1], [[1.0]])
        server.command("FLUSHALL")
        self.assertAllEqual(v.lookup([1]), [[7.0]])
        v.upsert([2], [[2.0]])
        self.assertEqual(int(v.size()), 1)

    def test_what_is_no_row_is_an_error_that_names_the_key(self):
        v = tf_embed.Variable(dim=1, storage=_server.storage(model="m", table="torn"))
        for value in ("short", "x" * 17):
            script = f"redis.call('HSET', KEYS[1], 'A' .. string.rep('\\0', 7), '{value}')"
            _server.command("EVAL", script, "1", "{m:torn:0}")
            with self.assertRaisesRegex(tf.errors.DataLossError, "key 65,? "):
                v.lookup([ord("A")])


class ExpiryTest(tf.test.TestCase):
    def test_rows_that_are_not_used_expire(self):
        policy = tf_embed.TablePolicy(ttl_seconds=0.4)
        v = tf_embed.Variable(dim=1, initializer=7.0, policy=policy, storage=_server.storage())
        other = tf_embed.Variable(dim=1, storage=_server.storage())
        other.upsert([1], [[1.0]])
        v.upsert([1, 2, 3], [[1.0], [2.0], [3.0]])
        self.assertEqual(int(v.size()), 3)
        self.assertAllEqual(rows_of(v)[0], [1, 2, 3])
        end = time.monotonic() + 20.0
        while int(v.size()) == 3 and time.monotonic() < end:
            v.lookup([1], training=True)  # counts as a use
            v.upsert([2], [[2.5]])  # counts as a use
        self.assertAllEqual(rows_of(v)[0], [1, 2])
        self.assertAllEqual(v.lookup([3]), [[7.0]])
        while int(v.size()) and time.monotonic() < end:
            v.lookup([1])  # does not count as a use
        self.assertEqual(int(v.size()), 0)
        self.assertEqual(int(other.size()), 1)

    def test_clear_takes_no_rows_of_other_tables(self):
        policy = tf_embed.TablePolicy(ttl_seconds=1000.0)
        variables = [
            tf_embed.Variable(dim=1, policy=policy, storage=_server.storage(model=model))
            for model in ("e", "e2")
        ]
        for v in variables:
            v.upsert(np.arange(300), np.zeros((300, 1), np.float32))
        variables[0].remove([5])
        self.assertEqual(int(variables[0].size()), 299)
        variables[0].clear()
        self.assertEqual([int(v.size()) for v in variables], [0, 300])


class ClusterTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        ports = [str(free_port()) for _ in range(2)]
        self.servers = [
            RedisProcess("--cluster-enabled", "yes", "--cluster-port", port) for port in ports
        ]
        for server in self.servers:
            self.addCleanup(server.close)
        one, other = self.servers
        one.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        one.command("CLUSTER", "MEET", "127.0.0.1", str(other.port), ports[1])
        for server in self.servers:
            end = time.monotonic() + 20.0
            while time.monotonic() < end:
                info = server.command("CLUSTER", "INFO")
                if "cluster_state:ok" in info and "cluster_known_nodes:2" in info:
                    break
                time.sleep(0.01)

    def test_statistics_go_on_while_slots_move(self):
        one, other = self.servers
        policy = tf_embed.TablePolicy(ttl_seconds=1000.0)
        v = tf_embed.Variable(dim=1, policy=policy, storage=one.storage(cluster=True))
        v.upsert([1, 2], [[1.0], [2.0]])
        self.assertEqual(v.stats()["rows"], 2)
        other.command("CLUSTER", "SETSLOT", "0", "IMPORTING", one.command("CLUSTER", "MYID"))
        one.command("CLUSTER", "SETSLOT", "0", "MIGRATING", other.command("CLUSTER", "MYID"))
        with self.assertRaisesRegex(tf.errors.AbortedError, "Slots of the cluster are moving"):
            v.export()
        v.upsert([3], [[3.0]])
        self.assertEqual(v.stats()["rows"], 2)  # the last count that succeeded


class SavedTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_checkpoint_goes_into_memory_and_back(self):
        v = tf_embed.Variable(dim=2, storage=_server.storage(restore="always"))
        in_memory = tf_embed.Variable(dim=2)
        v.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        path = tf.train.Checkpoint(v=v).save(folder + "/rows")
        tf.train.Checkpoint(v=in_memory).restore(path).assert_consumed()
        self.assertAllEqual(in_memory.lookup([2]), [[3.0, 4.0]])
        v.upsert([1, 3], np.zeros((2, 2), np.float32))
        tf.train.Checkpoint(v=v).restore(path)
        self.assertAllEqual(rows_of(v)[0], [1, 2])
        self.assertAllEqual(v.lookup([1]), [[1.0, 2.0]])

    def test_shared_rows_stay_when_a_checkpoint_is_restored(self):
        v = tf_embed.Variable(dim=1, storage=_server.storage())
        v.upsert([1], [[1.0]])
        path = tf.train.Checkpoint(v=v).save(tempfile.mkdtemp(dir=self.get_temp_dir()) + "/rows")
        v.upsert([1], [[2.0]])
        with self.assertLogs(level="WARNING") as logs:
            tf.train.Checkpoint(v=v).restore(path)
        self.assertIn("keeps its 1 rows in Redis", logs.output[0])
        self.assertAllEqual(v.lookup([1]), [[2.0]])
        v.clear()
        tf.train.Checkpoint(v=v).restore(path)
        self.assertAllEqual(v.lookup([1]), [[1.0]])

    @parameterized.parameters((None, "adam"), ("adam", "sgd"), ("adam", "adagrad"))
    def test_a_save_has_the_slots_of_the_optimizer_that_another_process_set(self, first, second):
        def variable(optimizer):
            v = tf_embed.Variable(dim=4, storage=_server.storage(table=f"{first}_{second}"))
            if optimizer is not None:
                train(v, optimizer)
            return v

        def train(v, name):
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.get(name))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, tf.range(50, dtype=tf.int64)))
            trained = v.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))

        def saved_bytes(v):
            folder = tempfile.mkdtemp(dir=self.get_temp_dir())
            v.save_rows(folder)
            return sum(os.path.getsize(path) for path in pathlib.Path(folder).rglob("*.rows*"))

        saver = variable(first)
        other = variable(second)
        self.assertEqual(saved_bytes(saver), saved_bytes(other))

    def test_a_keras_file_has_the_rows_and_no_password(self):
        server = RedisProcess("--requirepass", "sesame")
        self.addCleanup(server.close)
        os.environ["TF_EMBED_TEST_PASSWORD"] = "sesame"
        self.addCleanup(os.environ.pop, "TF_EMBED_TEST_PASSWORD")
        storage = server.storage(password_env="TF_EMBED_TEST_PASSWORD", restore="always")
        model = keras.Sequential(
            [tf_embed.layers.DynamicEmbedding(2, optimizer="adam", storage=storage)]
        )
        model.compile("adam", "mse")
        keys = np.array([[1, 2]])
        model.fit(keys, np.ones((1, 2, 2)), verbose=0)
        wanted = model.predict(keys, verbose=0)
        path = os.path.join(tempfile.mkdtemp(), "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            self.assertNotIn(b"sesame", file.read())
        model.layers[0].variable.clear()
        again = keras.models.load_model(path)
        self.assertEqual(again.layers[0].storage, storage)
        self.assertAllEqual(again.predict(keys, verbose=0), wanted)

    def test_a_saved_model_needs_no_server(self):
        server = RedisProcess()
        self.addCleanup(server.close)
        model = keras.Sequential(
            [tf_embed.layers.DynamicEmbedding(2, storage=server.storage(password=None))]
        )
        keys = tf.constant([[1, 2]])
        model(keys)
        model.layers[0].variable.upsert([1], [[5.0, 6.0]])
        folder = tempfile.mkdtemp()
        model.export(folder, verbose=False)
        server.kill()
        loaded = tf.saved_model.load(folder)
        rows = loaded.serve(tf.cast(keys, tf.int64))
        self.assertAllEqual(rows[0, 0], [5.0, 6.0])


class RefusedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"key_dtype": tf.string}, "key_dtype=string"),
        ({"value_dtype": tf.string}, "value_dtype=string"),
        ({"devices": ["/CPU:0"] * 2}, "2 devices"),
        ({"policy": tf_embed.TablePolicy(max_rows=9)}, "max_rows=9"),
        ({"policy": tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2))}, "admission="),
        ({"policy": tf_embed.TablePolicy(log_evicted=True)}, "log_evicted=True"),
        ({"policy": tf_embed.TablePolicy(track_changes=True)}, "track_changes=True"),
        ({"restrict_policy": tf_embed.tfra.TimestampRestrictPolicy}, "restrict_policy="),
    )
    def test_a_table_that_can_not_be_in_redis_is_refused_by_name(self, arguments, received):
        with self.assertRaisesRegex(ValueError, f"is in Redis, and can't .*Received: {received}"):
            tf_embed.tfra.Variable(storage=_server.storage(), **arguments)

    def test_a_restriction_and_a_copy_are_refused(self):
        policy = tf_embed.TablePolicy(ttl_seconds=1000.0)
        v = tf_embed.Variable(dim=1, policy=policy, storage=_server.storage())
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "not keep the statistics"):
            v.restrict(0)
        with self.assertRaisesRegex(ValueError, "can't be copied"):
            copy.deepcopy(v)

    @parameterized.parameters(
        ({"port": 0}, ValueError, "`port` must be at least 1"),
        ({"port": "6379"}, TypeError, "`port` must be an int"),
        ({"host": ""}, ValueError, "`host` must be a name without blanks and braces"),
        ({"host": 3}, TypeError, r"`host` must be a str\. Received: host=3"),
        ({"host": "rediss://10.0.0.7"}, ValueError, "not a URL: connections have no TLS"),
        ({"model": "a:b"}, ValueError, "`model` must be a name without a colon"),
        ({"table": "{x}"}, ValueError, "`table` must be a name without blanks and braces"),
        ({"password": "a\nb"}, ValueError, "password=3 characters$"),
        ({"password": 12345}, TypeError, "password=int$"),
        (
            {"password": "a", "password_env": "B"},
            ValueError,
            "`password_env` must be None beside a `password`",
        ),
        ({"cluster": True, "database": 1}, ValueError, "`database` must be 0 in a cluster"),
        ({"timeout_seconds": 0}, ValueError, "`timeout_seconds` must be above 0"),
        ({"slices": 5000}, ValueError, "`slices` must be at most 4096"),
        ({"restore": "never"}, ValueError, "`restore` must be"),
    )
    def test_a_bad_argument_of_a_server_gets_one_clear_error(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            tf_embed.RedisServer(**arguments)

    def test_a_variable_needs_a_name_for_redis_and_the_password_in_the_environment(self):
        server = _server.server(table=None)
        with self.assertRaisesRegex(ValueError, "whose name has blanks or braces.*name='a b'"):
            tf_embed.Variable(dim=1, name="a b", storage=tf_embed.Storage(redis=server))
        server = _server.server(password_env="TF_EMBED_TEST_UNSET")
        with self.assertRaisesRegex(
            ValueError, f"has the password of the Redis server at 127.0.0.1:{_server.port}"
        ):
            tf_embed.Variable(dim=1, storage=tf_embed.Storage(redis=server))

    @parameterized.parameters(
        ("nothing", "Received: a line of ''"),
        ("redis_host=a\nredis_port=x", "Received: a line of 'redis_port'"),
        ("redis_host=a\nredis_port=-1", "`redis_port` must be at least 0"),
        ("redis_host=a\nredis_port=99999999999", "`redis_port` must be at most 2147483647"),
        ("redis_host=a\nredis_hosts=b", "must have known settings. .*'redis_hosts'"),
        ("redis_host=a\nredis_host=b", "Received: a line of 'redis_host'"),
        ("redis_password=sesame", "`redis_host` must be given with a `redis_prefix`"),
        ("redis_host=a\nredis_prefix=b\nredis_port=0", "Received: port=0"),
        ("redis_host=a", "`prefix` .*Received: prefix=''"),
        ("redis_host=a\nredis_prefix=b\nredis_slices=0", "Received: slices=0"),
    )
    def test_settings_that_no_caller_of_ours_gives_are_refused_by_name(self, settings, words):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, words):
            new_table_ops.create_table(
                shared_name=None,
                key_dtype=tf.int64,
                value_dtype=tf.float32,
                dim=1,
                num_shards=1,
                init_size=0,
                label="items",
                initializer="constant",
                initializer_values=[0.0],
                seed=1,
                table_id=1,
                settings=settings,
            )

    @parameterized.parameters({"path": "/tmp/rows"}, {"gpu_bytes": 3}, {"host_bytes": 5})
    def test_a_storage_has_no_tiers_beside_a_server(self, **arguments):
        with self.assertRaisesRegex(ValueError, "with `redis`: all rows are on the server"):
            tf_embed.Storage(redis=tf_embed.RedisServer(), **arguments)


class CreatorTest(tf.test.TestCase, parameterized.TestCase):
    def config(self, text: str) -> de.RedisTableConfig:
        path = os.path.join(self.get_temp_dir(), "config.json")
        with open(path, "w") as file:
            file.write(text)
        return de.RedisTableConfig(path)

    @parameterized.parameters(
        ("redis_connection_mode", 1, "0 for a cluster; sentinels (1) are not supported"),
        ("redis_read_access_slave", True, "false: replicas are not read"),
        ("using_md5_prefix_name", 0, "keys have the names that they are given"),
        ("redis_hash_tags_hypodispersion", True, "are spread over a cluster by its own rule"),
        ("redis_hash_tags_import", ["a"], "empty: slices have hash tags of their own"),
        ("redis_hash_tags_runtime", ["a"], "empty: slices have hash tags of their own"),
        ("model_tag_import", "b", "rows of another model come from a checkpoint"),
        ("storage_slice_import", 3, "rows in other slices come from a checkpoint"),
    )
    def test_a_value_of_tfra_that_has_no_like_here_is_refused_by_name(self, name, value, wanted):
        fields = {"model_tag_runtime": "a", "storage_slice": 2, name: value}
        wanted = f"`{name}` in the config of a table in Redis must be .*{re.escape(wanted)}"
        with self.assertRaisesRegex(ValueError, f"{wanted}.* Received: {name}="):
            self.config(json.dumps(fields)).server()

    @parameterized.parameters("[]", "3", "null")
    def test_a_file_without_an_object_is_refused(self, text):
        with self.assertRaisesRegex(ValueError, "path of a JSON file: it has no object. Received"):
            self.config(text).server()

    def test_an_unknown_field_and_several_servers_are_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "must have these fields: .*Received: port$"):
            self.config('{"port": 3}').server()
        with self.assertRaisesRegex(ValueError, "one value: of a cluster, one server knows"):
            self.config('{"redis_host_ip": ["a", "b"]}').server()

    def test_where_the_file_is_must_be_said_by_strings(self):
        with self.assertRaisesRegex(TypeError, r"`redis_config_abs_dir` must be a str\. Received"):
            de.RedisTableConfig(3)
        config = de.RedisTableConfig(redis_config_abs_dir_env="TF_EMBED_TEST_UNSET")
        with self.assertRaisesRegex(
            ValueError, "an environment variable that has the path of a JSON file.*_UNSET'"
        ):
            config.server()

    def test_a_creator_of_tfra_makes_a_table_in_redis(self):
        path = os.path.join(self.get_temp_dir(), "redis.json")
        with open(path, "w") as file:
            json.dump({"redis_host_port": _server.port, "model_tag_runtime": "shop"}, file)
        creator = de.RedisTableCreator(de.RedisTableConfig(path))
        v = de.Variable(dim=2, name="clicks", kv_creator=creator)
        v.upsert([4], [[1.0, 2.0]])
        self.assertEqual(_server.command("HLEN", "{shop:clicks:0}"), "1")
        self.assertAllEqual(v.lookup([4]), [[1.0, 2.0]])


if __name__ == "__main__":
    absltest.main()
