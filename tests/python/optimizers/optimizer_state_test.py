# SPDX-License-Identifier: Apache-2.0
"""Optimizer state outside of a table's rows and slots, in every save path."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    # A number for the whole table, and a vector for the whole table.
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    # Gradients that wait for their step: there are 3 steps before the save, so one waits.
    "accumulation": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "ema": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05, centered=True, momentum=0.5),
    "smart_decay": lambda: tf_embed.optimizers.SmartDecayAdam(0.05),
    "ftrl": lambda: tf_embed.one_embedding.Ftrl(0.05, weight_decay=0.1),
    "lion": lambda: keras.optimizers.Lion(0.05),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05)),
}
CASES = [
    (way, kind)
    for way in ("wrapper", "own")
    for kind in OPTIMIZERS
    if way == "wrapper" or kind not in ("ema", "loss_scale")  # only in the model's optimizer
]
# Optimizers that pass variables to other optimizers can't train tables by themselves.
NO_RULE = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
ALL_OF_KERAS = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
    if name not in NO_RULE
}
IDS = np.random.default_rng(SEED).integers(0, 20, [56, 3])
LABELS = np.random.default_rng(SEED + 1).normal(size=[56, 1])


def compiled(way: str, kind: str, devices: Any = None) -> keras.Model:
    own = OPTIMIZERS[kind]() if way == "own" else None
    layer = DynamicEmbedding(3, optimizer=own, name="mine", devices=devices)
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential(
        [keras.Input([3], dtype="int64"), layer, keras.layers.Flatten(), dense]
    )
    outer: Any = keras.optimizers.SGD(0.05)
    if way == "wrapper":
        outer = tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS[kind]())
    model.compile(outer, "mse", auto_scale_loss=False)
    return model


def train(model: keras.Model, begin: int, end: int) -> None:
    """Makes steps on 8 examples, without the end of `fit`, which replaces weights by averages."""
    for step in range(begin, end):
        lines = slice(8 * step, 8 * step + 8)
        model.train_on_batch(IDS[lines], LABELS[lines])


def content(model: keras.Model) -> list[np.ndarray]:
    """The dense weights, and the table's keys, rows and slots in the order of the keys."""
    exported = [np.asarray(part) for part in model.layers[0].variable.table.export()[:3]]
    order = np.argsort(exported[0])
    return [model.layers[-1].kernel.numpy(), *(part[order] for part in exported)]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A model after 3 steps, in files of each kind, and its state after 4 more."""

    keras_file: str
    weights: str
    checkpoint: str
    wanted: list[np.ndarray]


class StateTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.saved = staticmethod(functools.cache(functools.partial(cls.save, folder)))

    @staticmethod
    def save(folder: str, way: str, kind: str) -> Saved:
        model = compiled(way, kind)
        train(model, 0, 3)
        path = os.path.join(folder, f"{way}_{kind}")
        model.save(path + ".keras")
        model.save_weights(path + ".weights.h5")
        checkpoint = tf.train.Checkpoint(model=model).save(path)
        train(model, 3, 7)
        return Saved(path + ".keras", path + ".weights.h5", checkpoint, content(model))

    def assert_same(self, model: keras.Model, saved: Saved) -> None:
        for found, wanted in zip(content(model), saved.wanted, strict=True):
            self.assertAllEqual(found, wanted)

    @parameterized.parameters(*CASES)
    @pytest.mark.smoke
    def test_training_goes_on_to_the_bit_from_a_keras_file(self, way, kind):
        saved = self.saved(way, kind)
        loaded = keras.models.load_model(saved.keras_file)
        train(loaded, 3, 7)
        self.assert_same(loaded, saved)

    @parameterized.parameters(*CASES)
    def test_training_goes_on_to_the_bit_from_weights(self, way, kind):
        saved = self.saved(way, kind)
        other = compiled(way, kind, devices=["/CPU:0"] * 2)
        other.load_weights(saved.weights)
        train(other, 3, 7)
        self.assert_same(other, saved)

    @parameterized.product(case=CASES, deferred=(False, True))
    def test_training_goes_on_to_the_bit_from_a_checkpoint(self, case, deferred):
        saved = self.saved(*case)
        other = compiled(*case)
        if not deferred:
            other.optimizer.build(other.trainable_variables)
        status = tf.train.Checkpoint(model=other).restore(saved.checkpoint)
        if not deferred:
            status.assert_consumed()
        train(other, 3, 7)
        status.assert_consumed()
        self.assert_same(other, saved)

    def test_what_another_optimizer_kept_is_not_taken_over(self):
        path = os.path.join(self.get_temp_dir(), "model.weights.h5")
        model = compiled("own", "nadam")
        train(model, 0, 3)
        model.save_weights(path)
        other = compiled("own", "adafactor")
        other.load_weights(path)
        state = other.layers[0].variable.anchor.own_trainer.state
        self.assertAllEqual(state[0], np.zeros(3))
        train(other, 3, 4)
        self.assertAllInRange(other.layers[0](IDS), -5.0, 5.0)

    @parameterized.parameters("nadam", "lion", "accumulation")
    @pytest.mark.smoke
    def test_a_subclassed_model_which_keras_builds_symbolically_has_it_too(self, kind):
        class Subclassed(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                optimizer = OPTIMIZERS[kind]()
                self.embed = DynamicEmbedding(3, initializer="ones", optimizer=optimizer)

            def call(self, ids: Any) -> Any:
                return keras.ops.sum(self.embed(ids), axis=(1, 2))

        models = [Subclassed() for _ in range(2)]
        for model in models:
            model.compile("sgd", "mse")
        models[0](IDS[:1])  # built eagerly; `fit` builds the other model
        for model in models:
            model.fit(IDS, LABELS, batch_size=8, shuffle=False, verbose=0)
        self.assertAllEqual(models[0].embed(IDS), models[1].embed(IDS))
        self.assertGreater(int(models[1].embed.variable.size()), 0)


class OtherOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("adam", "sgd"), ("adam", "nadam"), ("nadam", "adam"))
    def test_weights_of_a_model_with_another_optimizer_leave_the_step_alone(self, saved, other):
        def new_model(kind: str) -> keras.Model:
            # With a dense variable, so that Keras does not change the optimizer either.
            layers = [DynamicEmbedding(2, name="mine"), keras.layers.Flatten()]
            model = keras.Sequential(
                [keras.Input([3], dtype="int64"), *layers, keras.layers.Dense(1)]
            )
            model.compile(tf_embed.DynamicEmbeddingOptimizer(kind), "mse")
            return model

        model, loaded = new_model(saved), new_model(other)
        labels = np.ones([8, 1])
        for _ in range(5):
            model.train_on_batch(IDS[:8], labels)
        loaded.train_on_batch(IDS[:8], labels)
        path = os.path.join(self.get_temp_dir(), f"{saved}.{other}.weights.h5")
        model.save_weights(path)
        loaded.load_weights(path)
        self.assertEqual(int(loaded.optimizer.iterations), 1)
        self.assertAllEqual(loaded.layers[0](IDS[:8]), model.layers[0](IDS[:8]))


class EveryOptimizerOfKerasTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, way: str, make: Callable[[], Any]) -> None:
        """Saves and loads a trained model, and compares the optimizer and another step."""
        own = make() if way == "own" else None
        layer = DynamicEmbedding(2, optimizer=own, name="mine")
        model = keras.Sequential([keras.Input([3], dtype="int64"), layer, keras.layers.Flatten()])
        outer = tf_embed.DynamicEmbeddingOptimizer(make()) if way == "wrapper" else "sgd"
        model.compile(outer, "mse", auto_scale_loss=False)
        labels = np.ones([8, 6])
        model.train_on_batch(IDS[:8], labels)
        path = os.path.join(self.get_temp_dir(), "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)

        found, wanted = (
            one.layers[0].optimizer if way == "own" else one.optimizer.inner_optimizer
            for one in (loaded, model)
        )
        self.assertIs(type(found), type(wanted))
        self.assertEqual(found.get_config(), wanted.get_config())
        for one in (loaded, model):
            one.train_on_batch(IDS[:8], labels)
        self.assertAllEqual(loaded.layers[0](IDS[:8]), model.layers[0](IDS[:8]))

        cloned = keras.models.clone_model(model)
        if way == "own":
            self.assertEqual(cloned.layers[0].optimizer.get_config(), wanted.get_config())

    @parameterized.product(way=("wrapper", "own"), kind=tuple(ALL_OF_KERAS))
    def test_a_model_that_is_saved_and_cloned_has_it(self, way, kind):
        self.check(way, lambda: ALL_OF_KERAS[kind](0.05))

    @parameterized.parameters("wrapper", "own")
    def test_one_with_a_schedule(self, way):
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 5)
        self.check(way, lambda: keras.optimizers.Lamb(schedule))

    def test_one_in_a_loss_scale_optimizer(self):
        lamb = keras.optimizers.Lamb
        self.check("wrapper", lambda: keras.optimizers.LossScaleOptimizer(lamb(0.05)))

    @parameterized.parameters(
        ({"class_name": "Lamb", "config": {"learning_rate": 0.5}}, "Lamb"),
        ({"class_name": "adam", "config": {"learning_rate": 0.5}}, "Adam"),
        ({"class_name": "Adam", "config": {"learning_rate": 0.5}}, "Adam"),
    )
    def test_a_config_by_hand_stays_as_it_is(self, config, kind):
        before = copy.deepcopy(config)
        for made in (
            DynamicEmbedding(1, optimizer=config).optimizer,
            tf_embed.DynamicEmbeddingOptimizer(config).inner_optimizer,
        ):
            self.assertIsInstance(made, getattr(keras.optimizers, kind))
            self.assertAllClose(made.learning_rate, 0.5)
        self.assertEqual(config, before)


if __name__ == "__main__":
    tf.test.main()
