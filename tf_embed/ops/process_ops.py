# SPDX-License-Identifier: Apache-2.0
"""Questions about the process in which an op runs, typed."""

from __future__ import annotations

import functools

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


@functools.cache
def has_gpu_tables() -> bool:
    """Whether tables can be on GPUs: the build supports them, and CUDA finds a GPU."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return bool(_raw.tf_embed_has_gpu_tables())


def number_of_task() -> tf.Tensor:
    """The number of the device's process among the tasks of its job, an int64 scalar."""
    return _raw.tf_embed_task()


def build_of_library() -> tf.Tensor:
    """Returns the id of the op library's build in the device's process; a string."""
    return _raw.tf_embed_build()
