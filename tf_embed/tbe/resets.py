# SPDX-License-Identifier: Apache-2.0
"""`RowResets`: resets rows of a table-batched layer's tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.configs import as_number
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.table.initializers import RowInitializer, current_initializer, row_initializer
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.tbe import quantized_rows
from tf_embed.tbe.hyper_parameters import required
from tf_embed.tbe.table_specs import Member
from tf_embed.variable.variable import Variable

# Block size in rows for the write of all rows.
_BLOCK = 1 << 16


@dataclasses.dataclass(frozen=True)
class RowResets:
    """Writes initial rows and zeros."""

    owner: str  # the layer, for messages
    members: list[Member]
    optimizer: RowRuleOptimizer | None  # the layer's own

    def draw_uniform(self, min_val: float, max_val: float, seed: int | None) -> None:
        """Draws all rows again, uniformly from `min_val` to `max_val`."""
        least, most = as_number(min_val, "min_val"), as_number(max_val, "max_val")
        if least > most:
            raise ValueError(
                f"`min_val` must be at most `max_val`. Received: min_val={least}, max_val={most}"
            )
        if seed is not None:
            seed = validation.int_in(seed, "seed", least=-(2**63))
        initializer = keras.initializers.RandomUniform(least, most, seed)
        # All tables are checked before any is written.
        for table, count in self.members:
            if count is None:
                _check_uniform(table, least, most)
        for table, count in self.members:
            if count is None:
                drawn = current_initializer(table.initializer, table.table.parts[0].resource_handle)
                keys = table.table.export(with_slots=False, with_policy=False).keys
            else:
                dim, dtype = _drawn_kind(table)
                drawn = row_initializer(initializer, dim=dim, value_dtype=dtype, name=table.name)
                keys = tf.range(count, dtype=tf.int64)
            _write_initial_rows(table, keys, drawn)

    def prune(
        self,
        pruned_indices: Any,
        pruned_indices_offsets: Any,
        logical_table_ids: Any,
        buffer_ids: Any,
    ) -> None:
        """Sets rows to 0, and their optimizer states to the initial ones."""
        required(self.optimizer, self.owner, "reset_embedding_weight_momentum")
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
        _check_below(numbers, len(self.members), "logical_table_ids")
        _check_below(buffers, offsets.size - 1, "buffer_ids")
        pruned = []
        for number, buffer in zip(numbers, buffers, strict=True):
            table, count = self.members[number]
            of_table = np.unique(ids[offsets[buffer] : offsets[buffer + 1]])
            if count is not None:
                _check_below(of_table, count, f"pruned_indices of {table.name!r}")
            pruned.append((table, count, of_table))
        # All tables were checked before any is written.
        for table, count, of_table in pruned:
            keys = tf.constant(of_table, tf.int64)
            if count is None:
                keys = tf.boolean_mask(keys, table.lookup(keys, return_exists=True)[1])
            # A key that is removed and inserted again has initial states.
            table.remove(keys)
            zeros = tf.zeros([tf.size(keys), table.dim], table.value_dtype)
            table.upsert(keys, zeros, distinct=True)


def _write_initial_rows(table: Variable, keys: tf.Tensor, drawn: RowInitializer) -> None:
    """Writes the initial rows of an initializer."""
    # An empty table draws the initial row of any key.
    dim, dtype = _drawn_kind(table)
    scratch = Table(
        TableOptions(
            name=table.name,
            value_dtype=dtype,
            dim=dim,
            init_size=0,
            initializer=drawn,
        )
    )
    for begin in range(0, int(tf.size(keys)), _BLOCK):
        some = keys[begin : begin + _BLOCK]
        # Workers may have different keys, or all keys. Each writes the keys that it owns.
        owns = table.table.spread.owns
        written = some if owns is None else tf.boolean_mask(some, owns(some))
        rows = scratch.find(written)[0]
        if dtype != table.value_dtype:
            rows = quantized_rows.quantize(rows)
        Table.insert_or_assign(table.table, written, rows, distinct=True)


def _drawn_kind(table: Variable) -> tuple[int, tf.DType]:
    """Dim and dtype of rows as drawn. INT8 rows are quantized from float32."""
    if table.value_dtype == tf.int8:
        return table.dim - quantized_rows.TAIL, tf.float32
    return table.dim, table.value_dtype


def _check_uniform(table: Variable, least: float, most: float) -> None:
    """Refuses a dynamic table whose initializer would draw other rows."""
    if table.value_dtype == tf.int8:
        raise ValueError(
            f"{table.name!r} is a dynamic table of SparseType.INT8, whose new rows are not drawn. "
            f"Received: init_embedding_weights_uniform({least}, {most})"
        )
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
    """The integers of an eager tensor, an array or a list, int64 [n]."""
    try:
        array = np.asarray(value)
    except Exception as error:  # NumPy, TensorFlow and Keras raise different types
        raise ValueError(
            f"`{argument}` must be a vector of integers. Received: {argument}="
            f"{validation.shown(value)} of type {type(value).__name__}"
        ) from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"`{argument}` must be a vector of integers. Received: shape={array.shape}, "
            f"dtype={array.dtype.name}"
        )
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"`{argument}` must fit int64. Received: {array.max()}")
    return array.astype(np.int64)
