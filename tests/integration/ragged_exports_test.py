# SPDX-License-Identifier: Apache-2.0
"""Exports of models that take ragged or sparse ids: exact with a padding id, refused without."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import callers, tfra
from tf_embed.layers import DynamicEmbedding
from tf_embed.layers.given_ids import GivenIds
from tf_embed.tbe import TableBatchedEmbeddingBags

IDS = tf.ragged.constant([[1, 2], [], [5]], dtype=tf.int64)
KINDS = {"ragged": IDS, "sparse": IDS.to_sparse()}
# No id is 0, the filler of dense batches, so a counted filler shows.
DENSE = IDS.to_tensor()
REFUSED = "`padding_id` of .* must be set for dense ids .* Received: padding_id=None, ids of"


class Caller:
    """Calls another layer."""

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, ids: Any) -> Any:
        return self.layer(ids)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)


@keras.saving.register_keras_serializable(package="ragged_exports_test")
class Within(Caller, keras.layers.Layer):
    """A custom layer around another layer."""


@keras.saving.register_keras_serializable(package="ragged_exports_test")
class Model(Caller, keras.Model):
    """A subclassed model."""


@keras.saving.register_keras_serializable(package="ragged_exports_test")
class Densified(Within):
    """Makes ragged and sparse ids dense."""

    def call(self, ids: Any) -> Any:
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor()
        return self.layer(tf.sparse.to_dense(ids) if isinstance(ids, tf.SparseTensor) else ids)


@keras.saving.register_keras_serializable(package="ragged_exports_test")
class Unpadded(Within):
    """Makes ids ragged."""

    def call(self, ids: Any) -> Any:
        return self.layer(tf.RaggedTensor.from_tensor(ids, padding=0))


class Looped(Within):
    """Calls the layer in a loop."""

    def call(self, ids: Any) -> Any:
        if not isinstance(ids, tf.Tensor):
            ids = ids.to_tensor()
        return tf.map_fn(self.layer, ids, fn_output_signature=tf.TensorSpec([None, 2]))


@keras.saving.register_keras_serializable(package="ragged_exports_test")
class Bags(keras.layers.Layer):
    """A layer that contains a table-batched layer."""

    def __init__(self, padding: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.padding = padding
        self.bags = TableBatchedEmbeddingBags(
            [(None, 2)], initializer="uniform", padding_id=padding
        )

    def call(self, ids: Any) -> Any:
        return self.bags([ids])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding": self.padding}


def table(padding: int | None = None) -> DynamicEmbedding:
    return DynamicEmbedding(2, combiner="mean", padding_id=padding)


def functional(layer: Callable[[Any], Any], kind: str | None) -> keras.Model:
    ids = keras.Input([None], dtype="int64", **({kind: True} if kind else {}))
    return keras.Model(ids, layer(ids))


STRUCTURES: dict[str, Callable[[str, int | None], keras.Model]] = {
    "input": lambda kind, pad: functional(table(pad), kind),
    "dense_input": lambda kind, pad: functional(table(pad), None),
    "layer": lambda kind, pad: functional(Within(table(pad)), kind),
    "layer_in_layer": lambda kind, pad: functional(Within(Within(table(pad))), kind),
    "sequential": lambda kind, pad: keras.Sequential([table(pad)]),
    "sequential_with_input": lambda kind, pad: keras.Sequential(
        [keras.Input([None], dtype="int64", **{kind: True}), Within(table(pad))]
    ),
    "functional_in_sequential": lambda kind, pad: keras.Sequential(
        [keras.Input([None], dtype="int64"), functional(Within(table(pad)), kind)]
    ),
    "sequential_in_functional": lambda kind, pad: functional(keras.Sequential([table(pad)]), kind),
    "functional_in_functional": lambda kind, pad: functional(functional(table(pad), None), kind),
    "subclassed": lambda kind, pad: Model(table(pad)),
    "functional_in_subclassed": lambda kind, pad: Model(functional(table(pad), kind)),
    "table_batched": lambda kind, pad: functional(Bags(pad), kind),
    "table_batched_subclassed": lambda kind, pad: Model(Bags(pad)),
    "tfra": lambda kind, pad: functional(
        Within(tfra.keras.layers.SquashedEmbedding(2, combiner="mean", padding_id=pad)), kind
    ),
}

# Keras makes sparse ids dense if an input is dense, and so counts their filler.
DENSE_BY_KERAS = {("dense_input", "sparse"), ("sequential", "sparse")}
SIGNATURE = [tf.TensorSpec([None, None], tf.int64)]


def with_archive(model: Any, path: str, *, at_once: bool) -> None:
    archive = keras.export.ExportArchive()
    if at_once:
        archive.track_and_add_endpoint("serve", model, SIGNATURE)
    else:
        archive.track(model)
        archive.add_endpoint("serve", model.call, SIGNATURE)
        archive.add_variable_collection("weights", model.weights)
    archive.write_out(path, verbose=False)


def of_traced_function(model: Any, path: str) -> None:
    archive = keras.export.ExportArchive()
    archive.track(model)
    inner = tf.function(model)
    inner(DENSE)
    serve = tf.function(lambda ids: inner(ids))  # without tracing the model again
    serve(DENSE)
    archive.add_endpoint("serve", serve)
    archive.write_out(path, verbose=False)


class Module(tf.Module):
    """A module that serves a layer or a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @tf.function(input_signature=SIGNATURE)
    def serve(self, ids: tf.Tensor) -> tf.Tensor:
        return self.model(ids)


def as_module(model: Any, path: str) -> None:
    tf.saved_model.save(Module(model), path)


def as_keras_model(model: Any, path: str) -> None:
    tf.saved_model.save(model, path)


EXPORTS: dict[str, Callable[[Any, str], None]] = {
    "export": lambda model, path: model.export(path, verbose=False),
    "add_endpoint": lambda model, path: with_archive(model, path, at_once=False),
    "track_and_add_endpoint": lambda model, path: with_archive(model, path, at_once=True),
    "traced_function": of_traced_function,
    "saved_model": as_keras_model,
    "module": as_module,
    "export_static": tf_embed.export_static,
}


class TestCase(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str = "served") -> str:
        return os.path.join(tempfile.mkdtemp(), name)

    def assert_refused(self, model: keras.Model, export: str = "export") -> None:
        path = self.path()
        with self.assertRaisesRegex(ValueError, REFUSED):
            EXPORTS[export](model, path)
        self.assertFalse(os.path.exists(os.path.join(path, "saved_model.pb")))

    def assert_exact(self, model: keras.Model, wanted: Any, export: str = "export") -> None:
        path = self.path()
        EXPORTS[export](model, path)
        served = tf.saved_model.load(path).signatures["serving_default"]
        ((name, spec),) = served.structured_input_signature[1].items()
        (answers,) = served(**{name: tf.cast(DENSE, spec.dtype)}).values()
        self.assertAllClose(answers, wanted, rtol=1e-6)


class StructuresTest(TestCase):
    @parameterized.product(structure=list(STRUCTURES), kind=list(KINDS))
    def test_without_a_padding_id_no_structure_is_exported(self, structure, kind):
        model = STRUCTURES[structure](kind, None)
        wanted = model(KINDS[kind])
        if (structure, kind) in DENSE_BY_KERAS:
            self.assert_exact(model, wanted)
        else:
            self.assert_refused(model)

    @parameterized.product(structure=list(STRUCTURES), kind=list(KINDS))
    def test_with_a_padding_id_each_structure_is_served_exactly(self, structure, kind):
        model = STRUCTURES[structure](kind, 0)
        self.assert_exact(model, model(KINDS[kind]))

    @parameterized.product(structure=list(STRUCTURES), kind=list(KINDS))
    def test_a_loaded_model_is_refused_before_it_is_given_ragged_ids(self, structure, kind):
        model, path = STRUCTURES[structure](kind, None), self.path("m.keras")
        wanted = model(KINDS[kind])
        model.save(path)
        loaded = keras.models.load_model(path)
        if isinstance(loaded, Model):
            loaded(DENSE)  # Keras exports a subclassed model only after a call
        if (structure, kind) in DENSE_BY_KERAS:
            self.assert_exact(loaded, wanted)
        else:
            self.assert_refused(loaded)


class ExportsTest(TestCase):
    @parameterized.parameters(*EXPORTS)
    def test_without_a_padding_id_no_export_is_written(self, export):
        by_its_input = STRUCTURES["layer"]("ragged", None)
        self.assert_refused(by_its_input, export)
        by_a_call = STRUCTURES["sequential"]("ragged", None)
        by_a_call(IDS)
        self.assert_refused(by_a_call, export)

    @parameterized.parameters(*EXPORTS)
    def test_with_a_padding_id_each_export_is_exact(self, export):
        model = STRUCTURES["layer"]("ragged", 0)
        self.assert_exact(model, model(IDS), export)

    def test_a_function_that_was_traced_before_the_layer_was_given_ragged_ids(self):
        layer = table()
        module = Module(layer)
        module.serve(DENSE)
        layer(IDS)
        with self.assertRaisesRegex(ValueError, REFUSED):
            tf.saved_model.save(module, self.path())

    def test_a_width_in_the_signature_does_not_help(self):
        model = STRUCTURES["subclassed"]("ragged", None)
        model(IDS)
        signature = [tf.TensorSpec([None, 2], tf.int64)]
        with self.assertRaisesRegex(ValueError, REFUSED + r" shape=\(None, 2\)"):
            model.export(self.path(), input_signature=signature, verbose=False)

    def test_the_function_that_keras_gives_a_model_in_a_module_refuses_calls(self):
        model = STRUCTURES["layer"]("ragged", None)
        module, path = tf.Module(), self.path()
        module.model = model
        module.serve = tf.function(
            model, input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)]
        )
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        self.assertAllClose(loaded.serve(IDS), model(IDS))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`padding_id` of"):
            loaded.model._default_save_signature(DENSE)

    def test_ids_in_a_loop_are_refused(self):
        layer = DynamicEmbedding(2)
        rows = functional(Looped(layer), "ragged")
        with self.assertRaisesRegex(ValueError, REFUSED):
            rows.export(self.path(), verbose=False)

    def test_functions_that_are_not_found_are_refused(self):
        model = functional(table(), None)
        unknown = mock.patch.object(callers, "functions_to_save", return_value=None)
        refused = self.assertRaisesRegex(RuntimeError, "are not where this version of TensorFlow")
        with unknown, refused:
            model.export(self.path(), verbose=False)

    def test_something_else_in_place_of_the_kinds_of_ids_in_a_file(self):
        arrays = {"given_ids": np.frombuffer(b"[3]", np.uint8)}
        with self.assertRaisesRegex(ValueError, "no kinds of ids for 'items': "):
            GivenIds(["items"]).load(arrays)


class LegitimateTest(TestCase):
    """Models without a padding id that need none to be exact."""

    def test_a_dense_model_that_shares_its_table_with_a_ragged_one(self):
        layer = table()
        functional(Within(layer), "ragged")(IDS)
        layer(IDS), Model(layer)(IDS)
        dense = functional(Within(layer), None)
        self.assert_exact(dense, dense(DENSE))

    def test_ids_of_another_rank_than_the_ragged_ones(self):
        layer = DynamicEmbedding(2)
        layer(IDS)
        model, path = Model(layer), self.path()
        wanted = model(tf.constant([1, 5]))
        model.export(path, input_signature=[tf.TensorSpec([None], tf.int64)], verbose=False)
        served = tf.saved_model.load(path)
        self.assertAllEqual(served.serve(tf.constant([1, 5], tf.int64)), wanted)

    def test_a_dense_input_beside_a_ragged_one(self):
        inputs = {
            "user": keras.Input([1], dtype="int64", name="user"),
            "items": keras.Input([None], dtype="int64", ragged=True, name="items"),
        }
        user, items = Within(table()), Within(table(0))
        model = keras.Model(inputs, user(inputs["user"]) + items(inputs["items"]))
        users = tf.constant([[4], [0], [6]], tf.int64)
        wanted, path = model({"user": users, "items": IDS}), self.path()
        model.export(path, verbose=False)
        served = tf.saved_model.load(path)
        self.assertAllClose(served.serve({"user": users, "items": DENSE}), wanted)

    @parameterized.parameters(*KINDS)
    def test_a_model_that_makes_ids_dense_itself(self, kind):
        model, path = functional(Densified(table()), kind), self.path("m.keras")
        wanted = tf.function(model)(KINDS[kind])
        self.assert_exact(model, wanted)
        model.save(path)
        self.assert_exact(keras.models.load_model(path), wanted)

    @parameterized.product(
        structure=["layer", "sequential", "functional_in_subclassed", "table_batched"],
        signature=["padded", "parts", "ragged"],
    )
    def test_an_endpoint_that_gives_ragged_ids(self, structure, signature):
        model, path = STRUCTURES[structure]("ragged", None), self.path()
        wanted = model(IDS)
        vector, module = tf.TensorSpec([None], tf.int64), tf.Module()
        make, specs, given = {
            "padded": (lambda ids: tf.RaggedTensor.from_tensor(ids, padding=0), SIGNATURE, [DENSE]),
            "parts": (
                tf.RaggedTensor.from_row_splits,
                [vector, vector],
                [IDS.flat_values, IDS.row_splits],
            ),
            "ragged": (tf.identity, [tf.RaggedTensorSpec([None, None], tf.int64)], [IDS]),
        }[signature]
        module.model = model
        module.serve = tf.function(lambda *ids: model(make(*ids)), input_signature=specs)
        tf.saved_model.save(module, path)
        served = tf.saved_model.load(path)
        self.assertAllClose(served.serve(*given), wanted)

    def test_dense_batches_in_fit_and_predict(self):
        model = functional(Within(table()), "ragged")
        model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
        batches = tf.data.Dataset.from_tensors((DENSE, tf.ones([3, 2])))
        of_any_length = tf.data.Dataset.from_generator(
            lambda: iter(batches),
            output_signature=(SIGNATURE[0], tf.TensorSpec([None, 2])),
        )
        for some in (batches, of_any_length):
            model.fit(some, verbose=0)
            self.assertAllClose(model.predict(some, verbose=0), model(DENSE))

    def test_a_layer_that_gives_an_inner_model_ragged_ids(self):
        inner = functional(table(), "ragged")
        outer = functional(Unpadded(inner), None)
        for export in ("export", "saved_model", "export_static"):
            self.assert_exact(outer, inner(IDS), export)


if __name__ == "__main__":
    tf.test.main()
