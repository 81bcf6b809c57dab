# SPDX-License-Identifier: Apache-2.0
"""Lookups in all places that TensorFlow and Keras allow, against a dense embedding in the place.

The gradient must equal the dense embedding's in any control flow and with the tape anywhere.
Gradients that can't be right are refused: see tapes_test.py.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.control_flow_cases import (
    DIM,
    IDS,
    PLACES,
    ROWS,
    STEPS,
    VOCABULARY,
    Cell,
    Dense,
    Dynamic,
    loss_of,
)
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

WAYS = ("eager", "inside", "outside")  # the place of the tape: no function, in it, around it


def loss_and_gradient(embed: Any, place: Callable[[Any, Any], Any], way: str) -> Any:
    ids = tf.constant(IDS, tf.int32)

    def loss(ids: Any) -> Any:
        return loss_of(place(embed, ids))

    def step(ids: Any, loss: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(ids)
        return value, embed.matrix(tape.gradient(value, embed.source))

    if way == "inside":
        return tf.function(lambda ids: step(ids, loss))(ids)
    return step(ids, tf.function(loss) if way == "outside" else loss)


@functools.cache
def oracle(place: str) -> tuple[np.ndarray, np.ndarray]:
    loss, gradient = loss_and_gradient(Dense(), PLACES[place], "eager")
    return loss.numpy(), gradient.numpy()


class ControlFlowTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, place: str, way: str, **options: Any) -> None:
        loss, gradient = loss_and_gradient(Dynamic(**options), PLACES[place], way)
        wanted_loss, wanted = oracle(place)
        self.assertAllClose(loss, wanted_loss, rtol=1e-5)
        self.assertAllClose(gradient, wanted, rtol=1e-5, atol=1e-5)
        self.assertGreater(np.abs(wanted).max(), 0.1)
        self.assertAllEqual(wanted[5], np.zeros([DIM]))

    @parameterized.product(place=tuple(PLACES), way=WAYS)
    def test_the_gradient_is_that_of_a_dense_embedding(self, place, way):
        self.check(place, way)

    @parameterized.product(
        place=("for_loop", "cond_one_branch", "vectorized_map", "function_in_cond", "twice"),
        key_dtype=("int32", "uint64", "uint32"),
    )
    def test_keys_of_every_dtype_leave_loops_and_conditions_whole(self, place, key_dtype):
        self.check(place, "inside", key_dtype=key_dtype)

    @parameterized.product(combiner=("sum", "mean", "sqrtn"), padding_id=(None, 0))
    def test_bags_in_a_loop_are_bags(self, combiner, padding_id):
        layer = DynamicEmbedding(DIM, combiner=combiner, padding_id=padding_id)
        layer.build()

        @tf.function
        def gradient(ids: Any, rows_of: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(rows_of(ids))
            slices = tape.gradient(loss, layer.trainable_variables[0].value)
            return tf.math.unsorted_segment_sum(slices.values, slices.indices, VOCABULARY)

        ids = tf.constant(IDS, tf.int64)
        in_map = gradient(
            ids, lambda ids: PLACES["map_fn"](lambda line: layer(line[tf.newaxis])[0], ids)
        )
        self.assertAllClose(in_map, gradient(ids, layer))

    @parameterized.parameters("plain", "map_in_map", "loop_over_conditions", "vectorized_map")
    @pytest.mark.smoke
    def test_in_the_oldest_and_the_newest_tensorflow(self, place):
        self.check(place, "outside")

    @parameterized.parameters("plain", "for_loop", "vectorized_map", "cond", "function_in_cond")
    def test_tf_gradients_of_a_graph(self, place):
        def gradients(embed: Any) -> Any:
            @tf.function
            def of_a_graph(ids: Any) -> Any:
                loss = loss_of(PLACES[place](embed, ids))
                return embed.matrix(tf.gradients(loss, embed.source)[0])

            return of_a_graph(tf.constant(IDS))

        self.assertAllClose(gradients(Dynamic()), oracle(place)[1], rtol=1e-5, atol=1e-5)


PIPELINES: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda ids, embed: ids.map(embed),
    "parallel": lambda ids, embed: ids.map(embed, num_parallel_calls=4),
    "out_of_order": lambda ids, embed: ids.map(embed, num_parallel_calls=4, deterministic=False),
    "prefetch": lambda ids, embed: ids.map(embed).prefetch(2),
    "loop": lambda ids, embed: ids.map(lambda line: PLACES["map_fn"](embed, line)),
    "interleave": lambda ids, embed: ids.interleave(
        lambda line: tf.data.Dataset.from_tensors(embed(line)), num_parallel_calls=2
    ),
    "flat_map": lambda ids, embed: ids.flat_map(
        lambda line: tf.data.Dataset.from_tensor_slices(embed(line))
    ).batch(3),
    "filter": lambda ids, embed: ids.filter(lambda line: tf.norm(embed(line)) > 0.0).map(embed),
    "scan": lambda ids, embed: ids.scan(0, lambda count, line: (count + 1, embed(line))),
}


class PipelinesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*PIPELINES)
    def test_a_pipeline_gives_the_rows(self, name):
        pipeline = PIPELINES[name](tf.data.Dataset.from_tensor_slices(IDS), Dynamic())
        rows = sorted(pipeline.as_numpy_iterator(), key=lambda line: line.sum())
        self.assertAllClose(rows, sorted(ROWS[IDS], key=lambda line: line.sum()))


class Model(keras.Model):
    """A model of a place, followed by a weight."""

    def __init__(self, embed: Any, place: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.embed, self.place = embed, place
        self.scale = self.add_weight(shape=(DIM,), initializer="ones")

    def call(self, ids: Any) -> Any:
        return self.place(self.embed, ids) * self.scale


LABELS = np.random.default_rng(SEED).normal(size=[STEPS, 3, DIM]).astype(np.float32)
MODELS = {
    name: PLACES[name] for name in ("map_fn", "vectorized_map", "scan", "rnn_backwards", "cond")
}
MODELS["function"] = lambda embed, ids: tf.function(embed)(ids)


class ModelsTest(tf.test.TestCase, parameterized.TestCase):
    def trained(self, embed: Any, name: str, optimizer: Any, **options: Any) -> Any:
        model = Model(embed, MODELS[name])
        model.compile(optimizer, "mse", jit_compile=False, **options)
        labels = LABELS[:, ::-1] if name == "rnn_backwards" else LABELS
        data = tf.data.Dataset.from_tensors((IDS, labels)).repeat(5)
        losses = model.fit(data, shuffle=False, verbose=0).history["loss"]
        return losses, model.scale.numpy(), embed(tf.range(VOCABULARY)).numpy()

    @parameterized.product(name=tuple(MODELS), options=({}, {"run_eagerly": True}))
    def test_fit_trains_the_rows_of_a_dense_model(self, name, options):
        sgd = keras.optimizers.SGD
        wrapped = tf_embed.DynamicEmbeddingOptimizer(sgd(0.5))
        dynamic = self.trained(Dynamic(), name, wrapped, **options)
        dense = self.trained(Dense(), name, sgd(0.5))
        self.assertNotAllClose(dense[2], ROWS, atol=0.05)
        for one, other in zip(dynamic, dense, strict=True):
            self.assertAllClose(one, other, rtol=1e-4, atol=1e-5)

    @parameterized.parameters("rnn", "time_distributed")
    def test_functional_models_with_the_lookup_inside_a_layer(self, kind):
        def trained(embed: Any, optimizer: Any) -> Any:
            if kind == "rnn":
                layer = keras.layers.RNN(Cell(embed), return_sequences=True)
            else:
                layer = keras.layers.TimeDistributed(embed)
            inputs = keras.Input([3, 1], dtype="int64")
            outputs = keras.layers.Reshape([3, DIM])(layer(inputs))
            model = keras.Model(inputs, outputs)
            model.compile(optimizer, "mse", jit_compile=False)
            model.fit(IDS[..., np.newaxis], LABELS, epochs=3, verbose=0)
            return embed(tf.range(VOCABULARY))

        sgd = keras.optimizers.SGD
        rows = trained(Dynamic(), tf_embed.DynamicEmbeddingOptimizer(sgd(0.5)))
        self.assertAllClose(rows, trained(Dense(), sgd(0.5)), rtol=1e-4, atol=1e-5)
        self.assertNotAllClose(rows, ROWS, atol=0.05)

    def test_a_table_of_its_own_optimizer_is_trained_through_a_loop_once_a_step(self):
        embed = Dynamic(optimizer=keras.optimizers.SGD(0.5))
        own = self.trained(embed, "scan", keras.optimizers.SGD(0.5))
        self.assertEqual(int(embed.table.optimizer.iterations), 5)
        dense = self.trained(Dense(), "scan", keras.optimizers.SGD(0.5))
        self.assertAllClose(own[2], dense[2], rtol=1e-4, atol=1e-5)

    def test_a_training_loop_in_one_tf_function(self):
        def train(embed: Any, optimizer: Any) -> Any:
            variables = embed.trainable_variables
            optimizer.build(variables)

            @tf.function
            def loop() -> None:
                for ids in tf.data.Dataset.from_tensor_slices(IDS).repeat(3):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(tf.sin(embed(ids)))
                    optimizer.apply(tape.gradient(loss, variables), variables)

            loop()
            return embed(tf.range(VOCABULARY))

        sgd = keras.optimizers.SGD(0.1)
        rows = train(Dynamic(), tf_embed.DynamicEmbeddingOptimizer(sgd))
        self.assertAllClose(rows, train(Dense(), keras.optimizers.SGD(0.1)), rtol=1e-5)
        self.assertNotAllClose(rows, ROWS)

    @parameterized.parameters("map_fn", "cond", "vectorized_map")
    def test_a_saved_model_serves_a_lookup_in_a_loop(self, name):
        module = tf.Module()
        module.rows = tf_embed.Variable(dim=DIM, initializer=0.5)
        module.rows.upsert(range(4), ROWS[:4])
        module.serve = tf.function(
            lambda ids: MODELS[name](
                lambda line: tf_embed.embedding_lookup(module.rows, line), ids
            ),
            input_signature=[tf.TensorSpec([None, 3], tf.int64)],
        )
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        wanted = np.where(IDS[..., np.newaxis] < 4, ROWS[IDS], 0.5)
        self.assertAllClose(loaded.serve(tf.constant(IDS)), wanted)


class DatasetTest(tf.test.TestCase, parameterized.TestCase):
    """Iterators over lookups in tf.data, which are saved and resume, as over tf.lookup tables."""

    def resumed(self, dataset: tf.data.Dataset) -> tuple[Any, Any]:
        """The second element after a restore of the iterator's position, and before it."""
        iterator = iter(dataset)
        next(iterator)
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        path = checkpoint.save(self.get_temp_dir() + "/place")
        wanted = next(iterator)
        next(iterator)
        checkpoint.restore(path)
        return next(iterator), wanted

    @parameterized.parameters("lookup", "training", "size", "pooled")
    @pytest.mark.smoke
    def test_the_place_in_a_pipeline_that_looks_up_is_saved(self, way):
        v = tf_embed.Variable(dim=2, trainable=False)
        v.upsert(np.arange(9), np.arange(18.0).reshape(9, 2))

        def pooled(ids: tf.Tensor) -> tf.Tensor:
            bags = tf.RaggedTensor.from_uniform_row_length(ids, 2)
            return tf_embed.embedding_lookup_sparse(v, bags)

        look_up = {
            "lookup": v.lookup,
            "training": lambda ids: v.lookup(ids, training=True),
            "size": lambda ids: tf.cast(ids, tf.int64) + v.size(),
            "pooled": pooled,
        }[way]
        again, wanted = self.resumed(tf.data.Dataset.range(20).batch(4).map(look_up))
        self.assertAllEqual(again, wanted)

    def test_the_place_in_a_pipeline_that_calls_a_layer_is_saved_if_asked(self):
        # The layer reads a tf.Variable, which tf.data does not save.
        layer = DynamicEmbedding(2)
        layer.build()
        dataset = tf.data.Dataset.range(20).batch(4).map(layer)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "is stateful"):
            self.resumed(dataset)
        options = tf.data.Options()
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        again, wanted = self.resumed(dataset.with_options(options))
        self.assertAllEqual(again, wanted)


if __name__ == "__main__":
    tf.test.main()
