# SPDX-License-Identifier: Apache-2.0
"""Any Keras optimizer on the rows of a table: the alternative to the fused rules.

A copy of the optimizer is built on variables whose first dimension is open. Each step loads the
touched rows and slots into these variables, runs the copy's own `apply`, and reads the result back.
So a table's rows get exactly the update of a dense variable of these rows, from Keras's own code.
Statistics that an optimizer takes over a variable are taken over these rows.

Optimizer state of the variable's shape, or with a number or vector for each row, is a slot and is
stored in the table. State without a row dimension belongs to the whole table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.optimizers.rowwise_adagrad import RowwiseAdagrad

# Weights of a probe row, which tell slots that start at the weights from slots that start at a
# number. No optimizer starts from these values.
_PROBE = (0.7310585786, -1.3132616875)

_MAX_SLOTS = 16  # variables; a row of a table has no more groups of slots

# Optimizers whose steps were tried, so they need no trial for each table.
_TRIED = (
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Adafactor,
    keras.optimizers.Nadam,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Lamb,
    RowwiseAdagrad,
)


class RowsVariable(keras.Variable):
    """A Keras variable with a dynamic first dimension, for a varying number of rows.

    Args:
        row_shape: Shape of one row.
        initializer: The initial value of its rows while the optimizer is built.
        dtype: float32 or float64.
    """

    def __init__(self, row_shape: tuple[int, ...], initializer: Any, dtype: str, name: str) -> None:
        # Keras needs a shape without None; the resulting variable has no rows and is never used.
        super().__init__(
            "zeros", shape=(0, *row_shape), dtype=dtype, trainable=True, autocast=False, name=name
        )
        with tf.init_scope():
            self.row_shape = row_shape
            self._rows = tf.Variable(
                # One row, from which `_initial_value` reads the start of slots.
                initializer((1, *row_shape), dtype=dtype),
                shape=tf.TensorShape([None, *row_shape]),
                dtype=dtype,
                trainable=False,
                name=name,
            )

    @property
    def value(self) -> tf.Variable:
        """The rows."""
        return self._rows

    @property
    def shape(self) -> tf.TensorShape:
        """The shape, with None for the number of rows."""
        return tf.TensorShape([None, *self.row_shape])

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return math.prod(self.row_shape)

    def assign(self, value: Any) -> Any:
        """Replaces the rows by any number of rows."""
        return self._rows.assign(tf.cast(value, self._rows.dtype))


class _RowsMixin(keras.optimizers.Optimizer):
    """A mixin that makes an optimizer's slots RowsVariables.

    In a class that derives from an optimizer and this mixin, the optimizer's own methods win, and
    these methods replace the methods of keras.optimizers.Optimizer.
    """

    row_slots: list[RowsVariable]

    def add_variable(
        self,
        shape: Any,
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> Any:
        """Makes a slot if the shape has rows, and state of the table otherwise."""
        shape = tuple(shape)
        if not shape or shape[0] is not None:
            return super().add_variable(
                shape, initializer, dtype, aggregation=aggregation, layout=layout, name=name
            )
        slot = RowsVariable(
            shape[1:],
            keras.initializers.get(initializer),
            keras.backend.standardize_dtype(dtype or keras.backend.floatx()),
            name or "slot",
        )
        # Bypasses `setattr`, with which TensorFlow would track and wrap the list.
        self.__dict__.setdefault("_row_slots", []).append(slot)
        return slot

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """Makes a slot like a variable."""
        return self.add_variable(
            reference_variable.shape, initializer, reference_variable.dtype, name=name
        )


@dataclasses.dataclass(frozen=True)
class _Copy:
    """The copy and its variables, in an object that neither Keras nor TensorFlow tracks."""

    optimizer: Any
    rows: RowsVariable
    slots: list[RowsVariable]
    follows_learning_rate: bool


class RowOptimizer:
    """A Keras optimizer that trains rows.

    Args:
        optimizer: The optimizer. Its learning rate, schedule and number of steps are followed;
            other hyper-parameters are copied now. Steps on gradients before the rule (clipping,
            accumulation, loss scale) and moving averages are not done here.
        dtype: The dtype of the computation, float32 or float64.
        weight_decay: Whether its weight decay applies.
        is_trial: Whether this object only serves to test the optimizer.

    Raises:
        ValueError: If the optimizer can't be copied from its config, or has state that can't be
            kept per row.
    """

    def __init__(
        self,
        optimizer: Any,
        dim: int,
        dtype: tf.DType,
        weight_decay: bool,
        is_trial: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._dtype = dtype
        with tf.init_scope():
            # Its variables must outlive a graph that is being traced.
            copied = _copy(optimizer)
            rows = RowsVariable(
                (dim,),
                lambda shape, dtype: tf.constant(_probe(shape), dtype),
                dtype.name,
                "embeddings",
            )
            if not weight_decay:
                copied.exclude_from_weight_decay(var_list=[rows])
            try:
                copied.build([rows])
            # The user's optimizer may raise any exception.
            except Exception as error:
                raise ValueError(
                    f"Dynamic tables can't be trained by {_name(type(optimizer))}: it can't be "
                    f"built on a number of rows that is open. {type(error).__name__}: {error}"
                ) from error
            slots = copied.__dict__.get("_row_slots", [])
            if len(slots) > _MAX_SLOTS:
                raise ValueError(
                    f"Dynamic tables can't be trained by {_name(type(optimizer))}: it has "
                    f"{len(slots)} variables for each of the model's, and rows keep at most "
                    f"{_MAX_SLOTS}."
                )
            follows = isinstance(copied.learning_rate, keras.Variable)
            self._copy = _Copy(copied, rows, slots, follows)
            initial_values = tuple(self._initial_value(slot) for slot in slots)
            # These follow the user's optimizer in each step, and are not state of the table.
            known = {id(rows), id(copied.iterations), id(copied.learning_rate)}
            self._state = [
                variable
                for variable in copied.variables
                if not isinstance(variable, RowsVariable) and id(variable) not in known
            ]
        # A trial changes the slots, so it uses a separate copy.
        if type(optimizer) not in _TRIED and not is_trial:
            RowOptimizer(optimizer, dim, dtype, weight_decay, is_trial=True)._try()
        widths = tuple(slot.width for slot in slots)
        self.rule = ExternalRule(
            id=_fingerprint(type(optimizer), [slot.name for slot in slots], widths),
            widths=widths,
            initial_values=initial_values,
        )

    @property
    def slot_names(self) -> list[str]:
        """The optimizer's names of its slots, in the order of the rule's groups."""
        # A slot that has the variable's name is named after the optimizer's list that holds it.
        lists: dict[int, str] = {
            id(one): name.strip("_")
            for name, value in vars(self._copy.optimizer).items()
            if isinstance(value, list) and name != "_row_slots" and not name.endswith("variables")
            for one in value
        }
        names = [str(slot.name) for slot in self._copy.slots]
        return [
            lists.get(id(slot), name) if name == "embeddings" else name.removeprefix("embeddings_")
            for slot, name in zip(self._copy.slots, names, strict=True)
        ]

    @property
    def state(self) -> list[Any]:
        """The state that the optimizer keeps for the whole table; Keras variables."""
        return list(self._state)

    def catch_up(self, other: RowOptimizer | None) -> None:
        """Copies the whole-table numbers, such as Nadam's product of momenta.

        State with columns depends on rows, and stays.

        Args:
            other: The RowOptimizer of another table. None: the optimizer itself.
        """
        # Keras's optimizers keep such numbers as attributes, with the same name in both.
        mine = vars(self._copy.optimizer)
        theirs = vars(self._optimizer if other is None else other._copy.optimizer)
        state = {id(one) for one in self._state if not one.ndim}
        with tf.init_scope():  # now, not in each run of a step that is being traced
            for name, number in mine.items():
                if id(number) in state and isinstance(theirs.get(name), keras.Variable):
                    number.assign(theirs[name])

    def step(self, rows: tf.Tensor, slots: tf.Tensor, gradients: tf.Tensor) -> tuple[Any, Any]:
        """Makes a step.

        Args:
            rows: Weights [n, dim]; n is not 0.
            slots: Slots [n, sum of the rule's widths].
            gradients: [n, dim].

        Returns:
            Weights and slots after the step.
        """
        parts = self._copy
        parts.rows.assign(rows)
        begin = 0
        for slot in parts.slots:
            slot.assign(tf.reshape(slots[:, begin : begin + slot.width], [-1, *slot.row_shape]))
            begin += slot.width
        if parts.follows_learning_rate:
            parts.optimizer.learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        # The copy's `apply` increments its own count; the user's optimizer counts once for all
        # tables.
        parts.optimizer.iterations.assign(self._optimizer.iterations)
        parts.optimizer.apply([gradients], [parts.rows])
        left = [
            tf.cast(tf.reshape(slot.value, [-1, slot.width]), self._dtype) for slot in parts.slots
        ]
        after = tf.concat(left, axis=1) if left else slots
        return tf.convert_to_tensor(parts.rows.value), after

    def _try(self) -> None:
        """Makes steps on several numbers of rows. This object is useless afterwards.

        The steps fail if the optimizer made a variable without Keras's methods, with the number of
        rows that there was at build time.
        """
        columns = (self._copy.rows.width, sum(slot.width for slot in self._copy.slots))
        try:
            # A trial runs now, also while a step is being traced.
            with tf.init_scope():
                rows, slots = (tf.TensorSpec([None, width], self._dtype) for width in columns)
                tf.function(self.step).get_concrete_function(rows, slots, rows)
                # The copy was built on one row, and must make steps on any number.
                for count in (2, 3):
                    rows, slots = (tf.ones([count, width], self._dtype) for width in columns)
                    tf.ensure_shape(self.step(rows, slots, rows)[0], rows.shape)
        except Exception as error:
            # TensorFlow's message is a traceback here, so only the cause has it.
            raise ValueError(
                f"Dynamic tables can't be trained by {_name(type(self._optimizer))} as it is: its "
                f"step fails with {type(error).__name__} on a number of rows that is not known "
                "beforehand."
            ) from error

    def _initial_value(self, slot: RowsVariable) -> float:
        """Returns the initial value of the slots of a new row; NaN if it is the row's weights."""
        value = np.asarray(slot.value, np.float64).reshape(-1)
        probe = np.asarray(self._copy.rows.value, np.float64).reshape(-1)
        if value.shape == probe.shape and np.array_equal(value, probe):
            return math.nan
        if value.size and (value == value[0]).all():
            return float(value[0])
        raise ValueError(
            f"Dynamic tables can't be trained by {_name(type(self._optimizer))}: its variable "
            f"{slot.name!r} starts neither from a number nor from the weights."
        )


def config_of(optimizer: Any) -> dict[str, Any]:
    """An optimizer's config, without Keras's warning that a callable in it can't be saved.

    Raises:
        ValueError: If it has no config, as with a learning rate that Keras can't describe.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the config is not saved
            config = dict(optimizer.get_config())
        rate = config.get("learning_rate")
        if isinstance(rate, dict) and rate.get("class_name") == "method":
            raise TypeError("a bound method is in no config")  # Keras would fail only at load time
        return config
    # A user's `get_config` may raise any exception.
    except Exception as error:
        raise ValueError(
            "`optimizer` must have a config, because tables are trained by copies of it. Keras "
            "can't describe a learning rate that is a bound method, a functools.partial, another "
            "object with `__call__`, or a schedule without `get_config`: give a number, a "
            "function or a keras.optimizers.schedules.LearningRateSchedule with `get_config`. "
            f"Received: optimizer={_name(type(optimizer))}: {error}"
        ) from error


def learning_rate_is_number(config: dict[str, Any]) -> bool:
    """Whether an optimizer's learning rate is neither a schedule nor a callable."""
    return not isinstance(config.get("learning_rate"), dict)


def _copy(optimizer: Any) -> Any:
    """Copies an optimizer for rows. A schedule or callable stays a callable learning rate."""
    kind = type(optimizer)
    config = config_of(optimizer)
    if not learning_rate_is_number(config):
        # A schedule or a callable stays a callable: some optimizers distinguish it from a number.
        config["learning_rate"] = lambda: optimizer.learning_rate
    # The trainer does all of these itself, before and after the copy's step.
    config.update(
        clipnorm=None,
        clipvalue=None,
        global_clipnorm=None,
        use_ema=False,
        ema_overwrite_frequency=None,
        loss_scale_factor=None,
        gradient_accumulation_steps=None,
    )
    rows_kind: Any = type(f"{kind.__name__}OfRows", (kind, _RowsMixin), {})
    try:
        copied = rows_kind.from_config(config)
        if not isinstance(copied.learning_rate, keras.Variable):
            copied.learning_rate = lambda: optimizer.learning_rate  # at the optimizer's own step
    except Exception as error:
        raise ValueError(
            f"Dynamic tables can't be trained by {_name(kind)}: no copy of it can be made from "
            f"its `get_config()`. {type(error).__name__}: {error}"
        ) from error
    return copied


def _probe(shape: Any) -> np.ndarray:
    return np.linspace(*_PROBE, num=int(np.prod(shape))).reshape(shape)


def _fingerprint(kind: type, names: list[str], widths: tuple[int, ...]) -> int:
    """A number that identifies this optimizer's slots; the same in any process."""
    # Only the top package, because classes move between the modules of a package.
    text = repr((kind.__module__.split(".")[0], kind.__qualname__, names, widths))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # 63 bits fit int64.
    return int.from_bytes(digest, "little") >> 1


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
