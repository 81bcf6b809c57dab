# SPDX-License-Identifier: Apache-2.0
"""The functions of tf_embed.sok, in one process."""

from __future__ import annotations

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import sok


def table(name: str, dim: int = 2, first: float = 0.0) -> tf_embed.Variable:
    """Keys 1 to 4. Each weight of a row is its key plus `first`."""
    made = tf_embed.Variable(dim=dim, name=name, initializer=-1.0)
    rows = np.arange(1, 5, dtype="float32")[:, None] + first
    made.upsert([1, 2, 3, 4], np.broadcast_to(rows, [4, dim]))
    return made


def ids() -> tf.SparseTensor:
    return tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 2, 4], tf.int64), [3, 2])


class LookupTest(tf.test.TestCase, parameterized.TestCase):
    def test_one_table_gives_a_tensor_and_a_list_a_list(self):
        users, items = table("users"), table("items", dim=1, first=10.0)
        expected = [[1.5, 1.5], [0.0, 0.0], [4.0, 4.0]]
        self.assertAllClose(sok.lookup_sparse(users, ids()), expected)
        (alone,) = sok.lookup_sparse([users], [ids()])
        self.assertAllClose(alone, expected)
        weights = tf.SparseTensor(ids().indices, [1.0, 3.0, 2.0], [3, 2])
        both = sok.lookup_sparse(
            [users, items], [ids(), ids()], [None, weights], combiners=["sum", "mean"]
        )
        self.assertAllClose(both[0], [[3.0, 3.0], [0.0, 0.0], [4.0, 4.0]])
        self.assertAllClose(both[1], [[11.75], [0.0], [14.0]])

    def test_layers_and_trainable_variables_are_tables(self):
        layer = sok.All2AllDenseEmbedding(10, 2, 1, 1)
        layer.build()
        sok.assign(layer, [1, 2], [[1.0, 1.0], [3.0, 3.0]])
        for some in (layer, layer.embedding_variable, layer.trainable_variables[0]):
            self.assertAllClose(sok.lookup_sparse(some, ids(), combiners="sum")[0], [4.0, 4.0])

    def test_gradients_reach_the_rows(self):
        users, items = table("users"), table("items")
        optimizer = sok.OptimizerWrapper(keras.optimizers.SGD(1.0))
        variables = [*users.trainable_variables, *items.trainable_variables]
        with tf.GradientTape() as tape:
            both = sok.lookup_sparse([users, items], [ids()] * 2, combiners=["sum", "mean"])
            loss = tf.add_n([tf.reduce_sum(one) for one in both])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.assertAllClose(users.lookup([1, 2, 3, 4])[:, 0], [0.0, 1.0, 3.0, 3.0])
        self.assertAllClose(items.lookup([1, 2, 3, 4])[:, 0], [0.5, 1.5, 3.0, 3.0])

    @parameterized.parameters(
        ("sp_ids", {"sp_ids": ids()}),
        ("sp_ids", {"sp_ids": [ids()]}),
        ("sp_weights", {"sp_weights": [None]}),
        ("combiners", {"combiners": "sum"}),
        ("combiners", {"combiners": ["sum"] * 3}),
    )
    def test_lists_of_other_lengths_are_refused(self, argument, options):
        users = table("users")
        options = {"sp_ids": [ids(), ids()], **options}
        with self.assertRaisesRegex(
            ValueError, f"`{argument}` must be a list of 2, one for each of `params`"
        ):
            sok.lookup_sparse([users, users], **options)

    def test_what_is_no_table_is_refused(self):
        with self.assertRaisesRegex(
            TypeError, "`params` must be a tf_embed.Variable. Received: params="
        ):
            sok.lookup_sparse(tf.Variable([[1.0]]), ids())
        with self.assertRaisesRegex(TypeError, "must be variables of Keras, TensorFlow or"):
            sok.filter_variables([3])
        with self.assertRaisesRegex(ValueError, "combiner"):
            sok.lookup_sparse(table("users"), ids(), combiners="max")


class VariablesTest(tf.test.TestCase, parameterized.TestCase):
    def test_filter_variables_keeps_the_order(self):
        inputs = keras.Input([1, 1], dtype="int64")
        hidden = keras.layers.Flatten()(sok.All2AllDenseEmbedding(10, 2, 1, 1)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        users = table("users")
        tables, others = sok.filter_variables([users, *model.trainable_variables])
        self.assertLen(tables, 2)
        self.assertIs(tables[0], users)
        self.assertEqual([one.shape for one in others], [(2, 1), (1,)])
        self.assertEqual(sok.filter_variables([]), ([], []))

    def test_export_gives_what_assign_wrote(self):
        users = table("users")
        sok.assign(users, [2, 9], [[0.5, 0.25], [7.0, 8.0]])
        keys, values = sok.export(users)
        found = dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))
        self.assertEqual(found, {1: [1, 1], 2: [0.5, 0.25], 3: [3, 3], 4: [4, 4], 9: [7, 8]})

    def test_wrong_rows_are_refused(self):
        with self.assertRaisesRegex(
            ValueError, "the shape of the keys and then dim: .*values.shape="
        ):
            sok.assign(table("users"), [1, 2], [[1.0, 1.0]])
        with self.assertRaises(TypeError):
            sok.assign(table("users"), [1.5], [[1.0, 1.0]])
        for call in (sok.export, lambda one: sok.assign(one, [1], [[1.0]])):
            with self.assertRaisesRegex(TypeError, "`var` must be a tf_embed.Variable"):
                call(tf.Variable([[1.0]]))

    @parameterized.parameters((0, ValueError), (1.5, TypeError), (None, TypeError))
    def test_init_checks_the_batch_size(self, size, error):
        self.assertIsNone(sok.Init(global_batch_size=7))
        with self.assertRaisesRegex(error, "`global_batch_size` must"):
            sok.Init(global_batch_size=size)

    def test_init_wants_a_multiple_of_the_replicas(self):
        with tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]).scope():
            sok.Init(global_batch_size=6)
            with self.assertRaisesRegex(
                ValueError, "a multiple of the number of replicas, 2. .*=7"
            ):
                sok.Init(global_batch_size=7)

    def test_the_wrapper_is_that_of_tf_embed(self):
        self.assertIs(sok.OptimizerWrapper, tf_embed.DynamicEmbeddingOptimizer)


class FilesTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return os.path.join(self.enter_context(tempfile.TemporaryDirectory()), "rows")

    def test_several_tables_and_an_empty_one_come_back(self):
        folder = self.folder()
        names = ("a/b", "a_b", "empty")
        saved = [table("a/b"), table("a_b", first=5.0), tf_embed.Variable(dim=2, name="empty")]
        sok.dump(folder, saved)
        loaded = [tf_embed.Variable(dim=2, name=name) for name in names]
        sok.load(folder, loaded)
        for one, other in zip(saved, loaded, strict=True):
            keys, rows = sok.export(one)
            self.assertEqual(int(other.size()), len(keys))
            self.assertAllEqual(other.lookup(keys), rows)

    def test_training_goes_on_with_the_slots(self):
        folder, found = self.folder(), []

        def model() -> tuple[keras.Model, sok.All2AllDenseEmbedding]:
            keras.utils.set_random_seed(1)
            inputs = keras.Input([1, 1], dtype="int64")
            layer = sok.All2AllDenseEmbedding(10, 2, 1, 1, name="items")
            made = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
            made.compile(sok.OptimizerWrapper(keras.optimizers.Adagrad(0.1)), "mse")
            made.optimizer.build(made.trainable_variables)
            return made, layer

        inputs, labels = np.array([[[1]], [[2]]]), np.ones([2, 2])
        first, layer = model()
        first.fit(inputs, labels, epochs=3, verbose=0)
        sok.dump(folder, layer, first.optimizer)
        second, other = model()
        sok.load(folder, other, second.optimizer)
        for one in (first, second):
            one.fit(inputs, labels, epochs=2, verbose=0)
            found.append(one.predict(inputs, verbose=0))
        self.assertAllEqual(found[0], found[1])

    def test_an_optimizer_that_is_not_built_is_refused(self):
        folder = self.folder()
        users = table("users")
        sok.dump(folder, users)
        optimizer = sok.OptimizerWrapper(keras.optimizers.SGD())
        with self.assertRaisesRegex(ValueError, "`optimizer` must be built before"):
            sok.load(folder, users, optimizer)
        for call in (sok.dump, sok.load):
            with self.assertRaisesRegex(TypeError, "must be a Keras optimizer or None. Received"):
                call(folder, users, "sgd")

    def test_equal_names_and_other_objects_are_refused(self):
        folder = self.folder()
        for call, argument in ((sok.dump, "dump_vars"), (sok.load, "load_vars")):
            with self.assertRaisesRegex(ValueError, f"`{argument}` must have different names"):
                call(folder, [table("users"), table("users")])
            with self.assertRaisesRegex(TypeError, f"`{argument}` must be a tf_embed.Variable"):
                call(folder, tf.Variable([[1.0]]))
        self.assertFalse(os.path.exists(folder))

    def test_tables_without_a_name_do_not_share_files(self):
        folder = self.folder()
        first, second = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        first.upsert([1], [[1.0]])
        sok.dump(folder, first)
        sok.dump(folder, first)
        with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
            sok.dump(folder, second)
        sok.load(folder, second)
        self.assertAllEqual(second.lookup([1]), [[1.0]])

    def test_a_missing_save_is_an_error(self):
        folder = self.folder()
        sok.dump(folder, table("users"))
        with self.assertRaises(tf.errors.NotFoundError):
            sok.load(folder, table("others"))

    def test_a_save_of_another_name_is_named(self):
        folder = self.folder()
        sok.dump(folder, [table("all to all"), table("users")])
        words = "(?s)no whole save of 'all2'.* has saves of 'all to all', 'users'"
        with self.assertRaisesRegex(tf.errors.NotFoundError, words):
            sok.Saver().restore_from_file(table("all2"), folder)

    def test_the_saver_saves_one_table(self):
        folder = self.folder()
        users = table("users")
        sok.Saver().dump_to_file(users, folder)
        other = tf_embed.Variable(dim=2, name="users")
        sok.Saver().restore_from_file(other, folder)
        self.assertAllEqual(other.lookup([1, 4]), [[1.0, 1.0], [4.0, 4.0]])

    def test_what_is_not_there_raises(self):
        for name in ("sparse_read_and_evict", "TFDistributedEmbedding"):
            with self.assertRaises(AttributeError):
                getattr(sok, name)


if __name__ == "__main__":
    tf.test.main()
