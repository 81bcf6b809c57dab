# SPDX-License-Identifier: Apache-2.0
"""The number of the step that is being traced, which a table on servers applies once.

A coordinator runs a step again if it does not know whether a worker has ended it. So each step has
a token, which is sent with the update of a table.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf


# Per thread, because several steps may be traced at once.
class _Local(threading.local):
    tokens: Sequence[tf.Tensor] = ()


_local = _Local()


@contextlib.contextmanager
def with_token(token: tf.Tensor) -> Iterator[None]:
    """Gives all updates of tables in the block a token.

    Args:
        token: int64 [2]: the number of the step, and a number below which all steps are over.
    """
    with with_tokens([token]):
        yield


@contextlib.contextmanager
def with_tokens(tokens: Sequence[tf.Tensor]) -> Iterator[None]:
    """Gives all updates of tables in the block the result of `token_of_step`, or a copy of it."""
    before, _local.tokens = _local.tokens, tokens
    try:
        yield
    finally:
        _local.tokens = before


def token_of_step() -> list[tf.Tensor]:
    """The token of the step; none outside of `with_token`."""
    return list(_local.tokens)
