# SPDX-License-Identifier: Apache-2.0
"""The ops of time-outs of collectives, typed."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def start_watch(seconds: float, what: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Ends all collectives of this process with an error if they do not end in time.

    Args:
        seconds: The time limit.
        what: The awaited event, for the message.

    Returns:
        The watch, which ends with its last tensor; and whether there is a watch, bool.
    """
    return _raw.tf_embed_start_watch(seconds=seconds, what=what)


def end_watch(watch: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Ends a watch, and returns the awaited result unchanged."""
    return _raw.tf_embed_end_watch(watch=watch, result=result)
