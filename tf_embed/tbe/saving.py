"""How a table-batched layer is in Keras's files, and its config."""

from __future__ import annotations

import abc
from typing import Any

from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.saving import stored_rows
from tf_embed.tbe import settings as settings_of
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.factory import OptimizerSettings, present_settings
from tf_embed.tbe.tables import TableSpec
from tf_embed.variable.variable import Variable

_TRAINER = "optimizer_"  # what its arrays in a file begin with


class TableBatchedSaving:
    """The methods; a base of the layer."""

    name: Any
    built: bool
    _loads: stored_rows.LoadAttempts

    settings: OptimizerSettings
    feature_table_map: tuple[int, ...]
    table_names: list[str]
    feature_names: list[str] | None
    _arguments: dict[str, Any]
    _specs: list[TableSpec]
    _initializers: list[Any]
    _policies: list[Any]
    _optimizer: RowRuleOptimizer | None

    # What the layer is, for these methods.

    @property
    @abc.abstractmethod
    def tables(self) -> list[Variable]:
        """The tables."""

    @property
    @abc.abstractmethod
    def _trainer(self) -> BatchTrainer | None:
        """What runs the steps of their optimizer."""

    def save_own_variables(self, store: Any) -> None:
        """Writes rows and slots of all tables, seeds and the step of their optimizer.

        Keras calls it for .keras and .weights.h5 files.
        """
        arrays = {} if self._trainer is None else self._trainer.arrays(_TRAINER)
        for i, variable in enumerate(self.tables):
            arrays.update(stored_rows.arrays_of(variable.table, f"table_{i}_"))
        stored_rows.write(store, arrays)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote, in place of what is in the tables.

        Raises:
            ValueError: There are no rows in the file, they are damaged, or those of other tables.
                The tables are as they were then.
        """
        if not self.built and not store.keys():
            return  # saved before it was built
        with self._loads.attempt(store):
            arrays = stored_rows.read(store, self.name)
            tables = [variable.table for variable in self.tables]
            stored_rows.import_all(tables, arrays, [f"table_{i}_" for i in range(len(tables))])
        if self._trainer is not None:
            self._trainer.load(arrays, _TRAINER)

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        stored_rows.refuse_old_format(self.name)
        device = self._arguments["device"]
        values = {
            **self._arguments,
            **vars(present_settings(self.settings, self._optimizer)),
            "embedding_specs": [spec.get_config() for spec in self._specs],
            "feature_table_map": self.feature_table_map,
            "table_names": self.table_names,
            "feature_names": self.feature_names,
            "initializer": self._initializers,
            "policy": self._policies,
            "device": None if device is None else str(device),
        }
        plain = {name: settings_of.plain(value) for name, value in values.items()}
        return {**super().get_config(), **plain}  # type: ignore[misc]
