# SPDX-License-Identifier: Apache-2.0
"""The verbs that TFRA and tf_embed have in common, as graph functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Verbs:
    """A variable of either library without an optimizer. Each verb is a tf.function."""

    def __init__(self, variable: Any) -> None:
        def upsert(ids: tf.Tensor, rows: tf.Tensor) -> None:
            variable.upsert(ids, rows)

        def accum(ids: tf.Tensor, old: tf.Tensor, new: tf.Tensor, exists: tf.Tensor) -> None:
            variable.accum(ids, old, new, exists)

        self.variable = variable
        self.lookup = tf.function(lambda ids: variable.lookup(ids))
        self.upsert = tf.function(upsert)
        self.accum = tf.function(accum)
