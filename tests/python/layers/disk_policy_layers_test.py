# SPDX-License-Identifier: Apache-2.0
"""Policies in Keras models whose tables have rows on disk: the tests of tables in memory."""

from __future__ import annotations

import policy_layers_test
import tensorflow as tf

from support.cases.on_disk import OnDisk


class SavePathsTest(OnDisk, policy_layers_test.SavePathsTest):
    """The save paths."""

    host_bytes = 500  # three rows for each of three shards


class LayerTest(OnDisk, policy_layers_test.LayerTest):
    """The layer in a model."""

    host_bytes = 500


if __name__ == "__main__":
    tf.test.main()
