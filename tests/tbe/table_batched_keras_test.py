# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers in Keras models: fit, functional inputs, saving, replicas."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from support.cases.table_batched_cases import SAVED, content, settings_of
from support.cases.tbe_cases import CASES
from support.oracles.drawn_weights import Drawn
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.layers import DynamicEmbedding
from tf_embed.tbe import TableBatchedEmbeddingBags

OPTIM, POOLING = tbe.OptimType, tbe.PoolingMode
SPECS, FEATURES, NAMES = [(20, 4), (None, 2)], [0, 1, 0], ["user", "item", "tag"]
LINES, BATCH, ROWS = 24, 8, 20
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def data(ragged: bool = True, seed: int = SEED) -> tuple[dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(seed)
    item: Any = rng.integers(0, ROWS, [LINES, 3])
    if ragged:
        lengths = rng.integers(0, 4, LINES)
        item = tf.RaggedTensor.from_row_lengths(rng.integers(0, ROWS, lengths.sum()), lengths)
    ids = {
        "user": rng.integers(0, ROWS, [LINES, 2]),
        "item": item,
        "tag": rng.integers(0, ROWS, LINES),
    }
    return ids, rng.normal(size=[LINES, 1]).astype("f")


def tensors(ids: dict[str, Any]) -> dict[str, Any]:
    """The ids as tensors: in a call, Keras accepts no arrays together with ragged tensors."""
    return {
        name: one if isinstance(one, tf.RaggedTensor) else tf.constant(one)
        for name, one in ids.items()
    }


def batches(**options: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data(**options)).batch(BATCH)


def start() -> list[np.ndarray]:
    rng = np.random.default_rng(SEED)
    return [rng.normal(size=[ROWS, dim]).astype("f") for _, dim in SPECS]


def batched(case: str | None = "Adam", **options: Any) -> TableBatchedEmbeddingBags:
    settings = {"optimizer": None} if case is None else settings_of(CASES[case])
    options = {"feature_names": NAMES, "name": "mine", **settings, **options}
    layer = TableBatchedEmbeddingBags(SPECS, FEATURES, **options)
    layer.build()
    for table, rows in zip(layer.tables, start(), strict=True):
        table.upsert(range(ROWS), rows)
    return layer


def inputs_of(ragged: bool = True) -> dict[str, keras.KerasTensor]:
    return {
        "user": keras.Input([2], dtype="int64", name="user"),
        "item": keras.Input([None], dtype="int64", name="item", ragged=ragged),
        "tag": keras.Input([], dtype="int64", name="tag"),
    }


def head() -> keras.layers.Layer:
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))


def model_of(
    layer: TableBatchedEmbeddingBags | None = None, given: str = "dict", ragged: bool = True
) -> keras.Model:
    """A functional model of features given as a list or as a dict."""
    inputs = inputs_of(ragged)
    layer = layer or batched()
    pooled = layer(inputs if given == "dict" else [inputs[name] for name in NAMES])
    return keras.Model(inputs, head()(pooled))


def compiled(layer: Any = None, given: str = "dict", ragged: bool = True, **options: Any) -> Any:
    model = model_of(layer, given, ragged)
    model.compile(keras.optimizers.SGD(0.05), "mse", **options)
    return model


def layer_in(model: keras.Model) -> TableBatchedEmbeddingBags:
    return model.get_layer("mine")


def rows_of(layer: TableBatchedEmbeddingBags) -> list[np.ndarray]:
    return [table.lookup(range(ROWS)).numpy() for table in layer.tables]


class FitTest(tf.test.TestCase, parameterized.TestCase):
    def by_single_tables(self, case: str | None, ragged: bool = True) -> list[np.ndarray]:
        """The results of the same training with a layer for each table."""
        inputs = inputs_of(ragged)
        layers = []
        for (_, dim), rows in zip(SPECS, start(), strict=True):
            own = None if case is None else CASES[case].make()
            layers.append(DynamicEmbedding(dim, combiner="sum", optimizer=own))
            layers[-1].build()
            layers[-1].variable.upsert(range(ROWS), rows)
        parts = []
        for name, table in zip(NAMES, FEATURES, strict=True):
            ids = inputs[name]
            if name == "tag":
                ids = keras.layers.Reshape([1])(ids)
            parts.append(layers[table](ids))
        model = keras.Model(inputs, head()(keras.layers.Concatenate()(parts)))
        optimizer: Any = keras.optimizers.SGD(0.05)
        if case is None:
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
        model.compile(optimizer, "mse")
        model.fit(batches(ragged=ragged), epochs=2, verbose=0)
        return [layer.variable.lookup(range(ROWS)).numpy() for layer in layers]

    @parameterized.product(case=("SGD", "Adam", "RowwiseAdagrad, l2"), given=("list", "dict"))
    @pytest.mark.smoke
    def test_fit_equals_one_layer_for_each_table(self, case, given):
        model = compiled(batched(case), given)
        model.fit(batches(), epochs=2, verbose=0)
        found, wanted = rows_of(layer_in(model)), self.by_single_tables(case)
        for one, other, before in zip(found, wanted, start(), strict=True):
            self.assertAllClose(one, other, **CLOSE)
            self.assertNotAllClose(one, before)

    def test_the_wrapper_equals_one_layer_for_each_table(self):
        model = model_of(batched(None))
        model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.05)), "mse")
        model.fit(batches(), epochs=2, verbose=0)
        for one, other in zip(rows_of(layer_in(model)), self.by_single_tables(None), strict=True):
            self.assertAllClose(one, other, **CLOSE)

    def test_tensorboard_draws_no_image_of_tables(self):
        model, drawn = compiled(batched("SGD")), Drawn()
        model.fit(batches(), verbose=0, callbacks=[drawn])
        # TensorFlow ends the process on an image without pixels.
        self.assertNotIn(0, [size for shape in drawn.images.values() for size in shape])
        self.assertNotEmpty(drawn.histograms)

    @parameterized.parameters(
        {"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": False}
    )
    def test_options_of_compile_change_nothing(self, **options):
        results = []
        for chosen in ({}, options):
            keras.utils.clear_session(free_memory=False)
            model = compiled(batched("Adam, decay"), **chosen)
            model.fit(batches(), epochs=2, verbose=0)
            results.append(rows_of(layer_in(model)))
            self.assertEqual(int(layer_in(model).optimizer.iterations), 6)
        for one, other in zip(*results, strict=True):
            self.assertAllClose(one, other, **CLOSE)

    def test_arrays_and_dense_inputs(self):
        model = compiled(ragged=False)
        ids, labels = data(ragged=False)
        model.fit(ids, labels, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
        wanted = self.by_single_tables("Adam", ragged=False)
        for one, other in zip(rows_of(layer_in(model)), wanted, strict=True):
            self.assertAllClose(one, other, **CLOSE)

    def test_sparse_inputs(self):
        inputs = [keras.Input([None], dtype="int64", sparse=True, name=name) for name in NAMES]
        model = keras.Model(inputs, head()(batched()(inputs)))
        model.compile("sgd", "mse")
        ids, labels = data()
        sparse = [
            tf.sparse.from_dense(ids["user"] + 1),
            ids["item"].to_sparse(),
            tf.sparse.from_dense(ids["tag"][:, np.newaxis] + 1),
        ]
        sparse[0] = tf.SparseTensor(sparse[0].indices, sparse[0].values - 1, [LINES, 2])
        sparse[2] = tf.SparseTensor(sparse[2].indices, sparse[2].values - 1, [LINES, 1])
        before = rows_of(layer_in(model))
        wanted = model_of()(tensors(ids))
        self.assertAllClose(model(sparse), wanted, **CLOSE)
        model.fit(tf.data.Dataset.from_tensors((tuple(sparse), labels)), verbose=0)
        self.assertNotAllClose(rows_of(layer_in(model))[0], before[0])

    def test_evaluate_and_predict_change_nothing(self):
        model = compiled(batched("Ensemble"))
        model.fit(batches(), verbose=0)
        before = content(layer_in(model))
        model.evaluate(batches(), verbose=0)
        model.predict(batches(), verbose=0)
        self.assertEqual(int(layer_in(model).optimizer.iterations), 3)
        for one, other in zip(before, content(layer_in(model)), strict=True):
            self.assertAllEqual(one, other)

    def test_symbolic_indices_and_offsets(self):
        indices = keras.Input(batch_shape=[None], dtype="int64")
        offsets = keras.Input(batch_shape=[None], dtype="int64")
        layer = batched()
        output = layer(indices, offsets)
        self.assertEqual(output.shape, (None, 10))
        model = keras.Model([indices, offsets], output)
        given = np.array([1, 2, 3]), np.array([0, 1, 2, 3])
        self.assertAllEqual(model(given), layer(*given))

    def test_the_shape_of_a_batch_is_known_where_that_of_its_features_is(self):
        pooled = batched()(inputs_of())
        self.assertEqual((pooled.shape, pooled.dtype), ((None, 10), "float32"))
        fixed = [keras.Input(batch_shape=[5, 2], dtype="int64")] * 3
        self.assertEqual(batched()(fixed).shape, (5, 10))
        specs = [[tf.TensorSpec([5, 2], tf.int64)] * 3]
        graph = tf.function(batched()).get_concrete_function(*specs)
        self.assertEqual(graph.structured_outputs.shape, (5, 10))

    @parameterized.parameters(
        (((9,), (13,)), {}, (4, 10)),
        (((None,), (None,)), {}, (None, 10)),
        (([(4, None), (4, 2), (4,)],), {}, (4, 10)),
        (({"user": (4, None), "item": (4, 2), "tag": (4,)},), {}, (4, 10)),
        (((9,), (13,)), {"batch_size_per_feature_per_rank_shape": (3, 2)}, (None,)),
    )
    def test_shapes_say_the_shape_of_the_output(self, shapes, more, wanted):
        self.assertEqual(batched().compute_output_shape(*shapes, **more), wanted)

    def test_so_they_do_without_pooling(self):
        options = {"pooling_mode": POOLING.NONE}
        layer = TableBatchedEmbeddingBags([(5, 4), (7, 4)], **options)
        for shapes, wanted in (
            (((9,), (5,)), (9, 4)),
            (((None,), (5,)), (None, 4)),
            (([(3, 2), (3,)],), (9, 4)),
            (([(3, None), (3,)],), (None, 4)),
        ):
            self.assertEqual(layer.compute_output_shape(*shapes), wanted)
        alone = TableBatchedEmbeddingBags([(5, 4)], **options)
        self.assertEqual(alone.compute_output_shape((3, 2)), (6, 4))
        sparse = keras.Input((2,), batch_size=3, dtype="int64", sparse=True)
        self.assertEqual(alone(sparse).shape, (None, 4))
        indices = keras.Input(batch_shape=[9], dtype="int64")
        self.assertEqual(layer(indices, keras.Input(batch_shape=[5], dtype="int64")).shape, (9, 4))

    def test_a_subclassed_model_of_indices_and_offsets(self):
        class Model(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.bags, self.top = batched(), head()

            def call(self, given: Any) -> Any:
                return self.top(self.bags(given["indices"], given["offsets"]))

        ids, labels = data()
        parts = [tf.RaggedTensor.from_tensor(ids["user"]), ids["item"]]
        parts.append(tf.RaggedTensor.from_tensor(ids["tag"][:, np.newaxis]))
        offsets = np.concatenate([[0], np.cumsum(tf.concat([p.row_lengths() for p in parts], 0))])
        indices = tf.concat([part.flat_values for part in parts], 0)
        steps = tf.data.Dataset.from_tensors(({"indices": indices, "offsets": offsets}, labels))
        model = Model()
        model.compile(keras.optimizers.SGD(0.05), "mse")
        other = compiled()
        for one, given in ((model, steps), (other, batches().unbatch().batch(LINES))):
            one.fit(given, epochs=3, verbose=0)
        for one, two in zip(rows_of(model.bags), rows_of(layer_in(other)), strict=True):
            self.assertAllClose(one, two, **CLOSE)

    def test_a_layer_used_twice_makes_one_step(self):
        layer = batched("SGD")
        inputs = inputs_of()
        output = head()(layer(inputs)) + head()(layer([inputs[name] for name in NAMES]))
        model = keras.Model(inputs, output)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model.fit(batches(), verbose=0)
        self.assertEqual(int(layer.optimizer.iterations), 3)

    def test_in_a_tf_data_pipeline(self):
        layer = batched()
        ids, _ = data()
        pipeline = tf.data.Dataset.from_tensor_slices(ids).batch(BATCH).map(layer)
        self.assertAllClose(np.concatenate(list(pipeline)), layer(tensors(ids)), **CLOSE)

    @parameterized.parameters("mixed_bfloat16", "mixed_float16")
    def test_mixed_precision(self, policy):
        keras.config.set_dtype_policy(policy)
        model = compiled(auto_scale_loss=False)
        model.fit(batches(), epochs=2, verbose=0)
        for one, before in zip(rows_of(layer_in(model)), start(), strict=True):
            self.assertEqual(one.dtype, np.float32)
            self.assertTrue(np.isfinite(one).all())
            self.assertNotAllClose(one, before)

    @parameterized.parameters(True, False)
    def test_two_replicas_equal_one(self, run_eagerly):
        results = []
        for strategy in (tf.distribute.get_strategy(), two_replicas()):
            keras.utils.clear_session(free_memory=False)
            with strategy.scope():
                model = compiled(batched("Adam"), run_eagerly=run_eagerly)
            model.fit(batches(ragged=False), epochs=2, verbose=0)
            results.append(rows_of(layer_in(model)))
        for one, other in zip(*results, strict=True):
            self.assertAllClose(one, other, **CLOSE)


class VariablesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(OPTIM.ADAM, OPTIM.NONE, None)
    def test_a_layer_has_its_variables_from_the_start(self, optimizer):
        layer = TableBatchedEmbeddingBags([(5, 2), (None, 2)], optimizer=optimizer, name="mine")
        variables = layer.trainable_variables
        self.assertLen(variables, 1 if optimizer == OPTIM.ADAM else 2)
        self.assertStartsWith(variables[0].path, "mine/")
        ids = [tf.constant([3]), tf.constant([9])]
        model_optimizer: Any = keras.optimizers.SGD(0.5)
        if optimizer is None:
            model_optimizer = tf_embed.DynamicEmbeddingOptimizer(model_optimizer)
        if optimizer != OPTIM.NONE:
            model_optimizer.build(variables)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        self.assertEqual(
            [id(one) for one in layer.trainable_variables], [id(one) for one in variables]
        )
        if optimizer != OPTIM.NONE:
            model_optimizer.apply(tape.gradient(loss, variables), variables)
            self.assertNotAllEqual(layer.tables[0].lookup([3]), [[0.0, 0.0]])

    def test_weights_of_tables_are_counted_at_the_layer(self):
        layer = TableBatchedEmbeddingBags([(5, 2), (None, 3)], name="mine")
        self.assertEqual(layer.count_params(), 10)
        layer.tables[1].upsert([7, 8], np.zeros([2, 3]))
        self.assertEqual(layer.count_params(), 16)
        inputs = [keras.Input([None], dtype="int64") for _ in range(2)]
        lines: list[str] = []
        keras.Model(inputs, layer(inputs)).summary(print_fn=lambda line, **_: lines.append(line))
        (line,) = (line for line in "\n".join(lines).splitlines() if "mine" in line)
        self.assertIn(" 16 ", line)

    def test_a_plain_optimizer_is_told_of_an_array_what_would_train_it(self):
        layer = TableBatchedEmbeddingBags([(5, 2)], optimizer=None)
        words = "'.*table_0' has a table, .* give its layer one of its own.*Optimizer.optimizer"
        with self.assertRaisesRegex(ValueError, words):
            keras.optimizers.Adam().build(layer.trainable_variables)


class FilesTest(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str) -> str:
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)

    def check(self, case: str | None, carry: Callable[[keras.Model, Any], keras.Model]) -> None:
        """Checks that a carried model continues as the original does, to the last bit."""

        def make() -> keras.Model:
            model = model_of(batched(case))
            optimizer: Any = keras.optimizers.SGD(0.05)
            if case is None:
                optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
            model.compile(optimizer, "mse")
            return model

        model = make()
        model.fit(batches(seed=1), epochs=2, verbose=0)
        other = carry(model, make)
        for _ in range(2):
            for one, two in zip(content(layer_in(model)), content(layer_in(other)), strict=True):
                self.assertAllEqual(one, two)
            for one in (model, other):
                one.fit(batches(seed=2), epochs=2, verbose=0)
        if case is not None:
            self.assertEqual(int(layer_in(other).optimizer.iterations), 18)

    @parameterized.parameters(*SAVED, None)
    def test_keras_files(self, case):
        def carry(model: Any, make: Any) -> Any:
            path = self.path("model.keras")
            model.save(path)
            return keras.saving.load_model(path)

        self.check(case, carry)

    @parameterized.parameters(*SAVED, None)
    def test_weights_files(self, case):
        def carry(model: Any, make: Any) -> Any:
            path, other = self.path("model.weights.h5"), make()
            model.save_weights(path)
            other.load_weights(path)
            return other

        self.check(case, carry)

    @parameterized.parameters(*SAVED, None)
    @pytest.mark.smoke
    def test_checkpoints(self, case):
        def carry(model: Any, make: Any) -> Any:
            other = make()
            path = tf.train.Checkpoint(model=model).save(self.path("checkpoint"))
            tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
            return other

        self.check(case, carry)

    def test_a_checkpoint_of_the_layer_alone(self):
        layer, other = batched("Adam"), batched("Adam")
        layer.tables[0].upsert([3], [[1.0, 2.0, 3.0, 4.0]])
        path = tf.train.Checkpoint(layer=layer).save(self.path("checkpoint"))
        tf.train.Checkpoint(layer=other).restore(path)
        for one, two in zip(content(layer), content(other), strict=True):
            self.assertAllEqual(one, two)

    def test_saved_models_look_up(self):
        model = compiled(ragged=False)
        model.fit(batches(ragged=False), verbose=0)
        ids, _ = data(ragged=False)
        path = self.path("exported")
        model.export(path, verbose=False)
        served = tf.saved_model.load(path)
        self.assertAllClose(served.serve(ids), model(ids), **CLOSE)
        layer, module = layer_in(model), tf.Module()
        spec = tf.TensorSpec([None], tf.int64)
        module.layer = layer
        module.call = tf.function(lambda *given: layer(*given), input_signature=[spec, spec])
        tf.saved_model.save(module, path)
        given = tf.constant([1, 2, 3], tf.int64), tf.constant([0, 1, 2, 3], tf.int64)
        served = tf.saved_model.load(path)
        self.assertAllClose(served.call(*given), layer(*given), **CLOSE)

    @parameterized.parameters(
        ("ragged", POOLING.SUM, [(None, 2), (9, 1)], 0),
        ("ragged", POOLING.MEAN, [(None, 2), (9, 1)], -1),
        ("ragged", POOLING.MEAN, [(9, 2), (9, 1)], 0),
        ("sparse", POOLING.SUM, [(9, 2), (9, 1)], 40),
        ("sparse", POOLING.MEAN, [(None, 2), (None, 1)], 0),
    )
    def test_a_model_of_ragged_ids_serves_dense_ones_with_padding(
        self, kind, pooling, specs, padding
    ):
        layer = TableBatchedEmbeddingBags(
            specs, [0, 1, 0], pooling_mode=pooling, padding_id=padding
        )
        layer.build()
        for table in layer.tables:
            table.upsert(range(9), np.arange(9.0 * table.dim).reshape(9, table.dim))
        inputs = [keras.Input([None], dtype="int64", **{kind: True}) for _ in range(3)]
        model, path = keras.Model(inputs, layer(inputs)), self.path("exported")
        model.export(path, verbose=False)
        ids = [[[5], [6, 7]], [[1, 2, 3], []], [[], [8]]]
        given = [tf.ragged.constant(one, dtype=tf.int64) for one in ids]
        sparse = [one.to_sparse() for one in given]
        wanted = model(given if kind == "ragged" else sparse)
        loaded = tf.saved_model.load(path)
        served = loaded.serve([one.to_tensor(padding) for one in given])
        self.assertAllClose(served, wanted, **CLOSE)
        self.assertAllEqual(wanted[0][:2], [10.0, 11.0])
        self.assertEqual(int(layer.bounds_check_warning), 0)
        other = TableBatchedEmbeddingBags.from_config(layer.get_config())
        self.assertEqual(other.padding_id, padding)

    @parameterized.parameters("ragged", "sparse")
    def test_without_a_padding_id_a_model_of_ragged_ids_is_not_exported(self, kind):
        inputs = keras.Input([None], dtype="int64", **{kind: True})
        dense = keras.Input([3], dtype="int64")
        layer = TableBatchedEmbeddingBags([(None, 1), (None, 1)], initializer=1.0)
        model = keras.Model([dense, inputs], layer([dense, inputs]))
        with self.assertRaisesRegex(ValueError, "`padding_id` of .*feature '1'.*shape=.None, None"):
            model.export(self.path("exported"), verbose=False)
        other = DynamicEmbedding(1, combiner="sum")
        with self.assertRaisesRegex(ValueError, "`padding_id` of .*Received: padding_id=None"):
            keras.Model(inputs, other(inputs)).export(self.path("exported"), verbose=False)
        # The same layer serves ids that were never ragged.
        keras.Model(dense, other(dense)).export(self.path("exported"), verbose=False)

    def test_ids_of_padding_train_nothing(self):
        layer = TableBatchedEmbeddingBags(
            [(None, 2), (5, 2)], padding_id=0, learning_rate=1.0, bounds_check_mode="FATAL"
        )
        optimizer = keras.optimizers.SGD()
        ids = [tf.constant([[0, 3], [0, 0]]), tf.constant([[2, 0], [-1, 4]])]
        weights = [tf.Variable(tf.ones([2, 2])) for _ in ids]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, per_sample_weights=weights))
        variables = layer.trainable_variables
        slices, *of_weights = tape.gradient(loss, [*variables, *weights])
        optimizer.apply([slices], variables)
        for table, keys in zip(layer.tables, ([3], [2, 4]), strict=True):
            self.assertCountEqual(table.export()[0].numpy(), keys)
        self.assertAllEqual(of_weights, np.zeros([2, 2, 2]))

    def test_without_pooling_padding_keeps_its_place(self):
        layer = TableBatchedEmbeddingBags(
            [(None, 1)], padding_id=7, pooling_mode=POOLING.NONE, initializer=1.0
        )
        self.assertAllEqual(layer(tf.constant([[7, 3], [2, 7]])), [[0.0], [1.0], [1.0], [0.0]])

    @parameterized.parameters("Adam", "Ensemble", None)
    def test_get_weights_and_set_weights(self, case):
        model, other = model_of(batched(case)), model_of(batched(case))
        for table in layer_in(model).tables:
            table.upsert([3, 7], np.ones([2, table.dim]))
        ids = tensors(data()[0])
        self.assertNotAllClose(model(ids), other(ids))
        other.set_weights(model.get_weights())
        self.assertAllClose(layer_in(model)(ids), layer_in(other)(ids), **CLOSE)
        for one, two in zip(content(layer_in(model)), content(layer_in(other)), strict=True):
            self.assertAllEqual(one, two)

    @parameterized.parameters(
        ([(20, 4)],), ([(None, 4)],), ([(20, 1)],), ([(20, 4), (30, 4)],), ([(20, 4), (None, 2)],)
    )
    def test_weights_of_any_number_of_tables_come_back(self, specs):
        width = sum(dim for _, dim in specs)
        layer = TableBatchedEmbeddingBags(specs, optimizer=OPTIM.ADAM, learning_rate=0.5)
        inputs = keras.Input([len(specs)], dtype="int64")
        parts = keras.layers.Lambda(lambda ids: tf.unstack(ids, axis=1))(inputs)
        model = keras.Model(inputs, layer(list(parts)))
        model.compile("sgd", "mse")
        x = np.tile(np.arange(8)[:, np.newaxis], len(specs))
        model.fit(x, np.ones([8, width]), verbose=0)
        before, weights = content(layer), model.get_weights()
        model.set_weights(weights)
        for kept in (weights, pickle.loads(pickle.dumps(weights)), copy.deepcopy(weights)):
            model.fit(x, np.ones([8, width]), verbose=0)
            self.assertNotAllEqual(content(layer)[1], before[1])
            model.set_weights(kept)
            for found, wanted in zip(content(layer)[:2], before[:2], strict=True):
                self.assertAllEqual(found, wanted)

    def test_early_stopping_restores_the_best_rows_of_one_table(self):
        layer = TableBatchedEmbeddingBags([(20, 4)], learning_rate=0.5)
        inputs = keras.Input([1], dtype="int64")
        model = keras.Model(inputs, layer(inputs))
        model.compile("sgd", "mse")
        seen = []
        stop = keras.callbacks.EarlyStopping(
            "loss", mode="max", patience=2, restore_best_weights=True, start_from_epoch=0
        )
        keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(content(layer)))
        x, y = np.arange(8)[:, np.newaxis], np.ones([8, 4])
        model.fit(x, y, epochs=5, verbose=0, callbacks=[keep, stop])
        self.assertLen(seen, 3)
        self.assertAllEqual(content(layer)[1], seen[0][1])

    def test_clones_are_layers_of_their_own(self):
        model = compiled()
        clone = keras.models.clone_model(model)
        clone.compile("sgd", "mse")
        before = content(layer_in(model))
        clone.fit(batches(), verbose=0)
        for one, two in zip(before, content(layer_in(model)), strict=True):
            self.assertAllEqual(one, two)
        self.assertEqual(clone.count_params(), 11)


if __name__ == "__main__":
    tf.test.main()
