# SPDX-License-Identifier: Apache-2.0
"""A bound on the rows of a table beyond which new keys are refused and counted.

No order of `TablePolicy` refuses all new keys. That of scores refuses a key whose score is lower
than the scores of all rows. So a key is written with a score of -1, and gets 0 right after the
write. Rows that come without a score, as from files, have 0.

Limit: of two steps that run at once in different threads, one may evict a row that the other has
just written. The table counts such a row in "evicted".
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_embed.table.policies import TablePolicy
from tf_embed.table.table import Table


@keras.saving.register_keras_serializable(package="tf_embed.sok")
def score_of_write(keys: tf.Tensor) -> tf.Tensor:
    """The score with which keys are written: below that of every row."""
    return tf.fill(tf.shape(keys), tf.constant(-1, tf.int64))


def policy_of_bound(max_rows: int) -> TablePolicy:
    """The policy of a table that refuses new keys beyond a bound.

    Args:
        max_rows: The most rows, of all workers together.
    """
    return TablePolicy(max_rows, "score", score_fn=score_of_write)


class ScoreRaiser:
    """Gives the rows of each step the score of rows that stay.

    A class, so that a deep copy of a table raises the scores of the copy.

    Args:
        table: A table with the policy above.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self, keys: tf.Tensor) -> tf.Operation | None:
        """Raises the scores of the keys of a step, which are those of this worker."""
        # `self._table.set_scores` would send the keys of a sharded table to their owners.
        return Table.set_scores(self._table, keys, tf.zeros(tf.shape(keys), tf.int64))


def bound_table(table: Table) -> None:
    """Makes a table with the policy above refuse new keys beyond its bound."""
    table.on_update = ScoreRaiser(table)
