# SPDX-License-Identifier: Apache-2.0
"""SavedModels: exported, saved, loaded, saved again, served by a process that imports tf_embed.

Processes are expensive, so all served models are saved first, and a single process serves them.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from tf_embed.layers import DynamicEmbedding

IDS = np.array([[1, 2, 3], [3, 999, -5], [10**12, 0, 1]])

SERVER = """
    import json, pathlib, sys
    import tensorflow as tf
    import tf_embed

    folder = pathlib.Path(sys.argv[1])
    ids = tf.constant(json.loads(sys.argv[2]), tf.int64)
    served = {}
    for path in sorted(folder.glob("*.saved")):
        loaded = tf.saved_model.load(str(path))
        call = loaded.serve if hasattr(loaded, "serve") else loaded.lookup
        served[path.stem] = call(ids).numpy().tolist()
        signature = next(iter(loaded.signatures.values()), None)
        if signature is not None:
            (name,) = signature.structured_input_signature[1]
            (outputs,) = signature(**{name: ids}).values()
            assert outputs.numpy().tolist() == served[path.stem], path
        tf.saved_model.save(loaded, str(path) + ".again")
        again = tf.saved_model.load(str(path) + ".again")
        call = again.serve if hasattr(again, "serve") else again.lookup
        assert call(ids).numpy().tolist() == served[path.stem], path
    print(json.dumps(served))
"""

KERAS_READER = """
    import json, pathlib, sys
    import numpy as np
    import tf_embed, keras

    folder = pathlib.Path(sys.argv[1])
    ids = np.array(json.loads(sys.argv[2]))
    read = {
        path.stem: keras.models.load_model(path).predict(ids, verbose=0).tolist()
        for path in sorted(folder.glob("*.keras"))
    }
    print(json.dumps(read))
"""


class Lookup(tf.Module):
    """A module with a Variable, without Keras."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.v = tf_embed.Variable(**{"dim": 2, "name": "served", **options})

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.v.lookup(ids)


def trained_model(**options: Any) -> keras.Model:
    layer = DynamicEmbedding(2, **{"optimizer": "adam", **options})
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile("adam", "mse")
    model.fit(IDS % 4, np.ones(3), verbose=0)
    return model


def filled(**options: Any) -> Lookup:
    module = Lookup(**options)
    module.v.upsert([1, 2, 3], np.arange(6.0).reshape(3, 2))
    return module


def subprocess_run(code: str, *arguments: str) -> Any:
    """The last line that a new Python process prints, from JSON."""
    environment = dict(os.environ)
    package = str(pathlib.Path(tf_embed.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        [package, *filter(None, [environment.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.smoke
class FreshProcessTest(tf.test.TestCase):
    def test_fresh_processes_serve_what_was_saved(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        wanted = {}

        def module(name: str, one: Lookup) -> None:
            tf.saved_model.save(one, str(folder / f"{name}.saved"))
            wanted[name] = one.lookup(tf.constant(IDS)).numpy()

        def model(name: str, one: keras.Model, **options: Any) -> None:
            one.export(str(folder / f"{name}.saved"), verbose=False, **options)
            wanted[name] = one.predict(IDS, verbose=0)

        normal = keras.initializers.RandomNormal(seed=5)
        module("sharded", filled(initializer=normal, devices=["/CPU:0"] * 3))
        module("not_in_checkpoints", filled(checkpoint=False, value_dtype=tf.float16))
        module("empty", Lookup(initializer="uniform"))
        model("unknown", trained_model(unknown_value=-7.0))
        model("half", trained_model(value_dtype="bfloat16", devices=["/CPU:0"] * 2))
        read = {"padded": trained_model(padding_id=0)}
        for name, one in read.items():
            one.save(folder / f"{name}.keras")
        ids = json.dumps(IDS.tolist())
        served = subprocess_run(SERVER, str(folder), ids)
        self.assertEqual(sorted(served), sorted(wanted))
        for name, rows in wanted.items():
            self.assertAllEqual(np.array(served[name], rows.dtype), rows, msg=name)
        loaded = subprocess_run(KERAS_READER, str(folder), ids)
        for name, one in read.items():
            self.assertAllClose(loaded[name], one.predict(IDS, verbose=0), rtol=1e-6, msg=name)


class SavedModelTest(tf.test.TestCase, parameterized.TestCase):
    def path(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters("export", "save")
    def test_slots_are_left_out_and_stay_in_the_table(self, way):
        model, path = trained_model(), self.path()
        table = model.layers[0].variable.table
        before = [tensor.numpy() for tensor in table.export()]
        self.assertEqual(before[2].shape[1], 4)
        if way == "export":
            model.export(path, verbose=False)
        else:
            tf.saved_model.save(model, path)
        for one, other in zip(before, table.export(), strict=True):
            self.assertAllEqual(one, other)
        variables = os.path.join(path, "variables", "variables")
        shapes = dict(tf.train.list_variables(variables))
        (slots,) = (shape for name, shape in shapes.items() if name.endswith("slots"))
        (keys,) = (shape for name, shape in shapes.items() if name.endswith("keys"))
        self.assertEqual((slots[-1], keys[0]), (0, len(before[0])))

    def test_training_goes_on_after_an_export_as_if_there_were_none(self):
        rows = []
        for export in (False, True):
            keras.utils.set_random_seed(1)
            model = trained_model(initializer="ones")
            if export:
                model.export(self.path(), verbose=False)
                tf.saved_model.save(model, self.path())
            model.fit(IDS % 4, np.ones(3), verbose=0)
            rows.append(model.layers[0](tf.range(4)))
        self.assertAllEqual(*rows)

    def test_a_savedmodel_loaded_twice_is_two_tables(self):
        path = self.path()

        class Writable(Lookup):
            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
            def remove(self, keys: tf.Tensor) -> None:
                self.v.remove(keys)

        module = Writable()
        module.v.upsert([1, 2], np.ones([2, 2]))
        tf.saved_model.save(module, path)
        one, other = tf.saved_model.load(path), tf.saved_model.load(path)
        one.remove(tf.constant([1], tf.int64))
        ids = tf.constant([[1, 2]], tf.int64)
        self.assertAllEqual(one.lookup(ids), [[[0, 0], [1, 1]]])
        self.assertAllEqual(other.lookup(ids), [[[1, 1], [1, 1]]])
        self.assertAllEqual(module.lookup(ids), [[[1, 1], [1, 1]]])
        again = self.path()
        tf.saved_model.save(one, again)
        self.assertAllEqual(tf.saved_model.load(again).lookup(ids), one.lookup(ids))

    def test_a_function_of_a_loaded_savedmodel_keeps_its_table(self):
        path, module = self.path(), filled()
        tf.saved_model.save(module, path)
        lookup = tf.saved_model.load(path).signatures["serving_default"]
        gc.collect()
        (rows,) = lookup(ids=tf.constant(IDS)).values()
        self.assertAllEqual(rows, module.lookup(tf.constant(IDS)))

    def test_each_run_of_a_session_has_the_rows(self):
        path, module = self.path(), filled()
        tf.saved_model.save(module, path)
        wanted = module.lookup(tf.constant(IDS)).numpy()
        for _ in range(2):
            with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
                meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
                signature = meta.signature_def["serving_default"]
                (ids,), (rows,) = signature.inputs.values(), signature.outputs.values()
                for _ in range(3):
                    gc.collect()
                    self.assertAllEqual(session.run(rows.name, {ids.name: IDS}), wanted)

    def test_ids_that_are_new_when_serving_get_the_initial_rows_of_training(self):
        module = Lookup(initializer=keras.initializers.RandomUniform(seed=3))
        path = self.path()
        tf.saved_model.save(module, path)
        rows = tf.saved_model.load(path).lookup(tf.constant([[17]], tf.int64))
        wanted = reference.uniform_row("served", 3, 17, 2, -0.05, 0.05)
        self.assertAllEqual(rows[0, 0], np.float32(wanted))

    def test_a_restored_seed_is_exported(self):
        # The handle still has its original seed; the rows have the restored seed.
        saved = filled(initializer=keras.initializers.RandomUniform(seed=3), name="one")
        restored = Lookup(initializer=keras.initializers.RandomUniform(seed=4), name="other")
        checkpoint = tf.train.Checkpoint(m=saved).write(os.path.join(self.path(), "ckpt"))
        tf.train.Checkpoint(m=restored).read(checkpoint).assert_consumed()
        path = self.path()
        tf.saved_model.save(restored, path)
        ids = tf.constant([[17, 1]], tf.int64)
        self.assertAllEqual(tf.saved_model.load(path).lookup(ids), saved.lookup(ids))

    def test_many_threads_are_served_at_once(self):
        path = self.path()
        module = filled()
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        data = tf.data.Dataset.from_tensors(tf.constant(IDS)).repeat(200)
        served = data.map(loaded.lookup, num_parallel_calls=8)
        wanted = module.lookup(tf.constant(IDS))
        self.assertEqual(sum(bool(tf.reduce_all(rows == wanted)) for rows in served), 200)


class MemoryTest(tf.test.TestCase):
    ROWS, DIM = 100_000, 64  # 26 MB

    def resident_mb(self) -> float:
        gc.collect()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def fill(self, v: tf_embed.Variable) -> None:
        v.upsert(np.arange(self.ROWS), np.ones([self.ROWS, self.DIM], np.float32))

    def growth_mb(self, once: Any) -> float:
        """The growth of memory in eight calls. A call takes 26 MB."""
        for _ in range(3):  # the allocators of C++, NumPy and TensorFlow retain some memory
            once()
        before = self.resident_mb()
        for _ in range(8):
            once()
        return self.resident_mb() - before

    def test_a_table_takes_memory_that_can_be_seen(self):
        before = self.resident_mb()
        kept = [tf_embed.Variable(dim=self.DIM) for _ in range(3)]
        for v in kept:
            self.fill(v)
        self.assertGreater(self.resident_mb() - before, 50)

    def test_the_memory_of_a_variable_goes_with_the_variable(self):
        self.assertLess(self.growth_mb(lambda: self.fill(tf_embed.Variable(dim=self.DIM))), 80)

    def test_clear_gives_memory_back(self):
        v = tf_embed.Variable(dim=self.DIM, devices=["/CPU:0"] * 2)

        def fill_and_clear() -> None:
            self.fill(v)
            v.clear()
            self.assertEqual(int(v.size()), 0)

        self.assertLess(self.growth_mb(fill_and_clear), 80)

    def test_the_memory_of_a_loaded_savedmodel_goes_with_it(self):
        module = Lookup(dim=self.DIM)
        self.fill(module.v)
        path = tempfile.mkdtemp(dir=self.get_temp_dir())
        tf.saved_model.save(module, path)
        self.assertLess(self.growth_mb(lambda: tf.saved_model.load(path)), 80)


if __name__ == "__main__":
    tf.test.main()
