# SPDX-License-Identifier: Apache-2.0
"""The copy of an optimizer that a layer makes for its table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.layers import DynamicEmbedding

IDS, LABELS = np.array([[7], [8]]), np.array([[1.0], [2.0]])
schedules = keras.optimizers.schedules


class Tower(keras.layers.Layer):
    """A layer that makes another layer when it is built."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def build(self, _: Any) -> None:
        self.embedding = DynamicEmbedding(1, optimizer=self.make(), initializer="zeros")

    def call(self, ids: Any) -> Any:
        return self.embedding(ids)[:, 0]


class Model(keras.Model):
    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.tower = Tower(make)

    def call(self, ids: Any) -> Any:
        return self.tower(ids)


MADE_BEFORE = keras.optimizers.Adam(0.5)
NADAM = keras.optimizers.Nadam(schedules.ExponentialDecay(0.5, 10, 0.5))


class SymbolicBuildTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("adam", 0.001),
        ("rowwise_adagrad", 0.01),
        ({"class_name": "Adam", "config": {"learning_rate": 0.5}}, 0.5),
        (MADE_BEFORE, 0.5),
        (NADAM, 0.5 * 0.5**0.1),
    )
    def test_a_layer_that_the_build_of_another_makes(self, optimizer, rate):
        model = Model(lambda: optimizer)
        model.compile("sgd", "mse")
        model.fit(IDS, LABELS, verbose=0)
        own = model.tower.embedding.optimizer
        self.assertEqual(int(own.iterations), 1)
        self.assertAllClose(own.learning_rate, rate)
        self.assertNotAllClose(model.tower.embedding.variable.lookup([7]), [[0.0]])

    def test_an_optimizer_that_is_made_there_is_refused(self):
        model = Model(lambda: keras.optimizers.Adam(0.5))
        model.compile("sgd", "mse")
        with self.assertRaisesRegex(ValueError, "`optimizer` must have values.*'adam"):
            model.fit(IDS, LABELS, verbose=0)


class WeightDecayTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=("AdamW", "Lion"), names=(["embed"], ["other", "dings"], ["x"]))
    def test_what_is_excluded_by_name_stays_so(self, kind, names):
        optimizer = getattr(keras.optimizers, kind)(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=names)
        layer = DynamicEmbedding(1, initializer="ones", optimizer=optimizer)
        layer.build()
        keras.optimizers.SGD().apply(
            [tf.IndexedSlices(tf.zeros([1, 1]), tf.constant([7], tf.int64))],
            [layer.variable.anchor],
        )
        self.assertAllClose(layer.variable.lookup([7]), [[0.95 if names == ["x"] else 1.0]])

    @parameterized.product(
        way=("wrapper", "own"),
        names=(
            ["items"],
            ["my_items/embed"],
            ["my_items/embeddings:0$"],
            ["^embeddings"],
            ["embeddings$"],
            ["other"],
        ),
    )
    def test_names_are_those_that_keras_matches(self, way, names):
        def decayed(make: Any, option: Any, wrapped: bool) -> Any:
            layer = make(option)
            model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
            optimizer = keras.optimizers.SGD(0.1, weight_decay=0.5)
            optimizer.exclude_from_weight_decay(var_names=names)
            if wrapped:
                optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
            model.compile(optimizer, lambda _, rows: 0.0 * rows)
            model.fit(np.array([[3]]), np.zeros([1]), verbose=0)
            return layer(np.array([[3]]))

        def dense(_: Any) -> Any:
            return keras.layers.Embedding(5, 1, "ones", name="my_items")

        def table(own: Any) -> Any:
            return DynamicEmbedding(1, initializer="ones", optimizer=own, name="my_items")

        own = None
        if way == "own":
            own = keras.optimizers.SGD(0.1, weight_decay=0.5)
            own.exclude_from_weight_decay(var_names=names)
        self.assertAllEqual(
            decayed(table, own, way == "wrapper"), decayed(dense, None, wrapped=False)
        )


class Rate:
    def __call__(self) -> float:
        return 0.1

    def method(self) -> float:
        return 0.1


class NoConfig(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1


@keras.saving.register_keras_serializable(package="own_optimizer_test")
def registered_rate() -> float:
    return 0.25


def unregistered_rate() -> float:
    return 0.25


class LearningRateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("method", Rate().method, "a bound method is in no config"),
        ("object", Rate(), "Rate object"),
        ("partial", functools.partial(float, 0.1), "functools.partial"),
        ("schedule", NoConfig(), "get_config"),
    )
    def test_one_that_keras_cannot_describe_is_refused(self, rate, cause):
        optimizer = keras.optimizers.Nadam(rate)
        with self.assertRaisesRegex(ValueError, f"`optimizer` must have a config.*: .*{cause}"):
            DynamicEmbedding(1, optimizer=optimizer)

    def test_a_function_is_called_in_each_step(self):
        rates = iter([1.0, 10.0, 100.0])
        layer = DynamicEmbedding(
            1, initializer="zeros", optimizer=keras.optimizers.SGD(lambda: next(rates))
        )
        layer.build()
        gradient = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([7], tf.int64))
        for _ in range(2):
            keras.optimizers.SGD().apply([gradient], [layer.variable.anchor])
        self.assertAllClose(layer.variable.lookup([7]), [[-11.0]])

    @parameterized.named_parameters(
        ("registered", registered_rate, {}),
        ("named at the load", unregistered_rate, {"custom_objects": [unregistered_rate]}),
        ("lambda", lambda: 0.25, {"safe_mode": False}),
    )
    def test_a_saved_model_finds_the_function_as_keras_does(self, rate, options):
        named = {one.__name__: one for one in options.get("custom_objects", [])}
        options = {**options, "custom_objects": named or None}
        model = keras.Sequential([DynamicEmbedding(1, optimizer=keras.optimizers.Adam(rate))])
        model.compile("sgd", "mse")
        model.fit(IDS, LABELS[:, None], verbose=0)
        path = f"{self.get_temp_dir()}/model.keras"
        for _ in range(2):  # a loaded model can be saved too
            model.save(path)
            model = keras.models.load_model(path, **options)
        own = model.layers[0].optimizer
        self.assertEqual(int(own.iterations), 1)
        self.assertEqual(float(own.learning_rate), 0.25)

    def test_a_clone_has_the_function_too(self):
        model = keras.Sequential(
            [DynamicEmbedding(1, optimizer=keras.optimizers.Adam(registered_rate))]
        )
        (layer,) = keras.models.clone_model(model).layers
        self.assertEqual(float(layer.optimizer.learning_rate), 0.25)


if __name__ == "__main__":
    tf.test.main()
