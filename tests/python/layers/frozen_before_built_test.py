# SPDX-License-Identifier: Apache-2.0
"""Layers that are frozen before Keras builds them in a graph that it discards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import one_embedding
from tf_embed.layers import DynamicEmbedding

ID = 7
IDS, LABELS = np.array([[ID]]), np.array([[1.0]])
ZEROS = {"initializer": "zeros", "name": "mine"}


class Batched(tf_embed.tbe.TableBatchedEmbeddingBags):
    """A table-batched layer of a single table that takes the ids of its feature without a list."""

    def call(self, ids: Any) -> Any:
        # A keras.Sequential without an Input makes ids floats.
        return super().call([tf.cast(ids, tf.int64)])[:, tf.newaxis]


def dense(**options: Any) -> Any:
    """Keras's own layer."""
    return keras.layers.Embedding(10, 1, embeddings_initializer="zeros", name="mine", **options)


def tfra(kind: str, own: bool) -> Callable[..., Any]:
    layers = tf_embed.tfra.keras.layers
    own_optimizer = {"optimizer": "sgd"} if own else {}
    return lambda **options: getattr(layers, kind)(1, **ZEROS, **own_optimizer, **options)


def many_tables(kind: str, own: bool) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        zeros = one_embedding.make_table(one_embedding.make_constant_initializer(0.0))
        store = one_embedding.make_device_mem_store_options("/tmp/rows", 100)
        if own:
            options["optimizer"] = "sgd"
        layer = getattr(one_embedding, kind)
        return layer("mine", 1, "float32", "int64", [zeros], store, devices="/CPU:0", **options)

    return make


LAYERS: dict[str, Callable[..., Any]] = {
    "dense": dense,
    "wrapper": lambda **options: DynamicEmbedding(1, **ZEROS, **options),
    "own": lambda **options: DynamicEmbedding(1, **ZEROS, optimizer="sgd", **options),
    "bags": lambda **options: Batched([(10, 1)], name="mine", learning_rate=0.1, **options),
    "bags of the wrapper": lambda **options: Batched(
        [(10, 1)], name="mine", optimizer=None, **options
    ),
    "tfra": tfra("Embedding", own=False),
    "tfra own": tfra("Embedding", own=True),
    "many tables": many_tables("MultiTableEmbedding", own=False),
    "many tables own": many_tables("MultiTableEmbedding", own=True),
    "columns": many_tables("MultiTableMultiColumnEmbedding", own=False),
}
OF_WRAPPER = ("wrapper", "bags of the wrapper", "tfra", "many tables", "columns")


def head() -> list[Any]:
    return [keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")]


class Tower(keras.layers.Layer):
    """A layer that contains another layer, and does not define `build`."""

    def __init__(self, embedding: Any, **options: Any) -> None:
        super().__init__(**options)
        self.layers = [embedding, *head()]

    def call(self, ids: Any) -> Any:
        for layer in self.layers:
            ids = layer(ids)
        return ids


class MadeInBuild(Tower):
    """A layer that makes its layers when it is built."""

    def __init__(self, make: Callable[[], Any]) -> None:
        keras.layers.Layer.__init__(self)
        self.make = make

    def build(self, _: Any) -> None:
        self.layers = [self.make(), *head()]


@keras.saving.register_keras_serializable(package="frozen_before_built_test")
class Subclassed(keras.Model):
    def __init__(self, tower: Any, **options: Any) -> None:
        super().__init__(**options)
        self.tower = tower

    def call(self, ids: Any) -> Any:
        return self.tower(ids)


@keras.saving.register_keras_serializable(package="frozen_before_built_test")
class OfConfig(keras.Model):
    """A subclassed model that can be loaded from a file."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self.kind = kind
        self.tower = Tower(LAYERS[kind](trainable=False))

    def call(self, ids: Any) -> Any:
        return self.tower(ids)

    def get_config(self) -> dict[str, Any]:
        return {"kind": self.kind}


def functional(layer: Any) -> keras.Model:
    inputs = keras.Input([1], dtype="int64")
    return keras.Model(inputs, Tower(layer)(inputs))


# Each model with the function that finds its layer.
MODELS: dict[str, Callable[[Callable[[], Any]], tuple[keras.Model, Callable[[], Any]]]] = {}


def _model(name: str, make: Callable[[Any], keras.Model]) -> None:
    def both(new: Callable[[], Any]) -> tuple[keras.Model, Callable[[], Any]]:
        layer = new()
        return make(layer), lambda: layer

    MODELS[name] = both


_model("subclassed", lambda layer: Subclassed(Tower(layer)))
_model("sequential", lambda layer: keras.Sequential([layer, *head()]))
_model("layer in a layer", functional)


def _made_in_build(new: Callable[[], Any]) -> tuple[keras.Model, Callable[[], Any]]:
    tower = MadeInBuild(new)
    return Subclassed(tower), lambda: tower.layers[0]


MODELS["made in build"] = _made_in_build


def compile_for(model: keras.Model, kind: str, **options: Any) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    if kind in OF_WRAPPER:
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse", jit_compile=False, **options)


def train(model: keras.Model, how: str) -> None:
    if how == "train_on_batch":
        model.train_on_batch(IDS, LABELS)
    elif how == "called first":
        model(IDS)
        model.fit(IDS, LABELS, verbose=0)
    else:
        model.fit(IDS, LABELS, verbose=0)


def row_of(layer: Any) -> list[float]:
    return np.asarray(layer(tf.constant([[ID]]))).ravel().tolist()


def anchors_of(layer: Any) -> list[Any]:
    if isinstance(layer, one_embedding.MultiTableEmbedding):
        return [table.anchor for table in layer.row_tables]
    return layer._anchors if isinstance(layer, Batched) else [layer._anchor]


class FrozenBeforeBuiltTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=tuple(LAYERS), model=tuple(MODELS))
    def test_no_row_changes(self, kind, model):
        one, layer_of = MODELS[model](lambda: LAYERS[kind](trainable=False))
        compile_for(one, kind)
        train(one, "fit")
        layer = layer_of()
        self.assertEqual(row_of(layer), [0.0])
        if kind == "dense":
            return  # Keras's own layer stays untrained within another layer
        layer.trainable = True
        compile_for(one, kind)
        train(one, "fit")
        self.assertNotEqual(row_of(layer), [0.0])

    @parameterized.product(
        kind=("dense", "wrapper", "own", "bags"),
        how=("train_on_batch", "run_eagerly", "called first"),
    )
    def test_no_row_changes_however_it_is_trained(self, kind, how):
        one, layer_of = MODELS["subclassed"](lambda: LAYERS[kind](trainable=False))
        compile_for(one, kind, run_eagerly=how == "run_eagerly")
        train(one, how)
        self.assertEqual(row_of(layer_of()), [0.0])

    @parameterized.parameters("dense", "wrapper", "own", "bags", "tfra", "many tables")
    def test_an_attribute_set_before_it_is_built(self, kind):
        layer = LAYERS[kind]()
        model = Subclassed(Tower(layer))
        layer.trainable = False
        compile_for(model, kind)
        train(model, "fit")
        self.assertEqual(row_of(layer), [0.0])

    @parameterized.parameters("dense", "wrapper", "own", "bags", "tfra", "tfra own")
    def test_a_subclassed_model_that_is_loaded(self, kind):
        model = OfConfig(kind)
        compile_for(model, kind)
        train(model, "fit")
        self.assertEqual(row_of(model.tower.layers[0]), [0.0])
        path = f"{self.get_temp_dir()}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        train(loaded, "fit")
        self.assertEqual(row_of(loaded.tower.layers[0]), [0.0])

    @parameterized.parameters("dense", "wrapper", "own", "many tables", "many tables own")
    def test_a_copy_and_a_loaded_layer_stay_frozen(self, kind):
        inputs = keras.Input([1], dtype="int64")
        outputs = LAYERS[kind](trainable=False)(inputs)
        for layer in head():
            outputs = layer(outputs)
        model = keras.Model(inputs, outputs)
        path = f"{self.get_temp_dir()}/model.keras"
        model.save(path)
        for copied in (keras.models.clone_model(model), keras.models.load_model(path)):
            compile_for(copied, kind)
            train(copied, "fit")
            self.assertEqual(row_of(copied.get_layer("mine")), [0.0])

    @parameterized.parameters("wrapper", "own", "bags", "many tables own")
    def test_a_traced_step_that_builds_it_heeds_what_is_set_later(self, kind):
        layer = LAYERS[kind](trainable=False)
        variable = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1)
        if kind == "wrapper":
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)

        @tf.function
        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids)) * variable
            optimizer.apply(tape.gradient(loss, anchors_of(layer)), anchors_of(layer))

        step.get_concrete_function(tf.TensorSpec([1, 1], tf.int64))
        step(tf.constant([[ID]], tf.int64))
        self.assertEqual(row_of(layer), [0.0])
        layer.trainable = True
        step(tf.constant([[ID]], tf.int64))
        changed = row_of(layer)
        self.assertNotEqual(changed, [0.0])
        layer.trainable = False
        step(tf.constant([[ID]], tf.int64))
        self.assertEqual(row_of(layer), changed)

    def test_a_step_that_freezes_and_thaws_does_so_each_time_it_runs(self):
        layer = DynamicEmbedding(1, **ZEROS)
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        anchor = layer.variable.anchor

        @tf.function
        def step(key: tf.Tensor) -> None:
            for frozen in (True, False):
                layer.trainable = not frozen
                keys = key + (0 if frozen else 1)
                optimizer.apply([tf.IndexedSlices(tf.ones([1, 1]), keys)], [anchor])

        for key in (0, 2):
            step(tf.constant([key], tf.int64))
        self.assertAllEqual(layer.variable.lookup([0, 1, 2, 3]), [[0.0], [-1.0], [0.0], [-1.0]])

    def test_a_shadow_variable_that_is_not_trained_made_in_build(self):
        variable = tf_embed.Variable(dim=1, initializer="zeros")
        shadows = []

        class Shadowed(keras.layers.Layer):
            def build(self, _: Any) -> None:
                shadow_ops = tf_embed.tfra.shadow_ops
                self.shadow = shadow_ops.ShadowVariable(variable, trainable=False)
                shadows.append(self.shadow)
                self.kernel = self.add_weight(shape=[], initializer="ones")

            def call(self, ids: Any) -> Any:
                rows = tf_embed.tfra.shadow_ops.embedding_lookup(self.shadow, ids)
                return rows[:, 0] * self.kernel

        model = Subclassed(Shadowed())
        compile_for(model, "wrapper")
        train(model, "fit")
        self.assertFalse(bool(shadows[0].is_trained))
        self.assertAllEqual(variable.lookup([ID]), [[0.0]])


if __name__ == "__main__":
    tf.test.main()
