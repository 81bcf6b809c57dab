# SPDX-License-Identifier: Apache-2.0
"""`RowRuleOptimizer`: the base of FBGEMM's and OneFlow's optimizers.

Each is a rule on rows: a step changes a row's weights and slots by that row's gradient only. For
tables, the rules are in cc/core/rules. This module has the same formulas as TensorFlow ops, for
dense variables with rows along the first axis. As in a table, a step does not touch rows that are
missing in a sparse gradient.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.configs import as_learning_rate, as_number
from tf_embed.optimizers import rules
from tf_embed.optimizers.optimizer_text import optimizer_text


@dataclasses.dataclass(frozen=True)
class Slot:
    """A variable that an optimizer keeps for each row.

    Attributes:
        name: Its name in the formulas.
        is_wide: Whether each weight has a number; otherwise each row has a number.
        starts_at_weights: Whether the initial value is a copy of the weights.
        initial_value: The initial number otherwise.
    """

    name: str
    is_wide: bool
    starts_at_weights: bool = False
    initial_value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a step, in the dtype of the computation.

    Attributes:
        weights: [n, dim].
        gradients: [n, dim]; unset in rows that a pass over all rows returns.
        slots: By name, [n, dim] or [n, 1].
        rate: The learning rate, a scalar.
        step: The number of the step, from 1; a scalar.
        decays: Whether weight decay applies.
        max_counter: The largest count of all rows plus 1, when it was last looked up.
    """

    weights: Any
    gradients: Any
    slots: dict[str, Any]
    rate: Any
    step: Any
    decays: bool = True
    max_counter: Any = None

    def after(self, weights: Any, **slots: Any) -> Rows:
        """Returns the rows with other weights and some other slots."""
        return dataclasses.replace(self, weights=weights, slots={**self.slots, **slots})


def fused(optimizer_class: Any) -> Any:
    """A decorator: makes tables run a class of RowRuleOptimizer by its `rule`."""
    rules.register(optimizer_class, _rule_of)
    return optimizer_class


def _rule_of(optimizer: RowRuleOptimizer) -> rules.FusedRule:
    slots = (
        rules.RuleSlot(
            slot.name, slot.is_wide, math.nan if slot.starts_at_weights else slot.initial_value
        )
        for slot in optimizer.slots
    )

    def numbers(weight_decay: bool, max_counter: Any) -> dict[str, Any]:
        decay = optimizer.number("weight_decay") if weight_decay else 0.0
        return optimizer.hyper(decay, max_counter)

    return rules.FusedRule(optimizer.rule, tuple(slots), numbers)


class RowRuleOptimizer(keras.optimizers.Optimizer, abc.ABC):
    """A rule on rows as a Keras optimizer.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        name: Name of the optimizer.
        weight_decay: The rule's own weight decay. A config always has it, so every class takes it.
        **kwargs: Options of keras.optimizers.Optimizer.
    """

    # Whether the rule has a weight decay.
    has_decay = True
    # Whether some steps change rows that they do not touch.
    changes_all_rows = False
    # Number of steps between lookups of the largest count of all rows; None if it is not used.
    max_counter_every: int | None = None

    def __init__(
        self, learning_rate: Any, name: str, weight_decay: Any = None, **kwargs: Any
    ) -> None:
        learning_rate = as_learning_rate(learning_rate, "learning_rate")
        if name is not None:
            validation.name_of(name)
        # Keras's own weight decay, which would run before the rule, is not used.
        super().__init__(learning_rate=learning_rate, weight_decay=None, name=name, **kwargs)
        if not self.has_decay:
            self.refuse("weight_decay", weight_decay or 0.0, 0.0)
        self.decay = self.check("weight_decay", 0.0 if weight_decay is None else weight_decay)
        self._numbers: list[Any] = []
        self._slots_of: Callable[[Any], list[Any]] | None = None

    def keep_slots(self, slots_of: Callable[[Any], list[Any]]) -> None:
        """Registers the source of `slot_variables` for tables that it trains without a wrapper."""
        self._slots_of = slots_of

    def slot_variables(self, table: Any) -> list[Any]:
        """Returns its state for a layer's table, see `Variable.slot_variables`.

        The list is empty if it does not train the table, or a wrapper of it does.
        """
        return [] if self._slots_of is None else self._slots_of(table)

    @property
    def looks_at_all_rows(self) -> bool:
        """Whether a step reads more than the rows that it touches."""
        return self.changes_all_rows or self.max_counter_every is not None

    @property
    def goes_by_steps(self) -> bool:
        """Whether a step depends on the step count."""
        return self.looks_at_all_rows

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots of each row, in a table's order: wide slots first."""

    @property
    @abc.abstractmethod
    def rule(self) -> str:
        """The rule's name in a table; one of cc/core/rules/rule_list.h."""

    @property
    def adjustable(self) -> tuple[str, ...]:
        """Names of the numbers, other than the learning rate, that `adjust` may change."""
        return ()

    def make_adjustable(self) -> None:
        """Turns the numbers of `adjustable` into variables, which are saved with the optimizer.

        Steps in tables read them each time, also in functions that are already traced. Traced steps
        of dense variables keep the numbers of the time of tracing.
        """
        assert not self._numbers and not self.built

        def start_at(value: float) -> Any:
            # tf.cast would make float32 of a Python number on the way.
            return lambda shape, dtype: tf.constant(value, dtype, shape)

        self._numbers = [
            self.add_variable(
                shape=(), initializer=start_at(self.number(name)), dtype="float64", name=name
            )
            for name in self.adjustable
        ]

    def adjust(self, name: str, value: Any) -> None:
        """Changes a number from the next step on. Call `make_adjustable` first.

        Args:
            name: One of `adjustable`.
            value: A float.

        Raises:
            ValueError: If the value is out of range.
        """
        value = self.check(name, value)
        self._numbers[self.adjustable.index(name)].assign(value)
        self._take(name, value)

    def number(self, name: str) -> Any:
        """Returns a number as in `hyper`: a float, or a variable if it is adjustable."""
        if self._numbers and name in self.adjustable:
            return self._numbers[self.adjustable.index(name)].value
        return self.decay if name == "weight_decay" else getattr(self, name)

    def __repr__(self) -> str:
        self._take_loaded()
        return optimizer_text(self, numbers={"weight_decay": vars(self).get("decay")})

    def _take_loaded(self) -> None:
        """Copies the variables of `adjustable`, which a restore has set, to the attributes."""
        # `repr` may be called before `__init__` has made them.
        if vars(self).get("_numbers") and tf.executing_eagerly():
            for name, number in zip(self.adjustable, self._numbers, strict=True):
                self._take(name, float(keras.ops.convert_to_numpy(number)))

    def _take(self, name: str, value: float) -> None:
        setattr(self, "decay" if name == "weight_decay" else name, value)

    @abc.abstractmethod
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        """The rule's own hyper-parameters, by the rule's names.

        Args:
            decay: The weight decay, or 0 if it does not apply.
            max_counter: As in `Rows`.
        """

    @abc.abstractmethod
    def step_rows(self, rows: Rows) -> Rows:
        """Makes a step on the rows that it touches."""

    def pass_over(self, rows: Rows) -> Rows:
        """Updates all rows at the end of a step, if `changes_all_rows`."""
        return rows

    def check_dim(self, dim: int, name: str) -> None:
        """Refuses rows that the rule can't train.

        Raises:
            ValueError: If it can't.
        """

    @override
    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        for variable in variables:
            # An anchor has no rows; the trainer of its table checks the dim.
            if len(variable.shape) > 1 and not getattr(variable, "overwrite_with_gradient", False):
                self.check_dim(math.prod(variable.shape[1:]), variable.name)
        super().build(variables)
        self._slots = [
            []
            if getattr(variable, "overwrite_with_gradient", False)
            else [self._add_slot(variable, slot) for slot in self.slots]
            for variable in variables
        ]
        self._max_counters = []
        if self.max_counter_every is not None:
            self._max_counters = [
                self.add_variable(
                    shape=(), initializer="ones", dtype=_compute_dtype(variable), name="max_counter"
                )
                for variable in variables
            ]

    @override
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        dtype = _compute_dtype(variable)
        index = self._get_variable_index(variable)
        slots = dict(zip((slot.name for slot in self.slots), self._slots[index], strict=True))
        touched = None
        if isinstance(gradient, tf.IndexedSlices):
            touched, positions = tf.unique(gradient.indices)
            gradient = tf.math.unsorted_segment_sum(
                tf.cast(gradient.values, dtype), positions, tf.size(touched)
            )
        max_counter = self._max_counters[index] if self._max_counters else None
        everything = Rows(
            weights=_rows_of(variable, dtype),
            gradients=None,
            slots={name: _rows_of(value, dtype) for name, value in slots.items()},
            rate=tf.cast(learning_rate, dtype),
            step=tf.cast(self.iterations, dtype) + 1,
            decays=self._use_weight_decay(variable),
            max_counter=None if max_counter is None else tf.convert_to_tensor(max_counter),
        )
        after = self._step_touched(everything, _rows_of(gradient, dtype), touched)
        if max_counter is not None:
            # This step is number iterations + 1, and the count is for the next step.
            due = tf.equal((self.iterations + 2) % self.max_counter_every, 0)
            largest = 1 + tf.reduce_max(after.slots["row_counter"])
            self.assign(max_counter, tf.where(due, largest, everything.max_counter))
        if self.changes_all_rows:
            after = self.pass_over(after)
        self.assign(variable, _like(after.weights, variable))
        for name, slot in slots.items():
            self.assign(slot, _like(after.slots[name], slot))

    def load_own_variables(self, store: Any) -> None:
        """Reads Keras's saved state, unless the optimizer's layer has read it by name.

        Keras would match by position only, even if another class saved the numbers.
        """
        if self._slots_of is None:
            super().load_own_variables(store)

    @override
    def get_config(self) -> dict[str, Any]:
        self._take_loaded()  # before a subclass reads its attributes
        return {**super().get_config(), "weight_decay": self.decay}

    def check(self, name: str, value: Any) -> float:
        """Checks and returns a number of the optimizer.

        Raises:
            TypeError: If `value` is not a number.
            ValueError: If `value` is out of range.
        """
        number = as_number(value, name)
        wanted, good = "at least 0", number >= 0
        if name in ("beta1", "beta2", "beta_1", "beta_2"):
            wanted, good = "at least 0 and less than 1", 0 <= number < 1
        elif name == "lower_bound":
            wanted, good = "from 0 to 1", 0 <= number <= 1
        if not good:
            raise ValueError(
                f"`{name}` must be {wanted}. Received: {name}={validation.shown(value)}"
            )
        return number

    def refuse(self, name: str, value: Any, default: Any, where: str = "") -> None:
        """Refuses a setting that this optimizer does not use.

        Raises:
            ValueError: If `value` is not `default`.
        """
        if value != default:
            raise ValueError(
                f"{type(self).__name__} does not use `{name}`{where}. Received: {name}="
                f"{validation.shown(value)}"
            )

    def _step_touched(self, everything: Rows, gradients: Any, touched: Any) -> Rows:
        """Makes a step on the rows with the numbers `touched`, or on all rows if it is None."""
        rows = dataclasses.replace(everything, gradients=gradients)
        if touched is None:
            return self.step_rows(rows)
        gathered = self.step_rows(
            dataclasses.replace(
                rows,
                weights=tf.gather(rows.weights, touched),
                slots={name: tf.gather(slot, touched) for name, slot in rows.slots.items()},
            )
        )

        def put_back(before: Any, after: Any) -> Any:
            return tf.tensor_scatter_nd_update(before, touched[:, tf.newaxis], after)

        return rows.after(
            put_back(rows.weights, gathered.weights),
            **{name: put_back(rows.slots[name], slot) for name, slot in gathered.slots.items()},
        )

    def _add_slot(self, variable: Any, slot: Slot) -> Any:
        shape = tuple(variable.shape)

        def weights(shape: Any, dtype: Any = None) -> tf.Tensor:
            del shape
            # XLA compiles no function that makes a variable from another one. Outside of it, both
            # are at hand.
            with tf.init_scope():
                return tf.cast(tf.convert_to_tensor(variable), dtype)

        return self.add_variable(
            shape=shape if slot.is_wide or not shape else (shape[0], 1),
            initializer=weights
            if slot.starts_at_weights
            else keras.initializers.Constant(slot.initial_value),
            dtype=_compute_dtype(variable),
            name=f"{getattr(variable, 'path', variable.name).replace('/', '_')}_{slot.name}",
        )


def _compute_dtype(variable: Any) -> str:
    """Returns the dtype of rules and slots, as in a table."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float64" if dtype == "float64" else "float32"


def _rows_of(value: Any, dtype: str) -> tf.Tensor:
    """A variable as a matrix of its rows along the first axis. A scalar is a row of one weight."""
    value = tf.cast(tf.convert_to_tensor(value), dtype)
    return value if value.shape.rank == 2 else tf.reshape(value, [-1, math.prod(value.shape[1:])])


def _like(rows: tf.Tensor, variable: Any) -> tf.Tensor:
    """Rows in the shape and dtype of a variable."""
    shape = tf.shape(tf.convert_to_tensor(variable))
    return tf.cast(tf.reshape(rows, shape), variable.dtype)
