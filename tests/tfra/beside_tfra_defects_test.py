# SPDX-License-Identifier: Apache-2.0
"""Defects of TFRA 0.8.1, and the right answers of tf_embed; a fix in TFRA would be noticed.

Each test has TFRA's wrong answer and tf_embed's right answer. These comparisons need TFRA.
`tfra_defects_test.py` and other files test tf_embed alone.
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.tfra_pair import MODULES, Pair, filled, keys_of, rows_of, step, tfra, unused_name

import tf_keras  # isort: skip  # after TFRA, so that the skip comes first
from tensorflow_recommenders_addons.dynamic_embedding.python.ops import (  # isort: skip
    dynamic_embedding_variable as tfra_variable,
)


def optimizers(name: str = "SGD", **options: Any) -> list[Any]:
    """An optimizer for tables of each library."""
    return [
        module.DynamicEmbeddingOptimizer(getattr(library.optimizers, name)(**options))
        for module, library in zip(MODULES, (tf_keras, keras), strict=True)
    ]


class KerasTest(tf.test.TestCase):
    def test_importing_it_breaks_initializers_of_keras(self):
        with self.assertRaisesRegex(AttributeError, "_random_generator"):
            keras.layers.Dense(4)(np.ones([2, 3], np.float32))

    def test_it_takes_no_optimizer_of_keras_3(self):
        with self.assertRaisesRegex(Exception, "Optimizer type is not supported"):
            tfra.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())

    def test_the_slots_of_legacy_optimizers_are_refused(self):
        pair = filled()
        with self.assertRaisesRegex(TypeError, "Expect an optimizer"):
            pair.theirs.get_slot_variables(tf_keras.optimizers.legacy.Adam())
        self.assertEqual(pair.ours.get_slot_variables(keras.optimizers.Adam()), [])

    def test_accumulators_start_at_0(self):
        for name in ("Adagrad", "Ftrl"):
            pair = Pair(dim=1, initializer=0.0)
            for module, one, optimizer in zip(
                MODULES, pair, optimizers(name, learning_rate=0.1), strict=True
            ):
                step(module, one, optimizer, lambda rows: tf.reduce_sum(rows([1])))
            theirs, ours = (one[1][0] for one in pair.rows())
            self.assertAllClose(theirs, -0.1, rtol=1e-5)  # -0.1 / sqrt(0 + 1)
            self.assertNotAllClose(ours, -0.1, rtol=1e-2)
            if name == "Adagrad":
                self.assertAllClose(ours, -0.1 / np.sqrt(1.1), rtol=1e-5)

    def test_adafactor_fails(self):
        pair = filled()
        both = zip(MODULES, pair, optimizers("Adafactor", learning_rate=0.1), strict=True)
        for module, one, optimizer in both:
            loss = lambda rows: tf.reduce_sum(rows(range(5)))  # noqa: E731
            if module is tfra:
                with self.assertRaises(Exception):  # noqa: B017  an error of TensorFlow without a message
                    for _ in range(2):
                        step(module, one, optimizer, loss)
            else:
                step(module, one, optimizer, loss)


class StepTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_key_under_two_names_gets_one_of_its_two_updates(self):
        pair = Pair(dim=1, initializer=0.0)
        keys = keys_of([1])
        for module, one, optimizer in zip(
            MODULES, pair, optimizers(learning_rate=1.0), strict=True
        ):
            with tf.GradientTape() as tape:
                loss = sum(
                    tf.reduce_sum(module.embedding_lookup(one, keys, name=name))
                    for name in ("user", "item")
                )
            trained = [one.get_trainable_by_name(name) for name in ("user", "item")]
            gradients = tape.gradient(loss, trained)
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
        self.assertEqual(pair.rows(), [{1: [-1.0]}, {1: [-2.0]}])

    def test_a_lookup_of_one_name_twice_in_a_step_gives_its_gradient_to_the_second(self):
        pair = Pair(dim=1, initializer=0.0)
        for module, one, optimizer in zip(
            MODULES, pair, optimizers(learning_rate=1.0), strict=True
        ):
            step(
                module,
                one,
                optimizer,
                lambda rows: tf.reduce_sum(rows([1])) + 10 * tf.reduce_sum(rows([2])),
            )
        self.assertEqual(pair.rows(), [{2: [-11.0]}, {1: [-1.0], 2: [-10.0]}])

    def test_gradients_of_equal_ids_are_lost(self):
        pair = Pair(dim=1, initializer=0.0)
        for module, one, optimizer in zip(
            MODULES, pair, optimizers(learning_rate=1.0), strict=True
        ):
            step(module, one, optimizer, lambda rows: tf.reduce_sum(rows([1, 1, 1])))
        self.assertEqual(pair.rows(), [{1: [-1.0]}, {1: [-3.0]}])

    def test_max_norm_cuts_what_is_stored(self):
        pair = Pair(dim=2, initializer=0.0)
        pair.call("upsert", keys_of([1]), tf.constant([[3.0, 4.0]]))
        for module, one, optimizer in zip(
            MODULES, pair, optimizers(learning_rate=0.0), strict=True
        ):
            with tf.GradientTape() as tape:
                rows = module.embedding_lookup(one, keys_of([1]), name="x", max_norm=1.0)
                loss = tf.reduce_sum(rows)
            trained = [one.get_trainable_by_name("x")]
            gradients = tape.gradient(loss, trained)
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
            self.assertAllClose(rows, [[0.6, 0.8]])
        theirs, ours = pair.rows()
        self.assertAllClose(theirs[1], [0.6, 0.8])
        self.assertAllClose(ours[1], [3.0, 4.0])

    def test_restricting_one_variable_cuts_the_slots_of_another(self):
        restricted = Pair(dim=1, initializer=0.0, restrict_policy="FrequencyRestrictPolicy")
        other = Pair(dim=1, initializer=0.0)
        left = []
        for module, one, two, optimizer in zip(
            MODULES, restricted, other, optimizers("Adam"), strict=True
        ):
            with tf.GradientTape() as tape:
                loss = sum(
                    tf.reduce_sum(module.embedding_lookup(v, keys_of(range(10)), name=v.name))
                    for v in (one, two)
                )
            trained = [v.get_trainable_by_name(v.name) for v in (one, two)]
            gradients = tape.gradient(loss, trained)
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
            one.restrict(3)
            slots = two.get_slot_variables(optimizer)
            left.append((int(two.size()), sorted({int(slot.size()) for slot in slots})))
        self.assertEqual(left[1], (10, [10]))
        self.assertNotEqual(left[0], (10, [10]))

    def test_num_reserved_is_no_tensor_and_not_exact(self):
        pair = Pair(2, dim=1, initializer=0.0, restrict_policy="FrequencyRestrictPolicy")
        keys = keys_of([0, 2, 4, 6, 8, 1])  # five in one shard, one in the other
        for module, one, optimizer in zip(MODULES, pair, optimizers(), strict=True):
            step(module, one, optimizer, lambda rows: tf.reduce_sum(rows(keys)))
        with self.assertRaisesRegex(TypeError, "num_reserved should be integer"):
            pair.theirs.restrict(tf.constant(4))
        pair.theirs.restrict(4)
        pair.ours.restrict(tf.constant(4))
        self.assertEqual([int(one.size()) for one in pair], [3, 4])


class InitialRowsTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_lookup_of_an_absent_key_gives_another_row_each_time(self):
        for module, same in zip(MODULES, (False, True), strict=True):
            initializer = tf_keras.initializers if module is tfra else keras.initializers
            one = module.Variable(
                dim=4, name=unused_name(), initializer=initializer.RandomNormal(seed=None)
            )
            # tf_keras's initializer gives the same rows for the same number of rows.
            first = one.lookup(keys_of([7])).numpy()
            again = one.lookup(keys_of([5, 7])).numpy()[1:]
            self.assertEqual(np.array_equal(first, again), same)

    def test_new_keys_of_all_batches_start_from_the_same_rows(self):
        for module, same in zip(MODULES, (True, False), strict=True):
            initializers = tf_keras.initializers if module is tfra else keras.initializers
            one = module.Variable(
                dim=4, name=unused_name(), initializer=initializers.RandomNormal()
            )
            rows = [one.lookup(keys_of(batch)).numpy() for batch in ([1, 2], [3, 4])]
            self.assertEqual(np.array_equal(*rows), same)

    def test_of_an_array_the_first_number_alone_counts(self):
        pair = Pair(dim=3, initializer=np.float32([1, 2, 3]))
        theirs, ours = (one.lookup(keys_of([5])) for one in pair)
        self.assertAllEqual(theirs, [[1, 1, 1]])
        self.assertAllEqual(ours, [[1, 2, 3]])


class InterfaceTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_name_gives_a_variable_of_another_dim(self):
        name = unused_name()
        tfra.get_variable(name, dim=2)
        self.assertEqual(tfra.get_variable(name, dim=5).dim, 2)
        tf_embed.tfra.get_variable(name, dim=2)
        with self.assertRaisesRegex(ValueError, "`dim`"):
            tf_embed.tfra.get_variable(name, dim=5)
        tf_embed.tfra.forget_variable(name)

    def test_variables_of_one_name_share_slots_and_status_by_name(self):
        name = unused_name()
        for module, shared in zip(MODULES, (True, False), strict=True):
            first, second = (
                module.Variable(
                    dim=1,
                    name=name,
                    initializer=0.0,
                    restrict_policy=module.FrequencyRestrictPolicy,
                )
                for _ in range(2)
            )
            statuses = [one.restrict_policy.status for one in (first, second)]
            self.assertEqual(statuses[0] is statuses[1], shared)

    @parameterized.parameters([[[1, 2], [3, 4]]], [7])
    def test_keys_of_a_sharded_variable_are_of_rank_1(self, keys):
        pair = filled(shards=2)
        with self.assertRaises((tf.errors.InvalidArgumentError, ValueError)):
            pair.theirs.lookup(keys_of(keys))
        self.assertEqual(pair.ours.lookup(keys_of(keys)).shape, [*np.shape(keys), 3])

    def test_large_and_negative_keys_are_in_other_shards_with_cuda(self):
        keys = keys_of([-1, 2**31, 2**40 + 5, -(2**63)])
        theirs = tfra_variable.default_partition_fn(keys, 3)
        remainders = [key % 3 for key in keys.numpy().tolist()]
        self.assertAllEqual(tf_embed.default_partition_fn(keys, 3), remainders)
        # TFRA's package is built with CUDA, and such a build takes the low 31 bits.
        self.assertAllEqual(theirs, [(key & 0x7FFFFFFF) % 3 for key in keys.numpy().tolist()])

    def test_a_lookup_without_a_name_and_of_a_list_is_refused(self):
        pair = filled()
        with self.assertRaisesRegex(ValueError, "Must specify a name"):
            tfra.embedding_lookup(pair.theirs, keys_of([1]))
        with self.assertRaises(AttributeError):
            tfra.embedding_lookup(pair.theirs, [1], name="x")
        self.assertEqual(tf_embed.tfra.embedding_lookup(pair.ours, [1]).shape, [1, 3])

    @parameterized.parameters("embedding_lookup", "embedding_lookup_unique")
    def test_return_trainable_is_refused_in_a_function(self, function):
        pair = filled()
        for module, one in zip(MODULES, pair, strict=True):

            @tf.function
            def look_up(ids, module=module, one=one):
                rows, trainable = getattr(module, function)(
                    one, ids, name="x", return_trainable=True
                )
                assert trainable is not None
                return rows

            if module is tfra:
                with self.assertRaisesRegex(NotImplementedError, "return_trainable"):
                    look_up(keys_of([1, 1]))
            else:
                self.assertEqual(look_up(keys_of([1, 1])).shape, [2, 3])

    def test_the_unique_lookup_has_no_max_norm(self):
        pair = Pair(dim=2, initializer=0.0)
        pair.call("upsert", keys_of([1]), tf.constant([[3.0, 4.0]]))
        theirs, ours = (
            module.embedding_lookup_unique(one, keys_of([1]), name="x", max_norm=1.0)
            for module, one in zip(MODULES, pair, strict=True)
        )
        self.assertAllClose(theirs, [[3.0, 4.0]])
        self.assertAllClose(ours, [[0.6, 0.8]])

    def test_empty_rows_of_ids_are_nan_or_left_out(self):
        pair = filled(initializer=0.0)
        ids = tf.SparseTensor([[0, 0], [2, 0]], keys_of([1, 2]), [4, 1])
        weights = tf.SparseTensor(ids.indices, [1.0, 2.0], [4, 1])
        theirs, ours = (
            module.embedding_lookup_sparse(one, ids, weights, combiner="mean", name="x").numpy()
            for module, one in zip(MODULES, pair, strict=True)
        )
        self.assertEqual(theirs.shape, (3, 3))
        self.assertTrue(np.isnan(theirs[1]).all())
        self.assertEqual(ours.shape, (4, 3))
        self.assertAllEqual(ours[[1, 3]], np.zeros([2, 3]))
        self.assertAllClose(ours[[0, 2]], theirs[[0, 2]])


class CheckpointTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters((1, 3), (3, 1))
    def test_another_number_of_shards_loses_rows(self, before, after):
        found = []
        for module in MODULES:
            name = unused_name()
            saved, restored = (
                module.Variable(dim=1, name=name, initializer=-1.0, devices=["/CPU:0"] * shards)
                for shards in (before, after)
            )
            keys = keys_of(range(30))
            saved.upsert(keys, tf.ones([30, 1]))
            path = tf.train.Checkpoint(v=saved).save(f"{tempfile.mkdtemp()}/ck")
            tf.train.Checkpoint(v=restored).read(path).expect_partial()
            found.append(int(tf.reduce_sum(tf.cast(restored.lookup(keys) == 1.0, tf.int32))))
        self.assertEqual(found, [10, 30])

    def test_a_checkpoint_never_matches_what_is_there(self):
        for module, library in zip(MODULES, (tf_keras, keras), strict=True):
            one = module.Variable(dim=1, name=unused_name(), initializer=0.0)
            optimizer = module.DynamicEmbeddingOptimizer(library.optimizers.SGD(1.0))
            step(module, one, optimizer, lambda rows: tf.reduce_sum(rows([1])))
            path = tf.train.Checkpoint(v=one).save(f"{tempfile.mkdtemp()}/ck")
            one.clear()
            status = tf.train.Checkpoint(v=one).restore(path)
            self.assertEqual(rows_of(one), {1: [-1.0]})
            if module is tf_embed.tfra:
                status.assert_existing_objects_matched()
