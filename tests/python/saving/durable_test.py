# SPDX-License-Identifier: Apache-2.0
"""Tests of `durable`: folders that can't be read or flushed."""

from __future__ import annotations

import errno
import os
import pathlib
import tempfile
from unittest import mock

import tensorflow as tf
from absl.testing import absltest

from tf_embed.saving import durable

OTHER_USER = 65534


class DurableTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def test_a_parent_that_can_be_entered_but_not_read_is_passed_over(self):
        file = self.folder / "file"
        file.touch()
        self.folder.chmod(0o711 if os.geteuid() == 0 else 0o311)
        self.addCleanup(self.folder.chmod, 0o700)
        if os.geteuid() == 0:  # may read all folders
            os.seteuid(OTHER_USER)
            self.addCleanup(os.seteuid, 0)
        durable.sync_parent(str(file))
        durable.sync(str(file))
        with self.assertRaisesRegex(tf.errors.UnavailableError, "to the disk: Permission denied"):
            durable.sync(str(self.folder))

    def test_folders_that_can_not_be_flushed_are_passed_over_and_failures_are_not(self):
        with mock.patch("os.fsync", side_effect=OSError(errno.EINVAL, "no")):
            durable.sync_tree(str(self.folder))
            durable.sync_parent(str(self.folder))
        failing = mock.patch("os.fsync", side_effect=OSError(errno.EIO, "Broken disk"))
        with failing, self.assertRaisesRegex(tf.errors.UnavailableError, "disk: Broken disk"):
            durable.sync(str(self.folder))


if __name__ == "__main__":
    absltest.main()
