# SPDX-License-Identifier: Apache-2.0
"""Snapshots of several layers with the same name and folder."""

from __future__ import annotations

import tempfile

import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import layer, store, train

TRACKED = tf_embed.TablePolicy(eviction=None, track_changes=True)


def emb(folder: str, **options):
    return layer(store_options=store(folder), optimizer="sgd", devices="/CPU:0", **options)


class SnapshotsOfOneNameTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters("save_snapshot", "snapshots", "fold")
    def test_a_snapshot_of_another_layer_of_the_name_is_not_replaced(self, way):
        folder = self.folder()
        first, second = emb(folder, policy=TRACKED), emb(folder, policy=TRACKED)
        train(first, tf.constant([[1, 2]]))
        first.save_snapshot("s", wait=False)  # others are refused while it is being written, too
        replace = {
            "save_snapshot": second.save_snapshot,
            "snapshots": second.snapshots.save,
            "fold": lambda name: second.snapshots.fold("t", name),
        }[way]
        second.save_snapshot("t")
        with self.assertRaisesRegex(
            ValueError, "another layer named 'emb'.*Received: snapshot 's'"
        ):
            replace("s")
        again = emb(folder)
        first.snapshots.wait()
        again.load_snapshot("s")
        self.assertEqual(int(again.size()), 2)
        first.save_snapshot("s")

    def test_a_layer_replaces_the_snapshot_that_it_loaded(self):
        folder = self.folder()
        first, second = emb(folder), emb(folder)
        first.save_snapshot("s")
        second.load_snapshot("s")
        second.save_snapshot("s")
        for layer_of_before in (first, emb(folder)):
            with self.assertRaisesRegex(ValueError, "named 'emb'"):
                layer_of_before.save_snapshot("s")

    @parameterized.parameters("layer", "snapshot")
    def test_what_is_gone_is_replaced(self, gone):
        folder = self.folder()
        first, second = emb(folder), emb(folder)
        first.save_snapshot("s")
        if gone == "layer":  # as if a notebook cell runs again
            del first
        else:
            first.snapshots.remove("s")
        second.save_snapshot("s")
        emb(folder).load_snapshot("s")


if __name__ == "__main__":
    tf.test.main()
