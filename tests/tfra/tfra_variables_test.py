# SPDX-License-Identifier: Apache-2.0
"""Variables by name, their shadows on a tape, and the slots of optimizers."""

from __future__ import annotations

import copy
import gc
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tfra
from tf_embed.tfra import shadow_ops

UNSEEN = 12345


class TellsNothing(keras.initializers.Initializer):
    """An initializer with a state that its config omits."""

    def __init__(self):
        self.value = 1.0

    def __call__(self, shape, dtype=None):
        return tf.fill(shape, tf.cast(self.value, dtype))


class CountsUpdates(tfra.RestrictPolicy):
    """A policy with another variable, like TFRA's policies."""

    def __init__(self, var):
        super().__init__(var)
        self.counts = tfra.get_variable(f"counts/{var.name}", value_dtype=tf.int32, trainable=False)

    def apply_update(self, ids):
        self.counts.upsert(ids, self.counts.lookup(ids) + 1)

    def apply_restriction(self, num_reserved, **kwargs):
        pass


class NamedVariablesTest(tf.test.TestCase, parameterized.TestCase):
    def tearDown(self):
        tfra.forget_variable("users")
        super().tearDown()

    @pytest.mark.smoke
    def test_one_name_is_one_object_also_in_functions(self):
        found = []

        @tf.function
        def rows(ids):
            found.append(tfra.get_variable("users", dim=2, initializer=1.0))
            return found[-1].lookup(ids)

        self.assertAllEqual(rows(tf.constant([3], tf.int64)), [[1.0, 1.0]])
        self.assertAllEqual(rows(tf.constant([3, 4], tf.int64)), [[1.0, 1.0]] * 2)
        v = tfra.get_variable("users", dim=2, initializer=tf.constant(1.0))
        self.assertTrue(all(one is v for one in found))
        self.assertEqual(v.name, "users")
        v.upsert([1], [[2.0, 3.0]])
        self.assertEqual(int(tfra.get_variable("users", dim=2, initializer=1).size()), 1)

    @parameterized.parameters(
        ({"dim": 3}, "`dim` must be that of the variable 'users' that is there already, 2"),
        ({"key_dtype": tf.int32}, "`key_dtype`.*int64.*Received: key_dtype=int32"),
        ({"value_dtype": tf.float64}, "`value_dtype`.*float32.*Received: value_dtype=float64"),
        ({"initializer": 2.0}, "`initializer`.*constant\\(1.0,\\).*constant\\(2.0,\\)"),
        ({"initializer": [1.0, 2.0]}, "`initializer`"),
        ({"initializer": None}, "`initializer`"),
        ({"initializer": "he_normal"}, "`initializer`"),
        ({"initializer": lambda shape, dtype: tf.ones(shape, dtype)}, "`initializer`"),
    )
    def test_another_variable_under_that_name_is_refused(self, wrong, words):
        tfra.get_variable("users", dim=2, initializer=1.0)
        with self.assertRaisesRegex(ValueError, words):
            tfra.get_variable("users", **{"dim": 2, "initializer": 1.0, **wrong})

    @parameterized.parameters(
        (lambda: "he_normal", True),
        (lambda: keras.initializers.RandomNormal(), True),
        (lambda: keras.initializers.RandomNormal, True),
        (lambda: keras.initializers.RandomNormal(seed=3), True),
        (lambda: tf.zeros_initializer(), True),
        (lambda: tf.random_normal_initializer(0.0, 0.1), True),
        (lambda: TellsNothing(), False),
        (lambda: lambda shape, dtype: tf.ones(shape, dtype), False),
    )
    def test_the_same_initializer_is_the_same(self, make, same):
        v = tfra.get_variable("users", dim=2, initializer=make())
        if same:
            self.assertIs(tfra.get_variable("users", dim=2, initializer=make()), v)
        else:
            with self.assertRaises(ValueError):
                tfra.get_variable("users", dim=2, initializer=make())

    @parameterized.parameters(keras.initializers.RandomNormal(0.0, 0.1), "uniform")
    def test_initializers_of_other_numbers_or_seeds_are_others(self, other):
        seeded = keras.initializers.RandomNormal(seed=3)
        tfra.get_variable("users", dim=2, initializer=seeded)
        for wrong in (other, keras.initializers.RandomNormal(seed=4)):
            with self.assertRaisesRegex(ValueError, "`initializer`"):
                tfra.get_variable("users", dim=2, initializer=wrong)

    def test_the_same_object_is_the_same_whatever_it_draws(self):
        generator = keras.random.SeedGenerator(3)
        for initializer in (keras.initializers.RandomNormal(seed=generator), TellsNothing()):
            v = tfra.get_variable("users", dim=2, initializer=initializer)
            self.assertIs(tfra.get_variable("users", dim=2, initializer=initializer), v)
            tfra.forget_variable("users")

    def test_another_initializer_of_tensorflow_is_another(self):
        tfra.get_variable("users", dim=2, initializer=tf.random_normal_initializer(0.0, 0.1))
        for wrong in (tf.random_normal_initializer(0.0, 0.2), tf.zeros_initializer()):
            with self.assertRaisesRegex(ValueError, "`initializer`"):
                tfra.get_variable("users", dim=2, initializer=wrong)

    def test_a_variable_scope_prefixes_the_name(self):
        made = {}
        for field in ("user", "item"):
            with tf.compat.v1.variable_scope(field), tf.compat.v1.variable_scope("tower"):
                made[field] = tfra.get_variable("users", dim=2)
                self.assertIs(tfra.get_variable("users", dim=2), made[field])
        made[""] = tfra.get_variable("users", dim=2)
        names = [one.name for one in made.values()]
        self.assertEqual(names, ["user/tower/users", "item/tower/users", "users"])

        @tf.function
        def in_graph():
            with tf.compat.v1.variable_scope("user/tower"):
                self.assertIs(tfra.get_variable("users", dim=2), made["user"])

        in_graph()
        for name in names:
            tfra.forget_variable(name)
        self.assertIsNot(tfra.get_variable("users", dim=2), made[""])

    def test_a_restrict_policy_may_have_a_named_variable(self):
        made = []

        def make():
            made.append(tfra.get_variable("users", dim=2, restrict_policy=CountsUpdates))

        # In a thread, so that a lock that is never freed fails the test.
        maker = threading.Thread(target=make, daemon=True)
        maker.start()
        maker.join(60)
        self.assertLen(made, 1)
        made[0].upsert([1, 2], [[0.0, 0.0]] * 2)
        counts = tfra.get_variable("counts/users", value_dtype=tf.int32)
        self.assertIs(counts, made[0].restrict_policy.counts)
        self.assertAllEqual(counts.lookup([1, 2, 3]), [[1], [1], [0]])
        tfra.forget_variable("counts/users")

    def test_a_forgotten_one_is_freed_and_made_anew(self):
        v = tfra.get_variable("users", dim=2)
        v.upsert([1], [[1.0, 2.0]])
        alive = weakref.ref(v.table)
        tfra.forget_variable("users")
        tfra.forget_variable("users")
        self.assertEqual(int(v.size()), 1)
        del v
        gc.collect()
        self.assertIsNone(alive())
        self.assertEqual(int(tfra.get_variable("users", dim=5).size()), 0)


def step_of(optimizer: Any, sources: list[Any], loss_of: Any) -> Any:
    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = loss_of(ids)
        optimizer.apply_gradients(zip(tape.gradient(loss, sources), sources, strict=True))

    return step


class ShadowVariablesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("Adam", "Adagrad", "Nadam")
    @pytest.mark.smoke
    def test_several_of_one_variable_make_one_step(self, name):
        kind = getattr(keras.optimizers, name)
        v, other = (tf_embed.tfra.Variable(dim=2, initializer=0.5) for _ in range(2))
        shadows = [shadow_ops.ShadowVariable(v, name=f"field/{i}") for i in range(2)]

        def loss_of(ids):
            first = shadow_ops.embedding_lookup(shadows[0], ids)
            second = shadow_ops.embedding_lookup_unique(shadows[1], ids[1:], 2)
            return tf.reduce_sum(first) + 3.0 * tf.reduce_sum(tf.square(second))

        def same_loss(ids):
            first = tf_embed.tfra.embedding_lookup(other, ids, name="first")
            second = tf_embed.tfra.embedding_lookup(other, ids[1:], name="second")
            return tf.reduce_sum(first) + 3.0 * tf.reduce_sum(tf.square(second))

        optimizers = [tf_embed.DynamicEmbeddingOptimizer(kind(0.1)) for _ in range(2)]
        step = step_of(optimizers[0], shadows, loss_of)
        same_step = step_of(optimizers[1], [other.anchor], same_loss)
        for ids in ([1, 2], [2, 2], [5, 1]):
            step(tf.constant(ids, tf.int64))
            same_step(tf.constant(ids, tf.int64))
        self.assertAllEqual(v.lookup([1, 2, 5]), other.lookup([1, 2, 5]))
        self.assertEqual(int(optimizers[0].iterations), 3)
        found, wanted = (
            [slot.lookup([1, 2, 5]) for slot in one.get_slot_variables(optimizer)]
            for one, optimizer in zip((v, other), optimizers, strict=True)
        )
        self.assertAllClose(found, wanted, rtol=1e-6)

    def test_gradients_are_those_of_its_own_lookups(self):
        v = tf_embed.tfra.Variable(dim=1)
        shadow = shadow_ops.ShadowVariable(v)
        with tf.GradientTape(persistent=True) as tape:
            loss = 2.0 * tf.reduce_sum(shadow_ops.embedding_lookup(shadow, [1]))
            loss += tf.reduce_sum(tf_embed.tfra.embedding_lookup(v, [2]))
            loss += tf.reduce_sum(tf_embed.tfra.safe_embedding_lookup_sparse(
                shadow, tf.SparseTensor([[0, 0]], tf.constant([3], tf.int64), [1, 1])
            ))  # fmt: skip
        slices = tape.gradient(loss, shadow)
        self.assertAllEqual(tf.sort(slices.indices), [1, 3])
        self.assertAllEqual(tape.gradient(loss, v.anchor).indices, [2])

    def test_the_anchor_itself_is_one(self):
        layer = tfra.keras.layers.Embedding(2, initializer="ones")
        ids = tf.constant([3, 3], tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shadow_ops.embedding_lookup(layer.shadow, ids))
            loss += tf.reduce_sum(shadow_ops.embedding_lookup_unique(layer.shadow, ids, 2))
            loss += tf.reduce_sum(tf_embed.tfra.embedding_lookup(layer.shadow, ids))
        self.assertEqual(float(loss), 12.0)
        slices = tape.gradient(loss, layer.params.anchor)
        self.assertAllEqual(tf.reduce_sum(slices.values, 0), [6.0, 6.0])

    def test_a_frozen_variable_and_one_that_is_not_trained(self):
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        v, constant = tf_embed.tfra.Variable(dim=1), tf_embed.tfra.Variable(dim=1, trainable=False)
        shadow = shadow_ops.ShadowVariable(v)
        for untrained in (
            shadow_ops.ShadowVariable(constant),
            shadow_ops.ShadowVariable(v, trainable=False),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(shadow_ops.embedding_lookup(untrained, [1]))
            self.assertIsNone(tape.gradient(loss, untrained))
        step = step_of(
            optimizer,
            [shadow],
            lambda ids: tf.reduce_sum(shadow_ops.embedding_lookup(shadow, ids)),
        )
        step(tf.constant([1], tf.int64))
        v.anchor.frozen = True
        step(tf.constant([1], tf.int64))
        self.assertAllEqual(v.lookup([1]), [[-1.0]])
        shadow.frozen = False
        step(tf.constant([1], tf.int64))
        self.assertAllEqual(v.lookup([1]), [[-2.0]])

    @pytest.mark.smoke
    def test_a_keras_layer_that_has_one_trains_and_is_restored(self):
        class Users(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.params = tf_embed.tfra.Variable(dim=2, name="users", initializer=0.1)
                self.shadow = shadow_ops.ShadowVariable(self.params, name="users-shadow")

            def call(self, ids):
                return shadow_ops.embedding_lookup_unique(self.shadow, ids, 2)

        def model() -> keras.Model:
            ids = keras.Input([3], dtype="int64")
            pooled = keras.layers.GlobalAveragePooling1D()(Users()(ids))
            made = keras.Model(ids, keras.layers.Dense(1)(pooled))
            made.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
            return made

        ids, wanted = np.array([[1, 2, 3], [1, 1, -7]]), np.array([1.0, 2.0])
        trained, other = model(), model()
        for _ in range(2):
            trained.train_on_batch(ids, wanted)
        self.assertEqual(int(trained.layers[1].params.size()), 4)
        path = tf.train.Checkpoint(trained).save(os.path.join(self.get_temp_dir(), "users"))
        other.train_on_batch(ids + UNSEEN, wanted)
        tf.train.Checkpoint(other).restore(path)
        for one in (trained, other):
            one.train_on_batch(ids, wanted)
        keys = [1, 2, 3, -7, 1 + UNSEEN]
        self.assertAllEqual(*(one.layers[1].params.lookup(keys) for one in (trained, other)))

    def test_what_is_wrong_is_refused(self):
        v = tf_embed.tfra.Variable(dim=2, name="mine")
        with self.assertRaisesRegex(TypeError, "`params` must be a tf_embed.Variable"):
            shadow_ops.ShadowVariable(3)
        with self.assertRaisesRegex(TypeError, "ShadowVariable has no argument `idz`"):
            shadow_ops.ShadowVariable(v, idz=None)
        with self.assertRaisesRegex(TypeError, "`shadow` must be a .*ShadowVariable"):
            shadow_ops.embedding_lookup(v, [1])
        shadow = shadow_ops.ShadowVariable(v)
        with self.assertRaisesRegex(ValueError, "`embedding_size` must be the dim of 'mine', 2"):
            shadow_ops.embedding_lookup_unique(shadow, [1], 3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shadow_ops.embedding_lookup(shadow, [1]))
        with self.assertRaisesRegex(ValueError, "tf_embed.DynamicEmbeddingOptimizer"):
            keras.optimizers.SGD().apply([tape.gradient(loss, shadow)], [shadow])


class VerbsTest(tf.test.TestCase, parameterized.TestCase):
    def test_size_counts_a_shard_or_all(self):
        v = tf_embed.tfra.Variable(devices=["/CPU:0"] * 4)
        v.upsert([0, 4, 8, 1, -1], np.zeros([5, 1]))
        self.assertEqual([int(v.size(index)) for index in range(4)], [3, 1, 0, 1])
        self.assertEqual(v.size().dtype, tf.int64)
        self.assertEqual(int(v.size()), 5)
        self.assertEqual([int(shard.size()) for shard in v.tables], [3, 1, 0, 1])
        self.assertEqual([shard.device for shard in v.tables], ["/CPU:0"] * 4)
        for index in (4, -1):
            with self.assertRaisesRegex(
                ValueError, f"(at least 0|less than the number of shards of ).*index={index}"
            ):
                v.size(index)

    def test_shards_are_shown_by_name(self):
        (shard,) = tf_embed.tfra.Variable(dim=3, name="users").tables
        self.assertEqual(repr(shard.table), "<table of 'users', dim=3, shards=1>")
        self.assertNotIn(" at 0x", repr(shard))

    def test_a_variable_that_is_not_trainable_has_an_empty_store(self):
        self.assertEqual(tf_embed.tfra.Variable(trainable=False).trainable_store, {})

    def test_the_trainable_store_names_the_variable(self):
        v = tf_embed.tfra.Variable(name="mine")
        self.assertEqual(list(v.trainable_store), ["mine"])
        self.assertIs(v.trainable_store["mine"], v.trainable_variables[0])

    def test_two_variables_of_one_shared_name_share_nothing(self):
        one = tf_embed.tfra.Variable(name="same", shared_name="same")
        two = tf_embed.tfra.Variable(name="same", shared_name="same")
        one.upsert([1], [[1.0]])
        self.assertEqual((int(one.size()), int(two.size())), (1, 0))

    @parameterized.parameters(
        ("upsert", [1], [[1.0]]),
        ("accum", [1], [[1.0]], [[2.0]], [True]),
        ("lookup", [1]),
        ("prefetch", [1]),
        ("remove", [1]),
        ("clear",),
        ("size",),
        ("export",),
    )
    def test_a_verb_takes_the_name_of_its_operation(self, verb, *arguments):
        v = tf_embed.tfra.Variable()
        call = getattr(v, verb)

        @tf.function
        def named() -> None:
            call(*arguments, name="mine")

        operations = named.get_concrete_function().graph.get_operations()
        self.assertNotEmpty([one for one in operations if one.name.startswith("mine/")])
        with self.assertRaisesRegex(TypeError, "`name` must be a str or None"):
            call(*arguments, name=3)


# Keras's names of the slots, and how many of them a row has.
SLOTS = {
    "SGD": {},
    "RMSprop": {"velocity": 2},
    "Adagrad": {"accumulator": 2},
    "Adam": {"momentum": 2, "velocity": 2},
    "Ftrl": {"accumulator": 2, "linear": 2},
    "Lion": {"momentum": 2},
    "Adamax": {"momentum": 2, "norm": 2},
}


class SlotVariablesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *((kind, {}) for kind in SLOTS),
        ("Adam", {"amsgrad": True}),
        ("RMSprop", {"centered": True, "momentum": 0.5}),
        ("Adam", {"use_ema": True}),
        ("RowwiseAdagrad", {}),
    )
    def test_they_are_the_slots_of_a_dense_variable(self, kind, options):
        ours = tf_embed.optimizers.RowwiseAdagrad if kind == "RowwiseAdagrad" else None
        make = ours or getattr(keras.optimizers, kind)
        v = tf_embed.tfra.Variable(dim=2, name="users", initializer=1.0, devices=["/CPU:0"] * 2)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make(0.1, **options))
        self.assertEqual(v.get_slot_variables(optimizer), [])
        optimizer.build([v.anchor])
        before = [slot.lookup([[4]]) for slot in v.get_slot_variables(optimizer)]
        keys = tf.constant([5, -3, 2**40], tf.int64)
        dense, oracle = keras.Variable(np.ones([3, 2], np.float32)), make(0.1, **options)
        for scale in (1.0, -2.0):
            rows = scale * tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
            optimizer.apply([tf.IndexedSlices(rows, keys)], [v.anchor])
            oracle.apply([rows], [dense])
        wanted = [one for one in oracle.variables if tuple(one.shape)[:1] == (3,)]
        slots = v.get_slot_variables(optimizer)
        self.assertLen(slots, len(wanted))
        for slot in slots:
            name = slot.name.removeprefix(f"users/{optimizer.inner_optimizer.name}/")
            match = [one for one in wanted if one.name.endswith(f"_{name}") or len(wanted) == 1]
            values, exists = slot.lookup(keys, return_exists=True)
            shape = [3, slot.dim]
            self.assertAllClose(values, tf.reshape(match[0], shape), rtol=1e-5, msg=slot.name)
            self.assertAllEqual(exists, [True] * 3)
            self.assertEqual(int(slot.size()), 3)
            exported, rows = slot.export()
            order = tf.argsort(exported).numpy()
            self.assertAllEqual(tf.gather(exported, order), tf.sort(keys))
            self.assertAllEqual(tf.gather(rows, order), tf.gather(values, tf.argsort(keys)))
        # An absent key has the slots that it had before training.
        after = [slot.lookup([[4]]) for slot in slots]
        self.assertAllEqual(before, after)
        self.assertEqual(int(v.size()), 3)

    @parameterized.parameters(*SLOTS.items())
    def test_their_names_are_those_of_keras(self, kind, wanted):
        v = tf_embed.tfra.Variable(dim=2, name="users")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(getattr(keras.optimizers, kind)())
        optimizer.build([v.anchor])
        found = {slot.name: slot.dim for slot in v.get_slot_variables(optimizer)}
        prefix = f"users/{optimizer.inner_optimizer.name}/"
        self.assertEqual(found, {prefix + name: width for name, width in wanted.items()})

    def test_a_function_may_look_them_up(self):
        v = tf_embed.tfra.Variable(dim=2)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad())
        optimizer.build([v.anchor])
        (slot,) = v.get_slot_variables(optimizer)
        look_up = tf.function(slot.lookup)
        found = look_up(tf.constant([[1, 2]], tf.int64))
        self.assertEqual(found.shape, [1, 2, 2])
        self.assertAllClose(found, tf.fill([1, 2, 2], 0.1))

    def test_an_optimizer_that_does_not_train_it_has_none(self):
        v, other = tf_embed.tfra.Variable(name="a"), tf_embed.tfra.Variable(name="b")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        optimizer.build([other.anchor])
        self.assertEqual(v.get_slot_variables(optimizer), [])
        self.assertLen(other.get_slot_variables(optimizer), 2)
        self.assertEqual(v.get_slot_variables(keras.optimizers.Adam()), [])
        with self.assertRaisesRegex(TypeError, "`optimizer` must be a keras.optimizers.Optimizer"):
            v.get_slot_variables("adam")

    def test_a_tables_own_optimizer(self):
        layer = tfra.keras.layers.Embedding(2, optimizer="adagrad")
        (slot,) = layer.params.get_slot_variables(layer.optimizer)
        self.assertEqual(slot.dim, 2)
        self.assertEqual(layer.params.get_slot_variables(copy.copy(keras.optimizers.SGD())), [])


class TrainableByNameTest(tf.test.TestCase):
    def test_a_shadow_is_found_by_its_name_as_long_as_it_is_there(self):
        v = tf_embed.tfra.Variable(dim=1, name="users")
        shadow = shadow_ops.ShadowVariable(v, name="field/user")
        untrained = shadow_ops.ShadowVariable(v, name="fixed", trainable=False)
        self.assertIs(v.get_trainable_by_name("field/user"), shadow)
        self.assertIs(v.get_trainable_by_name(shadow.name), shadow)
        self.assertIs(v.get_trainable_by_name("field"), v.anchor)
        self.assertIs(v.get_trainable_by_name(untrained.name), v.anchor)
        self.assertEqual(list(v.trainable_store), ["users", "field/user"])
        self.assertIsNone(copy.deepcopy(v).trainable_store.get("field/user"))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        ids = tf.constant([1], tf.int64)
        for number, sources in enumerate(([shadow], list(v.trainable_store.values()))):
            step = step_of(
                optimizer,
                sources,
                lambda ids: tf.reduce_sum(shadow_ops.embedding_lookup(shadow, ids)),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                step(ids)
            self.assertAllEqual(v.lookup(ids), [[-1.0 - number]])
        brief = shadow_ops.ShadowVariable(v, name="brief")
        self.assertIs(v.trainable_store["brief"], brief)
        del brief
        gc.collect()
        self.assertNotIn("brief", v.trainable_store)
        v.anchor.frozen = True
        self.assertEqual(v.trainable_store, {})

    def test_a_name_as_given_counts_before_one_with_other_signs(self):
        v = tf_embed.tfra.Variable(dim=1)
        shadows = [shadow_ops.ShadowVariable(v, name=name) for name in ("a/b", "a_b", "a/b")]
        self.assertIs(v.get_trainable_by_name("a_b"), shadows[1])
        self.assertIs(v.get_trainable_by_name("a/b"), shadows[2])
        self.assertEqual(list(v.trainable_store)[1:], ["a/b", "a_b"])

    def test_shadows_may_come_and_go_in_other_threads(self):
        v = tf_embed.tfra.Variable(dim=1)
        kept = [shadow_ops.ShadowVariable(v, name=f"kept_{number}") for number in range(30)]
        is_over = threading.Event()

        def come_and_go():
            number = 0
            while not is_over.is_set():
                shadow_ops.ShadowVariable(v, name=f"brief_{number}")
                number += 1

        threads = [threading.Thread(target=come_and_go) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                self.assertTrue({one.name for one in kept}.issubset(v.trainable_store))
        finally:
            is_over.set()
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join()

    def test_any_name_gives_the_anchor_also_before_the_first_lookup(self):
        v = tf_embed.tfra.Variable(name="users")
        self.assertIs(v.get_trainable_by_name("user_embedding"), v.anchor)
        self.assertIs(v.get_eager_trainable_by_name("x"), v.anchor)
        self.assertEqual(list(v.trainable_store), ["users"])
        self.assertIsNone(tf_embed.tfra.Variable(trainable=False).get_trainable_by_name("x"))
        with self.assertRaisesRegex(TypeError, "`name` must be a str. Received"):
            v.get_trainable_by_name(3)

        @tf.function
        def in_graph():
            v.get_trainable_by_name("x")

        with self.assertRaisesRegex(RuntimeError, "for eager execution"):
            in_graph()
