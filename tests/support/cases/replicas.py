# SPDX-License-Identifier: Apache-2.0
"""The two replicas of the tests, on two logical CPUs."""

from __future__ import annotations

import functools

import tensorflow as tf

CPUS = ("/CPU:0", "/CPU:1")


@functools.cache
def two_replicas() -> tf.distribute.Strategy:
    """The strategy that all tests of a process share.

    Each strategy numbers its own collective operations. With two strategies, operations of
    different shapes could get the same number, which TensorFlow refuses.
    """
    return tf.distribute.MirroredStrategy(CPUS)
