# SPDX-License-Identifier: Apache-2.0
"""`KeyIndex`: a TensorFlow hash table from each key to the number of its row."""

from __future__ import annotations

import uuid
from typing import Any

import tensorflow as tf


def stored_dtype(key_dtype: tf.DType) -> tf.DType:
    """Returns the dtype of keys in a SavedModel: string, or int64 for all integers."""
    return tf.string if key_dtype == tf.string else tf.int64


def stored_keys(keys: tf.Tensor) -> tf.Tensor:
    """Converts keys to their `stored_dtype`. uint64 keys keep their bits."""
    if keys.dtype == tf.uint64:
        return tf.bitcast(keys, tf.int64)
    return keys if keys.dtype == tf.string else tf.cast(keys, tf.int64)


class KeyIndex(tf.saved_model.experimental.TrackableResource):
    """A hash table from keys to the numbers of their rows, filled when the model is loaded.

    TensorFlow saves a hash table as constants of a graph, which has a limit of 2 GiB. This table
    takes its keys from a variable, which a loader restores before it runs initializers.

    Args:
        keys: A variable of keys [n], in their `stored_dtype`. Key i has the number i + 1.
    """

    def __init__(self, keys: tf.Variable) -> None:
        super().__init__()
        self._keys = keys
        self._shared_name = f"key_index_{uuid.uuid4().hex}"
        _ = self.resource_handle  # make it now: the first use may be in a loop of a graph

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.HashTableV2(
            key_dtype=self._keys.dtype, value_dtype=tf.int64, shared_name=self._shared_name
        )

    def _initialize(self) -> Any:
        keys = self._keys.read_value()
        count = tf.size(keys, tf.int64)
        numbers = tf.range(1, count + 1)
        # A hash table must not be empty. A key with the number 0 counts as absent.
        filler = tf.cast(tf.equal(count, 0), tf.int64)[tf.newaxis]
        no_key = "" if keys.dtype == tf.string else tf.constant(0, tf.int64)
        return tf.raw_ops.InitializeTableV2(
            table_handle=self.resource_handle,
            keys=tf.concat([keys, tf.fill(filler, no_key)], 0),
            values=tf.concat([numbers, tf.zeros(filler, tf.int64)], 0),
        )

    def numbers_of(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of keys, int64, keys.shape; 0 for absent keys."""
        numbers = tf.raw_ops.LookupTableFindV2(
            table_handle=self.resource_handle,
            keys=keys,
            default_value=tf.constant(0, tf.int64),
        )
        return tf.ensure_shape(numbers, keys.shape)
