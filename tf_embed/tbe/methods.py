"""What a table-batched layer has beside its lookup: hyper-parameters, views, and resets.

Under FBGEMM's names. What FBGEMM says is not implemented is refused with a ValueError.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import arguments
from tf_embed.definitions import as_number
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Slot
from tf_embed.table.initializers import RowInitializer, row_initializer
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.views import RowsView
from tf_embed.variable.variable import Variable

# FBGEMM's names of hyper-parameters that may change.
_ADJUSTABLE = ("lr", "eps", "beta1", "beta2", "weight_decay", "lower_bound")

# FBGEMM's order of what an optimizer keeps: momentum1, momentum2, prev_iter, row_counter.
_STATES = ("sum", "momentum", "exp_avg", "exp_avg_sq", "sparse_ema", "prev_iter", "row_counter")

# What FBGEMM has no name for but its place.
_STATE_NAMES = {"momentum": "momentum1"}

# Rows that are made at once where all rows are written.
_BLOCK = 1 << 16


class TableBatchedMethods:
    """The methods; a base of the layer."""

    name: Any

    # What the layer is, for these methods.

    @property
    @abc.abstractmethod
    def tables(self) -> list[Variable]:
        """The tables."""

    @property
    @abc.abstractmethod
    def embedding_specs(self) -> list[tuple[int | None, int]]:
        """Number of rows, None for a dynamic table, and dim of each table."""

    @property
    @abc.abstractmethod
    def optimizer(self) -> RowRuleOptimizer | None:
        """What trains the tables; None where the layer leaves that to others."""

    @property
    @abc.abstractmethod
    def _trainer(self) -> BatchTrainer | None:
        """What runs its steps."""

    # Hyper-parameters.

    def set_learning_rate(self, lr: Any) -> None:
        """Sets the learning rate from the next step on, also of steps that are traced already.

        Args:
            lr: A float.

        Raises:
            TypeError: The learning rate is a schedule, or `lr` is no number.
            ValueError: The layer has no optimizer of its own.
        """
        optimizer = self._optimizer_for("set_learning_rate")
        if not isinstance(optimizer.learning_rate, keras.Variable):
            raise TypeError(
                f"The learning rate of {self.name!r} is a schedule or a callable, and can't be "
                f"set. Received: lr={arguments.shown(lr)}"
            )
        optimizer.learning_rate = as_number(lr, "lr")

    def get_learning_rate(self) -> float:
        """The learning rate of the next step; in eager execution.

        Raises:
            ValueError: The layer has no optimizer of its own.
        """
        rate = self._optimizer_for("get_learning_rate").learning_rate
        return float(keras.ops.convert_to_numpy(rate))

    def set_optimizer_step(self, step: int) -> None:
        """Sets the number of steps that were made: the next one is `step` + 1.

        Args:
            step: At least 0.

        Raises:
            TypeError: It is no int.
            ValueError: It is negative, or the layer has no optimizer of its own.
        """
        step = arguments.positive_int(step, "step", least=0)
        self._optimizer_for("set_optimizer_step").iterations.assign(step)

    def update_hyper_parameters(self, params_dict: Mapping[str, Any]) -> None:
        """Sets hyper-parameters from the next step on, also of steps that are traced already.

        Either all are set, or none.

        Args:
            params_dict: A float for each of some of the names "lr", "eps", "beta1", "beta2",
                "weight_decay" and "lower_bound", which is that of a GlobalWeightDecayDefinition.

        Raises:
            TypeError: A value is no number, or the learning rate is a schedule.
            ValueError: A name is another, a value is out of range, the optimizer does not use it,
                or the layer has no optimizer of its own.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags(
            ...     [(10, 4)], optimizer=tf_embed.tbe.OptimType.ADAM)
            >>> layer.update_hyper_parameters({"lr": 0.5, "beta2": 0.99})
            >>> layer.get_learning_rate()
            0.5
        """
        optimizer = self._optimizer_for("update_hyper_parameters")
        if not isinstance(params_dict, Mapping):
            raise TypeError(
                "`params_dict` must be a dict from names of hyper-parameters. Received: "
                f"params_dict={arguments.shown(params_dict)}"
            )
        values = {}
        for name, value in params_dict.items():
            if name not in _ADJUSTABLE:
                raise ValueError(
                    f"`params_dict` must have names of {', '.join(_ADJUSTABLE)}. Received: "
                    f"params_dict={arguments.shown(dict(params_dict))}"
                )
            if name != "lr" and name not in optimizer.adjustable:
                optimizer.refuse(name, value, None)
            value = as_number(value, name)
            values[name] = value if name == "lr" else optimizer.check(name, value)
        # The one that may still be refused comes first.
        if "lr" in values:
            self.set_learning_rate(values.pop("lr"))
        for name, value in values.items():
            optimizer.adjust(name, value)

    # Views.

    def split_embedding_weights(self) -> list[Any]:
        """Views of the weights of each table, which show later steps and take writes.

        Returns:
            For each table a `RowsView`; within a tf.function, a tensor of the weights as they are
            when it runs. For an array of rows [rows, dim], with initial rows where none was
            written. For a dynamic table [n, dim], of the ids that it has now, in the order of
            `table.export()`, whose keys tell which row is which. With DECOUPLE_GLOBAL they are as
            the last step of each row left them.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags([(3, 2)])
            >>> (weights,) = layer.split_embedding_weights()
            >>> weights[1] = 0.5
            >>> weights.numpy().tolist()
            [[0.0, 0.0], [0.5, 0.5], [0.0, 0.0]]
        """
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
            for table, count in self._tables_and_rows()
        ]

    def split_optimizer_states(self) -> list[list[Any]]:
        """Views of what the optimizer keeps of each table's rows; they take writes.

        Rows are in the order of `split_embedding_weights`, if nothing was written between; those
        that were never trained have initial states. To write the state of a row that was never
        written stores the row as well.

        Returns:
            For each table a list of `RowsView`, or within a tf.function of tensors, [rows, dim] or
            [rows], float32 or what `optimizer_state_dtypes` says:
                EXACT_SGD: none.
                EXACT_ADAGRAD: the sum [rows, dim].
                EXACT_ROWWISE_ADAGRAD: the sum [rows]; with COUNTER, COWCLIP and DECOUPLE_GLOBAL
                    prev_iter [rows]; with the first two row_counter [rows].
                EMAINPLACE_ROWWISE_ADAGRAD: the sum [rows].
                ENSEMBLE_ROWWISE_ADAGRAD: the sum [rows], sparse_ema [rows, dim].
                ADAM, LAMB: exp_avg and exp_avg_sq [rows, dim]; with the bias correction by rows
                    row_counter [rows].
                PARTIAL_ROWWISE_ADAM, PARTIAL_ROWWISE_LAMB: exp_avg [rows, dim], exp_avg_sq [rows].
                LARS_SGD: the momentum [rows, dim].

        Raises:
            ValueError: The layer has no optimizer of its own.
        """
        return [list(states.values()) for states in self._states("split_optimizer_states")]

    def get_optimizer_state(self) -> list[dict[str, Any]]:
        """`split_optimizer_states` by name, and the number of steps where the rule goes by it.

        Returns:
            For each table those of "sum", "momentum1", "exp_avg", "exp_avg_sq", "sparse_ema",
            "prev_iter" and "row_counter" that there are, and "iter", an int64 scalar tensor;
            `set_optimizer_step` sets it.

        Raises:
            ValueError: The layer has no optimizer of its own.
        """
        optimizer = self._optimizer_for("get_optimizer_state")
        states = [
            {_STATE_NAMES.get(name, name): state for name, state in of_table.items()}
            for of_table in self._states("get_optimizer_state")
        ]
        if optimizer.goes_by_steps:
            steps = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
            states = [{**of_table, "iter": steps} for of_table in states]
        return states

    # Resets.

    def init_embedding_weights_uniform(
        self, min_val: float, max_val: float, seed: int | None = None
    ) -> None:
        """Writes all rows of arrays, with weights drawn evenly from `min_val` to `max_val`.

        What is drawn is a function of the seed, the table's name and the number of the row. The
        states of the optimizer stay.

        A dynamic table has no rows to begin with, it draws the row of a new id when that comes. So
        it must have a keras.initializers.RandomUniform of the same range as its initializer; then
        the rows that it has are set back to their initial ones.

        Args:
            min_val: The least weight.
            max_val: The largest.
            seed: An int; None draws one from Keras's global one, `keras.utils.set_random_seed`.

        Raises:
            TypeError: An argument is no number.
            ValueError: `min_val` is above `max_val`, or a dynamic table has another initializer.
                Nothing is written then.
        """
        least, most = as_number(min_val, "min_val"), as_number(max_val, "max_val")
        if least > most:
            raise ValueError(
                f"`min_val` must be at most `max_val`. Received: min_val={least}, max_val={most}"
            )
        if seed is not None:
            seed = arguments.positive_int(seed, "seed", least=-(2**63))
        initializer = keras.initializers.RandomUniform(least, most, seed)
        for table, count in self._tables_and_rows():
            if count is None:
                _check_uniform(table, least, most)
        for table, count in self._tables_and_rows():
            options = table.table.options
            if count is None:
                drawn = options.initializer
                keys = table.table.export(with_slots=False, with_policy=False).keys
            else:
                drawn = row_initializer(
                    initializer, dim=table.dim, value_dtype=table.value_dtype, name=table.name
                )
                keys = tf.range(count, dtype=tf.int64)
            self._write_initial_rows(table, keys, drawn)

    def reset_embedding_weight_momentum(
        self,
        pruned_indices: Any,
        pruned_indices_offsets: Any,
        logical_table_ids: Any,
        buffer_ids: Any,
    ) -> None:
        """Sets rows to 0, and all that the optimizer keeps of them to what it starts from.

        FBGEMM's does so with EXACT_ROWWISE_ADAGRAD, and nothing with others. In a dynamic table an
        id that has no row gets none. Not while others write into the tables; in eager execution.

        Args:
            pruned_indices: Ids, int64 [n], those of one table after those of another.
            pruned_indices_offsets: Where those of each begin, and n; integers [m + 1].
            logical_table_ids: Numbers of tables, integers [k].
            buffer_ids: Whose ids are meant: for table logical_table_ids[i] those from
                pruned_indices_offsets[buffer_ids[i]] up to the next offset. Integers [k].

        Raises:
            ValueError: An id, an offset or a number is out of range, or the layer has no optimizer
                of its own. Nothing is written then.
        """
        self._optimizer_for("reset_embedding_weight_momentum")
        ids = _vector(pruned_indices, "pruned_indices")
        offsets = _vector(pruned_indices_offsets, "pruned_indices_offsets")
        numbers = _vector(logical_table_ids, "logical_table_ids")
        buffers = _vector(buffer_ids, "buffer_ids")
        if (
            offsets.size < 1
            or offsets[0] < 0
            or offsets[-1] > ids.size
            or (np.diff(offsets) < 0).any()
        ):
            raise ValueError(
                "`pruned_indices_offsets` must not fall, and end at the number of "
                f"`pruned_indices`, {ids.size}. Received: pruned_indices_offsets={offsets.tolist()}"
            )
        if numbers.size != buffers.size:
            raise ValueError(
                "`logical_table_ids` and `buffer_ids` must be of one length. Received: "
                f"{numbers.size} and {buffers.size}"
            )
        tables = self._tables_and_rows()
        _check_below(numbers, len(tables), "logical_table_ids")
        _check_below(buffers, offsets.size - 1, "buffer_ids")
        pruned = []
        for number, buffer in zip(numbers, buffers, strict=True):
            table, count = tables[number]
            of_table = np.unique(ids[offsets[buffer] : offsets[buffer + 1]])
            if count is not None:
                _check_below(of_table, count, f"pruned_indices of {table.name!r}")
            pruned.append((table, count, of_table))
        for table, count, of_table in pruned:
            keys = tf.constant(of_table, tf.int64)
            if count is None:
                keys = tf.boolean_mask(keys, table.lookup(keys, return_exists=True)[1])
            # A row that comes anew has initial states.
            table.remove(keys)
            zeros = tf.zeros([tf.size(keys), table.dim], table.value_dtype)
            table.upsert(keys, zeros, distinct=True)

    # Of a cache, which there is none of.

    def flush(self) -> None:
        """Writes what is in a cache into the tables: nothing, as there is no cache yet."""

    def reset_cache_states(self) -> None:
        """Forgets what is in a cache, without writing: nothing, as there is no cache yet."""

    def prefetch(
        self,
        indices: Any,
        offsets: Any,
        forward_stream: Any = None,
        batch_size_per_feature_per_rank: Any = None,
    ) -> None:
        """Takes the rows of a batch to come into a cache: nothing, as there is no cache yet.

        Args:
            indices: As in `call`.
            offsets: As in `call`.
            forward_stream: None; TensorFlow has no streams to choose from.
            batch_size_per_feature_per_rank: As in `call`.

        Raises:
            TypeError: Indices or offsets are no integers.
            ValueError: They are no vectors, or there is a `forward_stream`.
        """
        del batch_size_per_feature_per_rank
        for name, value in (("indices", indices), ("offsets", offsets)):
            value = arguments.as_tensor(value, name, self.name)
            if value.dtype not in (tf.int32, tf.int64):
                raise TypeError(f"`{name}` must be int32 or int64. Received: {value.dtype.name}")
            if value.shape.rank not in (None, 1):
                raise ValueError(f"`{name}` must be a vector. Received: shape={value.shape}")
        if forward_stream is not None:
            raise ValueError(
                "`forward_stream` must be None: TensorFlow orders its streams itself. Received: "
                f"forward_stream={arguments.shown(forward_stream)}"
            )

    def _tables_and_rows(self) -> list[tuple[Variable, int | None]]:
        """Each table and its number of rows, None for a dynamic one."""
        rows = [rows for rows, _ in self.embedding_specs]
        return list(zip(self.tables, rows, strict=True))

    def _optimizer_for(self, method: str) -> RowRuleOptimizer:
        if self.optimizer is None:
            raise ValueError(
                f"`{method}` needs the layer's own optimizer. Received: {self.name!r}, made with "
                "`optimizer` None or OptimType.NONE, which leave training to the model's optimizer"
            )
        return self.optimizer

    def _states(self, method: str) -> list[dict[str, Any]]:
        """The states of each table by name, in FBGEMM's order."""
        self._optimizer_for(method)
        trainer, states = self._trainer, []
        assert trainer is not None  # as there is an optimizer
        for table, count in self._tables_and_rows():
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

    def _write_initial_rows(self, table: Variable, keys: tf.Tensor, drawn: RowInitializer) -> None:
        """Writes the rows that a table of an initializer would begin with."""
        scratch = Table(
            TableOptions(
                name=table.name,
                value_dtype=table.value_dtype,
                dim=table.dim,
                init_size=0,
                initializer=drawn,
            )
        )
        for begin in range(0, int(tf.size(keys)), _BLOCK):
            some = keys[begin : begin + _BLOCK]
            table.upsert(some, scratch.find(some)[0], distinct=True)


def _view(table: Variable, count: int | None, **options: Any) -> Any:
    """A view of all rows of a table; within a tf.function what it would read."""
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


def _check_uniform(table: Variable, least: float, most: float) -> None:
    """Refuses a dynamic table whose new rows would be others than those that are written."""
    initializer = table.initializer
    if initializer.kind != "uniform" or initializer.values != (least, most):
        raise ValueError(
            f"{table.name!r} is a dynamic table, which draws the rows of new ids from its "
            "initializer: give it to the layer, "
            f"initializer=keras.initializers.RandomUniform({least}, {most}). Received: "
            f"init_embedding_weights_uniform({least}, {most})"
        )


def _check_below(numbers: np.ndarray, bound: int, argument: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= bound)]
    if wrong.size:
        raise ValueError(
            f"`{argument}` must be at least 0 and less than {bound}. Received: {wrong[0]}"
        )


def _vector(value: Any, argument: str) -> np.ndarray:
    """Integers of an eager tensor, an array or a list; int64 [n]."""
    try:
        array = np.asarray(value)
    except Exception as error:  # as NumPy, TensorFlow and Keras each have their own
        raise ValueError(
            f"`{argument}` must be a vector of integers. Received: {argument}="
            f"{arguments.shown(value)} of type {type(value).__name__}"
        ) from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"`{argument}` must be a vector of integers. Received: shape={array.shape}, "
            f"dtype={array.dtype.name}"
        )
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"`{argument}` must fit int64. Received: {array.max()}")
    return array.astype(np.int64)
