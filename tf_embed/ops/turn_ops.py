# SPDX-License-Identifier: Apache-2.0
"""The ops of turns of a table, typed."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def take_turn(handle: tf.Tensor) -> tf.Tensor:
    """Waits for the turn of a table, in order of arrival; a variant that holds it."""
    return _raw.tf_embed_take_turn(table=handle)


def end_turn(handle: tf.Tensor, turn: tf.Tensor) -> tf.Operation | None:
    """Ends a turn of `take_turn`. A turn also ends with the last tensor that holds it."""
    return _raw.tf_embed_end_turn(table=handle, turn=turn)
