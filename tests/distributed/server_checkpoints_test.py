# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of another model than the one on the servers, in one process."""

from __future__ import annotations

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest

import tf_embed
from tf_embed.distributed.server_checkpoints import ServerCheckpoints


class ServerCheckpointsTest(absltest.TestCase):
    def test_a_checkpoint_of_fewer_tables_is_refused_before_rows_are_loaded(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        v = tf_embed.Variable(dim=2, name="v")
        v.upsert([1], np.ones([1, 2]))
        tf_embed.Snapshots(folder, v).save("step_1")
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        checkpoints = ServerCheckpoints(folder, model, None, 1)
        path = os.path.join(folder, "step_1")
        with self.assertRaisesRegex(
            ValueError,
            f"The checkpoint in '{path}' must have as many tables as the model, 2. Received: 1",
        ):
            checkpoints._load_rows("step_1", [v.table, v.table], [0])
        self.assertEqual(int(v.size()), 1)


if __name__ == "__main__":
    tf.test.main()
