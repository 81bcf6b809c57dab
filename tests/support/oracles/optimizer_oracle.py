# SPDX-License-Identifier: Apache-2.0
"""The oracle of training: the updates that a Keras optimizer makes to the rows of tables.

A table is right if Keras's optimizer computes the same rows on a dense variable of the rows that a
step touches, with the dense gradient (gradients of equal keys summed first). If every step touches
every row, `train_dense` computes that with Keras alone. If a step touches only some rows,
`LazyOracle` runs a fresh Keras optimizer on dense variables of exactly these rows, and carries
Keras's state from a step to the next by hand. This module does not import tf_embed.

Gradients are small multiples of a power of two, so any sum of them is exact in float32, in any
order, and each of them is exact in float16 and bfloat16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.oracles.reference import SEED

# The rows and dim of each table, and the shapes of the dense variables.
TABLES = {"users": (8, 3), "items": (5, 2)}
DENSE = {"kernel": (3, 2), "bias": (2,)}

Rows = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Step:
    """The input of one training step.

    Attributes:
        rows: For each table the looked-up rows, [n], with duplicates.
        gradients: For each table the gradient of each looked-up row, [n, dim].
        dense: The gradient of each dense variable.
        divisor: The divisor of the sums.
    """

    rows: Rows
    gradients: Rows
    dense: Rows
    divisor: int = 1

    def touched(self, table: int) -> np.ndarray:
        """The distinct rows of a table that the step touches."""
        return np.unique(self.rows[table])

    def summed(self, table: int, count: int) -> np.ndarray:
        """The dense gradient of a table of `count` rows."""
        total = np.zeros([count, self.gradients[table].shape[1]], np.float32)
        np.add.at(total, self.rows[table], self.gradients[table])
        return total / np.float32(self.divisor)

    def dense_gradients(self) -> Rows:
        """The gradients of the dense variables, divided."""
        return [gradient / np.float32(self.divisor) for gradient in self.dense]


def make_steps(count: int, everything: bool, seed: int = SEED) -> list[Step]:
    """Steps with rows in random order and multiplicity.

    Args:
        count: Number of steps.
        everything: Whether each step touches all rows; otherwise some, at least one of each table.
        seed: The seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        size = 2.0 ** rng.integers(-3, 2)
        rows, gradients = [], []
        for number, dim in TABLES.values():
            drawn = rng.integers(0, number, rng.integers(1, 2 * number if everything else number))
            if everything:
                drawn = rng.permutation(np.concatenate([drawn, np.arange(number)]))
            rows.append(drawn)
            gradients.append(_on_grid(rng, (len(drawn), dim), size))
        dense = [_on_grid(rng, shape, size) for shape in DENSE.values()]
        steps.append(Step(rows, gradients, dense))
    return steps


def make_initial(seed: int = SEED) -> tuple[Rows, Rows]:
    """First rows of the tables and values of the dense variables."""
    rng = np.random.default_rng(seed + 1)
    shapes = [*TABLES.values(), *DENSE.values()]
    values = [rng.normal(0.0, 0.5, shape).astype(np.float32) for shape in shapes]
    return values[: len(TABLES)], values[len(TABLES) :]


def accumulated(steps: Sequence[Step], every: int) -> list[Step]:
    """The steps that `gradient_accumulation_steps` makes from micro-steps, without the rest.

    A step touches a row if any of its micro-steps does, and the gradient is the mean.
    """
    merged = []
    for first in range(0, len(steps) - every + 1, every):
        group = steps[first : first + every]
        merged.append(
            Step(
                [np.concatenate(parts) for parts in zip(*(s.rows for s in group), strict=True)],
                [
                    np.concatenate(parts)
                    for parts in zip(*(s.gradients for s in group), strict=True)
                ],
                [np.sum(parts, axis=0) for parts in zip(*(s.dense for s in group), strict=True)],
                divisor=every,
            )
        )
    return merged


def _on_grid(rng: np.random.Generator, shape: Any, size: float) -> np.ndarray:
    return (rng.integers(-32, 33, shape) * size / 16.0).astype(np.float32)


@dataclasses.dataclass
class History:
    """The record of a training.

    Attributes:
        tables: For each step, the rows of each table after it.
        dense: For each step, the dense variables after it.
        finalized: Rows and dense variables after `finalize_variable_values`.
        iterations: The optimizer's step counter.
    """

    tables: list[Rows] = dataclasses.field(default_factory=list)
    dense: list[Rows] = dataclasses.field(default_factory=list)
    finalized: Rows = dataclasses.field(default_factory=list)
    iterations: int = 0

    def values(self) -> list[np.ndarray]:
        """All arrays to compare, in a fixed order."""
        found = [rows for step in self.tables for rows in step]
        found += [value for step in self.dense for value in step]
        return [*found, *self.finalized]


def train_dense(
    optimizers: Sequence[Any],
    outer: Any,
    tables: Sequence[np.ndarray],
    dense: Sequence[np.ndarray],
    steps: Sequence[Step],
    between: Callable[[int], None] = lambda step: None,
    dtype: str = "float32",
    stored_as: Any = None,
) -> History:
    """Trains tables as dense variables. A row without a gradient in a step has a gradient of 0.

    Args:
        optimizers: For each table the Keras optimizer that trains it: `outer`, or its own.
        outer: The Keras optimizer of the dense variables.
        tables: Rows of the tables.
        dense: Values of the dense variables.
        steps: The training steps.
        between: Called before each step with its number, from 0.
        dtype: Dtype of the variables that represent tables.
        stored_as: The dtype to which rows are rounded after each step; None for no rounding.
    """
    table_variables = [
        keras.Variable(tf.cast(rows, dtype), dtype=dtype, name=f"embeddings_{name}")
        for name, rows in zip(TABLES, tables, strict=True)
    ]
    dense_variables = [
        keras.Variable(value, name=name) for name, value in zip(DENSE, dense, strict=True)
    ]
    groups: list[tuple[Any, list[int]]] = []  # an optimizer and the numbers of its variables
    for index, optimizer in enumerate([*optimizers, *[outer] * len(dense)]):
        for known, members in groups:
            if known is optimizer:
                members.append(index)
                break
        else:
            groups.append((optimizer, [index]))
    variables = [*table_variables, *dense_variables]
    for optimizer, members in groups:
        optimizer.build([variables[i] for i in members])
    history = History()
    for number, step in enumerate(steps):
        between(number)
        gradients = [
            step.summed(table, len(variable.numpy()))
            for table, variable in enumerate(table_variables)
        ]
        gradients += step.dense_gradients()
        for optimizer, members in groups:
            scale = tf.convert_to_tensor(optimizer.scale_loss(tf.constant(1.0)))
            optimizer.apply(
                [tf.cast(scale * gradients[i], variables[i].dtype) for i in members],
                [variables[i] for i in members],
            )
        if stored_as is not None:
            for variable in table_variables:
                variable.assign(tf.cast(tf.cast(variable.value, stored_as), dtype))
        history.tables.append([variable.numpy() for variable in table_variables])
        history.dense.append([variable.numpy() for variable in dense_variables])
    for optimizer, members in groups:
        optimizer.finalize_variable_values([variables[i] for i in members])
    history.finalized = [variable.numpy() for variable in variables]
    history.iterations = int(tf.convert_to_tensor(outer.iterations))
    return history


class LazyOracle:
    """A Keras optimizer on the rows that each step touches, and on dense variables.

    A step makes a new optimizer on dense variables of the touched rows. It restores the state of
    these rows (slots) and the state that belongs to no row (its step, Nadam's product, Adafactor's
    columns), steps once, and stores both again. The first step of a row starts from the slots that
    Keras gives to a new variable of these weights. Its moving average starts from the weights.

    Args:
        make: Makes the optimizer, which must not accumulate gradients (see `accumulated`).
        tables: First rows of the tables.
        dense: First values of the dense variables.
    """

    def __init__(
        self, make: Callable[[], Any], tables: Sequence[np.ndarray], dense: Sequence[np.ndarray]
    ) -> None:
        self._make = make
        self.tables = [np.array(rows) for rows in tables]
        self.dense = [np.array(value) for value in dense]
        self._table_of = self._row_slots()
        self._slots: dict[int, dict[int, np.ndarray]] = {index: {} for index in self._table_of}
        self._shared: dict[int, np.ndarray] = {}

    def step(self, step: Step) -> None:
        """Trains the rows of a step and the dense variables."""
        touched = [step.touched(table) for table in range(len(self.tables))]
        optimizer, variables = self._built(
            [rows[which] for rows, which in zip(self.tables, touched, strict=True)]
        )
        slots = optimizer.variables
        for index, slot in enumerate(slots):
            if index in self._table_of:
                slot.assign(self._slots_before(index, slot, touched))
            elif index in self._shared:
                slot.assign(self._shared[index])
        gradients = [
            step.summed(table, len(rows))[which]
            for table, (rows, which) in enumerate(zip(self.tables, touched, strict=True))
        ]
        scale = tf.convert_to_tensor(optimizer.scale_loss(tf.constant(1.0)))
        # A table without a touched row has no gradient.
        optimizer.apply(
            [
                scale * gradient if gradient.size else None
                for gradient in [*gradients, *step.dense_gradients()]
            ],
            variables,
        )
        for table, which in enumerate(touched):
            self.tables[table][which] = variables[table].numpy()
        self.dense = [variable.numpy() for variable in variables[len(self.tables) :]]
        for index, slot in enumerate(slots):
            if index in self._table_of:
                rows = touched[self._table_of[index]]
                self._slots[index].update(zip(rows.tolist(), slot.numpy(), strict=True))
            else:
                self._shared[index] = slot.numpy()

    def finalized(self) -> Rows:
        """Rows and dense variables, or their moving averages if they have these."""
        tables, dense = [rows.copy() for rows in self.tables], list(self.dense)
        optimizer, _ = self._built(self.tables)
        places = [index for index, slot in enumerate(optimizer.variables) if _is_average(slot)]
        for order, index in enumerate(places):  # in the order of the variables
            if index in self._table_of:
                for row, average in self._slots[index].items():
                    tables[self._table_of[index]][row] = average
            elif index in self._shared:
                dense[order - len(tables)] = self._shared[index]
        return [*tables, *dense]

    def _built(self, tables: Sequence[np.ndarray]) -> tuple[Any, list[Any]]:
        names = [f"embeddings_{number}" for number in range(len(tables))]
        names += list(DENSE)[: len(self.dense)]
        values = [*tables, *self.dense]
        variables = [
            keras.Variable(value, name=name) for name, value in zip(names, values, strict=True)
        ]
        optimizer = self._make()
        optimizer.build(variables)
        return optimizer, variables

    def _row_slots(self) -> dict[int, int]:
        """The optimizer's variables with a row for each row of a table, and the table of each.

        These are the variables that grow if the table has another row.
        """
        few = [rows[:3] for rows in self.tables]
        shapes = [tuple(slot.shape) for slot in self._built(few)[0].variables]
        found = {}
        for table in range(len(few)):
            more = [*few[:table], self.tables[table][:4], *few[table + 1 :]]
            for index, slot in enumerate(self._built(more)[0].variables):
                if tuple(slot.shape) != shapes[index]:
                    if tuple(slot.shape) != (4, *shapes[index][1:]):
                        raise AssertionError(f"{slot.path} has no row for each row")
                    found[index] = table
        return found

    def _slots_before(self, index: int, slot: Any, touched: Rows) -> np.ndarray:
        table = self._table_of[index]
        rows = touched[table]
        values = self.tables[table][rows] if _is_average(slot) else slot.numpy()
        for place, row in enumerate(rows.tolist()):
            if row in self._slots[index]:
                values[place] = self._slots[index][row]
        return values


def _is_average(slot: Any) -> bool:
    """Whether an optimizer's variable is a moving average, by Keras's name for it."""
    return slot.name.endswith("_average")
