# SPDX-License-Identifier: Apache-2.0
"""`tf_embed.Model` beside `keras.Model`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.layers import DynamicEmbedding
from tf_embed.optimizers import steps

ROWS = 24


def data(seed: int = 3) -> tf.data.Dataset:
    """Batches of ids of several kinds, features and labels; the last batch is smaller."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 9, size=(ROWS, 3))
    features = {
        "item": ids[:, 0],
        "bag": ids,
        "word": np.array([f"w{number}" for number in ids[:, 1]]),
        "numbers": random.normal(size=(ROWS, 4)).astype("float32"),
    }
    labels = random.normal(size=(ROWS, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(7)


def inputs() -> dict[str, Any]:
    return {
        "item": keras.Input([], dtype="int64", name="item"),
        "bag": keras.Input([3], dtype="int64", name="bag"),
        "word": keras.Input([], dtype="string", name="word"),
        "numbers": keras.Input([4], name="numbers"),
    }


def layers(own: bool) -> dict[str, DynamicEmbedding]:
    """Layers of several kinds."""
    lru = tf_embed.TablePolicy(max_rows=6, eviction="lru")
    counter = tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2))

    def layer(name: str, dim: int, optimizer: Any, **options: Any) -> DynamicEmbedding:
        return DynamicEmbedding(dim, optimizer=optimizer if own else None, name=name, **options)

    return {
        "item": layer("items", 4, "adagrad", policy=lru),
        "bag": layer("bags", 3, "adam", combiner="mean", padding_id=0, policy=counter),
        "word": layer("words", 2, keras.optimizers.SGD(0.1), key_dtype="string"),
        "places": layer("places", 2, "adam", padding_id=0, value_dtype="float16"),
    }


def outputs(of: dict[str, DynamicEmbedding], given: dict[str, Any], dropout: float) -> Any:
    """The code of a model: a table that is looked up twice, pooled rows, strings, a mask."""
    rows = [of["item"](given["item"]), of["item"](given["bag"][:, 0]), of["bag"](given["bag"])]
    rows.append(of["word"](given["word"]))
    rows.append(keras.layers.GlobalAveragePooling1D()(of["places"](given["bag"])))
    joined = keras.layers.Concatenate()([*rows, given["numbers"]])
    joined = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(joined))
    return keras.layers.Dense(1)(keras.layers.Dropout(dropout, seed=5)(joined))


def functional(kind: Callable[..., keras.Model], own: bool, dropout: float = 0.0) -> keras.Model:
    given = inputs()
    return kind(given, outputs(layers(own), given, dropout))


def optimizer_of(own: bool) -> keras.optimizers.Optimizer:
    adam = keras.optimizers.Adam(0.05)
    return adam if own else tf_embed.DynamicEmbeddingOptimizer(adam)


def state(model: keras.Model) -> list[np.ndarray]:
    """Everything that training changes: dense variables, and each table with all its statistics."""
    arrays = [one.numpy() for one in model.variables if 0 not in one.shape]
    for layer in model.layers:
        if isinstance(layer, DynamicEmbedding) and layer.built:
            exported = layer.variable.table.export()
            order = np.argsort(exported.keys.numpy(), kind="stable")
            parts = (exported.keys, exported.values, exported.slots)
            arrays += [part.numpy()[order] for part in parts] + [exported.policy.numpy()]
    return arrays


def state_of_optimizer(model: keras.Model) -> list[np.ndarray]:
    return [one.numpy() for one in model.optimizer.variables]


def made(make: Callable[[], Any]) -> Callable[[], Any]:
    """Marks a function that makes an attribute of a model."""
    make.makes = True  # type: ignore[attr-defined]
    return make


def trained(
    kind: Any, own: bool, jit_compile: Any, dropout: float, **options: Any
) -> tuple[keras.Model, Any]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model = functional(kind, own, dropout)
    model.compile(optimizer_of(own), "mse", metrics=["mae"], jit_compile=jit_compile, **options)
    history = model.fit(data(), epochs=3, verbose=0).history
    found = history, model.evaluate(data(4), verbose=0), model.predict(data(4), verbose=0)
    return model, found


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {"own": True}, {"own": False}, {"own": True, "steps_per_execution": 3}
    )
    @pytest.mark.smoke
    def test_it_equals_a_keras_model_to_the_last_bit(self, own, **options):
        ours, found = trained(tf_embed.Model, own, False, 0.3, **options)
        theirs, expected = trained(keras.Model, own, False, 0.3, **options)
        self.assertEqual(found[:2], expected[:2])
        self.assertAllEqual(found[2], expected[2])
        for one, other in zip(state(ours), state(theirs), strict=True):
            self.assertAllEqual(one, other)
        report = ours.step_report()
        self.assertFalse(report.compiled)
        tables = [one.table for one in report.lookups]
        self.assertCountEqual(tables, ["items", "items", "bags", "words", "places"])
        self.assertEqual({one.reason_apart for one in report.lookups}, {None})

    @parameterized.parameters({"own": True}, {"own": False})
    @pytest.mark.smoke
    def test_xla_compiles_the_dense_part(self, own):
        # Without Dropout, of which XLA draws other random numbers.
        ours, found = trained(tf_embed.Model, own, True, 0.0)
        self.assertTrue(ours.step_report().compiled, str(ours.step_report()))
        theirs, expected = trained(keras.Model, own, False, 0.0)
        self.assertAllClose(found, expected, rtol=1e-4, atol=1e-5)
        for one, other in zip(state(ours), state(theirs), strict=True):
            if one.dtype.kind == "f":
                self.assertAllClose(one, other, rtol=1e-3, atol=1e-4)
            else:
                self.assertAllEqual(one, other)

    def fitted(self, model: keras.Model, **options: Any) -> str:
        """The report of a model after a step."""
        model.compile("adam", "mse", **options)
        model.fit(data(), verbose=0)
        return str(model.step_report())

    def own_model(self, call: Callable[..., Any], **attributes: Any) -> keras.Model:
        """A model of `call(model, inputs, training)`."""

        class Own(tf_embed.ModelWithTables, keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.items = DynamicEmbedding(2, optimizer="sgd", name="items", initializer=0.5)
                self.head = keras.layers.Dense(1, kernel_initializer="ones")
                for name, attribute in attributes.items():
                    setattr(self, name, attribute)

            def call(self, inputs, training=None):
                return call(self, inputs, training)

        return Own()

    def test_a_subclassed_model_is_compiled(self):
        def call(model, inputs, training):
            self.assertIn(training, (None, True))
            return model.head(tf.concat([model.items(inputs["item"]), inputs["numbers"]], 1))

        models = [self.own_model(call) for _ in range(2)]
        reports = [
            self.fitted(one, jit_compile=jit)
            for one, jit in zip(models, (True, False), strict=True)
        ]
        self.assertIn("dense part: compiled", reports[0])
        self.assertIn("not compiled: `jit_compile` is off", reports[1])
        for report in reports:
            self.assertIn("lookup apart: items: it is the only lookup", report)
        rows = [one.items.variable.lookup(tf.range(9, dtype=tf.int64)) for one in models]
        self.assertAllClose(*rows, rtol=1e-5)

    def test_a_call_with_a_side_effect_is_made_once(self):
        calls = tf.Variable(0)

        def call(model, inputs, training):
            calls.assign_add(1)
            return model.head(model.items(inputs["item"]))

        report = self.fitted(self.own_model(call), jit_compile=True)
        self.assertEqual(int(calls), 4)  # the batches
        effect = "the op AssignAddVariableOp comes before its last lookup"
        self.assertIn(f"not compiled: {effect}", report)
        self.assertIn(f"lookup apart: items: {effect}", report)

    def test_ids_that_depend_on_rows_are_looked_up_apart(self):
        def call(model, inputs, training):
            rows = model.items(inputs["item"])
            nearest = tf.argmax(tf.matmul(rows, model.others(tf.range(3)), transpose_b=True), 1)
            return model.head(model.others(nearest))

        others = DynamicEmbedding(2, optimizer="sgd", name="others", initializer="ones")
        report = self.fitted(self.own_model(call, others=others), jit_compile=True)
        self.assertIn("dense part: compiled", report)
        self.assertIn("lookups together: items, others", report)
        self.assertIn("lookup apart: others: its ids depend on rows", report)

    def test_what_xla_cannot_take_is_not_compiled(self):
        def plain(model, inputs, training):
            return model.head(model.items(inputs["item"]))

        def weighted(model, inputs, training):
            weights = tf.nn.softmax(tf.tile(model.scale(inputs["numbers"][:, :3]), [1, 3]))
            return model.head(model.bags(inputs["bag"], weights) + model.items(inputs["item"]))

        def ragged(model, inputs, training):
            ids = tf.RaggedTensor.from_tensor(inputs["bag"], padding=0)
            return model.head(tf.reduce_sum(model.items(ids), 1))

        class Slow(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.supports_jit = False

            def call(self, rows):
                return rows

        bags = DynamicEmbedding(2, optimizer="sgd", combiner="sum")
        slow = Slow()
        for call, reason, attributes in (
            (weighted, "weights of ids depend on variables", {"bags": bags, "scale": self.dense()}),
            (ragged, "the output of 'items' is not a tensor", {}),
            (plain, "`jit_compile` is off, or a layer does not support XLA", {"slow": slow}),
        ):
            model = self.own_model(call, **attributes)
            model(next(iter(data()))[0])  # builds it
            report = self.fitted(model, jit_compile=True)
            self.assertIn(f"not compiled: {reason}", report)

    def dense(self) -> keras.layers.Layer:
        return keras.layers.Dense(1)

    def alike(self, call: Callable[..., Any], jit: bool = False, **members: Any) -> keras.Model:
        """Checks that a class of model of ours trains as one of Keras's; returns ours.

        Args:
            call: The model's `call`.
            jit: Whether ours is compiled.
            **members: Functions that make layers, and methods.
        """

        def init(self: Any) -> None:
            super(type(self), self).__init__()
            for name in ("items", "others"):
                setattr(self, name, DynamicEmbedding(2, optimizer="adam", name=name))
            self.head = keras.layers.Dense(1)
            for name, member in members.items():
                if getattr(member, "makes", False):
                    setattr(self, name, member())

        methods = {name: one for name, one in members.items() if not getattr(one, "makes", False)}
        trained = []
        for bases in ((tf_embed.ModelWithTables, keras.Model), (keras.Model,)):
            keras.utils.clear_session()
            keras.utils.set_random_seed(7)
            model = type("Own", bases, {"__init__": init, "call": call, **methods})()
            model(next(iter(data()))[0])
            model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=jit and len(bases) == 2)
            found = (
                model.fit(data(), epochs=2, verbose=0).history,
                model.evaluate(data(), verbose=0),
            )
            trained.append((model, found, [*state(model), *state_of_optimizer(model)]))
        (ours, found, arrays), (_, expected, expected_arrays) = trained
        if ours.step_report().compiled:
            self.assertAllClose(found, expected, rtol=1e-3, atol=1e-4)
            for one, other in zip(arrays, expected_arrays, strict=True):
                self.assertAllClose(one, other, rtol=1e-3, atol=1e-4)
        else:
            self.assertEqual(found, expected)
            for one, other in zip(arrays, expected_arrays, strict=True):
                self.assertAllEqual(one, other)
        return ours

    @parameterized.parameters(False, True)
    def test_a_tf_function_of_the_model_keeps_its_updates(self, jit):
        def call(model, inputs, training=None):
            rows = tf.concat([model.items(inputs["item"]), model.others(inputs["item"])], 1)
            return model.head(model.tower(rows, training))

        @made
        def tower():
            norm = keras.layers.BatchNormalization()
            return tf.function(lambda rows, training: norm(rows, training=training))

        self.alike(call, jit, tower=tower)

    def test_code_on_rows_runs_once(self):
        def call(model, inputs, training=None):
            rows = model.items(inputs["item"]) + model.others(inputs["bag"][:, 0])
            rows += 0.0 * model.trunk(rows)
            tf.debugging.assert_greater(tf.reduce_max(tf.abs(rows)), 0.0)  # zeros would fail
            rows = tf.while_loop(
                lambda found: tf.reduce_max(tf.abs(found)) < 1.0,  # zeros would not end
                lambda found: (found * (2.0 + 0.0 * tf.reduce_sum(model.trunk.kernel)),),
                [rows],
            )[0]
            return model.head(rows)

        ours = self.alike(call, trunk=made(lambda: keras.layers.Dense(2)))
        self.assertIn("lookups together: items, others", str(ours.step_report()))

    def test_ids_may_be_constants(self):
        every = tf.range(5)  # an eager tensor

        def call(model, inputs, training=None):
            scores = tf.matmul(model.items(inputs["item"]), model.others(every), transpose_b=True)
            return model.head(scores)

        self.alike(call)

    def test_weights_of_ids_may_come_from_the_trunk_of_the_model(self):
        def call(model, inputs, training=None):
            trunk = model.trunk(inputs["numbers"])
            weights = tf.nn.softmax(model.weigh(trunk))
            rows = [model.bags(inputs["bag"], weights), model.others(inputs["item"])]
            return model.head(tf.concat([trunk, *rows, model.more(inputs["bag"])], 1))

        def bags(name):
            return made(lambda: DynamicEmbedding(2, optimizer="sgd", combiner="sum", name=name))

        ours = self.alike(
            call,
            bags=bags("bags"),
            more=bags("more"),
            trunk=made(lambda: keras.layers.Dense(4)),
            weigh=made(lambda: keras.layers.Dense(3)),
        )
        self.assertIn("bags", str(ours.step_report()).split("apart")[0])

    @parameterized.parameters(False, True)
    def test_metrics_may_call_the_model_which_has_been_updated(self, jit):
        def call(model, inputs, training=None):
            return model.head(model.items(inputs["item"]) + model.others(inputs["item"]))

        def compute_metrics(model, x, y, y_pred, sample_weight=None):
            return {"loss": tf.reduce_mean(tf.square(model(x, training=False) - y))}

        ours = self.alike(call, jit, compute_metrics=compute_metrics)
        self.assertFalse(ours.step_report().compiled)

    @parameterized.parameters(False, True)
    def test_a_model_may_have_metrics_of_its_own(self, jit):
        def call(model, inputs, training=None):
            return model.head(model.items(inputs["item"]) + model.others(inputs["item"]))

        mean = keras.metrics.Mean(name="own")
        self.alike(call, jit, metrics=property(lambda model: [mean]))

    @parameterized.parameters(False, True)
    def test_a_model_may_have_tables_alone(self, jit):
        def call(model, inputs, training=None):
            product = model.items(inputs["item"]) * model.others(inputs["bag"][:, 0])
            return tf.reduce_sum(product, 1, keepdims=True)

        ours = self.alike(call, jit)
        self.assertEqual(int(ours.optimizer.iterations), 8)

    @parameterized.parameters(
        {"use_ema": True}, {"loss_scale_factor": 8.0}, {"gradient_accumulation_steps": 2}
    )
    def test_options_that_do_not_reach_tables_are_refused(self, **options):
        for jit in (False, True):
            model = functional(tf_embed.Model, True)
            model.compile(keras.optimizers.Adam(**options), "mse", jit_compile=jit)
            with self.assertRaisesRegex(ValueError, f"must not use {next(iter(options))}"):
                model.fit(data(), verbose=0)

    def test_under_a_strategy_and_eagerly_nothing_is_compiled(self):
        with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
            model = functional(tf_embed.Model, True)
            model.compile("adam", "mse", jit_compile=True)
        model.fit(data(), verbose=0)
        self.assertIn("replicas of a strategy share the tables", str(model.step_report()))
        model = functional(tf_embed.Model, True)
        model.compile("adam", "mse", jit_compile=True)
        model.run_eagerly = True
        model.fit(data(), verbose=0)
        self.assertIn("it runs eagerly", str(model.step_report()))

    def test_strings_in_the_dense_part_are_not_compiled(self):
        words = DynamicEmbedding(
            2, optimizer="sgd", key_dtype="string", padding_id="w0", name="words"
        )
        given = keras.Input([2], dtype="string", name="word")
        outputs = keras.layers.GlobalAveragePooling1D()(words(given))
        model = tf_embed.Model(given, keras.layers.Dense(1)(outputs))
        model.compile("adam", "mse", jit_compile=True)
        model.fit(tf.constant([["a", "w0"], ["b", "a"]]), tf.ones([2, 1]), verbose=0)
        self.assertIn("the dense part reads strings", str(model.step_report()))

    def test_two_steps_of_a_table_are_made_in_order(self):
        rows = []
        for deferred in (False, True):
            layer = DynamicEmbedding(1, optimizer=keras.optimizers.Adam(0.1), initializer="ones")
            layer.build()
            (anchor,) = layer.trainable_variables
            with steps.deferred_updates() if deferred else contextlib.nullcontext():
                for gradient in (1.0, -3.0):
                    anchor.assign(tf.IndexedSlices(tf.constant([[gradient]]), tf.constant([5])))
            rows.append(layer.variable.lookup([5]).numpy())
        self.assertAllEqual(*rows)

    def test_a_compile_of_its_own_is_left_to_keras_when_a_model_is_loaded(self):
        @keras.saving.register_keras_serializable(package="model_test")
        class Own(tf_embed.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.head = keras.layers.Dense(1)

            def compile(self, alpha, **options):
                super().compile(**options)

            def call(self, inputs):
                return self.head(inputs)

        model = Own()
        model(tf.ones([2, 3]))
        model.compile(3, optimizer="adam", loss="mse")
        path = f"{self.get_temp_dir()}/own.keras"
        model.save(path)
        with self.assertWarnsRegex(UserWarning, "`compile\\(\\)` method is custom"):
            self.assertIsInstance(keras.models.load_model(path), Own)

    def test_the_choice_of_xla_is_saved_with_the_model(self):
        model = functional(tf_embed.Model, True)
        for choice in (True, False):
            model.compile("adam", "mse", jit_compile=choice)
            path = f"{self.get_temp_dir()}/{choice}.keras"
            model.save(path)
            loaded = keras.models.load_model(path)
            self.assertIsInstance(loaded, tf_embed.ModelWithTables)
            self.assertEqual(loaded.get_compile_config()["jit_compile"], choice)

    def test_a_layer_that_the_loss_does_not_use_is_not_trained(self):
        def call(model, inputs, training):
            model.items(inputs["item"])
            return model.head(model.others(inputs["bag"][:, 0]))

        for jit in (False, True):
            others = DynamicEmbedding(2, optimizer="sgd", name="others")
            model = self.own_model(call, others=others)
            self.fitted(model, jit_compile=jit)
            self.assertEqual(int(model.items.variable.size()), 0)
            self.assertGreater(int(others.variable.size()), 0)


if __name__ == "__main__":
    absltest.main()
