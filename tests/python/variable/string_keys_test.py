# SPDX-License-Identifier: Apache-2.0
"""Tables of strings: each verb against a dict, and every save path, also if 64 bits collide."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.control_flow_cases import DIM, IDS, PLACES
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

CPU = ["/CPU:0"]
ODD = [
    "",
    "\0",
    "a",
    "a\0",
    "a\0\0",
    "ä",
    "日本語",
    "x" * 22,
    "x" * 23,
    "x" * 5000,
    b"\xff\xfe\x80",
]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: np.ndarray) -> np.ndarray:
    """Mix64 of cc/core/base/hash.h."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def colliding(count: int, length: int = 16) -> list[bytes]:
    """Different ASCII strings with the same 64-bit hash of cc/core/batch/string_batch.h.

    Each block is xored into the state, so the second block can undo the effect of the first.
    """
    with np.errstate(over="ignore"):
        start = mix(np.uint64(length + 1) * GOLDEN)
        rng = np.random.default_rng(SEED)
        first = rng.integers(0, 128, [300 * count + 3000, 8], np.uint8).view(np.uint64).ravel()
        second = mix(start ^ first) ^ mix(start ^ np.uint64(0x6E6F697373696C6C))
    strings = np.stack([first, second], 1).view(np.uint8)
    strings = strings[(strings < 128).all(1)][:count]
    assert len({string.tobytes() for string in strings}) == count
    return [string.tobytes() for string in strings]


def unicode_strings(count: int) -> list[bytes]:
    """Distinct strings of 1 to 200 bytes, with letters of all kinds. Some hundred collide."""
    rng = np.random.default_rng(SEED)
    letters = np.concatenate([np.arange(32, 0x250), np.arange(0x3040, 0x9FFF), [0x1F600, 0x10FFFF]])
    pool = "".join(map(chr, rng.choice(letters, 4096)))
    begins, lengths = rng.integers(0, 4030, count), rng.integers(1, 67, count)
    strings = dict.fromkeys(
        (pool[begin : begin + length] + str(number))
        .encode()[-200:]
        .decode(errors="ignore")
        .encode()
        for number, (begin, length) in enumerate(
            zip(begins.tolist(), lengths.tolist(), strict=True)
        )
    )
    strings.update(dict.fromkeys(colliding(300)))
    return list(strings)


def rows_of(strings: Any, dim: int = 2) -> np.ndarray:
    return np.arange(len(strings) * dim, dtype=np.float32).reshape(-1, dim)


def as_dict(v: tf_embed.Variable) -> dict[bytes, list[float]]:
    keys, rows = v.export()
    found = dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))
    assert len(found) == int(v.size()) == keys.shape[0]
    return found


def nothing(operation: Any) -> None:
    """A valid return value of a tf.function: None."""


def as_bytes(string: Any) -> bytes:
    return string if isinstance(string, bytes) else string.encode()


def map_strings(ids: Any) -> list[str]:
    return [f"id {number}" for number in ids]


class VerbsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(shards=(1, 3), graph=(False, True))
    @pytest.mark.smoke
    def test_every_string_is_a_key(self, shards, graph):
        v = tf_embed.Variable(tf.string, dim=2, devices=CPU * shards, initializer=[7.0, 8.0])
        run = tf.function if graph else lambda function: function
        run(lambda: nothing(v.upsert(ODD, rows_of(ODD))))()
        rows, exists = run(lambda: v.lookup([ODD, ODD], return_exists=True))()
        self.assertAllEqual(rows, [rows_of(ODD)] * 2)
        self.assertAllEqual(exists, np.ones([2, len(ODD)], bool))
        self.assertAllEqual(v.lookup(["absent", "x" * 24]), [[7, 8], [7, 8]])
        wanted = dict(zip(map(as_bytes, ODD), rows_of(ODD).tolist(), strict=True))
        self.assertEqual(as_dict(v), wanted)
        run(lambda: nothing(v.remove([["a"], ["absent"], [b"\xff\xfe\x80"]])))()
        del wanted[b"a"], wanted[b"\xff\xfe\x80"]
        self.assertEqual(as_dict(v), wanted)
        v.clear()
        self.assertEqual(as_dict(v), {})
        v.upsert(["a"], [[1.0, 2.0]])
        self.assertEqual(as_dict(v), {b"a": [1.0, 2.0]})

    @parameterized.product(shards=(1, 3), partitioner=(False, True))
    def test_random_verbs_agree_with_a_dict_where_strings_collide(self, shards, partitioner):
        options = {}
        if partitioner:
            options["partitioner"] = lambda keys, shards: tf.strings.to_hash_bucket_fast(
                keys, shards
            )
        v = tf_embed.Variable(tf.string, dim=1, devices=CPU * shards, **options)
        pool = np.array(
            [
                *colliding(20),
                *colliding(20, 17),
                *map(as_bytes, ODD),
                *map(b"%d".__mod__, range(99)),
            ],
            object,
        )
        self.assertLen(set(pool), 150)
        rng, wanted = np.random.default_rng(SEED), {}
        for number in range(200):
            keys = rng.choice(pool, rng.integers(0, 60))
            rows = rng.integers(-9, 9, [len(keys), 1]).astype(np.float32)
            verb = rng.integers(0, 6)
            if verb == 0:
                v.remove(keys)
                for key in keys:
                    wanted.pop(key, None)
            elif verb == 1:
                exists = rng.integers(0, 2, len(keys)).astype(bool)
                v.accum(keys, np.zeros_like(rows), rows, exists)
                for key, row, seen in zip(keys, rows, exists, strict=True):
                    if seen == (key in wanted):
                        wanted[key] = [wanted.get(key, [0.0])[0] + float(row[0])]
            elif verb == 2:
                found, _ = v.table.find_or_insert(tf.constant(keys, tf.string))
                for key, row in zip(keys, found.numpy(), strict=True):
                    self.assertEqual(wanted.setdefault(key, [0.0]), row.tolist())
            else:
                v.upsert(keys, rows)
                wanted.update(zip(keys, rows.tolist(), strict=True))
            if number % 20 == 19:
                v.table.shrink()
            self.assertEqual(as_dict(v), wanted)
            rows, exists = v.lookup(pool, return_exists=True)
            self.assertAllEqual(exists, [key in wanted for key in pool])
            self.assertAllEqual(rows, [wanted.get(key, [0.0]) for key in pool])

    def test_initial_rows_are_a_function_of_the_string(self):
        made = []
        for shards in (1, 3):
            v = tf_embed.Variable(
                tf.string,
                dim=4,
                devices=CPU * shards,
                initializer=keras.initializers.RandomNormal(seed=7),
                name="names",
            )
            v.upsert(map_strings(range(50, 60)), np.zeros([10, 4]))
            made.append(v.lookup(map_strings(range(50))).numpy())
        self.assertAllEqual(*made)
        self.assertLen({row.tobytes() for row in made[0]}, 50)
        v.table.find_or_insert(tf.constant(map_strings(range(50))))
        self.assertAllEqual(v.lookup(map_strings(range(50))), made[0])

    def test_a_verb_that_inserts_nothing_leaves_no_string_behind(self):
        v = tf_embed.Variable(tf.string, dim=1)
        v.accum(["gone"], [[0.0]], [[1.0]], [True])
        with self.assertRaises(tf.errors.InvalidArgumentError):
            v.table.apply(
                tf.constant(["gone"]),
                tf.constant([[1.0]]),
                rule="sgd",
                hyper=tf.constant([1.0], tf.float64),
                step=tf.constant(1, tf.int64),
            )
        self.assertEqual(as_dict(v), {})
        # The next string with the same hash may get the key.
        one, other = colliding(2)
        v.accum([one], [[0.0]], [[1.0]], [True])
        v.upsert([other], [[2.0]])
        self.assertEqual(as_dict(v), {other: [2.0]})

    @parameterized.parameters(
        (1,), ([1, 2],), (np.array([1.5]),), (np.array([b"a", 3], object),), (tf.constant([1]),)
    )
    def test_keys_that_are_no_strings_are_refused(self, keys):
        v = tf_embed.Variable(tf.string, dim=1, name="names")
        with self.assertRaisesRegex(TypeError, "`keys` of 'names' must be of dtype string. Rec"):
            v.lookup(keys)

    def test_text_that_utf_8_does_not_hold_is_refused(self):
        with self.assertRaisesRegex(ValueError, "must be text that UTF-8 holds, or bytes"):
            tf_embed.Variable(tf.string, name="names").lookup(["\ud800"])

    def test_strings_are_no_integers(self):
        with self.assertRaisesRegex(TypeError, "must be of dtype int64"):
            tf_embed.Variable(dim=1).lookup(["1"])
        with self.assertRaisesRegex(TypeError, "strings have no remainder"):
            tf_embed.default_partition_fn(tf.constant(["1"]), 2)

    def test_a_partitioner_that_names_no_shard_is_refused_and_leaves_nothing(self):
        v = tf_embed.Variable(
            tf.string, dim=1, devices=CPU * 2, partitioner=lambda keys, _: tf.strings.length(keys)
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Received: 3"):
            v.upsert(["a", "abc"], [[1.0], [2.0]])
        self.assertEqual(as_dict(v), {})

    def test_threads_may_do_everything_at_once(self):
        v = tf_embed.Variable(tf.string, dim=2, devices=CPU * 2)
        pool = np.array([*map(as_bytes, map_strings(range(300))), *colliding(20)], object)
        done, errors = threading.Event(), []

        def guarded(body: Any, number: int) -> None:
            rng = np.random.default_rng(number)
            try:
                while not done.is_set():
                    body(rng, rng.choice(pool, 50))
            except Exception as error:  # the test shows it
                errors.append(error)

        def look(rng: Any, keys: Any) -> None:
            rows = v.lookup(keys).numpy()
            self.assertAllEqual(rows[:, 0], rows[:, 1])

        def write(rng: Any, keys: Any) -> None:
            v.upsert(keys, np.repeat(rng.normal(size=[50, 1]).astype(np.float32), 2, 1))

        def remove(rng: Any, keys: Any) -> None:
            v.remove(keys[:20])
            keys, rows = v.export()
            self.assertLen(set(keys.numpy().tolist()), rows.shape[0])
            self.assertLessEqual(set(keys.numpy().tolist()), set(pool))

        threads = [
            threading.Thread(target=guarded, args=(body, number))
            for number, body in enumerate((look, write, write, remove))
        ]
        for thread in threads:
            thread.start()
        for _ in range(30):
            v.table.shrink()
            v.lookup(pool)
        done.set()
        for thread in threads:
            thread.join()
        self.assertEmpty(errors)
        v.upsert(pool, np.ones([len(pool), 2]))
        self.assertEqual(as_dict(v), {key: [1.0, 1.0] for key in pool})


class ManyTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_million_random_unicode_strings_are_kept_exactly(self):
        strings = unicode_strings(1_000_000)
        self.assertGreater(len(strings), 1_000_000)
        self.assertLessEqual(max(map(len, strings)), 200)
        rows = rows_of(strings)
        wanted = dict(zip(strings, rows.tolist(), strict=True))
        v = tf_embed.Variable(tf.string, dim=2)
        v.upsert(np.array(strings, object), rows)
        found, exists = v.lookup(tf.constant(strings), return_exists=True)
        self.assertTrue(exists.numpy().all())
        self.assertAllEqual(found, rows)
        self.assertEqual(as_dict(v), wanted)
        path = tf.train.Checkpoint(v=v).write(os.path.join(tempfile.mkdtemp(), "saved"))
        other = tf_embed.Variable(tf.string, dim=2, devices=CPU * 2)
        tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertEqual(as_dict(other), wanted)
        v.remove(tf.constant(strings[::2]))
        self.assertEqual(as_dict(v), dict(list(wanted.items())[1::2]))


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    """Training of a table of strings equals training of a table of integers."""

    def train(self, make: Any, ids: Any, strings: bool, **options: Any) -> dict[Any, Any]:
        v = tf_embed.Variable(
            tf.string if strings else tf.int64, dim=2, devices=CPU * 2, initializer=0.5
        )
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
        convert = (lambda ids: tf.strings.as_string(ids)) if strings else (lambda ids: ids)

        @tf.function
        def step(ids: Any) -> None:
            with tf.GradientTape() as tape:
                one = tf_embed.embedding_lookup(v, convert(ids))
                two, inverse = tf_embed.unique_rows(v, convert(ids[:2]))
                loss = tf.reduce_sum(tf.sin(one)) + tf.reduce_sum(tf.gather(two, inverse))
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        for batch in ids:
            step(batch)
        keys, rows = v.export()
        keys = [int(key) for key in keys.numpy()]
        return dict(zip(keys, rows.numpy().tolist(), strict=True))

    @parameterized.parameters(
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
        lambda: keras.optimizers.Nadam(0.1),
        lambda: keras.optimizers.Adagrad(0.1, gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adam(0.1, use_ema=True),
    )
    def test_rows_are_those_of_a_table_of_integers(self, make):
        ids = tf.constant(np.random.default_rng(SEED).integers(-20, 20, [6, 30]))
        self.assertEqual(self.train(make, ids, True), self.train(make, ids, False))

    @parameterized.parameters("eager", "graph")
    def test_indices_of_the_gradient_are_the_strings(self, way):
        v = tf_embed.Variable(tf.string, dim=1)
        strings = [*colliding(3), b"a\0"]

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, strings) * [[1.0], [2], [3], [4]])
            return tape.gradient(loss, v.trainable_variables)

        (slices,) = gradient() if way == "eager" else tf.function(gradient)()
        self.assertEqual(slices.indices.numpy().tolist(), strings)
        self.assertEqual(int(v.size()), 0)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([slices], v.trainable_variables)
        self.assertEqual(as_dict(v), {key: [-1.0 - i] for i, key in enumerate(strings)})

    @parameterized.parameters(
        "for_loop", "map_fn", "cond", "cond_one_branch", "loop_in_cond", "function_in_functions"
    )
    def test_strings_leave_loops_and_conditions_whole(self, place):
        ids = tf.constant(IDS)
        found = []
        for key_dtype in ("string", "int64"):
            layer = DynamicEmbedding(DIM, key_dtype, initializer="ones")
            layer.build()

            @tf.function
            def gradient(layer: Any, strings: bool) -> Any:
                def embed(ids: Any) -> Any:
                    return layer(tf.strings.as_string(ids) if strings else ids)

                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.sin(PLACES[place](embed, ids)))
                return tape.gradient(loss, layer.variable.anchor.value)

            slices = gradient(layer, key_dtype == "string")
            sums: dict[int, np.ndarray] = {}
            for key, row in zip(slices.indices.numpy(), slices.values.numpy(), strict=True):
                sums[int(key)] = sums.get(int(key), 0.0) + row
            found.append(sums)
        self.assertNotEmpty(found[0])
        self.assertAllClose(*found, rtol=1e-6)

    def test_a_function_in_one_branch_is_refused_by_tensorflow(self):
        layer = DynamicEmbedding(DIM, "string")
        layer.build()

        @tf.function
        def gradient(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                embed = lambda ids: layer(tf.strings.as_string(ids))  # noqa: E731
                loss = tf.reduce_sum(PLACES["function_in_cond"](embed, ids))
            return tape.gradient(loss, layer.variable.anchor.value)

        with self.assertRaisesRegex(TypeError, "indices must be int32 or int64"):
            gradient(tf.constant(IDS))

    def test_slices_that_lost_their_strings_are_refused(self):
        v = tf_embed.Variable(tf.string, dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([3]))
        with self.assertRaisesRegex(
            TypeError, "keys as its indices. Received: indices of dtype int32"
        ):
            optimizer.apply([slices], v.trainable_variables)


class LayerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        combiner=(None, "sum", "mean", "sqrtn"),
        container=("lines", "ragged", "sparse"),
        padding=(None, "pad"),
    )
    def test_a_layer_of_strings_does_what_one_of_integers_does(self, combiner, container, padding):
        numbers = np.random.default_rng(SEED).integers(0, 9, [12])
        trained = []
        for key_dtype in ("string", "int64"):
            strings = np.array(["pad", *map("string %d".__mod__, range(8))])
            ids = tf.constant(strings[numbers] if key_dtype == "string" else numbers)
            if container == "lines":
                ids = tf.reshape(ids, [3, 4])
            elif container == "ragged":
                ids = tf.RaggedTensor.from_row_lengths(ids, [5, 0, 7])
            else:
                places = np.stack([np.arange(12) // 4, np.arange(12)], 1)
                ids = tf.SparseTensor(places, ids, [3, 12])
            layer = DynamicEmbedding(
                2,
                key_dtype,
                initializer=0.5,
                combiner=combiner,
                padding_id=None if padding is None else padding if key_dtype == "string" else 0,
                optimizer=keras.optimizers.Adam(0.1),
            )
            for _ in range(3):
                with tf.GradientTape() as tape:
                    rows = layer(ids)
                    rows = rows.flat_values if isinstance(rows, tf.RaggedTensor) else rows
                    loss = tf.reduce_sum(tf.sin(rows))
                (slices,) = tape.gradient(loss, layer.trainable_variables)
                layer.trainable_variables[0].assign(slices)
            keys = layer.variable.export()[0].numpy()
            strings = (
                [strings[key].encode() for key in keys] if key_dtype == "int64" else keys.tolist()
            )
            table = dict(zip(strings, layer.variable.export()[1].numpy().tolist(), strict=True))
            trained.append((rows.numpy().tolist(), table))
        self.assertAllClose(trained[0][0], trained[1][0], rtol=1e-6)
        self.assertAllClose(trained[0][1], trained[1][1], rtol=1e-6)

    def test_padding_is_not_a_string_of_its_hash(self):
        padding, other, third = (string.decode() for string in colliding(3))
        layer = DynamicEmbedding(
            1, "string", initializer="ones", combiner="sum", padding_id=padding
        )
        ids = tf.constant([[padding, other], [third, third], [padding, padding]])
        self.assertAllEqual(layer(ids), [[1.0], [2.0], [0.0]])
        layer.variable.upsert([other, padding], [[5.0], [9.0]])
        self.assertAllEqual(layer(ids), [[5.0], [2.0], [0.0]])

    def test_ids_and_padding_of_another_kind_are_refused(self):
        with self.assertRaisesRegex(TypeError, "`ids` of 'names' must be strings, as its keys are"):
            DynamicEmbedding(1, "string", name="names")(tf.constant([1]))
        with self.assertRaisesRegex(TypeError, "`ids` of .* must be integers"):
            DynamicEmbedding(1)(tf.constant(["1"]))
        with self.assertRaisesRegex(TypeError, "`padding_id` must be a str"):
            DynamicEmbedding(1, "string", padding_id=0)
        with self.assertRaisesRegex(TypeError, "`padding_id` must be an int"):
            DynamicEmbedding(1, padding_id="pad")


def model_of_strings() -> keras.Model:
    inputs = keras.Input([3], dtype="string")
    rows = DynamicEmbedding(4, "string", padding_id="", name="words")(inputs)
    pooled = DynamicEmbedding(4, "string", combiner="mean", optimizer="adagrad", name="bags")(
        inputs
    )
    hidden = keras.layers.Concatenate()([keras.layers.LSTM(3)(rows), pooled])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


STRINGS = tf.constant([["a", "b", ""], ["日本語", "a\0", "a"], [b"\xff\0", "x" * 100, "b"]])
SERVE = """
import sys, numpy as np, tensorflow as tf, tf_embed
served = tf.saved_model.load(sys.argv[1])
strings = tf.io.parse_tensor(tf.io.read_file(sys.argv[2]), tf.string)
np.save(sys.argv[3], served.serve(strings).numpy())
"""


class SavePathsTest(tf.test.TestCase, parameterized.TestCase):
    def trained(self) -> keras.Model:
        model = model_of_strings()
        model.fit(STRINGS, tf.constant([[1.0], [0.0], [2.0]]), epochs=2, verbose=0)
        return model

    def check_same(self, model: Any, other: Any, with_slots: bool = True) -> None:
        for name in ("words", "bags"):
            tables = []
            for one in (model, other):
                keys, rows, slots = one.get_layer(name).variable.table.export()[:3]
                columns = np.concatenate([rows, slots] if with_slots else [rows], 1).tolist()
                tables.append(dict(zip(keys.numpy().tolist(), columns, strict=True)))
            self.assertEqual(*tables)
            self.assertIn(b"\xff\0", tables[0])
            self.assertEqual(name == "bags", b"" in tables[0])
        self.assertAllEqual(model.predict(STRINGS, verbose=0), other.predict(STRINGS, verbose=0))

    @parameterized.parameters("checkpoint", "keras", "weights", "get_weights")
    @pytest.mark.smoke
    def test_strings_go_through(self, save_path):
        model = self.trained()
        folder = tempfile.mkdtemp()
        other = model_of_strings()
        if save_path == "checkpoint":
            path = tf.train.Checkpoint(model=model).write(f"{folder}/saved")
            tf.train.Checkpoint(model=other).read(path)
        elif save_path == "keras":
            model.save(f"{folder}/model.keras")
            other = keras.models.load_model(f"{folder}/model.keras")
        elif save_path == "weights":
            model.save_weights(f"{folder}/model.weights.h5")
            other.load_weights(f"{folder}/model.weights.h5")
        else:
            other.set_weights(model.get_weights())
        self.check_same(model, other, with_slots=save_path != "get_weights")

    def test_an_empty_table_is_saved(self):
        folder = tempfile.mkdtemp()
        model = model_of_strings()
        model.save(f"{folder}/model.keras")
        other = keras.models.load_model(f"{folder}/model.keras")
        self.assertEqual(int(other.get_layer("words").variable.size()), 0)

    def test_set_weights_keeps_the_slots_of_each_string(self):
        model, other = self.trained(), self.trained()
        before = other.get_layer("words").variable.table.export()
        other.set_weights(model.get_weights())
        after = other.get_layer("words").variable.table.export()
        for one, two in zip(np.argsort(before[0]), np.argsort(after[0]), strict=True):
            self.assertEqual(before[0][one], after[0][two])
            self.assertAllEqual(before[2][one], after[2][two])

    def test_another_process_serves_an_exported_model(self):
        model = self.trained()
        folder = tempfile.mkdtemp()
        model.export(f"{folder}/model", verbose=False)
        tf.io.write_file(f"{folder}/strings", tf.io.serialize_tensor(STRINGS))
        subprocess.run(
            [
                sys.executable,
                "-c",
                SERVE,
                f"{folder}/model",
                f"{folder}/strings",
                f"{folder}/out.npy",
            ],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        wanted = model.predict(STRINGS, verbose=0)
        self.assertAllClose(np.load(f"{folder}/out.npy"), wanted, rtol=1e-6)

    def test_a_subclassed_model_is_exported_with_its_rows(self):
        class Words(keras.Model):
            def __init__(self):
                super().__init__()
                self.words = DynamicEmbedding(2, key_dtype="string", combiner="sum")

            def call(self, words):
                return self.words(words)

        model, folder = Words(), tempfile.mkdtemp(dir=self.get_temp_dir())
        words = tf.constant([["a", "b"]])
        model(words)
        model.words.variable.upsert(["a", "b"], [[1.0, 2.0], [10.0, 20.0]])
        model.export(folder, input_signature=[tf.TensorSpec([None, 2], tf.string)], verbose=False)
        served = tf.saved_model.load(folder)
        self.assertAllEqual(served.serve(words), [[11.0, 22.0]])
        tf.saved_model.save(model, folder)
        served = tf.saved_model.load(folder)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must be strings"):
            served.signatures["serving_default"](tf.constant([[1.0, 2.0]]))

    def test_rows_of_integers_do_not_go_into_a_table_of_strings(self):
        folder = tempfile.mkdtemp()
        v = tf_embed.Variable(dim=2, name="mine")
        path = tf.train.Checkpoint(v=v).write(f"{folder}/saved")
        other = tf_embed.Variable(tf.string, dim=2, name="mine")
        with self.assertRaisesRegex(
            ValueError, "can't be restored: it has key string, value float32, dim 2, and"
        ):
            tf.train.Checkpoint(v=other).read(path)


if __name__ == "__main__":
    tf.test.main()
