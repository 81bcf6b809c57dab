# SPDX-License-Identifier: Apache-2.0
"""The methods of a table-batched layer other than its lookup."""

from __future__ import annotations

import itertools
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_embed import tbe
from tf_embed.saving import keras_files

OptimType = tbe.OptimType
Decay = tbe.WeightDecayMode
ROWS, DIM = 7, 4

GLOBAL = {
    "weight_decay_mode": Decay.DECOUPLE_GLOBAL,
    "weight_decay": 0.1,
    "global_weight_decay": tbe.GlobalWeightDecayDefinition(),
}
COUNTER = {
    "weight_decay_mode": Decay.COUNTER,
    "counter_based_regularization": tbe.CounterBasedRegularizationDefinition(),
}
BY_ROW = {"extra_optimizer_config": tbe.UserEnabledConfigDefinition(True)}

# An optimizer with its settings, and the name and width of its states, in FBGEMM's order.
STATES = (
    (OptimType.EXACT_SGD, {}, []),
    (OptimType.EXACT_ADAGRAD, {}, [("sum", DIM)]),
    (OptimType.EXACT_ROWWISE_ADAGRAD, {}, [("sum", 1)]),
    (OptimType.EXACT_ROWWISE_ADAGRAD, GLOBAL, [("sum", 1), ("prev_iter", 1), ("iter", 0)]),
    (
        OptimType.EXACT_ROWWISE_ADAGRAD,
        COUNTER,
        [("sum", 1), ("prev_iter", 1), ("row_counter", 1), ("iter", 0)],
    ),
    (OptimType.ADAM, {}, [("exp_avg", DIM), ("exp_avg_sq", DIM), ("iter", 0)]),
    (OptimType.ADAM, BY_ROW, [("exp_avg", DIM), ("exp_avg_sq", DIM), ("row_counter", 1)]),
    (OptimType.LAMB, {}, [("exp_avg", DIM), ("exp_avg_sq", DIM), ("iter", 0)]),
    (OptimType.LARS_SGD, {}, [("momentum1", DIM)]),
    (OptimType.PARTIAL_ROWWISE_ADAM, {}, [("exp_avg", DIM), ("exp_avg_sq", 1), ("iter", 0)]),
    (OptimType.PARTIAL_ROWWISE_LAMB, {}, [("exp_avg", DIM), ("exp_avg_sq", 1), ("iter", 0)]),
    (OptimType.ENSEMBLE_ROWWISE_ADAGRAD, {}, [("sum", 1), ("sparse_ema", DIM), ("iter", 0)]),
    (OptimType.EMAINPLACE_ROWWISE_ADAGRAD, {}, [("sum", 1), ("iter", 0)]),
)
# Each adjustable parameter, with an optimizer that uses it, other settings, and a new value.
ADJUSTED = (
    ("lr", OptimType.EXACT_SGD, {}, 0.5),
    ("eps", OptimType.EXACT_ADAGRAD, {}, 0.5),
    ("eps", OptimType.EXACT_ROWWISE_ADAGRAD, {}, 0.5),
    ("weight_decay", OptimType.EXACT_ROWWISE_ADAGRAD, {"weight_decay_mode": Decay.L2}, 0.5),
    ("weight_decay", OptimType.EXACT_ROWWISE_ADAGRAD, GLOBAL, 0.5),
    ("lower_bound", OptimType.EXACT_ROWWISE_ADAGRAD, GLOBAL, 1.0),
    *itertools.product(
        ("eps", "beta1", "beta2", "weight_decay"),
        (OptimType.ADAM, OptimType.PARTIAL_ROWWISE_ADAM, OptimType.LAMB),
        ({},),
        (0.5,),
    ),
    ("weight_decay", OptimType.LARS_SGD, {}, 0.5),
)


class Layer(tbe.TableBatchedEmbeddingBags):
    """A layer with a feature for each table, and its steps."""

    def __init__(self, optimizer=OptimType.EXACT_SGD, specs=((ROWS, DIM),), **kwargs):
        names = [f"t{i}" for i in range(len(specs))]
        super().__init__(specs, optimizer=optimizer, table_names=names, name="bags", **kwargs)
        self.build()
        self.applier = keras.optimizers.SGD()
        if self.optimizer is not None:
            self.applier.build(self.trainable_variables)

    def step(self, ids=(1, 3, 3), scale=1.0):
        """Makes a step of every table. With another scale, gradients have another direction."""
        gradients = []
        for _, dim in self.embedding_specs:
            numbers = tf.range(len(ids) * dim, dtype=tf.float32)
            of_table = tf.reshape(numbers, [-1, dim]) % 5.0 - 1.5
            gradients.append(scale * of_table + (scale - 1.0))
        indices = tf.tile(tf.constant(ids, tf.int64), [len(gradients)])
        offsets = tf.range(len(ids) * len(gradients) + 1, dtype=tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(indices, offsets) * tf.concat(gradients, 1))
        variables = self.trainable_variables
        self.applier.apply(tape.gradient(loss, variables), variables)


def _model(layer):
    inputs = keras.Input((1,), dtype="int64")
    return keras.Model(inputs, layer(inputs))


class HyperParametersTest(parameterized.TestCase):
    @parameterized.parameters(*ADJUSTED)
    def test_a_traced_step_obeys_at_once(self, name, optimizer, settings, value):
        layers = [
            Layer(optimizer, initializer=0.5, learning_rate=0.125, **settings) for _ in range(3)
        ]
        traced = tf.function(layers[0].step)
        for step in range(6):
            scale = tf.constant(step - 1.5)
            traced(scale=scale)
            layers[1].step(scale=scale)
            layers[2].step(scale=scale)
            if step == 2:
                layers[0].update_hyper_parameters({name: value})
                layers[1].update_hyper_parameters({name: value})
            if step == 3:  # so that some rows have missed some steps
                for layer in layers:
                    layer.step(ids=(2,))
        rows = [layer.split_embedding_weights()[0].numpy() for layer in layers]
        np.testing.assert_array_equal(rows[0], rows[1])
        self.assertGreater(np.abs(rows[0] - rows[2]).max(), 1e-6)

    def test_a_changed_parameter_is_that_of_an_optimizer_made_with_it(self):
        changed, made = Layer(OptimType.ADAM), Layer(OptimType.ADAM, beta2=0.7, eps=0.25)
        changed.update_hyper_parameters({"beta2": 0.7, "eps": 0.25})
        for layer in (changed, made):
            layer.step()
            layer.step()
        np.testing.assert_array_equal(
            *(one.split_embedding_weights()[0] for one in (changed, made))
        )
        self.assertEqual(changed.optimizer.get_config()["beta2"], 0.7)

    def test_learning_rate(self):
        layer = Layer(learning_rate=0.25)
        self.assertEqual(layer.get_learning_rate(), 0.25)
        layer.set_learning_rate(0.5)
        self.assertEqual(layer.get_learning_rate(), 0.5)
        tf.function(layer.set_learning_rate)(0.125)
        self.assertEqual(layer.get_learning_rate(), 0.125)
        with self.assertRaisesRegex(TypeError, "`lr` must be a number"):
            layer.set_learning_rate("fast")
        with self.assertRaisesRegex(ValueError, "`lr` must be finite"):
            layer.set_learning_rate(float("nan"))

    def test_the_learning_rate_of_a_schedule_is_read_and_not_set(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
        for rate in (schedule, lambda: 0.5):
            layer = Layer(learning_rate=rate)
            self.assertEqual(layer.get_learning_rate(), 0.5)
            with self.assertRaisesRegex(TypeError, "is a schedule or a callable"):
                layer.set_learning_rate(0.1)

    def test_the_next_step_is_the_one_behind_what_was_set(self):
        layer = Layer(OptimType.EXACT_ROWWISE_ADAGRAD, **GLOBAL)
        layer.set_optimizer_step(41)
        layer.step()
        state = layer.get_optimizer_state()[0]
        self.assertEqual(state["iter"], 42)
        self.assertEqual(state["prev_iter"][1], 42.0)
        with self.assertRaisesRegex(ValueError, "`step` must be at least 0"):
            layer.set_optimizer_step(-1)

    def test_bias_correction_follows_the_step_that_was_set(self):
        early, late = Layer(OptimType.ADAM), Layer(OptimType.ADAM)
        late.set_optimizer_step(10**6)
        early.step()
        late.step()
        first, later = (one.split_embedding_weights()[0][1, 0].numpy() for one in (early, late))
        np.testing.assert_allclose(first, 0.01, rtol=1e-5)
        np.testing.assert_allclose(later, 0.01 * 0.1 / np.sqrt(0.001), rtol=1e-5)

    @parameterized.parameters("momentum", "learning_rate", "eta", "max_norm")
    def test_other_names_are_refused_and_nothing_is_set(self, name):
        layer = Layer(OptimType.LARS_SGD)
        words = f"`params_dict` must have names of lr, eps, .*'{name}'"
        with self.assertRaisesRegex(ValueError, words):
            layer.update_hyper_parameters({"lr": 0.5, name: 0.5})
        with self.assertRaisesRegex(TypeError, "must be a dict from names of hyper-parameters"):
            layer.update_hyper_parameters([("lr", 0.5), (name, 0.5)])
        self.assertAlmostEqual(layer.get_learning_rate(), 0.01)

    @parameterized.parameters(
        (OptimType.EXACT_SGD, "eps"),
        (OptimType.EXACT_ADAGRAD, "weight_decay"),
        (OptimType.EXACT_ROWWISE_ADAGRAD, "weight_decay"),
        (OptimType.ADAM, "lower_bound"),
        (OptimType.LARS_SGD, "beta1"),
    )
    def test_what_the_optimizer_does_not_use_is_refused(self, optimizer, name):
        layer = Layer(optimizer)
        with self.assertRaisesRegex(ValueError, f"does not use `{name}`.*{name}=0.5"):
            layer.update_hyper_parameters({"lr": 0.5, name: 0.5})
        self.assertAlmostEqual(layer.get_learning_rate(), 0.01)

    @parameterized.parameters(("eps", -1.0), ("beta1", 1.0), ("weight_decay", -0.1))
    def test_values_out_of_range_are_refused(self, name, value):
        with self.assertRaisesRegex(ValueError, f"`{name}` must be at least 0"):
            Layer(OptimType.ADAM).update_hyper_parameters({name: value})

    @parameterized.parameters("checkpoint", "weights")
    def test_changed_parameters_are_resumed(self, kind):
        unbroken, saved, resumed = (Layer(OptimType.ADAM) for _ in range(3))
        for layer in (unbroken, saved):
            layer.step()
            layer.update_hyper_parameters({"lr": 0.3, "beta1": 0.5, "eps": 0.1})
            layer.step()
        path = tempfile.mkdtemp()
        if kind == "checkpoint":
            file = tf.train.Checkpoint(layer=saved).save(f"{path}/c")
            tf.train.Checkpoint(layer=resumed).restore(file).assert_existing_objects_matched()
        else:
            _model(saved).save_weights(f"{path}/c.weights.h5")
            _model(resumed).load_weights(f"{path}/c.weights.h5")
        for layer in (unbroken, resumed):
            layer.step(scale=0.5)
        np.testing.assert_array_equal(
            *(one.split_embedding_weights()[0] for one in (unbroken, resumed))
        )

    def test_changed_parameters_are_in_the_config(self):
        layer = Layer(OptimType.EXACT_ROWWISE_ADAGRAD, **GLOBAL)
        before = layer.get_config()
        self.assertEqual(before["learning_rate"], 0.01)
        numbers = {"lr": 0.25, "eps": 0.1, "weight_decay": 0.2, "lower_bound": 0.5}
        layer.update_hyper_parameters(numbers)
        kind = tbe.TableBatchedEmbeddingBags
        copied = kind.from_config({**layer.get_config(), "name": "other"})
        self.assertEqual(copied.settings.learning_rate, 0.25)
        self.assertEqual(copied.settings.eps, 0.1)
        self.assertEqual(copied.settings.weight_decay, 0.2)
        self.assertEqual(copied.settings.global_weight_decay.lower_bound, 0.5)

    @parameterized.parameters(0, 3)
    def test_decay_of_left_out_steps_is_the_same_in_a_graph(self, start_iter):
        definition = tbe.GlobalWeightDecayDefinition(start_iter=start_iter)
        settings = {**GLOBAL, "global_weight_decay": definition}
        rows, found = [], []
        for run_eagerly in (True, False):
            layer = Layer(OptimType.EXACT_ROWWISE_ADAGRAD, initializer=0.5, **settings)
            model = _model(layer)
            model.compile(keras.optimizers.SGD(), "mse", run_eagerly=run_eagerly)
            x, y = np.array([[0], [1], [2], [1], [0]]), np.ones((5, DIM))
            model.fit(x, y, batch_size=1, shuffle=False, verbose=0)
            call = layer if run_eagerly else tf.function(layer)
            found.append(call(tf.constant([0, 1, 2]), tf.range(4), training=True))
            rows.append(layer.split_embedding_weights()[0].numpy())
        np.testing.assert_array_equal(*rows)
        np.testing.assert_array_equal(*found)

    def test_a_compiled_fit_obeys_at_once(self):
        rows = []
        for change in (True, False):
            layer = Layer(OptimType.ADAM, initializer=0.5)
            model = _model(layer)
            model.compile(keras.optimizers.SGD(), "mse")
            x, y = np.arange(6).reshape(6, 1), np.linspace(0.0, 1.0, 6 * DIM).reshape(6, DIM)
            model.fit(x, y, batch_size=3, shuffle=False, verbose=0)
            function = model.train_function
            if change:
                layer.update_hyper_parameters({"lr": 0.0})
            before = layer.split_embedding_weights()[0].numpy()
            model.fit(x, y, batch_size=3, shuffle=False, verbose=0)
            self.assertIs(model.train_function, function)
            rows.append((before, layer.split_embedding_weights()[0].numpy()))
            self.assertEqual(layer.get_optimizer_state()[0]["iter"], 4)
        np.testing.assert_array_equal(rows[0][0], rows[0][1])
        self.assertGreater(np.abs(rows[1][0] - rows[1][1]).max(), 1e-3)

    @parameterized.product(
        method=(
            ("set_learning_rate", 0.1),
            ("get_learning_rate",),
            ("set_optimizer_step", 1),
            ("update_hyper_parameters", {"lr": 0.1}),
            ("split_optimizer_states",),
            ("get_optimizer_state",),
            ("reset_embedding_weight_momentum", [1], [0, 1], [0], [0]),
        ),
        optimizer=(OptimType.NONE, None),
    )
    def test_without_an_own_optimizer_there_is_nothing_to_set(self, method, optimizer):
        name, *arguments = method
        message = f"`{name}` needs the layer's own optimizer. Received: 'bags'"
        with self.assertRaisesRegex(ValueError, message):
            getattr(Layer(optimizer), name)(*arguments)


class CounterTest(parameterized.TestCase):
    """The largest count of rows."""

    def layer(self, **options):
        definition = tbe.CounterBasedRegularizationDefinition(
            learning_rate_mode=tbe.LearningRateMode.TAIL_ID_LR_DECREASE,
            max_counter_update_freq=2,
        )
        return Layer(
            OptimType.EXACT_ROWWISE_ADAGRAD,
            ((3, 1), (3, 1)),
            learning_rate=1.0,
            weight_decay_mode=Decay.COUNTER,
            counter_based_regularization=definition,
            **options,
        )

    def step(self, layer, offsets):
        """Makes a step of row 0 of one table."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([0], tf.int64), tf.constant(offsets)))
        variables = layer.trainable_variables
        layer.applier.apply(tape.gradient(loss, variables), variables)

    def trained(self):
        layer = self.layer()
        for _ in range(4):
            self.step(layer, [0, 0, 1])
        return layer

    def test_it_is_that_of_all_tables(self):
        layer = self.trained()
        self.step(layer, [0, 1, 1])
        # A row's first step. The largest count was 3 when last computed: (1 + 1) / (1 + 3).
        np.testing.assert_allclose(layer.split_embedding_weights()[0][0], [-0.5], rtol=1e-6)

    @parameterized.parameters("checkpoint", "weights")
    def test_it_is_resumed(self, kind):
        saved, resumed, path = self.trained(), self.layer(), tempfile.mkdtemp()
        if kind == "checkpoint":
            file = tf.train.Checkpoint(layer=saved).save(f"{path}/c")
            tf.train.Checkpoint(layer=resumed).restore(file).assert_existing_objects_matched()
        else:
            store = {}
            saved.save_own_variables(store)
            resumed.load_own_variables(store)
        self.step(resumed, [0, 1, 1])
        np.testing.assert_allclose(resumed.split_embedding_weights()[0][0], [-0.5], rtol=1e-6)

    def test_a_file_with_one_for_each_table_gives_the_largest(self):
        store = {}
        self.trained().save_own_variables(store)
        layer = self.layer()
        arrays = keras_files.read(store, "bags")
        (name,) = (name for name in arrays if "state_" in name)
        number = np.asarray(arrays.pop(name))
        arrays |= {"optimizer_state_0": np.ones_like(number), "optimizer_state_1": number}
        older = {}
        keras_files.write(older, arrays)
        layer.load_own_variables(older)
        self.step(layer, [0, 1, 1])
        np.testing.assert_allclose(layer.split_embedding_weights()[0][0], [-0.5], rtol=1e-6)


class SnapshotsTest(parameterized.TestCase):
    def test_weights_of_arrays_and_of_dynamic_tables(self):
        layer = Layer(specs=((ROWS, DIM), (None, 3)), initializer=0.5, learning_rate=0.1)
        layer.step(ids=(1, 5))
        array, dynamic = (view.numpy() for view in layer.split_embedding_weights())
        self.assertEqual(array.shape, (ROWS, DIM))
        np.testing.assert_array_equal(array[0], [0.5] * DIM)
        np.testing.assert_allclose(array[1], 0.5 - 0.1 * (np.arange(4) - 1.5), rtol=1e-6)
        keys, rows = layer.tables[1].export()
        np.testing.assert_array_equal(dynamic, rows)
        self.assertCountEqual(keys.numpy(), [1, 5])
        layer.step(ids=(1,))
        self.assertEqual(layer.split_embedding_weights()[0][5, 0], array[5, 0])
        self.assertNotEqual(layer.split_embedding_weights()[0][1, 0], array[1, 0])

    @parameterized.parameters(*STATES)
    def test_states_have_fbgemms_order_names_and_shapes(self, optimizer, settings, wanted):
        layer = Layer(optimizer, ((ROWS, DIM), (None, DIM)), **settings)
        layer.step()
        layer.step()
        split, named = layer.split_optimizer_states(), layer.get_optimizer_state()
        self.assertLen(split, 2)
        for rows, states, by_name in zip((ROWS, 2), split, named, strict=True):
            self.assertEqual(list(by_name), [name for name, _ in wanted])
            shapes = [(rows, DIM) if width == DIM else (rows,) for _, width in wanted if width]
            self.assertEqual([tuple(state.shape) for state in states], shapes)
            for state, (name, _) in zip(states, wanted, strict=False):
                np.testing.assert_array_equal(state, by_name[name])
            if "iter" in by_name:
                self.assertEqual(by_name["iter"], 2)

    @parameterized.parameters(*STATES)
    def test_states_of_untrained_rows_are_initial_ones(self, optimizer, settings, wanted):
        del wanted
        layer = Layer(optimizer, **settings)
        layer.step(ids=(1,))
        (states,) = layer.split_optimizer_states()
        for state in states:
            self.assertEqual(tf.reduce_max(tf.abs(state[2:])), 0.0)

    def test_states_are_those_of_the_rows(self):
        layer = Layer(OptimType.EXACT_ADAGRAD, ((ROWS, DIM), (None, DIM)))
        layer.step(ids=(6, 2))
        array, dynamic = (states[0].numpy() for states in layer.split_optimizer_states())
        gradients = (np.arange(8.0).reshape(2, 4) % 5 - 1.5) ** 2
        np.testing.assert_allclose(array[[6, 2]], gradients, rtol=1e-6)
        keys = layer.tables[1].export()[0].numpy().tolist()
        np.testing.assert_allclose(dynamic[[keys.index(6), keys.index(2)]], gradients, rtol=1e-6)

    def test_the_mean_that_starts_at_weights_is_the_weights(self):
        mode = tbe.EnsembleModeDefinition(step_ema=2, step_start=4)
        layer = Layer(OptimType.ENSEMBLE_ROWWISE_ADAGRAD, initializer=0.5, ensemble_mode=mode)
        state = layer.get_optimizer_state()[0]["sparse_ema"]
        np.testing.assert_array_equal(state, np.full((ROWS, DIM), 0.5))

    def test_snapshots_in_a_function(self):
        layer = Layer(OptimType.ADAM, ((ROWS, DIM), (None, DIM)))
        layer.step()
        for method in ("split_embedding_weights", "split_optimizer_states", "get_optimizer_state"):
            eager, traced = getattr(layer, method)(), tf.function(getattr(layer, method))()
            for one, other in zip(tf.nest.flatten(eager), tf.nest.flatten(traced), strict=True):
                np.testing.assert_array_equal(one, other)


class UniformTest(parameterized.TestCase):
    def test_all_rows_of_arrays_are_written_and_reproducible(self):
        layers = [Layer(specs=((70_000, 8), (ROWS, 8))) for _ in range(3)]
        for layer, seed in zip(layers, (5, 5, 6), strict=True):
            layer.init_embedding_weights_uniform(-0.25, 0.75, seed=seed)
        rows = [[one.numpy() for one in layer.split_embedding_weights()] for layer in layers]
        np.testing.assert_array_equal(rows[0][0], rows[1][0])
        self.assertTrue((rows[0][0] != rows[2][0]).any())
        self.assertTrue((rows[0][0][:ROWS] != rows[0][1]).any())
        self.assertEqual(layers[0].tables[0].size(), 70_000)
        # The mean of 560,000 uniform draws has a standard deviation of 0.00039; 5 are allowed.
        self.assertAlmostEqual(rows[0][0].mean(), 0.25, delta=0.002)
        self.assertBetween(rows[0][0].min(), -0.25, -0.249)
        self.assertBetween(rows[0][0].max(), 0.749, 0.75)

    @parameterized.parameters(tbe.SparseType.FP16, tbe.SparseType.BF16)
    def test_narrow_rows_are_those_of_float32_rounded(self, precision):
        narrow, wide = Layer(weights_precision=precision), Layer()
        for layer in (narrow, wide):
            layer.init_embedding_weights_uniform(-1.0, 1.0, seed=2)
        rows = narrow.split_embedding_weights()[0]
        self.assertEqual(rows.dtype, precision.dtype)
        rounded = tf.cast(wide.split_embedding_weights()[0], precision.dtype)
        np.testing.assert_array_equal(rows, rounded)
        narrow.reset_embedding_weight_momentum([2], [0, 1], [0], [0])
        np.testing.assert_array_equal(narrow.split_embedding_weights()[0][2], np.zeros(DIM))

    def test_rows_of_bytes_are_those_of_float32_quantized(self):
        options = {"weights_precision": "INT8", "optimizer": "NONE"}
        narrow, wide = (
            tbe.TableBatchedEmbeddingBags([(ROWS, DIM)], table_names=["t0"], **options),
            Layer(),
        )
        for layer in (narrow, wide):
            layer.init_embedding_weights_uniform(-1.0, 1.0, seed=2)
        rows = tbe.quantized_rows.dequantize(narrow.split_embedding_weights()[0].numpy())
        np.testing.assert_allclose(rows, wide.split_embedding_weights()[0], atol=1.01 / 255)
        dynamic = tbe.TableBatchedEmbeddingBags([(None, DIM)], **options)
        with self.assertRaisesRegex(
            ValueError, "is a dynamic table of SparseType.INT8, whose new rows are not drawn"
        ):
            dynamic.init_embedding_weights_uniform(-1.0, 1.0)

    def test_without_a_seed_it_is_keras_global_one(self):
        rows = []
        for _ in range(2):
            keras.utils.set_random_seed(3)
            layer = Layer()
            layer.init_embedding_weights_uniform(-1, 1)
            rows.append(layer.split_embedding_weights()[0].numpy())
        np.testing.assert_array_equal(*rows)

    def test_states_stay(self):
        layer = Layer(OptimType.EXACT_ADAGRAD)
        layer.step()
        before = layer.split_optimizer_states()[0][0].numpy()
        layer.init_embedding_weights_uniform(0.0, 1.0)
        np.testing.assert_array_equal(before, layer.split_optimizer_states()[0][0])

    def test_a_dynamic_table_of_another_initializer_is_refused(self):
        layer = Layer(specs=((ROWS, DIM), (None, DIM)))
        with self.assertRaisesRegex(
            ValueError, "'t1' is a dynamic table, which draws the rows of.*RandomUniform"
        ):
            layer.init_embedding_weights_uniform(0.0, 1.0)
        self.assertEqual(layer.tables[0].size(), 0)

    def test_rows_of_a_dynamic_table_go_back_to_its_own_initial_ones(self):
        uniform = keras.initializers.RandomUniform(0.0, 1.0, seed=4)
        layer = Layer(specs=((None, DIM),), initializer=uniform)
        initial = layer.tables[0].lookup([1, 3])
        layer.step()
        self.assertTrue((layer.tables[0].lookup([1, 3]) != initial).numpy().any())
        layer.init_embedding_weights_uniform(0.0, 1.0)
        np.testing.assert_array_equal(layer.tables[0].lookup([1, 3]), initial)
        self.assertEqual(layer.tables[0].size(), 2)

    def test_bounds_in_the_wrong_order_are_refused(self):
        with self.assertRaisesRegex(ValueError, "`min_val` must be at most `max_val`"):
            Layer().init_embedding_weights_uniform(1.0, 0.0)


class ResetTest(parameterized.TestCase):
    @parameterized.parameters(*STATES)
    def test_rows_are_zero_and_states_initial(self, optimizer, settings, wanted):
        del wanted
        layer = Layer(optimizer, ((ROWS, DIM), (None, DIM)), initializer=0.5, **settings)
        layer.step(ids=(1, 2, 3))
        before = [[one.numpy() for one in views] for views in layer.split_optimizer_states()]
        layer.reset_embedding_weight_momentum([3, 1, 1, 9], [0, 3, 4], [1, 0], [0, 0])
        for table in layer.tables:
            np.testing.assert_array_equal(table.lookup([1, 3]), np.zeros((2, DIM)))
            self.assertNotEqual(table.lookup([2])[0, 0], 0.0)
        for old, new in zip(before[0], layer.split_optimizer_states()[0], strict=True):
            np.testing.assert_array_equal(old[2], new[2])
            self.assertEqual(tf.reduce_max(tf.abs(new[1])), 0.0)
            self.assertEqual(tf.reduce_max(tf.abs(new[3])), 0.0)
        self.assertEqual(layer.tables[1].size(), 3)

    def test_ids_without_a_row(self):
        layer = Layer(specs=((ROWS, DIM), (None, DIM)), initializer=0.5)
        layer.reset_embedding_weight_momentum(tf.constant([5]), [0, 1], [0, 1], [0, 0])
        np.testing.assert_array_equal(layer.tables[0].lookup([5]), np.zeros((1, DIM)))
        np.testing.assert_array_equal(layer.tables[1].lookup([5]), np.full((1, DIM), 0.5))

    def test_an_id_beyond_int64_is_no_other_id(self):
        layer = Layer(specs=((None, DIM),), initializer=0.5)
        layer.tables[0].upsert([-(2**63)], np.ones((1, DIM)))
        with self.assertRaisesRegex(ValueError, f"`pruned_indices` must fit int64.*{2**63}"):
            layer.reset_embedding_weight_momentum([2**63], [0, 1], [0], [0])
        np.testing.assert_array_equal(layer.tables[0].lookup([-(2**63)]), np.ones((1, DIM)))

    @parameterized.parameters(
        ([ROWS], [0, 1], [0], [0], "`pruned_indices of 't0'` must .* less than 7. Received: 7"),
        ([-1], [0, 1], [0], [0], "`pruned_indices of 't0'` must .* Received: -1"),
        ([1], [0, 2], [0], [0], "`pruned_indices_offsets` must not fall"),
        ([1], [1, 0], [0], [0], "`pruned_indices_offsets` must not fall"),
        ([1], [0, 1], [1], [0], "`logical_table_ids` must .* less than 1. Received: 1"),
        ([1], [0, 1], [0], [1], "`buffer_ids` must .* less than 1. Received: 1"),
        ([1], [0, 1], [0, 0], [0], "of one length. Received: 2 and 1"),
        ([1.5], [0, 1], [0], [0], "must be a vector of integers. Received: shape=.*float64"),
        ([[1], [1, 2]], [0, 1], [0], [0], "a vector of integers. Received: pruned_.* of type list"),
        ([2**63], [0, 1], [0], [0], "`pruned_indices` must fit int64. Received"),
    )
    def test_wrong_numbers_are_refused(self, ids, offsets, tables, buffers, message):
        layer = Layer(OptimType.EXACT_ROWWISE_ADAGRAD)
        layer.step()
        before = layer.split_embedding_weights()[0].numpy()
        with self.assertRaisesRegex(ValueError, message):
            layer.reset_embedding_weight_momentum(ids, offsets, tables, buffers)
        np.testing.assert_array_equal(before, layer.split_embedding_weights()[0])


class CacheTest(absltest.TestCase):
    """The methods for caches, in a layer without a cache."""

    def test_nothing_changes(self):
        layer = Layer()
        layer.step()
        before = layer.split_embedding_weights()[0].numpy()
        layer.prefetch(tf.constant([1, 2]), tf.constant([0, 1, 2]))
        layer.flush()
        layer.reset_cache_states()
        np.testing.assert_array_equal(before, layer.split_embedding_weights()[0])

    def test_arguments_are_checked(self):
        layer = Layer()
        with self.assertRaisesRegex(TypeError, "`indices` must be int32 or int64"):
            layer.prefetch(tf.constant([1.0]), tf.constant([0, 1]))
        with self.assertRaisesRegex(ValueError, "`offsets` must be a vector. Received: shape"):
            layer.prefetch(tf.constant([1]), tf.constant([[0, 1]]))
        with self.assertRaisesRegex(ValueError, "`forward_stream` must be None"):
            layer.prefetch(tf.constant([1]), tf.constant([0, 1]), forward_stream=1)


if __name__ == "__main__":
    absltest.main()
