# SPDX-License-Identifier: Apache-2.0
"""Runs tests of tables in memory with the rows of every table on disk, under a small cache."""

from __future__ import annotations

import itertools
import os
import tempfile
from typing import Any
from unittest import mock

import tensorflow as tf

import tf_embed
from tf_embed.variable import variable

HOST_BYTES = 400  # one to twenty rows of the tests' tables


class OnDisk(tf.test.TestCase):
    """A base, before another one, of tests that make tables without a storage."""

    host_bytes = HOST_BYTES

    def setUp(self) -> None:
        super().setUp()
        numbers = itertools.count()
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        given = variable.storage_of

        def storage_of(kv_creator: Any, storage: Any) -> tf_embed.Storage:
            path = os.path.join(folder, str(next(numbers)))
            on_disk = tf_embed.Storage(host_bytes=self.host_bytes, path=path)
            return given(kv_creator, storage) or on_disk

        patch = mock.patch.object(variable, "storage_of", storage_of)
        patch.start()
        self.addCleanup(patch.stop)
