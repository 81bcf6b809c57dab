# SPDX-License-Identifier: Apache-2.0
"""The two replicas of the tests, on two logical CPUs."""

from __future__ import annotations

import functools

import tensorflow as tf

CPUS = ("/CPU:0", "/CPU:1")


@functools.cache
def two_replicas() -> tf.distribute.Strategy:
    """One for all tests of a process: strategies count their collective operations each on its own.

    The same number of two strategies then means two operations of different shapes, which
    TensorFlow refuses.
    """
    return tf.distribute.MirroredStrategy(CPUS)
