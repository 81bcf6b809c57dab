# SPDX-License-Identifier: Apache-2.0
"""The Keras variable that stands for all tables of a layer that one optimizer trains at once.

Its gradient is not a sum of rows. It is a tf.IndexedSlices: its indices are the batch itself, as
one vector of integers, and its values are the gradient of the pooled values. TensorFlow
concatenates the gradients of several lookups, and the result is a valid gradient too. The step
computes the gradients of rows from them bag by bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.saving import keras_weights
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor, unless_frozen


class BatchAnchor(Anchor):
    """The variable of shape (0, 1) through which many tables are trained.

    Args:
        tables: The tables.
        owner: Whose tables they are, for messages.
        name: Name of the variable.
    """

    def __init__(self, tables: Sequence[Table], owner: str, name: str = "embeddings") -> None:
        # No tracking here, because all tables are tracked below, not only the first.
        super().__init__(tables[0], checkpoint=False, name=name, dim=1)
        self._owner = owner
        self._tables = tuple(tables)
        # `own_trainer` tracks the trainer.
        self._checkpoint = True
        for i, table in enumerate(self._tables):
            self._track_trackable(table, f"table_{i}")

    @property
    @override
    def tables(self) -> tuple[Table, ...]:
        return self._tables

    @property
    def table_of_keys(self) -> Table | None:
        """None: the owners of the keys already have the batch from the lookup."""
        return None

    @property
    @override
    def table_name(self) -> str:
        return self._owner

    def _take_rows(self) -> np.ndarray:
        return keras_weights.get_batch_weights(self._tables)

    def _put_rows(self, rows: np.ndarray) -> None:
        keras_weights.set_weights(rows, *self._tables, owner=self._owner)

    def slices_of(self, gradient: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The batches of a gradient, and the gradients of their pooled values [m, 1].

        Empty if the tables are frozen.

        Raises:
            ValueError: If the gradient is dense.
        """
        batches, _ = super().slices_of(gradient)
        # Here the indices are a batch, and their number differs from the number of values.
        values = gradient.values
        (values,) = unless_frozen(self, tf.shape(values)[0], values)
        return batches, values

    @override
    def no_rows(self) -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.zeros([0, 1]), tf.zeros([0], tf.int64))


class UntrainedAnchor(BatchAnchor):
    """The weight of tables that no step trains, such as tables of 8-bit rows.

    `get_weights`, snapshots and publishers find the tables through it.
    """

    @property
    @override
    def trainable(self) -> bool:
        return False

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        pass  # Keras sets it for each weight

    @property
    @override
    def is_on_tapes(self) -> bool:
        return False
