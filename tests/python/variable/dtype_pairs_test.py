# SPDX-License-Identifier: Apache-2.0
"""Every key dtype with every value dtype: each verb against a dict, and a save and restore."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.dtype_pairs import KEYS, NUMBERS, VALUES, as_dict, rows_of
from support.oracles.reference import SEED

CPU = ["/CPU:0"]


class PairsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_dtype=tuple(KEYS), value_dtype=VALUES)
    @pytest.mark.smoke
    def test_each_verb_and_a_checkpoint_agree_with_a_dict(self, key_dtype, value_dtype):
        dim, rng = 2, np.random.default_rng(SEED)
        pool = np.array(KEYS[key_dtype], object if key_dtype == "string" else key_dtype)
        v = tf_embed.Variable(key_dtype, value_dtype, dim, devices=CPU * 2)
        self.assertEqual((v.key_dtype, v.value_dtype), (key_dtype, value_dtype))
        initial = {"string": b"", "bool": False}.get(value_dtype, 0)
        wanted: dict[Any, list[Any]] = {}
        for number in range(30):
            keys = rng.choice(pool, 5)
            rows = rows_of(value_dtype, 5, dim, rng)
            verb = number % 5
            if verb == 0:
                v.remove(keys[:2])
                for key in keys[:2].tolist():
                    wanted.pop(key, None)
            elif verb == 1 and value_dtype in NUMBERS:
                exists = rng.integers(0, 2, 5).astype(bool)
                v.accum(keys, np.zeros_like(rows), rows, exists)
                for key, row, seen in zip(keys.tolist(), rows, exists, strict=True):
                    if seen == (key in wanted):
                        wanted[key] = (np.array(wanted.get(key, [0] * dim)) + row).tolist()
            elif verb == 2:
                v.table.find_or_insert(tf.constant(keys, key_dtype))
                for key in keys.tolist():
                    wanted.setdefault(key, [initial] * dim)
            else:
                v.upsert(keys, rows)
                wanted.update(zip(keys.tolist(), rows.tolist(), strict=True))
            self.assertEqual(as_dict(v), wanted)
            found, exists = v.lookup(pool, return_exists=True)
            self.assertEqual(
                found.numpy().tolist(), [wanted.get(key, [initial] * dim) for key in pool.tolist()]
            )
            self.assertAllEqual(exists, [key in wanted for key in pool.tolist()])
        path = tf.train.Checkpoint(v=v).write(os.path.join(tempfile.mkdtemp(), "saved"))
        other = tf_embed.Variable(key_dtype, value_dtype, dim, devices=CPU * 3)
        other.upsert(pool, rows_of(value_dtype, len(pool), dim, rng))
        tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertEqual(as_dict(other), wanted)
        v.clear()
        self.assertEqual(as_dict(v), {})

    @parameterized.parameters(tf.complex64, tf.uint8, "nothing")
    def test_other_dtypes_are_refused_with_those_that_there_are(self, dtype):
        with self.assertRaisesRegex(
            TypeError, "`key_dtype` must be one of int64, int32, .* string"
        ):
            tf_embed.Variable(key_dtype=dtype)
        with self.assertRaisesRegex(TypeError, "`value_dtype` must be one of float32, .* string"):
            tf_embed.Variable(value_dtype=dtype)


# The dtypes with numbers that a key dtype holds.
NARROWER = {
    "int64": ("int8", "int16", "int32", "uint8", "uint16", "uint32"),
    "uint64": ("uint8", "uint16", "uint32"),
    "int32": ("int8", "int16", "uint8", "uint16"),
    "uint32": ("uint8", "uint16"),
}


class NarrowerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *((key_dtype, dtype) for key_dtype, dtypes in NARROWER.items() for dtype in dtypes)
    )
    def test_a_tensor_of_a_narrower_dtype_has_the_same_keys(self, key_dtype, dtype):
        v = tf_embed.Variable(key_dtype, dim=1)
        numbers = [0, tf.as_dtype(dtype).max]
        keys = tf.constant(numbers, dtype)
        v.upsert(keys, [[1.0], [2.0]])
        v.accum(keys, [[0.0]] * 2, [[1.0]] * 2, [True, True])
        self.assertEqual(as_dict(v), dict(zip(numbers, [[2.0], [3.0]], strict=True)))
        sparse = tf.SparseTensor([[0, 0], [1, 0]], keys, [2, 1])
        ragged = tf.RaggedTensor.from_row_lengths(keys, [1, 1])
        for lookup in (
            v.lookup,
            tf.function(v.lookup),
            lambda keys: tf_embed.embedding_lookup(v, keys),
            lambda keys: tf_embed.embedding_lookup_unique(v, keys),
            lambda keys: tf_embed.unique_rows(v, keys)[0],
            lambda _: tf_embed.embedding_lookup_sparse(v, sparse),
            lambda _: tf_embed.embedding_lookup_sparse(v, ragged),
            lambda _: tf_embed.safe_embedding_lookup_sparse(v, sparse, default_id=keys[0]),
        ):
            self.assertAllEqual(lookup(keys), [[2.0], [3.0]])
        v.remove(keys[:1])
        self.assertEqual(as_dict(v), {numbers[1]: [3.0]})

    def test_gradients_of_narrower_ids_have_keys_as_indices(self):
        v = tf_embed.Variable(dim=1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, tf.constant([3, -4])))
        (gradient,) = tape.gradient(loss, v.trainable_variables)
        self.assertEqual(gradient.indices.dtype, tf.int64)
        self.assertAllEqual(gradient.indices, [3, -4])

    @parameterized.parameters("float16", "bfloat16")
    def test_rows_of_a_narrower_dtype_are_rows(self, dtype):
        v = tf_embed.Variable(dim=1)
        v.upsert([1], tf.constant([[1.5]], dtype))
        self.assertEqual(as_dict(v), {1: [1.5]})

    @parameterized.parameters(
        *(("int64", one) for one in ("uint64", "float32", "float64", "bool", "string")),
        *(("int32", one) for one in ("int64", "uint32")),
        *(("uint64", one) for one in ("int64", "int32", "int8")),
        *(("string", one) for one in ("int32", "float32")),
    )
    def test_a_tensor_of_a_dtype_that_may_lose_keys_is_refused(self, key_dtype, dtype):
        v = tf_embed.Variable(key_dtype, dim=1, name="mine")
        keys = tf.cast(tf.constant([1]), dtype) if dtype != "string" else tf.constant(["a"])
        for call in (v.lookup, v.remove, lambda keys: tf_embed.embedding_lookup(v, keys)):
            with self.assertRaisesRegex(
                TypeError, f"of 'mine' must be of dtype {key_dtype}. Received: dtype={dtype}"
            ):
                call(keys)


class StringValuesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("none",), (["a", b"b\0"],))
    def test_absent_keys_have_the_initial_strings(self, initializer):
        v = tf_embed.Variable(value_dtype=tf.string, dim=2, initializer=initializer)
        wanted = [b"none"] * 2 if initializer == "none" else [b"a", b"b\0"]
        v.upsert([1], [["x", ""]])
        self.assertEqual(v.lookup([[1, 2]]).numpy().tolist(), [[[b"x", b""], wanted]])
        v.table.find_or_insert(tf.constant([2], tf.int64))
        self.assertEqual(as_dict(v), {1: [b"x", b""], 2: wanted})
        self.assertFalse(v.trainable)

    @parameterized.parameters((3,), (0.5,), (["a"],), ([["a", "b"]],), ([1, 2],))
    def test_an_initializer_that_is_no_row_of_strings_is_refused(self, initializer):
        with self.assertRaisesRegex(TypeError, "`initializer` of 'words' must be a string or 2 of"):
            tf_embed.Variable(value_dtype="string", dim=2, initializer=initializer, name="words")

    def test_strings_have_no_sum(self):
        v = tf_embed.Variable(value_dtype=tf.string, name="words")
        with self.assertRaisesRegex(TypeError, "'words' has value_dtype=string. Use `upsert`"):
            v.accum([1], [["a"]], [["b"]], [True])
        with self.assertRaisesRegex(TypeError, "`values` of 'words' must be of dtype string"):
            v.upsert([1], [[3]])

    @parameterized.parameters(False, True)
    def test_strings_that_no_row_holds_any_more_go(self, string_keys):
        v = tf_embed.Variable("string" if string_keys else "int64", tf.string, dim=2)
        keys = [b"%d" % number for number in range(500)] if string_keys else range(500)
        wanted = {}
        for number in range(40):  # 40,000 strings in all, 1,000 at a time
            rows = np.array([[b"%d %d" % (number, i), b"%d" % i * 20] for i in range(500)], object)
            v.upsert(keys, rows)
            wanted = dict(zip(keys, rows.tolist(), strict=True))
        self.assertEqual(as_dict(v), wanted)
        v.remove(list(keys)[::2])
        v.table.shrink()
        self.assertEqual(as_dict(v), dict(list(wanted.items())[1::2]))

    def test_a_loaded_model_looks_strings_up(self):
        module = tf.Module()
        module.v = tf_embed.Variable(value_dtype=tf.string, dim=1, initializer="?")
        module.v.upsert([1, 2], [["one"], ["two\0"]])
        module.look = tf.function(
            module.v.lookup, input_signature=[tf.TensorSpec([None], tf.int64)]
        )
        folder = tempfile.mkdtemp()
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        found = loaded.look(tf.constant([2, 3, 1], tf.int64))
        self.assertEqual(found.numpy().tolist(), [[b"two\0"], [b"?"], [b"one"]])


if __name__ == "__main__":
    tf.test.main()
