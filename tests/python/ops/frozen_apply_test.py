# SPDX-License-Identifier: Apache-2.0
"""An apply with the flag that there is no step, and optimizers of frozen tables."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.raw_tables import NO_OWNERS, RawTable
from tf_embed import _library

RAW = _library.load()


def apply(table: RawTable, trained: list[tf.Tensor], token: Any = ()) -> None:
    RAW.tf_embed_apply(
        table=table.handle,
        keys=tf.constant([1], tf.int64),
        owners=NO_OWNERS,
        gradients=tf.ones([1, 2]),
        hyper=tf.constant([1.0, 0.0], tf.float64),
        step=tf.constant(1, tf.int64),
        scores=[],
        token=[tf.constant(one, tf.int64) for one in token],
        trained=trained,
        dim=2,
        rule="sgd",
    )


class FrozenApplyTest(tf.test.TestCase, parameterized.TestCase):
    def test_no_step_changes_nothing(self):
        table = RawTable(2, settings={"statistics": 31})
        table.assign([1], [[5.0, 5.0]])

        def state() -> list[Any]:
            keys = {"table": table.handle, "keys": tf.constant([1], tf.int64)}
            statistics, _ = RAW.tf_embed_row_statistics(**keys, owners=NO_OWNERS)
            rows, _ = RAW.tf_embed_find(
                **keys, owners=NO_OWNERS, defaults=tf.zeros([0]), tokens=[], dim=2
            )
            return [statistics.numpy().tolist(), rows.numpy().tolist()]

        before = state()
        apply(table, [tf.constant(False)])
        self.assertEqual(state(), before)
        apply(table, [tf.constant(False)], token=[[7, 0]])  # the token is not recorded either
        apply(table, [tf.constant(True)], token=[[7, 0]])
        apply(table, [tf.constant(True)], token=[[7, 0]])
        self.assertEqual(state()[1], [[4.0, 4.0]])
        apply(table, [])
        self.assertEqual(state()[1], [[3.0, 3.0]])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`trained` must be at most 1"):
            apply(table, [tf.constant(True)] * 2)

    @parameterized.parameters("own", "wrapped")
    def test_a_traced_step_obeys_what_is_frozen_when_it_runs(self, kind):
        own = keras.optimizers.Adam(0.5) if kind == "own" else None
        layer = tf_embed.layers.DynamicEmbedding(1, initializer="zeros", optimizer=own)
        model = keras.Sequential([keras.Input([], dtype="int64"), layer])
        optimizer: Any = keras.optimizers.Adam(0.5)
        if kind == "wrapped":
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
        model.compile(optimizer, "mse")
        data = tf.data.Dataset.from_tensors((tf.constant([3], tf.int64), tf.ones([1, 1])))
        rows = []
        for frozen in (False, True, False):
            layer.variable.anchor.frozen = frozen
            model.fit(data, verbose=0)
            rows.append(float(layer.variable.lookup([3])[0, 0]))
        self.assertGreater(rows[0], 0.0)
        self.assertEqual(rows[1], rows[0])
        self.assertGreater(rows[2], rows[1])


if __name__ == "__main__":
    tf.test.main()
