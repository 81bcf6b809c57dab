# SPDX-License-Identifier: Apache-2.0
"""Sparse ids with a negative or a too small dense_shape: refused by every function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe, tfra

WORDS = "must have a dense_shape of numbers from 0, and indices within their dense_shape"


def _lookup(name: str) -> Callable[[tf.SparseTensor], Any]:
    variable = tf_embed.Variable(dim=2, name="v")
    return lambda ids: getattr(tf_embed, name)(variable, ids)


def _table_batched() -> Callable[[tf.SparseTensor], Any]:
    layer = tbe.TableBatchedEmbeddingBags([(5, 2)])
    return lambda ids: layer([ids])


ENTRANCES: dict[str, Callable[[], Callable[[tf.SparseTensor], Any]]] = {
    "embedding_lookup_sparse": lambda: _lookup("embedding_lookup_sparse"),
    "safe_embedding_lookup_sparse": lambda: _lookup("safe_embedding_lookup_sparse"),
    "DynamicEmbedding, pooled": lambda: tf_embed.layers.DynamicEmbedding(2, combiner="sum"),
    "DynamicEmbedding": lambda: tf_embed.layers.DynamicEmbedding(2),
    "TableBatchedEmbeddingBags": _table_batched,
    "keras.Embedding": lambda: tfra.keras.layers.Embedding(2),
    "keras.SquashedEmbedding": lambda: tfra.keras.layers.SquashedEmbedding(2),
    "keras.FieldWiseEmbedding": lambda: tfra.keras.layers.FieldWiseEmbedding(
        2, 1, lambda keys: tf.zeros_like(keys, tf.int32)
    ),
}


class SparseIdsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(entrance=list(ENTRANCES), in_graph=[False, True])
    def test_a_negative_dense_shape_and_indices_outside_of_it_are_refused(self, entrance, in_graph):
        look_up = ENTRANCES[entrance]()
        rank = 2 if entrance == "TableBatchedEmbeddingBags" else 3
        if in_graph:
            spec = tf.SparseTensorSpec([None] * rank, tf.int64)
            look_up = tf.function(look_up, input_signature=[spec])
        cases = {
            "negative": ([], [0, -1, 3]),
            "last is negative": ([], [2, 2, -1]),
            "index below": ([[0, -1, 0]], [2, 2, 2]),
            "index above": ([[1, 1, 2]], [2, 2, 2]),
        }
        for name, (indices, shape) in cases.items():
            ids = tf.SparseTensor(
                tf.reshape(tf.constant(indices, tf.int64), [-1, 3])[:, 3 - rank :],
                tf.ones([len(indices)], tf.int64),
                shape[3 - rank :],
            )
            with self.subTest(name), self.assertRaisesRegex(tf.errors.InvalidArgumentError, WORDS):
                look_up(ids)
        good = tf.SparseTensor(tf.ones([1, rank], tf.int64), tf.ones([1], tf.int64), [2] * rank)
        self.assertEqual(look_up(good).shape[0], 2)


if __name__ == "__main__":
    tf.test.main()
