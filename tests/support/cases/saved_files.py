# SPDX-License-Identifier: Apache-2.0
"""Folders for saved rows, and the content of a save."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

import tf_embed

CPU = ["/CPU:0"]


def content(v: tf_embed.Variable) -> dict[Any, tuple[Any, ...]]:
    """The saved parts of each row: weights, slots, statistics."""
    exported = v.table.export()
    parts = (exported.keys, exported.values, exported.slots, exported.statistics)
    keys, *others = (part.numpy().tolist() for part in parts)
    found = {key: rest for key, *rest in zip(keys, *others, strict=True)}
    assert len(found) == len(keys), "a key came twice"
    return found


class FilesTestCase(tf.test.TestCase, parameterized.TestCase):
    def folder(self, name: str = "save") -> str:
        """A path in a new, empty folder."""
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)
