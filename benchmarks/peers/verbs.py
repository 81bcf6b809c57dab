"""The verbs that TFRA and tf_embed write alike, as functions of a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Verbs:
    """A variable without an optimizer, of either; each verb is one tf.function."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable

    @tf.function
    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.variable.lookup(ids)

    @tf.function
    def upsert(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        self.variable.upsert(ids, rows)

    @tf.function
    def accum(self, ids: tf.Tensor, old: tf.Tensor, new: tf.Tensor, exists: tf.Tensor) -> None:
        self.variable.accum(ids, old, new, exists)
