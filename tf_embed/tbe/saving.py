# SPDX-License-Identifier: Apache-2.0
"""`TablesSaver`: the tables of a table-batched layer in Keras's files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_embed.layers.given_ids import GivenIds
from tf_embed.saving import keras_files
from tf_embed.table.table import Table
from tf_embed.tbe.batch_trainer import BatchTrainer

_TRAINER = "optimizer_"  # prefix of its arrays in a file


class TablesSaver:
    """Writes the rows and slots of all tables to a Keras store, and reads them.

    Args:
        owner: The layer, for messages.
        given: The kinds of ids given to the layer.
        tables: Its tables.
        trainer: The trainer of the tables; None if the layer leaves training to others.
    """

    def __init__(
        self, owner: str, given: GivenIds, tables: Sequence[Table], trainer: BatchTrainer | None
    ) -> None:
        self._owner = owner
        self._given = given
        self._tables = list(tables)
        self._trainer = trainer
        self._loads = keras_files.LoadAttempts()

    def save(self, store: Any) -> None:
        """Writes the tables, their trainer and the kinds of ids."""
        arrays = self._given.arrays()
        if self._trainer is not None:
            arrays.update(self._trainer.arrays(_TRAINER))
        for i, table in enumerate(self._tables):
            arrays.update(keras_files.arrays_of(table, f"table_{i}_"))
        keras_files.write(store, arrays)

    def load(self, store: Any, is_built: bool) -> None:
        """Replaces the tables and their trainer's state with saved data.

        Args:
            is_built: Whether the layer is built, so that the store must not be empty.
        """
        if not is_built and not store.keys():
            return  # saved before it was built
        with self._loads.attempt(store):
            arrays = keras_files.read(store, self._owner)
            names = [f"table_{i}_" for i in range(len(self._tables))]
            keras_files.import_all(self._tables, arrays, names)
            self._given.load(arrays)
        if self._trainer is not None:
            self._trainer.load(arrays, _TRAINER)
