# SPDX-License-Identifier: Apache-2.0
"""Tests of `callbacks.Publish`."""

from __future__ import annotations

import os
import tempfile
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases import late_changes
from support.processes.published_tables import TRACKED, answers, model_of
from tf_embed.serving import Follower, Publisher, publication


class PublishTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.model = model_of(TRACKED)

    def fit(self, trained, *before, epochs=1, **options) -> None:
        draw = np.random.default_rng(1)
        ids = [draw.integers(0, 200, [64, 2]) for _ in trained.inputs]
        callback = tf_embed.callbacks.Publish(self.path, **options)
        callbacks = [*before, callback]
        trained.fit(
            ids, np.ones([64, 1]), batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks
        )

    @parameterized.parameters(True, False)
    def test_a_follower_answers_as_the_model_after_training(self, tracked):
        model = self.model if tracked else model_of()
        self.fit(model, every_seconds=1e-9)
        versions = publication.versions_in(self.path)
        self.assertEqual(versions, list(range(1, 10)))
        since = [publication.read(self.path, version).since for version in versions]
        self.assertEqual(since, [None, *range(1, 9)] if tracked else [None] * 9)
        served = model_of()
        Follower(served, self.path).update()
        self.assertAllEqual(answers(served), answers(model))

    def test_it_waits_between_publications_and_publishes_the_end(self):
        self.fit(self.model, every_seconds=1000)
        self.assertEqual(publication.versions_in(self.path), [1, 2])
        self.fit(self.model, every_seconds=1000, keep=1)  # a new publisher publishes all rows
        self.assertEqual(publication.versions_in(self.path), [3, 4])
        served = model_of()
        Follower(served, self.path).update()
        self.assertAllEqual(answers(served), answers(self.model))

    @parameterized.parameters(*late_changes.WAYS)
    def test_the_last_publication_has_the_model_as_training_leaves_it(self, way):
        model = model_of(TRACKED, optimizer=None)
        inner = late_changes.optimizer_of(way, keras.optimizers.Adam())
        model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
        changes = late_changes.callbacks_of(
            way, lambda epoch: model.get_layer("a").variable.upsert([3], np.full([1, 4], epoch))
        )
        self.fit(model, *changes, epochs=2, every_seconds=1e-9)
        served = model_of()
        Follower(served, self.path).update()
        self.assertAllEqual(answers(served), answers(model))

    def test_training_without_a_batch_publishes_nothing(self):
        self.fit(self.model, epochs=0)
        self.assertEmpty(publication.versions_in(self.path))

    def test_a_part_of_a_model_can_be_published(self):
        self.fit(self.model, model=self.model.get_layer("a"))
        served = model_of()
        Follower(served.get_layer("a"), self.path).update()
        rows = [len(served.get_layer(name).variable.export()[0]) for name in ("a", "b")]
        self.assertGreater(rows[0], 0)
        self.assertEqual(rows[1], 0)

    def test_an_error_ends_the_training(self):
        full = tf.errors.ResourceExhaustedError(None, None, "the disk is full")
        with (
            mock.patch.object(publication, "write", side_effect=full),
            self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "the disk is full"),
        ):
            self.fit(self.model, every_seconds=1e-9)
        self.assertFalse(any(map(publication.exists, [self.path] * 9, range(9))))
        self.assertNotEmpty(os.listdir(self.path))
        Publisher(self.model, self.path, keep=1).publish()
        self.assertLen(os.listdir(self.path), 1)


if __name__ == "__main__":
    tf.test.main()
