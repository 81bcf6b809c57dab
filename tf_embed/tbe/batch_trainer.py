# SPDX-License-Identifier: Apache-2.0
"""`BatchTrainer`: trains many tables by an optimizer of FBGEMM, with one op per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import table_batch_ops
from tf_embed.ops.slot_ops import largest_slot
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Slot
from tf_embed.optimizers.rules import beside_step, fused_slots, rule_inputs, step_variable
from tf_embed.optimizers.steps import StepTrainer, run_if
from tf_embed.optimizers.trainer import max_counter_of, refuse_if_mirrored
from tf_embed.saving import keras_files
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table

_CLASS = "class"  # the name of the optimizer's class in a file, as bytes


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Attributes that are not saved with the trainer, because they are saved elsewhere."""

    tables: tuple[Table, ...]
    optimizer: RowRuleOptimizer
    state_dtypes: dict[str, tf.DType]


class BatchTrainer(StepTrainer):
    """An optimizer as the trainer of a `BatchAnchor`; an `anchor.Trainer`.

    Args:
        tables: The tables, each with one shard.
        optimizer: The optimizer of these tables only. Its hyper-parameters and `iterations` are
            read at each step.
        combiner: How the lookups pool rows, "sum" or "mean".
        stochastic_rounding: Whether float16 and bfloat16 weights are rounded by noise.
        state_dtypes: Dtypes of some of the optimizer's slots in rows, by name: float16 or bfloat16.
            Other slots are float32.

    Attributes:
        state: The largest count of the rows of all tables plus 1, if the optimizer uses it.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        optimizer: RowRuleOptimizer,
        combiner: str,
        stochastic_rounding: bool,
        state_dtypes: Mapping[str, tf.DType] | None = None,
    ) -> None:
        super().__init__()
        for table in tables:
            optimizer.check_dim(table.options.dim, table.options.name)
        self._parts = _Parts(tuple(tables), optimizer, dict(state_dtypes or {}))
        # The owners of sharded tables only sum: the worker that has the batch divides their
        # results.
        self._combiner = "sum" if tables[0].spread.is_collective else combiner
        self._stochastic_rounding = stochastic_rounding
        self.state = max_counter_of(optimizer)
        for table in tables:
            table.bind_rule(optimizer.rule)
        optimizer.keep_slots(self.slot_variables)

    @property
    def optimizer(self) -> RowRuleOptimizer:
        """The optimizer."""
        return self._parts.optimizer

    @property
    def slots(self) -> list[SlotVariable]:
        """The slot variables of all tables, table by table."""
        return [slot for table in self._parts.tables for slot in self.slots_of(table)]

    def slot_variables(self, table: Table) -> list[SlotVariable]:
        """Returns `slots_of` a table of this trainer, or an empty list for another table."""
        return self.slots_of(table) if table in self._parts.tables else []

    def slots_of(self, table: Table) -> list[SlotVariable]:
        """The slot variables of a table."""
        optimizer, views, begin = self.optimizer, [], 0
        for name, width, initial_value in fused_slots(optimizer, table.options.dim):
            name = f"{table.options.name}/{optimizer.name}/{name}"
            views.append(SlotVariable(name, width, table, optimizer.rule, begin, initial_value))
            begin += width
        return views

    def assign_slot(
        self, table: Table, number: int, keys: tf.Tensor, values: tf.Tensor
    ) -> tf.Operation | None:
        """Writes a slot of some rows. New rows get their initial weights.

        Args:
            number: The slot's number, in the order of `slots_of`.
            keys: [n], all different.
            values: [n, number of slots in a row].
        """
        views = self.slots_of(table)
        first, view = views[0].initial_value, views[number]
        slots, _ = table.read_slots(keys, self.optimizer.rule, first)
        end = view.begin + view.dim
        slots = tf.concat([slots[:, : view.begin], values, slots[:, end:]], 1)
        return table.assign_slots(keys, table.find(keys)[0], slots, self.optimizer.rule, first)

    def dtype_of(self, slot: Slot) -> tf.DType:
        """Returns the dtype of one of the optimizer's slots in rows."""
        return self._parts.state_dtypes.get(slot.name, tf.float32)

    @override
    def check_strategy(self) -> None:
        """Refuses a MirroredStrategy if the optimizer reads all rows of a table."""
        if self.state and not self._parts.tables[0].spread.is_collective:
            name = type(self.optimizer).__name__
            refuse_if_mirrored(f"{name}, which counts the steps of all rows")

    # The op of many tables has no such input.
    accepts_frozen_flag = False

    def advance(self, trained: tf.Tensor) -> None:
        """Increments the step if it was made."""
        step = step_variable(self.optimizer)
        with beside_step(self.optimizer):
            step.assign_add(tf.cast(trained, step.dtype))

    def train(
        self,
        batches: tf.Tensor,
        gradients: tf.Tensor,
        scale: Any = 1.0,
        unless_frozen: None = None,
    ) -> None:
        """Makes a step, without `advance`.

        Args:
            batches: The batches that `BatchAnchor.slices_of` returns.
            gradients: The gradients of the pooled values that `BatchAnchor.slices_of` returns.
            scale: The factor of the loss.
            unless_frozen: Ignored.
        """
        del unless_frozen
        tables, optimizer = self._parts.tables, self.optimizer
        if not isinstance(scale, float) or scale != 1.0:
            gradients = gradients / tf.cast(scale, gradients.dtype)
        counter = self.state[0] if self.state else None
        hyper, step = rule_inputs(optimizer, weight_decay=True, is_own=True, max_counter=counter)
        applied = table_batch_ops.apply_tables(
            [table.resource_handle for table in tables],
            batches,
            tf.reshape(gradients, [-1]),
            hyper,
            step,
            dims=[table.options.dim for table in tables],
            combiner=self._combiner,
            rule=optimizer.rule,
            slot_types=[self.dtype_of(slot) for slot in optimizer.slots],
            stochastic_rounding=self._stochastic_rounding,
        )
        if self.state:
            with tf.control_dependencies([] if applied is None else [applied]):
                # After the op, so that the counters have this step.
                every = optimizer.max_counter_every
                with tf.device("/CPU:0"):  # as the step
                    due = tf.equal((step + 1) % every, 0)
                run_if(due, self._look_at_counters)

    @property
    def decays_between_steps(self) -> bool:
        """Whether rows decay in steps that leave them out, which lookups must then apply."""
        return getattr(self.optimizer, "global_weight_decay", None) is not None

    def missed_decay(self, number: int, keys: tf.Tensor) -> tf.Tensor:
        """Returns the decay factors of weights for the steps since each row's last step.

        If tables are sharded over workers, this worker must own the keys.

        Args:
            number: The table's number.
            keys: [n].

        Returns:
            A factor for each key, float32 [n].
        """
        optimizer: Any = self.optimizer
        table = self._parts.tables[number]
        # The base class reads locally and does not send keys to their owners.
        slots, _ = Table.read_slots(table, keys, optimizer.rule, 0.0)
        # The second slot is `prev_iter`, behind the sum.
        last = tf.cast(slots[:, 1], tf.float64)
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.float64) + 1
        missed = tf.where(last > 0, tf.maximum(step - last - 1, 0.0), 0.0)
        policy = table.options.policy
        if policy is not None and policy.ttl_seconds is not None:
            # An expired row still has its slots, but training lookups return a new row.
            zeros = tf.zeros([table.options.dim], table.options.value_dtype)
            _, is_there = Table.find(table, keys, zeros, training=True)
            missed = tf.where(is_there, missed, tf.zeros_like(missed))
        early = step < optimizer.global_weight_decay.start_iter
        missed = tf.where(early, tf.zeros_like(missed), missed)
        rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float64)
        kept = (1.0 - rate * optimizer.number("weight_decay")) ** missed
        factor = tf.where(missed > 0, tf.maximum(kept, optimizer.number("lower_bound")), 1.0)
        return tf.cast(factor, tf.float32)

    def _look_at_counters(self) -> None:
        slot = len(self.optimizer.slots) - 1
        largest = [
            largest_slot(table.resource_handle, rule=self.optimizer.rule, slot=slot)
            for table in self._parts.tables
        ]
        (counter,) = self.state
        most = self._parts.tables[0].spread.largest(tf.reduce_max(largest))
        counter.assign(tf.cast(1.0 + most, counter.dtype))

    def arrays(self, prefix: str) -> dict[str, Any]:
        """Returns the state to be saved beside the tables, for `keras_files.write`."""
        numbers = {f"{prefix}{one.name}": one.numpy() for one in self.optimizer.variables}
        return {
            f"{prefix}{_CLASS}": self._class_bytes(),
            **numbers,
            **{f"{prefix}state_{i}": one.numpy() for i, one in enumerate(self.state)},
        }

    def load(self, arrays: dict[str, Any], prefix: str) -> None:
        """Restores the result of `arrays`. Does nothing if another optimizer class saved it."""
        # Older files do not name the optimizer, and are assumed to be from this one.
        saved = arrays.get(f"{prefix}{_CLASS}")
        if saved is not None and not np.array_equal(saved, self._class_bytes()):
            return
        for variable in self.optimizer.variables:  # steps and hyper-parameters
            if f"{prefix}{variable.name}" in arrays:
                variable.assign(arrays[f"{prefix}{variable.name}"])
        # Older files have a number for each table.
        counters = [value for name, value in arrays.items() if name.startswith(f"{prefix}state_")]
        if self.state and counters:
            self.state[0].assign(np.max(counters))

    def _class_bytes(self) -> np.ndarray:
        return keras_files.array_of_text(type(self.optimizer).__name__)
