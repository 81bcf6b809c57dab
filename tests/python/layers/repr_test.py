# SPDX-License-Identifier: Apache-2.0
"""The `repr` of variables, layers, policies, storages and optimizers."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed import one_embedding, optimizers, sok, tbe, tfra
from tf_embed.variable.memory_report import size_text

(DEVICE,) = tf_embed.Variable(dim=1).devices  # where a table is by default
SETTINGS = (
    tf_embed.TablePolicy(),
    tf_embed.TablePolicy(max_rows=1_000_000, eviction="lfu", ttl_seconds=60.0),
    tf_embed.TablePolicy(eviction=None, max_rows=5),
    tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(3)),
    tf_embed.TablePolicy(admission=tf_embed.BloomAdmission(3, 0.01, max_keys=10)),
    tf_embed.Storage(),
    tf_embed.Storage(host_bytes=2**30, path="/tmp/it's"),
    tf_embed.Storage(gpu_bytes=0),
    tf_embed.Storage(gpu_cache=True, gpu_bytes=2**20),
    tf_embed.RedisServer(host="10.0.0.7", cluster=True, timeout_seconds=2.5),
    tf_embed.Storage(redis=tf_embed.RedisServer(model="shop")),
)


def group(name: str) -> one_embedding.MultiTableEmbedding:
    tables = [one_embedding.make_table(one_embedding.make_constant_initializer(1.0))] * 2
    store = one_embedding.make_device_mem_store_options(tempfile.mkdtemp(), capacity=100)
    return one_embedding.MultiTableEmbedding(
        name, 2, "float32", "int64", tables, store, optimizer="sgd"
    )


LAYERS = {
    "DynamicEmbedding": lambda: tf_embed.layers.DynamicEmbedding(2, optimizer="sgd"),
    "Embedding": lambda: tfra.keras.layers.Embedding(2),
    "SquashedEmbedding": lambda: tfra.keras.layers.SquashedEmbedding(2),
    "FieldWiseEmbedding": lambda: tfra.keras.layers.FieldWiseEmbedding(2, 2, lambda ids: ids % 2),
    "All2AllDenseEmbedding": lambda: sok.All2AllDenseEmbedding(8, 2, 1, 1),
    "DistributedEmbedding": lambda: sok.DistributedEmbedding("sum", 8, 2, 1, 1),
    "MultiTableEmbedding": lambda: group("group"),
    "TableBatchedEmbeddingBags": lambda: tbe.TableBatchedEmbeddingBags([(3, 2), (None, 4)]),
}


class SettingsReprTest(parameterized.TestCase):
    @parameterized.parameters(*SETTINGS)
    def test_a_repr_is_the_call_that_makes_an_equal_one(self, settings):
        made = eval(repr(settings), {**vars(tf_embed)})
        self.assertEqual(made, settings)
        self.assertIs(type(made), type(settings))

    @parameterized.parameters(
        (tf_embed.TablePolicy(), "TablePolicy()"),
        (tf_embed.TablePolicy(max_rows=1_000_000), "TablePolicy(max_rows=1_000_000)"),
        (tf_embed.Storage(gpu_bytes=0), "Storage(gpu_bytes=0)"),
        (tf_embed.CounterAdmission(2), "CounterAdmission(n=2)"),
    )
    def test_a_repr_leaves_defaults_out(self, settings, expected):
        self.assertEqual(repr(settings), expected)

    @parameterized.parameters(repr, str, "{}".format, "{!r}".format)
    def test_a_password_is_never_shown(self, text):
        server = tf_embed.RedisServer(host="10.0.0.7", username="app", password="hunter2")
        for one in (server, tf_embed.Storage(redis=server), [server], {"redis": server}):
            self.assertNotIn("hunter2", text(one))
            self.assertIn("10.0.0.7", text(one))


class VariableReprTest(parameterized.TestCase):
    def test_it_says_what_the_variable_is(self):
        v = tf_embed.Variable(
            dim=4,
            key_dtype=tf.int32,
            value_dtype=tf.float16,
            name="items",
            devices=["/CPU:0"] * 2,
            policy=tf_embed.TablePolicy(max_rows=10_000),
        )
        v.upsert(np.arange(1200), np.zeros([1200, 4], np.float16))
        report = v.memory_report()
        size = size_text(report.tiers[0].bytes + report.index_bytes + report.slack_bytes)
        self.assertEqual(
            repr(v),
            "<tf_embed.Variable name='items', dim=4, key_dtype=int32, value_dtype=float16, "
            f"device=/CPU:0, shards=2, rows=1,200, memory={size}, "
            "policy=TablePolicy(max_rows=10_000)>",
        )
        self.assertEqual(str(v), repr(v))

    def test_it_names_the_optimizer_once_there_is_one(self):
        v = tf_embed.Variable(dim=1)
        self.assertNotIn("optimizer", repr(v))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        optimizer.build(v.trainable_variables)
        self.assertIn("optimizer=Adam>", repr(v))

    def test_it_names_the_bytes_on_disk(self):
        storage = tf_embed.Storage(host_bytes=64 * 1024, path=tempfile.mkdtemp())
        v = tf_embed.Variable(dim=16, storage=storage)
        self.assertNotIn("disk=", repr(v))
        for begin in range(0, 4000, 500):
            v.upsert(np.arange(begin, begin + 500), np.zeros([500, 16], np.float32))
        self.assertIn("rows=4,000", repr(v))
        self.assertRegex(repr(v), r"disk=\d")
        self.assertIn("storage=Storage(host_bytes=65_536, path=", repr(v))

    def test_string_keys_and_values(self):
        v = tf_embed.Variable(key_dtype=tf.string, value_dtype=tf.string, dim=1, name="names")
        v.upsert(["a"], [["b"]])
        self.assertIn("key_dtype=string, value_dtype=string", repr(v))
        self.assertIn("rows=1, ", repr(v))

    def test_a_long_name_is_shortened(self):
        self.assertLess(len(repr(tf_embed.Variable(dim=1, name="n" * 1000))), 400)

    def test_a_function_gets_no_ops_by_it(self):
        v = tf_embed.Variable(dim=1, name="items")
        v.upsert([1], [[0.0]])
        texts, counts = [], []

        @tf.function
        def traced() -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()
            counts.append(len(graph.get_operations()))
            texts.append(repr(v))
            counts.append(len(graph.get_operations()))
            return tf.constant(0)

        traced()
        self.assertEqual(counts[0], counts[1])
        self.assertIn("name='items', dim=1", texts[0])
        self.assertNotIn("rows=", texts[0])

    def test_a_graph_gets_no_ops_by_it(self):
        v = tf_embed.Variable(dim=1, name="items")
        with tf.Graph().as_default() as graph:
            text = repr(v)
        self.assertEmpty(graph.get_operations())
        self.assertIn("name='items', dim=1", text)


class LayerReprTest(parameterized.TestCase):
    def test_it_says_what_the_layer_is(self):
        layer = tf_embed.layers.DynamicEmbedding(
            4,
            combiner="sum",
            optimizer=keras.optimizers.Adagrad(),
            policy=tf_embed.TablePolicy(max_rows=9),
            name="items",
        )
        self.assertEqual(
            repr(layer),
            "<DynamicEmbedding name='items', combiner='sum', dim=4, key_dtype=int64, "
            "value_dtype=float32, policy=TablePolicy(max_rows=9), optimizer=Adagrad, not built>",
        )
        layer.build()
        layer.variable.upsert([1, 2], np.zeros([2, 4]))
        without_size = re.sub(r"memory=[\d.]+ \w+", "memory=?", repr(layer))
        self.assertEqual(
            without_size,
            "<DynamicEmbedding name='items', combiner='sum', dim=4, key_dtype=int64, "
            f"value_dtype=float32, device={DEVICE}, rows=2, memory=?, "
            "policy=TablePolicy(max_rows=9), optimizer=Adagrad>",
        )

    @parameterized.parameters(*LAYERS)
    def test_a_layer_says_whether_it_is_built(self, kind):
        layer = LAYERS[kind]()
        self.assertStartsWith(repr(layer), f"<{kind} name='{layer.name}', ")
        has_tables = kind == "TableBatchedEmbeddingBags"  # also before it is built
        self.assertEqual("not built" in repr(layer), not layer.built and not has_tables)
        layer.build()
        self.assertNotIn("not built", repr(layer))
        self.assertIn(f"device={DEVICE}", repr(layer))
        self.assertIn("rows=", repr(layer))

    @parameterized.parameters(*LAYERS)
    def test_a_layer_that_could_not_be_made_has_one(self, kind):
        made = type(LAYERS[kind]())
        self.assertEqual(repr(made.__new__(made)), f"<{kind}, not made>")

    @parameterized.product(kind=tuple(LAYERS), built=(False, True))
    def test_a_function_gets_no_ops_by_it(self, kind, built):
        layer, texts, counts = LAYERS[kind](), [], []
        if built:
            layer.build()

        @tf.function
        def traced() -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()
            counts.append(len(graph.get_operations()))
            texts.append(repr(layer))
            counts.append(len(graph.get_operations()))
            return tf.constant(0)

        traced()
        self.assertEqual(counts[0], counts[1])
        self.assertStartsWith(texts[0], f"<{kind} name='{layer.name}'")
        self.assertNotIn(" rows=", texts[0])

    def test_the_tables_of_a_group_are_counted_together(self):
        layer = group("pair")
        layer(tf.constant([[1, 2]]))
        self.assertIn("tables=2, embedding_dim=2", repr(layer))
        for number, variable in enumerate(layer.row_tables):
            variable.upsert([number, number + 1], [[0.0, 0.0]] * 2)
        self.assertIn("rows=4,", repr(layer))

    def test_the_tables_of_a_batched_layer_are_counted_together(self):
        layer = LAYERS["TableBatchedEmbeddingBags"]()
        self.assertIn("tables=2, features=2, dims=2 to 4", repr(layer))
        self.assertIn("optimizer=SGD>", repr(layer))
        rows = sum(int(table.size()) for table in layer.tables)
        self.assertIn(f"rows={rows},", repr(layer))


OPTIMIZERS: dict[str, Any] = {
    "RowwiseAdagrad": lambda rate: optimizers.RowwiseAdagrad(rate, epsilon=1e-3),
    "SmartDecayAdam": lambda rate: optimizers.SmartDecayAdam(rate, epsilon=1e-3),
    "Ftrl": lambda rate: one_embedding.Ftrl(rate),
    "Adam": lambda rate: tbe.Adam(rate),
    "DynamicEmbeddingOptimizer": lambda rate: tf_embed.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(rate)
    ),
}


class OptimizerReprTest(parameterized.TestCase):
    @parameterized.parameters(*OPTIMIZERS)
    def test_it_says_what_the_optimizer_is(self, kind):
        optimizer = OPTIMIZERS[kind](0.25)
        text = repr(optimizer)
        self.assertStartsWith(text, f"<{kind} name='{optimizer.name}', ")
        self.assertIn("learning_rate=0.25", text)
        self.assertEndsWith(text, "not built>")
        weight = keras.Variable([1.0, 2.0])
        optimizer.apply([tf.constant([1.0, 1.0])], [weight])
        self.assertNotIn("not built", repr(optimizer))
        self.assertEndsWith(repr(optimizer), "iterations=1>")

    def test_settings_that_are_not_the_defaults_are_named(self):
        self.assertIn("epsilon=0.001", repr(optimizers.RowwiseAdagrad(epsilon=1e-3)))
        self.assertNotIn("epsilon", repr(optimizers.RowwiseAdagrad()))
        self.assertIn("weight_decay=0.5", repr(tbe.Adam(weight_decay=0.5)))
        self.assertNotIn("weight_decay", repr(tbe.Adam()))

    def test_a_wrapper_names_what_it_wraps_and_trains(self):
        v = tf_embed.Variable(dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.5))
        self.assertIn("keras_optimizer=Adam, learning_rate=0.5", repr(optimizer))
        optimizer.build([*v.trainable_variables, keras.Variable([1.0])])
        self.assertIn("tables=1, dense variables=1", repr(optimizer))

    def test_a_schedule_gives_the_present_rate(self):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.125])
        optimizer = optimizers.RowwiseAdagrad(schedule)
        self.assertIn("learning_rate=0.5", repr(optimizer))
        optimizer.apply([tf.constant([1.0])], [keras.Variable([1.0])])
        self.assertIn("learning_rate=0.125", repr(optimizer))

    def test_a_callable_that_raises_does_no_harm(self):
        def rate() -> float:
            raise OSError("The file with the rate is gone.")

        self.assertNotIn("learning_rate", repr(optimizers.RowwiseAdagrad(rate)))

    @parameterized.product(kind=tuple(OPTIMIZERS), built=(False, True))
    def test_a_function_gets_no_ops_by_it(self, kind, built):
        optimizer, texts, counts = OPTIMIZERS[kind](0.25), [], []
        if built:
            optimizer.build([keras.Variable([1.0, 2.0])])

        @tf.function
        def traced() -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()
            counts.append(len(graph.get_operations()))
            texts.append(repr(optimizer))
            counts.append(len(graph.get_operations()))
            return tf.constant(0)

        traced()
        self.assertEqual(counts[0], counts[1])
        self.assertStartsWith(texts[0], f"<{kind} name='{optimizer.name}'")


if __name__ == "__main__":
    absltest.main()
