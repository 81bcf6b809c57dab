# SPDX-License-Identifier: Apache-2.0
"""Rows whose time to live is over."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed.ops import policy_ops


def has_ttl(table: Any) -> bool:
    """Whether the rows of a `Table` expire in this process. Rows in Redis expire there."""
    policy = table.options.policy
    return policy is not None and policy.ttl_seconds is not None and not table.outlives_process


def expired_rows(table: Any, *, renews: bool = False) -> tf.Tensor:
    """Returns the number of rows that have expired and are still there, an int64 scalar.

    Args:
        table: A table with a time to live. If it is sharded over workers, only this worker's rows
            count.
        renews: Whether the time to live of all rows begins now.
    """
    counts = []
    for part in table.parts:
        with tf.device(part.options.device):
            counts.append(policy_ops.expired_rows(part.resource_handle, renews=renews))
    return tf.add_n(counts)


def warn_of_expired(table: Any) -> None:
    """Logs a warning if rows that were just loaded have expired. Every load calls it.

    Lookups show such rows, so a loaded model looks good until its first step. Does nothing in a
    graph, because the table of a SavedModel is not trained.
    """
    if not tf.executing_eagerly() or not has_ttl(table):
        return
    expired = int(expired_rows(table))
    if expired:  # no error, because old rows may be served, or be meant to expire
        logging.warning(
            "%r: %d of its %d rows have expired: they were not used for ttl_seconds=%s before this "
            "load. Training begins each of them again. Call `restart_ttl()` of the variable before "
            "the next step to keep them.",
            table.options.name,
            expired,
            int(table.size()),
            table.options.policy.ttl_seconds,
        )
