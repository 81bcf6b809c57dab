# SPDX-License-Identifier: Apache-2.0
"""Static exports of each kind of model, served without tf_embed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest.mock
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases import static_models
from support.cases.static_models import IDS, Case
from support.processes import c_api_serve
from support.processes.stock_process import StockProcess
from tf_embed.layers import DynamicEmbedding
from tf_embed.saving import row_blocks
from tf_embed.serving import Follower, Publisher

CASES = static_models.cases()

_stock: StockProcess  # shared by all tests of the file


def setUpModule():
    global _stock
    _stock = StockProcess().__enter__()


def tearDownModule():
    _stock.__exit__()


class StockTest(tf.test.TestCase, parameterized.TestCase):
    """Exports models, and serves them in the stock process."""

    @property
    def stock(self) -> StockProcess:
        return _stock

    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def export(self, case: Case, **options: Any) -> str:
        path = os.path.join(self.folder(), "static")
        tf_embed.export_static(case.model, path, input_signature=case.signature, **options)
        return path

    def served(self, case: Case, **options: Any) -> list[np.ndarray]:
        path = self.export(case, **options)
        return self.stock.call(path, tf.nest.map_structure(lambda one: one.numpy(), case.inputs))

    def assert_same(self, got: list[np.ndarray], wanted: list[np.ndarray]):
        self.assertEqual([one.dtype for one in got], [one.dtype for one in wanted])
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


class CasesTest(StockTest):
    @parameterized.named_parameters((name.replace(" ", "_"), name) for name in CASES)
    def test_answers_are_those_of_the_model_to_the_last_bit(self, name: str):
        case = CASES[name]()
        if name == "tfra std":  # on some processors, TensorFlow's rounding depends on the graph
            return self.assertAllClose(self.served(case), case.answers, rtol=3e-7, atol=0.0)
        self.assert_same(self.served(case), case.answers)


class ServingTest(StockTest):
    @pytest.mark.smoke
    def test_loaders_of_each_kind_answer_as_the_model(self):
        case = CASES["several tables"]()
        path = self.export(case)
        (batch,) = case.inputs
        arrays = {name: one.numpy() for name, one in batch.items()}
        self.assert_same(self.stock.call(path, [arrays]), case.answers)
        for ask in (self.stock.signature, self.stock.session):
            for name in ("serving_default", "serve"):
                (answers,) = ask(path, arrays, name).values()
                self.assert_same([answers], case.answers)
        other = os.path.join(self.folder(), "again")
        self.assert_same(self.stock.call_again(path, [arrays], other), case.answers)

    def test_the_c_api_serves_it(self):
        folder = pathlib.Path(self.folder())
        case = CASES["pooled padding"]()
        path = self.export(case)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
            signature = meta.signature_def["serving_default"]
            (fed,), (got,) = signature.inputs.values(), signature.outputs.values()
            names = [one.name.partition(":")[0] for one in (fed, got)]
        np.save(folder / "ids.npy", IDS)
        program = pathlib.Path(c_api_serve.__file__)
        library = pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"
        files = [folder / "ids.npy", folder / "answers.npy"]
        command = [sys.executable, program, library, path, *names, *files]
        subprocess.run(list(map(str, command)), check=True, timeout=300)
        self.assert_same([np.load(folder / "answers.npy")], case.answers)

    def test_each_function_of_a_module_keeps_its_name(self):
        class Module(tf.Module):
            def __init__(self):
                super().__init__()
                self.v = static_models.filled()

            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
            def lookup(self, ids):
                return {"rows": self.v.lookup(ids)}

            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
            def total(self, ids):
                rows = self.v.lookup(ids)
                if tf.size(ids) > 2:  # a condition in the graph
                    rows = -rows
                return tf.reduce_sum(rows, 0)

        module = Module()
        ids = tf.constant([5, -9, 4], tf.int64)
        rows, total = module.lookup(ids)["rows"].numpy(), module.total(ids).numpy()
        path = self.export(Case(module, (ids,)))
        self.assert_same(self.stock.call(path, [ids.numpy()], "lookup"), [rows])
        self.assert_same(self.stock.call(path, [ids.numpy()], "total"), [total])
        answers = self.stock.session(path, {"ids": ids.numpy()}, "lookup")
        self.assert_same([answers["rows"]], [rows])

    def test_lookup_tables_in_lists_and_dicts_are_served(self):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.looks = {"word": [keras.layers.StringLookup(vocabulary=["a", "b"])]}
                keys, values = tf.constant([0, 1, 2], tf.int64), tf.constant([7, 8, 9], tf.int64)
                init = tf.lookup.KeyValueTensorInitializer(keys, values)
                self.tables = [tf.lookup.StaticHashTable(init, -1)]
                self.rows = [DynamicEmbedding(2, combiner="sum", initializer="uniform")]

            def call(self, words):
                return self.rows[0](self.tables[0].lookup(self.looks["word"][0](words)))

        words = tf.constant([["a", "b"], ["c", "a"]])
        model = Model()
        answers = model(words)
        path = os.path.join(self.folder(), "words")
        spec = [tf.TensorSpec([None, 2], tf.string)]
        tf_embed.export_static(model, path, input_signature=spec)
        loaded = tf.saved_model.load(path)
        self.assertAllEqual(loaded.serve(words), answers)

    def test_ragged_ids_are_served_as_such(self):
        layer = DynamicEmbedding(4, combiner="mean", initializer="normal")
        layer.build()
        ids = tf.ragged.constant([[1, 2], [], [3]], tf.int64)
        path = os.path.join(self.folder(), "ragged")
        spec = tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1)
        tf_embed.export_static(layer, path, input_signature=[spec])
        loaded = tf.saved_model.load(path)
        self.assertAllEqual(loaded.serve(ids), layer(ids))

    @parameterized.product(initializer=["uniform", "ones"], shape=[[], None])
    def test_one_id_without_an_axis(self, initializer: str, shape: list[int] | None):
        v = static_models.filled(initializer=initializer)
        case = static_models.module(v.lookup, [IDS[0]], v)
        path = os.path.join(self.folder(), "one")
        spec = [tf.TensorSpec(shape, tf.int64)]
        tf_embed.export_static(case.model, path, input_signature=spec)
        loaded = tf.saved_model.load(path)
        for key in (*v.export()[0][:1].numpy(), -12345):  # a key with a row, and a key without
            key = tf.constant(key, tf.int64)
            self.assertAllEqual(loaded.serve(key), v.lookup(key))

    def test_absent_ids_get_zeros_if_that_is_wished(self):
        v = static_models.filled(initializer=2.5)
        case = static_models.lookup(v, [[5, 6]])
        ((kept, absent),), exists = self.served(case, absent="zeros")
        self.assertAllEqual(exists, [[True, False]])
        self.assertAllEqual(kept, v.lookup([5])[0])
        self.assertAllEqual(absent, np.zeros(static_models.DIM))

    @parameterized.parameters("keras", "weights", "checkpoint", "snapshot", "files", "follower")
    def test_absent_ids_have_the_rows_of_the_table_that_was_loaded(self, way: str):
        def model() -> tuple[keras.Model, tf_embed.Variable]:
            layer = DynamicEmbedding(2, initializer="uniform", policy=tracked, name="emb")
            return keras.Sequential([keras.Input([1], dtype="int64"), layer]), layer.variable

        tracked = tf_embed.TablePolicy(track_changes=True)
        (trained, table), (loaded, other) = model(), model()
        table.upsert([7], [[1.5, 2.5]])
        folder = self.folder()
        if way == "keras":
            trained.save(f"{folder}/m.keras")
            loaded = keras.models.load_model(f"{folder}/m.keras")
        elif way == "weights":
            trained.save_weights(f"{folder}/m.weights.h5")
            loaded.load_weights(f"{folder}/m.weights.h5")
        elif way == "checkpoint":
            tf.train.Checkpoint(m=trained).write(f"{folder}/c")
            tf.train.Checkpoint(m=loaded).read(f"{folder}/c").assert_consumed()
        elif way == "snapshot":
            tf_embed.Snapshots(folder, trained).save("s")
            tf_embed.Snapshots(folder, loaded).load("s")
        elif way == "files":
            table.save_rows(folder)
            other.load_rows(folder)
        else:
            Publisher(trained, folder).publish()
            Follower(loaded, folder).update()
        ids = tf.constant([[7], [8]], tf.int64)
        wanted = trained(ids).numpy()
        np.testing.assert_array_equal(loaded(ids).numpy(), wanted)
        self.assert_same(self.served(Case(loaded, (ids,))), [wanted])

    def test_later_training_leaves_the_export_as_it_is(self):
        v = static_models.filled()
        case = static_models.lookup(v, IDS)
        before = case.answers
        path = self.export(case)
        v.clear()
        self.assert_same(self.stock.call(path, [IDS]), before)

    def test_all_rows_of_a_large_table_are_there(self):
        keys = np.random.default_rng(5).permutation(200_000) * 7_919 - 10**8
        v = static_models.filled(keys, dim=4)
        self.assert_same(
            self.served(static_models.lookup(v, keys[:, np.newaxis])),
            static_models.lookup(v, keys[:, np.newaxis]).answers,
        )


class BlocksTest(StockTest):
    def test_many_blocks_are_as_one(self):
        with unittest.mock.patch.object(row_blocks, "BLOCK_BYTES", 100):
            for make in (CASES["keys int64"], CASES["keys string"], CASES["values string"]):
                case = make()
                self.assert_same(self.served(case), case.answers)

    def test_a_table_on_disk_is_exported_without_a_copy_in_memory(self):
        case = static_models.tiered_case(self.folder())
        wanted = case.answers
        table = case.model.parts[0].table
        with unittest.mock.patch.object(type(table), "export", side_effect=AssertionError):
            served = self.served(case)
        self.assert_same(served, wanted)

    def test_words_on_disk_are_exported_too(self):
        storage = tf_embed.Storage(host_bytes=2**16, path=self.folder())
        words = [f"word {i}" for i in range(3000)]
        v = static_models.filled(words, key_dtype=tf.string, storage=storage)
        ids = np.array([words[2990:], words[:10]], object)
        case = static_models.lookup(v, ids)
        self.assert_same(self.served(case), case.answers)


class RefusedTest(StockTest):
    """Refused exports, which leave no files behind."""

    def refused(self, model: Any, what: str, kind: type = ValueError, **options: Any):
        folder = self.folder()
        with self.assertRaisesRegex(kind, what):
            tf_embed.export_static(model, os.path.join(folder, "static"), **options)
        self.assertEmpty(os.listdir(folder))

    def test_a_path_that_exists(self):
        case = CASES["rows"]()
        path = self.export(case)
        with self.assertRaisesRegex(ValueError, "`path` must not exist, or `overwrite`"):
            tf_embed.export_static(case.model, path)
        case.model.layers[1].variable.upsert([5], np.ones([1, static_models.DIM]))
        tf_embed.export_static(case.model, path + "/", overwrite=True)
        self.assert_same(self.stock.call(path, [IDS]), case.answers)
        self.assertEqual(os.listdir(os.path.dirname(path)), ["static"])

    def test_to_overwrite_what_is_no_model(self):
        folder = pathlib.Path(self.folder())
        (folder / "precious.txt").write_text("mine")
        for path in (folder, folder / "precious.txt"):
            with self.assertRaisesRegex(ValueError, "`path` must be a SavedModel or an empty"):
                tf_embed.export_static(CASES["rows"]().model, path, overwrite=True)
        self.assertEqual((folder / "precious.txt").read_text(), "mine")

    def test_a_failure_leaves_the_earlier_export(self):
        case = CASES["rows"]()
        path = self.export(case)
        wanted = case.answers
        for where in ("tensorflow.saved_model.save", "tensorflow.io.gfile.rename"):
            with (
                unittest.mock.patch(where, side_effect=OSError("full")),
                self.assertRaisesRegex(OSError, "full"),
            ):
                tf_embed.export_static(case.model, path, overwrite=True)
            self.assertEqual(os.listdir(os.path.dirname(path)), ["static"])
            self.assert_same(self.stock.call(path, [IDS]), wanted)

    def test_an_earlier_export_that_can_not_be_put_back_is_named(self):
        case = CASES["rows"]()
        path = self.export(case)
        rename = tf.io.gfile.rename

        def full(source: str, target: str) -> None:
            if target == path:
                raise tf.errors.ResourceExhaustedError(None, None, "full")
            rename(source, target)

        with (
            unittest.mock.patch("tensorflow.io.gfile.rename", full),
            self.assertRaisesRegex(
                tf.errors.UnavailableError,
                r"can't be replaced \(full\), and what was there is '(.*replaced)' now, because "
                "it can't be renamed again: full",
            ) as caught,
        ):
            tf_embed.export_static(case.model, path, overwrite=True)
        (name,) = os.listdir(os.path.dirname(path))
        self.assertIn(f"/{name}' now", str(caught.exception))
        (batch,) = case.inputs
        rows = self.stock.call(os.path.join(os.path.dirname(path), name), [batch.numpy()])
        self.assert_same(rows, case.answers)

    def test_models_that_can_not_be_called(self):
        self.refused(keras.Sequential([DynamicEmbedding(2)]), "`model` must be built")
        self.refused(
            static_models.subclassed().model, "because the inputs of `model` are not known: such as"
        )
        self.refused(tf.Module(), "or `model` must have a tf.function with an input_signature")
        self.refused("model", "`model` must be a Keras model", TypeError)
        spec = [tf.TensorSpec([None], tf.int64)]
        self.refused(tf.Module(), "`model` must have a `__call__`", TypeError, input_signature=spec)

    @parameterized.parameters("weights", "tables", "resources", "variables", "name")
    def test_names_that_the_exported_module_needs_itself(self, name: str):
        signature = [tf.TensorSpec([None], tf.int64)]
        model = tf.Module()
        model.v = static_models.filled()
        function = tf.function(lambda self, ids: self.v.lookup(ids), input_signature=signature)
        model.__class__ = type("Model", (tf.Module,), {name: function})
        self.refused(model, f"'tables', 'weights' or 'resources'. Received: {name!r} in ")

    def test_other_arguments(self):
        model = CASES["rows"]().model
        listed = "must be a list or a tuple, of what each argument is. Received:"
        for options, what, kind in (
            ({"quantize": "int4"}, "`quantize` must be", ValueError),
            ({"absent": "nothing"}, "`absent` must be", ValueError),
            ({"overwrite": "yes"}, "`overwrite` must be", TypeError),
            ({"input_signature": tf.TensorSpec([None])}, f"{listed} input_sig", TypeError),
            ({"input_signature": []}, rf"{listed} input_signature=\[\]", TypeError),
            ({"input_signature": ["int64"]}, "`input_signature` must be of tf.T", TypeError),
        ):
            self.refused(model, what, kind, **options)

    def test_ops_that_other_processes_lack(self):
        v = static_models.filled()
        for function, what in (
            (lambda ids: v.size(), "TfEmbedSize"),
            (
                lambda ids: tf.py_function(lambda one: one, [ids], tf.int64),
                "must not call Python when it runs, .* Received: .* runs EagerPyFunc",
            ),
            (lambda ids: tf.map_fn(lambda _: v.size(), ids), "TfEmbedSize"),
        ):
            case = static_models.module(function, [IDS[0]], v)
            self.refused(case.model, what, input_signature=case.signature)

    def test_a_function_that_was_traced_before(self):
        v = static_models.filled()
        lookup = tf.function(v.lookup)
        case = static_models.module(lookup, [IDS[0]], v)
        lookup.get_concrete_function(tf.TensorSpec([None], tf.int64))
        self.refused(
            case.model, "If a tf.function that it calls was", input_signature=case.signature
        )

    def test_within_a_graph(self):
        model = CASES["rows"]().model

        @tf.function
        def export():
            tf_embed.export_static(model, "/tmp/unused")

        with self.assertRaisesRegex(ValueError, "`export_static` must be called in eager exec"):
            export()


class QuantizedTest(StockTest):
    """Rows in fewer bits, and their distance from the model's rows."""

    def rows(self, rows: np.ndarray, quantize: str, **options: Any) -> np.ndarray:
        v = tf_embed.Variable(dim=rows.shape[1], name="rounded", initializer="normal", **options)
        keys = np.arange(len(rows))
        v.upsert(keys, tf.cast(rows, v.value_dtype))
        case = static_models.lookup(v, [*keys, -1])
        answers, exists = self.served(case, quantize=quantize)
        self.assertAllEqual(exists, [True] * len(rows) + [False])
        initial = static_models.arrays_of(v.lookup([-1])[0])[0]
        self.assertAllEqual(answers[-1], initial)  # initial rows are exact
        if v.value_dtype == tf.bfloat16:
            answers = tf.bitcast(answers, tf.bfloat16)
        return tf.cast(answers[:-1], tf.float64).numpy()

    def samples(self, value_dtype: str) -> np.ndarray:
        """Rows of many magnitudes and ranges, in float64, exact in the dtype."""
        rng = np.random.default_rng(7)
        rows = [
            rng.normal(mean, scale, [50, 64]) for mean in (0, 1, -300) for scale in (1e-4, 1, 90)
        ]
        special = np.zeros([4, 64])
        special[1, 0], special[2], special[3, ::2] = 3.0, -2.5, 6e4
        return tf.cast(tf.cast(np.concatenate([*rows, special]), value_dtype), "float64").numpy()

    @parameterized.parameters("float32", "float64", "bfloat16")
    def test_bytes_are_within_the_bound(self, value_dtype: str):
        rows = self.samples(value_dtype)
        got = self.rows(rows, "int8", value_dtype=value_dtype)
        span = rows.max(-1, keepdims=True) - rows.min(-1, keepdims=True)
        bound = span / 510 + 2.0**-21 * np.abs(rows).max(-1, keepdims=True) + 2.0**-126
        if value_dtype == "bfloat16":  # in addition, bfloat16 itself rounds
            bound = bound + 2.0**-8 * np.abs(rows)
        self.assertTrue((np.abs(rows - got) <= bound).all())
        self.assertFalse((rows == got).all())

    @parameterized.parameters("float32", "float64")
    def test_halves_are_within_the_bound(self, value_dtype: str):
        rows = self.samples(value_dtype)
        got = self.rows(rows, "float16", value_dtype=value_dtype)
        bound = np.abs(rows) / 2048 + 2.0**-25
        self.assertTrue((np.abs(rows - got) <= bound).all())
        self.assertFalse((rows == got).all())

    def test_pooled_rows_are_those_that_were_rounded(self):
        case = CASES["pooled mean"]()
        for quantize in ("float16", "int8"):
            (got,), (wanted,) = self.served(case, quantize=quantize), case.answers
            np.testing.assert_allclose(got, wanted, rtol=0.05, atol=0.05)

    def test_exports_are_smaller(self):
        v = static_models.filled(np.arange(20_000), dim=64)
        case = static_models.lookup(v, IDS)

        def size(quantize: str | None) -> int:
            path = pathlib.Path(self.export(case, quantize=quantize))
            return sum(one.stat().st_size for one in (path / "variables").iterdir())

        whole, half, byte = size(None), size("float16"), size("int8")
        self.assertLess(half, 0.55 * whole)
        self.assertLess(byte, 0.35 * whole)

    def test_what_gains_nothing_stays_exact(self):
        for options in (
            {"value_dtype": "float16"},
            {"value_dtype": "int64"},
            {"dim": 2},  # a scale and a bias would be larger than the weights
        ):
            case = static_models.lookup(static_models.filled(**options), IDS)
            quantize = "int8" if "dim" in options or "int" in str(options) else "float16"
            self.assert_same(self.served(case, quantize=quantize), case.answers)

    def test_rows_that_the_format_can_not_hold_are_refused(self):
        v = static_models.filled(dim=64)
        case = static_models.lookup(v, IDS)
        for weight, quantize, what in (
            (65520.0, "float16", "less than 65520 in size to be quantized to float16"),
            (np.inf, "int8", "finite in float32, spans included, to be quantized to int8"),
            (np.nan, "int8", "finite in float32, spans included, to be quantized to int8"),
        ):
            v.upsert([5], np.full([1, 64], weight))
            folder = self.folder()
            what += f". Received: a row with the weight {weight}; leave `quantize` out, or remove"
            with self.assertRaisesRegex(ValueError, f"Rows of 'filled' must be {what}"):
                tf_embed.export_static(
                    case.model, f"{folder}/a", quantize, input_signature=case.signature
                )
            self.assertEmpty(os.listdir(folder))
        v.upsert([5], np.full([1, 64], np.inf))
        answers, _ = self.served(case, quantize="float16")
        self.assertAllEqual(answers[0, 0], np.full(64, np.inf))


if __name__ == "__main__":
    tf.test.main()
