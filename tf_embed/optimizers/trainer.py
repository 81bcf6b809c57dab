# SPDX-License-Identifier: Apache-2.0
"""`TableTrainer`: one Keras optimizer training one table.

A step has the order that Keras has for a dense variable. The loss scale is removed. Gradients are
accumulated if that is set, and only each k-th step continues. Gradients of equal keys are summed,
and the sums are clipped. The rule runs, fused in the table or as Keras's own on gathered rows.
Last, the moving average is updated.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed.ops.slot_ops import ExternalRule, largest_slot
from tf_embed.optimizers import gradients as row_gradients
from tf_embed.optimizers.row_optimizer import RowOptimizer
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.optimizers.rules import (
    beside_step,
    fused_rule,
    fused_slots,
    is_due,
    optimizers_with_rules,
    rule_inputs,
    step_variable,
)
from tf_embed.optimizers.steps import StepTrainer, run_if
from tf_embed.saving import keras_files
from tf_embed.table import joined
from tf_embed.table.initializers import RowInitializer
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.anchor import Anchor

_REFUSED: tuple[type, ...] = (keras.optimizers.LossScaleOptimizer,)
if hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.15
    _REFUSED += (keras.optimizers.MultiOptimizer,)


def check_optimizer(optimizer: Any) -> None:
    """Refuses an optimizer that can't train a table.

    Raises:
        TypeError: If it is not a Keras optimizer.
        ValueError: If it delegates variables to other optimizers, or has conflicting options.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer={optimizer!r}"
        )
    if isinstance(optimizer, _REFUSED) or getattr(optimizer, "trains_dynamic_tables", False):
        raise ValueError(
            f"Dynamic tables can't be trained by {type(optimizer).__name__}, which hands variables "
            "to other optimizers: give each table the one that is to train it, by the `optimizer` "
            f"of its layer. Received: {optimizer.name!r}"
        )
    if (
        isinstance(optimizer, RowRuleOptimizer)
        and optimizer.use_ema
        and optimizer.looks_at_all_rows
    ):
        raise ValueError(
            f"Dynamic tables can't be trained by {type(optimizer).__name__} with `use_ema`, which "
            "keeps to rows of a step, and looks at all rows itself. Received: use_ema=True"
        )
    if optimizer.gradient_accumulation_steps:
        # These options can't be combined for tables: they would need Keras's own accumulated
        # gradients, and averages in steps that change nothing.
        norm = row_gradients.clipping(optimizer).global_clipnorm
        for option, value in (("global_clipnorm", norm), ("use_ema", optimizer.use_ema)):
            if value:
                raise ValueError(
                    f"Dynamic tables can't be trained with both `gradient_accumulation_steps` and "
                    f"`{option}`. Received: {type(optimizer).__name__}("
                    f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, "
                    f"{option}={value!r})"
                )


def refuse_if_mirrored(received: str, tables: Iterable[Table] = ()) -> None:
    """Raises under a strategy whose replicas can't train one of these tables.

    Args:
        received: The optimizer or its option.
        tables: The tables to train. A table that is sharded over workers is always refused.
    """
    strategy = tf.distribute.get_strategy()
    on_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    on_workers = on_workers and strategy.num_replicas_in_sync > 1
    on_workers = on_workers or any(table.spread.is_collective for table in tables)
    if on_workers or isinstance(strategy, tf.distribute.MirroredStrategy):
        name = "MultiWorkerMirroredStrategy" if on_workers else "MirroredStrategy"
        raise ValueError(
            f"Under tf.distribute.{name} dynamic tables are trained by {_with_rules()}, without "
            "global_clipnorm, use_ema, gradient_accumulation_steps and LossScaleOptimizer, and "
            f"over workers without clipnorm. Received: {received}"
        )


def _check_on_servers(optimizer: keras.optimizers.Optimizer, name: str) -> None:
    """Refuses an optimizer that can't train on parameter servers, where a step is one op.

    Raises:
        ValueError: If the optimizer, or one of its options, needs more ops.
    """
    refused = None
    for option in ("use_ema", "gradient_accumulation_steps"):
        if value := getattr(optimizer, option):
            refused = f"{option}={value!r}"
    counts_all_rows = getattr(optimizer, "max_counter_every", None) is not None
    if fused_rule(optimizer) is None or counts_all_rows:
        refused = f"{type(optimizer).__name__}, whose rule runs outside of the table"
    if refused is not None:
        raise ValueError(
            f"The table of {name!r} is on parameter servers, where tables are trained by "
            f"{_with_rules()}, without use_ema and gradient_accumulation_steps. Received: "
            f"{refused}"
        )


def _with_rules() -> str:
    """The optimizers with a rule in the table, for messages."""
    named = [f"{', '.join(names)} of {of}" for of, names in optimizers_with_rules().items()]
    return f"optimizers whose rule runs in the table ({'; '.join(named)})"


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Attributes that are saved elsewhere, so TensorFlow must not save them with the trainer."""

    table: Table
    optimizer: Any
    weight_decay: bool
    rows: RowOptimizer | None
    is_own: bool


class TableTrainer(StepTrainer):
    """A Keras optimizer as the trainer of one table; an `anchor.Trainer`.

    Args:
        anchor: The table's anchor.
        optimizer: The optimizer. Its learning rate and `iterations` are read at each step, so
            changes and schedules are followed.
        is_own: Whether the optimizer is the table's own and the anchor new.

    Attributes:
        state: Keras variables that the optimizer keeps for the whole table.
        accumulator: The table of the gradients that wait for their step, or None.
    """

    def __init__(
        self, anchor: Anchor, optimizer: keras.optimizers.Optimizer, is_own: bool = False
    ) -> None:
        super().__init__()
        check_optimizer(optimizer)
        options = anchor.table.options
        # exclude_from_weight_decay is public in Keras, but its result is not. Keras matches
        # variables by identity or name, and may not know a new anchor's identity yet.
        key = f"tf_embed: {anchor.path}" if is_own else optimizer._var_key(anchor)
        decay = optimizer._use_weight_decay(_StandIn(anchor.path, key))
        rows = None
        if anchor.table.spread.steps_may_repeat:
            _check_on_servers(optimizer, options.name)
        if optimizer.use_ema or fused_rule(optimizer) is None:
            rows = in_own_thread(
                lambda: RowOptimizer(optimizer, options.dim, options.slot_dtype, decay)
            )
        if isinstance(optimizer, RowRuleOptimizer):
            optimizer.check_dim(options.dim, options.name)
        self._parts = _Parts(anchor.table, optimizer, decay, rows, is_own)
        self.state = max_counter_of(optimizer) if rows is None else rows.state
        self.accumulator = _accumulator(options) if optimizer.gradient_accumulation_steps else None

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer."""
        return self._parts.optimizer

    @property
    def rule(self) -> str | ExternalRule:
        """The owner of the table's slots: a rule's name, or an optimizer of rows."""
        rows = self._parts.rows
        if rows is None:
            return fused_rule(self._parts.optimizer)  # type: ignore[return-value]
        return self._external_rule(rows)

    @property
    def slots(self) -> list[SlotVariable]:
        """The variables that are kept for each row."""
        rows, optimizer, table = self._parts.rows, self._parts.optimizer, self._parts.table
        if rows is None:
            slots = fused_slots(optimizer, table.options.dim)
        else:
            rule = self._external_rule(rows)
            names = [*rows.slot_names, "average"]
            slots = list(zip(names, rule.widths, rule.initial_values, strict=False))
        views, begin = [], 0
        for name, width, initial_value in slots:
            name = f"{table.options.name}/{optimizer.name}/{name}"
            views.append(SlotVariable(name, width, table, self.rule, begin, initial_value))
            begin += width
        return views

    @property
    def table(self) -> Table:
        """The table."""
        return self._parts.table

    def bind(self) -> None:
        """Tells the table its rule, and adds this trainer to the table's trainers."""
        self._parts.table.bind_rule(self.rule)
        self._parts.table.trainers.add(self)

    @property
    def has_trained_before(self) -> bool:
        """Whether another trainer of the same optimizer has this table."""
        return any(one.optimizer is self.optimizer for one in self.table.trainers)

    def catch_up(self, other: TableTrainer | None) -> None:
        """Copies the whole-table numbers after steps that this table missed.

        Args:
            other: A trainer that made these steps. None: the optimizer made them.
        """
        if self._parts.rows is not None:
            self._parts.rows.catch_up(None if other is None else other._parts.rows)

    @property
    def needs_every_step(self) -> bool:
        """Whether a step without a gradient for the table still counts for its optimizer."""
        return bool(self.state) or self.changes_every_row

    @property
    def counts_frozen_steps(self) -> bool:
        """Whether a step of a frozen table still advances state of the optimizer."""
        return bool(self.state) and not self.changes_every_row

    @property
    def changes_every_row(self) -> bool:
        """Whether some steps change rows that they do not touch."""
        return (
            self.accumulator is not None
            or bool(self.optimizer.ema_overwrite_frequency)
            or (isinstance(self.optimizer, RowRuleOptimizer) and self.optimizer.changes_all_rows)
        )

    @override
    def check_strategy(self) -> None:
        """Refuses a MirroredStrategy if its replicas can't train the table together.

        Raises:
            ValueError: If such a strategy is active, and the optimizer has no rule in the table, or
                an option that the rule does not cover.
        """
        optimizer, tables = self._parts.optimizer, [self._parts.table]
        name = type(optimizer).__name__
        for option in ("use_ema", "gradient_accumulation_steps"):
            value = getattr(optimizer, option)  # AutoGraph can't read an assignment expression
            if value:
                refuse_if_mirrored(f"{option}={value!r}", tables)
        if tables[0].spread.is_collective:
            clipping = row_gradients.clipping(optimizer)
            for option in ("clipnorm", "global_clipnorm"):
                value = getattr(clipping, option)
                if value:
                    refuse_if_mirrored(f"{option}={value}, of the rows of all workers", tables)
        if self._parts.rows is not None:
            refuse_if_mirrored(f"{name}, whose rule runs outside of the table", tables)
        elif self.state:
            refuse_if_mirrored(f"{name}, which counts the steps of all rows", tables)

    @property
    def accepts_frozen_flag(self) -> bool:
        """Whether steps take `unless_frozen`. They do if one op makes all their changes."""
        if self.accumulator is not None:  # the rest is in a condition already
            return True
        is_rule = self._parts.rows is None and not self.state
        draws = self.table.options.initializer.is_of_python  # draws rows before the op
        return is_rule and self.table.on_update is None and not draws

    def advance(self, trained: tf.Tensor) -> None:
        """Advances to the next step.

        Args:
            trained: Whether the step was made, a bool scalar.
        """
        step = step_variable(self._parts.optimizer)
        with beside_step(self._parts.optimizer):
            step.assign_add(tf.cast(trained, step.dtype))

    def sums(self, keys: tf.Tensor, gradients: tf.Tensor, scale: Any) -> Any:
        """Distinct keys and the sums of their gradients, in the dtype that rules compute in.

        Args:
            keys: [n].
            gradients: [n, dim].
            scale: The factor of the loss.
        """
        table = self._parts.table
        dtype = table.options.slot_dtype
        keys, sums = row_gradients.sum_equal_keys(keys, gradients, dtype, table.handle_for_keys)
        return keys, sums / tf.cast(scale, dtype)

    def train(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        scale: Any = 1.0,
        unless_frozen: tf.Tensor | None = None,
    ) -> None:
        """Makes a step, without `advance`.

        Args:
            keys: [n]; keys may repeat.
            gradients: [n, dim].
            scale: The factor of the loss.
            unless_frozen: Whether to make the step, a bool scalar. Default: True.
                REQUIRES: accepts_frozen_flag.
        """
        if self.accumulator is not None:
            # No step of another thread may run between the export and the clear.
            with self.table.turn():
                self._accumulate(self.accumulator, keys, gradients, scale, unless_frozen)
        elif self._parts.rows is None and not row_gradients.clips(self._parts.optimizer):
            if not isinstance(scale, float) or scale != 1.0:
                dtype = self._parts.table.options.slot_dtype
                gradients = tf.cast(gradients, dtype) / tf.cast(scale, dtype)
            self._run_fused(keys, gradients, False, unless_frozen)
        else:
            keys, sums = self.sums(keys, gradients, scale)
            self.train_sums(keys, self._clipped(sums), unless_frozen)

    def train_sums(
        self,
        keys: tf.Tensor,
        sums: tf.Tensor,
        unless_frozen: tf.Tensor | None = None,
        *,
        has_turn: bool = False,
    ) -> None:
        """Makes a step with gradients that only need the rule, without `advance`.

        Args:
            keys: [n], distinct.
            sums: [n, dim].
            unless_frozen: As in `train`.
            has_turn: Whether the caller has the turn of the table.
        """
        if self._parts.rows is None:
            self._run_fused(keys, sums, True, unless_frozen)
            return
        # A step of another thread between the read and the write would be lost.
        with contextlib.nullcontext() if has_turn else self.table.turn():
            self._run_on_rows(self._parts.rows, keys, sums)

    def finalize(self) -> None:
        """Replaces the weights of all rows by their moving averages, if the optimizer has them.

        A row that was never trained keeps its weights.
        """
        if self._parts.optimizer.use_ema:
            with self.table.turn():
                self._take_averages()

    def _take_averages(self) -> None:
        table, rows = self._parts.table, self._parts.rows
        assert rows is not None  # because there are averages
        rule = self._external_rule(rows)
        no_keys = tf.zeros([0], table.options.key_dtype)
        table.find_slots(no_keys, rule)  # binds this rule, even if no step was made yet
        table.wait_until_written()
        for part in table.parts:
            before = part.export()
            # Averages are the last group of slots.
            averages = tf.cast(before.slots[:, -table.options.dim :], before.values.dtype)
            values = tf.where(tf.math.is_nan(averages), before.values, averages)
            part.import_(before._replace(values=values))

    def arrays(self, prefix: str) -> dict[str, Any]:
        """Returns the state to be saved beside the table, for `keras_files.write`."""
        arrays = {f"{prefix}state_{i}": one.numpy() for i, one in enumerate(self.state)}
        if self.accumulator is not None:
            arrays.update(keras_files.arrays_of(self.accumulator, f"{prefix}accumulator_"))
        return arrays

    def load(self, arrays: dict[str, Any], prefix: str) -> None:
        """Restores the result of `arrays`. The state of another optimizer starts again."""
        for i, variable in enumerate(self.state):
            saved = arrays.get(f"{prefix}state_{i}")
            if saved is not None and saved.shape == tuple(variable.shape):
                variable.assign(saved)
        if self.accumulator is not None:
            if f"{prefix}accumulator_keys" in arrays:
                keras_files.import_into(self.accumulator, arrays, f"{prefix}accumulator_")
            else:
                self.accumulator.clear()

    def _external_rule(self, rows: RowOptimizer) -> ExternalRule:
        """The rule of gathered rows, with the averages after the optimizer's own slots."""
        if not self._parts.optimizer.use_ema:
            return rows.rule
        return ExternalRule(
            # Averages make it another rule, because a row has an additional group of slots.
            id=rows.rule.id ^ 1,
            widths=(*rows.rule.widths, self._parts.table.options.dim),
            initial_values=(*rows.rule.initial_values, float("nan")),
        )

    def _accumulate(
        self,
        accumulator: Table,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        scale: Any,
        unless_frozen: tf.Tensor | None,
    ) -> None:
        """Adds to the accumulator, and empties it in a step that is due."""
        optimizer, dtype = self._parts.optimizer, self._parts.table.options.slot_dtype
        with joined.outside_conditions():
            due = is_due(optimizer, self._parts.is_own)
            with tf.device("/CPU:0"):  # as all numbers that the op of a step takes
                if unless_frozen is not None:
                    due = tf.logical_and(due, unless_frozen)
                add = tf.constant([-1.0, 0.0], tf.float64)  # a step of SGD, w -= -1 * g
                one = tf.constant(1, tf.int64)
        gradients = tf.cast(gradients, dtype) / tf.cast(scale, dtype)
        accumulator.apply(
            keys, gradients, rule="sgd", hyper=add, step=one, unless_frozen=unless_frozen
        )

        def update() -> None:
            waiting = accumulator.export(with_slots=False)
            accumulator.clear()
            sums = self._clipped(waiting.values / optimizer.gradient_accumulation_steps)
            self.train_sums(waiting.keys, sums, has_turn=True)

        run_if(due, update)

    def _clipped(self, sums: tf.Tensor) -> tf.Tensor:
        optimizer = self._parts.optimizer
        return row_gradients.clip(optimizer, sums) if row_gradients.clips(optimizer) else sums

    def _run_fused(
        self, keys: tf.Tensor, gradients: tf.Tensor, distinct: bool, unless_frozen: tf.Tensor | None
    ) -> None:
        table, optimizer = self._parts.table, self._parts.optimizer
        rule: str = fused_rule(optimizer)  # type: ignore[assignment]
        hyper, step = rule_inputs(
            optimizer,
            weight_decay=self._parts.weight_decay,
            is_own=self._parts.is_own,
            max_counter=self.state[0] if self.state else None,
        )
        applied = table.apply(
            keys,
            gradients,
            rule=rule,
            hyper=hyper,
            step=step,
            distinct=distinct,
            unless_frozen=unless_frozen,
            joins=not self.state,  # which is read after the step
        )
        if not self.state:
            return

        def look() -> None:
            # The counter is the last slot of a row.
            slot = len(optimizer.slots) - 1
            # After the op, so that the counters include this step.
            with tf.control_dependencies([] if applied is None else [applied]):
                of_parts = [
                    largest_slot(part.resource_handle, rule=rule, slot=slot) for part in table.parts
                ]
            largest = tf.reduce_max(tf.stack(of_parts))
            self.state[0].assign(tf.cast(1.0 + largest, self.state[0].dtype))

        with tf.device("/CPU:0"):  # as the step
            due = tf.equal((step + 1) % optimizer.max_counter_every, 0)
        run_if(due, look)

    def _run_on_rows(self, rows: RowOptimizer, keys: tf.Tensor, gradients: tf.Tensor) -> None:
        table, optimizer, rule = self._parts.table, self._parts.optimizer, self._external_rule(rows)
        dtype, dim = table.options.slot_dtype, table.options.dim
        stored, slots, _ = table.find_slots(keys, rule)
        weights = tf.cast(stored, dtype)
        slots = _start_at_weights(slots, weights, rule)
        # Statistics over no rows are NaN, so a row of zeros with the gradient 0 stands in. A
        # number, such as a count of steps, advances. State with columns depends on rows, and is
        # restored.
        count = tf.shape(weights)[0]
        none = tf.equal(count, 0)
        with tf.device("/CPU:0"):  # a GPU would cast a copy, and the result be copied back
            stand_in = [[0, tf.cast(none, tf.int32)], [0, 0]]
        # Copied, because the step changes the variables.
        columns = [
            (variable, tf.identity(variable.value)) for variable in self.state if variable.ndim
        ]
        width = sum(rows.rule.widths)
        after, left = rows.step(
            tf.pad(weights, stand_in),
            tf.pad(slots[:, :width], stand_in),
            tf.pad(gradients, stand_in),
        )
        for variable, before in columns:
            variable.assign(tf.where(none, before, variable.value))
        after, left = after[:count], left[:count]
        if optimizer.use_ema:
            # As in Keras, the first average is the variable itself.
            momentum = tf.where(tf.equal(optimizer.iterations, 0), 0.0, optimizer.ema_momentum)
            momentum = tf.cast(momentum, dtype)
            average = momentum * slots[:, width:] + (1 - momentum) * after
            left = tf.concat([left, average], axis=1)
        after = tf.ensure_shape(tf.cast(after, stored.dtype), [None, dim])
        table.assign_slots(keys, after, left, rule)
        if optimizer.use_ema and optimizer.ema_overwrite_frequency:
            every = optimizer.ema_overwrite_frequency
            run_if(tf.equal((optimizer.iterations + 1) % every, 0), self._take_averages)


def max_counter_of(optimizer: Any) -> list[Any]:
    """Returns the largest count of all rows plus 1, if the rule needs it."""
    if getattr(optimizer, "max_counter_every", None) is None:
        return []

    def counter() -> keras.Variable:
        with tf.device("/CPU:0"):  # as all numbers that the op of a step takes
            return keras.Variable(1.0, dtype="float32", trainable=False, name="max_counter")

    with tf.init_scope():
        return [in_own_thread(counter)]


class _StandIn:
    """A stand-in for the tf.Variable of a path: a traced step that runs again creates none.

    Args:
        path: The path of the Keras variable.
        key: The identity, under which Keras also caches its answer.
    """

    def __init__(self, path: str, key: Any) -> None:
        self.path = path
        self.name = f"{path}:0"  # a name in TensorFlow ends with the number of an output
        self._unique_id = key


def in_own_thread(make: Callable[[], Any]) -> Any:
    """Returns the result of a function, called while no scope of Keras is open.

    A layer may be built while Keras runs a model symbolically, and no optimizer can be made in such
    a scope. Scopes are per thread.
    """
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(make).result()


def _accumulator(options: TableOptions) -> Table:
    """A table of gradients, 0 for absent keys. It keeps all of them, whatever the rows' policy."""
    dtype = options.slot_dtype
    # Gradients of rows in Redis stay in this process. On the server they would use the rows' keys,
    # and other processes would share them.
    storage = options.storage if options.redis is None else None
    return Table(
        dataclasses.replace(
            options,
            name=f"{options.name}/gradient_accumulator",
            shard_devices=(),  # all of it is on the first device
            storage=storage,
            value_dtype=dtype,
            init_size=0,
            initializer=RowInitializer(),
            policy=None,
            wanted_statistics=(),
        )
    )


def _start_at_weights(slots: tf.Tensor, weights: tf.Tensor, rule: ExternalRule) -> tf.Tensor:
    """Replaces NaN by the weights, in slots [n, slots of a row] that start at the weights."""
    groups, begin = [], 0
    for width, initial_value in zip(rule.widths, rule.initial_values, strict=True):
        group = slots[:, begin : begin + width]
        # NaN, the only value that differs from itself, stands for the weights of the row.
        if initial_value != initial_value:
            group = tf.where(tf.math.is_nan(group), weights, group)
        groups.append(group)
        begin += width
    return tf.concat(groups, axis=1) if groups else slots
