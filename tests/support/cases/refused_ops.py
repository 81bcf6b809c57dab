# SPDX-License-Identifier: Apache-2.0
"""Ops that are called directly, with inputs that they must refuse."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from tf_embed import _library

RAW = _library.load()
# Two bags of table "0" and one bag of table "1", both of dim 2.
BATCH: dict[str, Any] = {
    "indices": [1, 2, 3],
    "offsets": [0, 1, 2, 3],
    "pieces": [[0, 0, 2, 0, 2], [1, 2, 1, 4, 2]],
}


def int64(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.int64)


class RefusedTestCase(tf.test.TestCase, parameterized.TestCase):
    def refused(self, words: str) -> Any:
        return self.assertRaisesRegex((tf.errors.InvalidArgumentError, ValueError), words)
