# SPDX-License-Identifier: Apache-2.0
"""`TableViews`: weights and optimizer states of a table-batched layer's tables."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tf_embed.optimizers.row_rule_optimizer import Slot
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.hyper_parameters import required
from tf_embed.tbe.rows_view import RowsView
from tf_embed.tbe.table_specs import Member
from tf_embed.variable.variable import Variable

# FBGEMM's order of optimizer states: momentum1, momentum2, prev_iter, row_counter.
_STATES = ("sum", "momentum", "exp_avg", "exp_avg_sq", "sparse_ema", "prev_iter", "row_counter")

# States that FBGEMM names only by position.
_STATE_NAMES = {"momentum": "momentum1"}


@dataclasses.dataclass(frozen=True)
class TableViews:
    """Makes a `RowsView` of the weights of each table, and of each state of its optimizer."""

    owner: str  # the layer, for messages
    members: list[Member]
    trainer: BatchTrainer | None  # None if the layer leaves training to others

    def weights(self) -> list[Any]:
        """The weights of each table. A dynamic table has the rows of its present keys."""
        return [
            _view(
                table,
                count,
                name=f"{table.name}/weights",
                row_shape=(table.dim,),
                dtype=table.value_dtype,
                read=table.lookup,
                write=functools.partial(table.upsert, distinct=True),
            )
            for table, count in self.members
        ]

    def states(self, method: str) -> list[dict[str, Any]]:
        """The states of each table by the names of slots, in FBGEMM's order.

        Raises:
            ValueError: If the layer has no optimizer of its own.
        """
        trainer, states = required(self.trainer, self.owner, method), []
        for table, count in self.members:
            slots = zip(trainer.optimizer.slots, trainer.slots_of(table.table), strict=True)
            of_table = {
                slot.name: _view(
                    table,
                    count,
                    name=variable.name,
                    row_shape=(table.dim,) if slot.is_wide else (),
                    dtype=trainer.dtype_of(slot),
                    read=functools.partial(_read_state, variable, trainer.dtype_of(slot), slot),
                    write=functools.partial(_write_state, trainer, table.table, number, variable),
                )
                for number, (slot, variable) in enumerate(slots)
            }
            states.append({name: of_table[name] for name in _STATES if name in of_table})
        return states

    def states_by_name(self, method: str) -> list[dict[str, Any]]:
        """`states` by FBGEMM's names, with the step count if the rule uses it."""
        optimizer = required(self.trainer, self.owner, method).optimizer
        states = [
            {_STATE_NAMES.get(name, name): state for name, state in of_table.items()}
            for of_table in self.states(method)
        ]
        if optimizer.goes_by_steps:
            steps = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
            states = [{**of_table, "iter": steps} for of_table in states]
        return states


def _view(table: Variable, count: int | None, **options: Any) -> Any:
    """Returns a view of all rows of a table; within a tf.function, its value."""
    keys = None
    if count is None:
        keys = table.table.export(with_slots=False, with_policy=False).keys
        count = keys.shape[0]
    view = RowsView(keys=keys, count=count, **options)
    return view if tf.executing_eagerly() else view.value()


def _read_state(variable: SlotVariable, dtype: tf.DType, slot: Slot, keys: tf.Tensor) -> tf.Tensor:
    state = tf.cast(variable.lookup(keys), dtype)
    return state if slot.is_wide else tf.squeeze(state, -1)


def _write_state(
    trainer: BatchTrainer,
    table: Table,
    number: int,
    variable: SlotVariable,
    keys: tf.Tensor,
    state: tf.Tensor,
) -> None:
    state = tf.reshape(tf.cast(state, variable.value_dtype), [-1, variable.dim])
    trainer.assign_slot(table, number, keys, state)
