# SPDX-License-Identifier: Apache-2.0
"""Tests of `Follower` against the tables that a `Publisher` publishes, in one process."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.oracles.reference import SEED
from support.processes.published_tables import DIM, TRACKED, Change, answers, fit, model_of, rows_of
from tf_embed.serving import Follower, Publisher, dense_weights, publication


def by_second_digit(keys: tf.Tensor, shards: int) -> tf.Tensor:
    return tf.cast(keys // 10 % shards, tf.int32)


class ServingTestCase(parameterized.TestCase):
    """Makes folders and variables, and compares variables."""

    def setUp(self):
        super().setUp()
        self.path = self.folder()

    def folder(self) -> str:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def empty(self, all_but: int = 0) -> None:
        """Removes all publications after a version."""
        for version in publication.versions_in(self.path):
            if version > all_but:
                shutil.rmtree(os.path.join(self.path, publication.folder_name(version)))

    def variable(self, *, on_disk: bool = False, **options: Any) -> tf_embed.Variable:
        if on_disk:
            options["storage"] = tf_embed.Storage(host_bytes=8000, path=self.folder())
        return tf_embed.Variable(**{"dim": DIM, "name": "table", **options})

    def pair(self, **options: Any) -> tuple[tf_embed.Variable, tf_embed.Variable]:
        """A table to train, and a table to serve."""
        return self.variable(policy=TRACKED, **options), self.variable()

    def assert_equal(self, trained: tf_embed.Variable, served: tf_embed.Variable) -> None:
        self.assertEqual(rows_of(served), rows_of(trained))


class RowsTest(ServingTestCase):
    @parameterized.named_parameters(
        ("in_memory", {}, {}),
        ("other_shards", {"devices": ["/CPU:0"] * 3}, {"devices": ["/CPU:0"] * 2}),
        ("trained_on_disk", {"on_disk": True}, {}),
        ("served_on_disk", {}, {"on_disk": True}),
        ("both_on_disk", {"on_disk": True, "devices": ["/CPU:0"] * 2}, {"on_disk": True}),
        ("partitioned", {}, {"devices": ["/CPU:0"] * 3, "partitioner": by_second_digit}),
        ("untracked", {"policy": None}, {}),
        ("bfloat16", {"value_dtype": tf.bfloat16}, {"value_dtype": tf.bfloat16}),
        ("uint64_keys", {"key_dtype": tf.uint64}, {"key_dtype": tf.uint64}),
        ("strings", {"policy": None, "key_dtype": tf.string}, {"key_dtype": tf.string}),
        ("same_policy", {}, {"policy": TRACKED}),
    )
    def test_rows_are_those_of_each_publication(self, trained, served):
        trained = self.variable(**{"policy": TRACKED, **trained})
        served = self.variable(**served)
        change = Change(SEED, is_string=trained.key_dtype == tf.string)
        if trained.key_dtype == tf.uint64:
            change.keys_of = lambda numbers: np.asarray(numbers, np.uint64) + 2**63
        publisher = Publisher(trained, self.path, keep=2, whole_every=4)
        follower = Follower(served, self.path)
        draw = np.random.default_rng(SEED)
        absent = change.keys_of([10_000, 10_001])
        for number in range(12):
            change(trained)
            if number == 9:
                trained.clear()
                change(trained)
            version = publisher.publish()
            if draw.random() < 0.3:
                continue  # it falls behind
            self.assertTrue(follower.update())
            self.assertFalse(follower.update())
            self.assertEqual(follower.version, version)
            self.assert_equal(trained, served)
            self.assertAllEqual(trained.lookup(absent), served.lookup(absent))

    def assertAllEqual(self, one, other):  # noqa: N802 - as in tf.test.TestCase
        np.testing.assert_array_equal(one.numpy(), other.numpy())

    def test_changes_have_what_changed(self):
        trained, served = self.pair()
        trained.upsert(range(1000), np.ones([1000, DIM]))
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        publisher.publish()
        follower.update()
        self.assertEqual(follower.publication.rows, 1000)
        trained.upsert([3, 4], np.full([2, DIM], 2.0))
        trained.remove([5])
        publisher.publish()
        follower.update()
        self.assertEqual((follower.publication.rows, follower.publication.since), (2, 1))
        self.assert_equal(trained, served)

    def test_dense_weights_change_with_the_rows_and_slots_are_left_out(self):
        model, served = model_of(TRACKED), model_of()
        publisher = Publisher(model, self.path, whole_every=2)
        follower = Follower(served, self.path)
        for seed in range(4):
            fit(model, seed)
            publisher.publish(wait=False)
            publisher.wait()
            self.assertTrue(follower.update())
            np.testing.assert_array_equal(answers(served), answers(model))
        for name in ("a", "b"):
            exported = [one.get_layer(name).variable.table.export() for one in (model, served)]
            self.assertEqual([one.slots.shape[1] for one in exported], [2 * DIM, 0])
            self.assertEqual(*[len(one.keys) for one in exported])

    def test_numbers_that_keras_adds_to_names_of_dense_weights_may_differ(self):
        class Scale(keras.layers.Layer):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.weight_name = name

            def build(self, shape: tuple[int, ...]) -> None:
                self.scale = self.add_weight(
                    shape=shape[-1:], initializer="uniform", name=self.weight_name
                )

            def call(self, x: tf.Tensor) -> tf.Tensor:
                return x * self.scale

        def scaled(*names: str, dim: int = DIM) -> keras.Model:
            ids = keras.Input([2], dtype="int64")
            rows = tf_embed.layers.DynamicEmbedding(dim, combiner="sum", name="t")(ids)
            for name in names:
                rows = Scale(name)(rows)
            return keras.Model(ids, rows)

        model = scaled("variable", "other")
        Publisher(model, self.path).publish()
        served = scaled("variable_1", "other_2")
        self.assertTrue(Follower(served, self.path).update())
        for one, other in zip(model.weights[1:], served.weights[1:], strict=True):
            self.assertAllEqual(one, other)
        for names in (["other", "variable"], ["variable_1", "others"], ["variable_1"]):
            with self.assertRaisesRegex(ValueError, "`model` must have the dense weights that are"):
                Follower(scaled(*names), self.path).update()

    def test_a_follower_that_starts_late_takes_all_rows_and_the_changes_after(self):
        trained, change = self.variable(policy=TRACKED), Change(SEED)
        publisher = Publisher(trained, self.path, keep=1, whole_every=3)
        for _ in range(8):
            change(trained)
            publisher.publish()
            served = self.variable()
            self.assertTrue(Follower(served, self.path).update())
            self.assert_equal(trained, served)
        self.assertLess(len(os.listdir(self.path)), 8)

    def test_all_rows_can_be_asked_for(self):
        trained, served = self.pair()
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        for whole in (False, True, False):
            Change(SEED)(trained)
            publisher.publish(whole=whole)
            follower.update()
            self.assert_equal(trained, served)
            self.assertEqual(follower.publication.since is None, whole or follower.version == 1)

    def test_a_follower_that_fell_behind_drops_rows_that_are_gone(self):
        trained, served = self.pair()
        publisher = Publisher(trained, self.path, keep=1, whole_every=2)
        follower = Follower(served, self.path)
        trained.upsert(range(100), np.ones([100, DIM]))
        publisher.publish()
        follower.update()
        trained.remove(range(50))
        for number in range(6):
            trained.upsert([1000 + number], np.ones([1, DIM]))
            publisher.publish()
        self.assertFalse(os.path.exists(os.path.join(self.path, "publication-0000000002")))
        self.assertTrue(follower.update())
        self.assert_equal(trained, served)

    @parameterized.parameters([[[3]], [[1, 2, 3]]])
    def test_publications_that_are_removed_lose_no_rows(self, removed):
        trained, served = self.pair()
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        for number in range(6):
            trained.upsert([number], np.full([1, DIM], float(number), np.float32))
            self.assertEqual(publisher.publish(), number + 1)
            follower.update()
            if number == 2:
                for version in removed:
                    publication.remove(self.path, version)
            self.assert_equal(trained, served)
        late = self.variable()
        self.assertTrue(Follower(late, self.path).update())
        self.assert_equal(trained, late)

    def test_a_second_publisher_goes_on_after_the_first(self):
        served = self.variable(initializer="normal")
        follower, before = Follower(served, self.path), 0
        for seed in range(3):
            trained = self.variable(policy=TRACKED, initializer="normal")
            publisher, change = Publisher(trained, self.path), Change(seed)
            for _ in range(2):
                change(trained)
                version = publisher.publish()
                self.assertGreater(version, before)
                before = version
                follower.update()
                self.assertEqual(follower.version, version)
                self.assert_equal(trained, served)
                # Absent keys have the rows of the table that is trained now.
                np.testing.assert_array_equal(trained.lookup([-7]), served.lookup([-7]))

    @parameterized.product(count=[1, 3, 5], is_seen_empty=[True, False])
    def test_a_publisher_that_begins_again_in_an_emptied_folder_is_followed(
        self, count, is_seen_empty
    ):
        trained, served = self.pair()
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        for number in range(3):
            trained.upsert([number], np.ones([1, DIM]))
            publisher.publish()
            follower.update()
        self.empty()
        if is_seen_empty:
            self.assertFalse(follower.update())
        self.assertEqual(follower.version, 3)
        trained = self.variable(policy=TRACKED)
        publisher = Publisher(trained, self.path)
        for number in range(count):
            trained.upsert([-number], np.full([1, DIM], 2.0))
            publisher.publish()
        for version in (count, count + 1):
            self.assertTrue(follower.update())
            self.assertEqual(follower.version, version)
            self.assert_equal(trained, served)
            self.assertFalse(follower.update())
            trained.upsert([7], np.full([1, DIM], 3.0))
            publisher.publish()

    @parameterized.parameters(True, False)
    def test_a_publication_that_is_left_over_is_not_taken(self, begins_again):
        trained, served = self.pair()
        follower = Follower(served, self.path)
        Publisher(self.variable(policy=TRACKED), self.path).publish()
        publisher = Publisher(trained, self.path)
        for number in range(3):
            trained.upsert([number], np.ones([1, DIM]))
            publisher.publish()
        follower.update()
        self.empty(all_but=1)
        for _ in range(2):
            self.assertFalse(follower.update())
            self.assert_equal(trained, served)
            self.assertIsNone(follower.error)
        if begins_again:
            trained = self.variable(policy=TRACKED)
            publisher = Publisher(trained, self.path)
        trained.upsert([8], np.ones([1, DIM]))
        self.assertEqual(publisher.publish(), 2 if begins_again else 5)
        self.assertTrue(follower.update())
        self.assert_equal(trained, served)

    def test_one_of_two_publishers_is_followed_while_its_publications_are_there(self):
        tables = [self.variable(policy=TRACKED) for _ in range(2)]
        publishers = [Publisher(table, self.path) for table in tables]
        served = self.variable()
        follower = Follower(served, self.path)
        for number in range(3):
            for table, publisher in zip(tables, publishers, strict=True):
                table.upsert([number], np.full([1, DIM], float(publisher is publishers[0])))
                publisher.publish()
            follower.update()
            self.assertEqual(follower.version, 2 * number + 2)
            self.assert_equal(tables[1], served)
        publishers[0].publish()
        self.assertFalse(follower.update())
        for version in (2, 4, 6):
            publication.remove(self.path, version)
        while follower.update():
            pass
        self.assert_equal(tables[0], served)

    def test_rows_that_were_there_before_leave(self):
        trained, served = self.pair()
        served.upsert([-1, -2], np.ones([2, DIM]))
        trained.upsert([5], np.ones([1, DIM]))
        Publisher(trained, self.path).publish()
        Follower(served, self.path).update()
        self.assert_equal(trained, served)

    def test_nothing_published_is_no_error(self):
        follower = Follower(self.variable(), os.path.join(self.path, "not", "there"))
        self.assertFalse(follower.update())
        self.assertEqual((follower.version, follower.publication), (0, None))
        self.assertEqual(follower.lag, float("inf"))

    def test_any_file_system_will_do(self):
        path = f"ram://serving/{os.path.basename(self.path)}"
        trained, served = self.pair()
        publisher, follower = Publisher(trained, path, keep=1), Follower(served, path)
        change = Change(SEED)
        for _ in range(3):
            change(trained)
            publisher.publish()
            follower.update()
            self.assert_equal(trained, served)


class LeavingRowsTest(ServingTestCase):
    # A table over a disk has an additional buffer.
    @parameterized.parameters((False, 10), (True, 3))
    def test_memory_of_rows_that_left_is_given_back(self, on_disk, times):
        trained = self.variable(policy=TRACKED)
        served = self.variable(on_disk=on_disk)
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        trained.upsert(range(50_000), np.ones([50_000, DIM]))
        publisher.publish()
        follower.update()
        full = _bytes_of(served)
        trained.remove(range(49_000))
        publisher.publish()
        follower.update()
        self.assert_equal(trained, served)
        self.assertLess(_bytes_of(served), full / times)

    def test_rows_that_a_policy_evicts_leave(self):
        policy = tf_embed.TablePolicy(max_rows=50, eviction="lru", track_changes=True)
        trained = self.variable(policy=policy)
        served = [self.variable(), self.variable(policy=policy)]
        publisher = Publisher(trained, self.path)
        followers = [Follower(one, self.path) for one in served]
        for step in range(6):
            trained.upsert(range(step * 30, step * 30 + 40), np.full([40, DIM], step))
            publisher.publish()
            for one, follower in zip(served, followers, strict=True):
                follower.update()
                self.assertLen(rows_of(one), min(50, 40 + 30 * step))
                self.assert_equal(trained, one)

    def test_rows_that_are_restricted_leave(self):
        policy = tf_embed.TablePolicy(eviction="lfu", track_changes=True)
        trained = self.variable(policy=policy)
        served = self.variable()
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        trained.upsert(range(500), np.ones([500, DIM]))
        publisher.publish()
        follower.update()
        trained.restrict(20)
        publisher.publish()
        follower.update()
        self.assertLen(rows_of(served), 20)
        self.assert_equal(trained, served)

    def test_a_table_without_room_is_an_error(self):
        trained = self.variable(policy=TRACKED)
        served = self.variable(policy=tf_embed.TablePolicy(max_rows=5, eviction="lru"))
        trained.upsert(range(9), np.ones([9, DIM]))
        Publisher(trained, self.path).publish()
        with self.assertRaisesRegex(
            ValueError, "must have room for all rows that were published: .*max_rows=5.* 4 rows"
        ):
            Follower(served, self.path).update()


def _bytes_of(variable: tf_embed.Variable) -> int:
    report = variable.memory_report()
    return report.slack_bytes + report.index_bytes + sum(tier.bytes for tier in report.tiers)


class DamageTest(ServingTestCase):
    def published(self) -> tuple[tf_embed.Variable, tf_embed.Variable, Publisher, Follower]:
        """Two publications; the follower has loaded the first."""
        trained, served = self.pair()
        publisher, follower = Publisher(trained, self.path), Follower(served, self.path)
        change = Change(SEED)
        change(trained)
        publisher.publish()
        follower.update()
        change(trained)
        publisher.publish()
        return trained, served, publisher, follower

    def file(self, pattern: str) -> pathlib.Path:
        (found,) = pathlib.Path(self.path, "publication-0000000002").glob(pattern)
        return found

    @parameterized.product(
        pattern=("*.rows", "*.manifest", "publication.json"),
        harm=("cut", "flip", "remove", "empty"),
    )
    def test_damage_is_named_and_never_served(self, pattern, harm):
        trained, served, _, follower = self.published()
        before, file = rows_of(served), self.file(pattern)
        whole = file.read_bytes()
        harmed = bytearray(whole)
        if harm == "flip":
            harmed[len(harmed) // 2] ^= 4
        harmed = {"cut": whole[: len(whole) // 2], "empty": b""}.get(harm, bytes(harmed))
        file.unlink()
        if harm != "remove":
            file.write_bytes(harmed)
        for _ in range(2):
            if (pattern, harm) == ("publication.json", "remove"):
                self.assertFalse(follower.update())  # the version is not published, or not yet
            else:
                with self.assertRaises((tf.errors.DataLossError, tf.errors.NotFoundError)) as told:
                    follower.update()
                self.assertIn("publication-0000000002", str(told.exception))
                self.assertIs(follower.error, told.exception)
            self.assertEqual(rows_of(served), before)
            self.assertEqual(follower.version, 1)
        file.write_bytes(whole)  # as if the file arrived late
        self.assertTrue(follower.update())
        self.assertIsNone(follower.error)
        self.assert_equal(trained, served)

    @parameterized.parameters(
        (b"", "it is not what was published"),
        (b"x" * 36, "it is not what was published"),
        (b"x" * 100, "it has more than 36 bytes"),
        (None, "No such file"),
    )
    def test_damaged_dense_weights_are_named_and_never_served(self, contents, words):
        layers = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]) for _ in range(2)]
        for layer in layers:
            layer.layers[0].name = "dense"
        trained, served = self.pair()
        publisher = Publisher([trained, layers[0]], self.path)
        follower = Follower([served, layers[1]], self.path)
        publisher.publish()
        trained.upsert([1], np.ones([1, DIM]))
        path = pathlib.Path(self.path, "publication-0000000001", "weights")
        path.unlink()
        if contents is not None:
            path.write_bytes(contents)
        with self.assertRaisesRegex(tf.errors.OpError, f"{path}.*{words}"):
            follower.update()
        self.assertNotEqual(*[layer.get_weights()[0].tolist() for layer in layers])
        publisher.publish(whole=True)
        follower.update()
        self.assertEqual(*[layer.get_weights()[0].tolist() for layer in layers])
        self.assert_equal(trained, served)

    def test_all_rows_heal_a_damaged_chain(self):
        trained, served, publisher, follower = self.published()
        self.file("*.rows").unlink()
        trained.upsert([1], np.ones([1, DIM]))
        publisher.publish()
        with self.assertRaises(tf.errors.NotFoundError):
            follower.update()
        self.assertEqual(follower.version, 1)
        publisher.publish(whole=True)
        self.assertTrue(follower.update())
        self.assertIsNone(follower.error)
        self.assert_equal(trained, served)

    @parameterized.parameters(True, False)
    def test_damage_is_told_after_numbers_begin_again(self, is_seen_empty):
        _, served, _, follower = self.published()
        follower.update()
        before = rows_of(served)
        self.empty()
        if is_seen_empty:
            follower.update()
        trained = self.variable(policy=TRACKED)
        publisher = Publisher(trained, self.path)
        Change(SEED)(trained)
        publisher.publish()
        file = pathlib.Path(self.path, "publication-0000000001", "publication.json")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        for _ in range(2):
            with self.assertRaisesRegex(tf.errors.DataLossError, str(file)):
                follower.update()
            self.assertEqual(rows_of(served), before)
        file.write_bytes(whole)
        self.assertTrue(follower.update())
        self.assert_equal(trained, served)

    def test_files_of_another_publication_are_refused(self):
        _, served, _, follower = self.published()
        before = rows_of(served)
        first = pathlib.Path(self.path, "publication-0000000001")
        for pattern in ("*.rows", "*.manifest"):
            source = next(first.glob(pattern))
            self.file(pattern).write_bytes(source.read_bytes())
        with self.assertRaises(tf.errors.OpError):
            follower.update()
        self.assertEqual(rows_of(served), before)

    def test_what_a_crash_has_left_is_removed(self):
        _, _, publisher, _ = self.published()
        self.file("publication.json").unlink()
        publisher = Publisher(self.variable(policy=TRACKED), self.path, keep=1)
        self.assertEqual(publisher.publish(), 3)
        self.assertEqual(os.listdir(self.path), ["publication-0000000003"])

    @parameterized.parameters("weights_of", "values_of")
    def test_an_error_that_is_kept_does_not_keep_the_moment(self, function):
        trained, served, publisher, follower = self.published()
        errors = []
        with mock.patch.object(dense_weights, function, side_effect=MemoryError):
            try:
                publisher.publish()
            except MemoryError as error:
                errors.append(error)
        trained.upsert([8], np.ones([1, DIM]))
        publisher.publish()
        tf_embed.Snapshots(self.path + "/snapshots", trained).save("s")
        follower.update()
        self.assert_equal(trained, served)
        self.assertLen(errors, 1)

    @parameterized.parameters("publish", "wait")
    def test_an_error_of_the_thread_is_raised_once(self, method):
        trained, served, publisher, follower = self.published()
        full = tf.errors.ResourceExhaustedError(None, None, "the disk is full")
        with mock.patch.object(publication, "write", side_effect=full):
            publisher.publish(wait=False)
            with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "the disk is full"):
                getattr(publisher, method)()
        trained.upsert([8], np.ones([1, DIM]))
        publisher.publish()
        follower.update()
        self.assert_equal(trained, served)


if __name__ == "__main__":
    absltest.main()
