# SPDX-License-Identifier: Apache-2.0
"""`RowArray`: a `Variable` whose keys are row numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.row_arguments import RowArguments
from tf_embed.variable.variable import Variable


class RowNumberArguments(RowArguments):
    """`RowArguments` whose keys are row numbers.

    Args:
        options: The options of the table that they are for.
        num_rows: The number of rows.
    """

    def __init__(self, options: TableOptions, num_rows: int) -> None:
        super().__init__(options)
        self._num_rows = num_rows

    def keys(self, keys: Any) -> tf.Tensor:
        """Row numbers of any shape.

        Raises:
            TypeError: If the numbers are not integers.
            ValueError: If a number is out of range; the op raises tf.errors.InvalidArgumentError.
        """
        message = (
            f"`keys` of {self._options.name!r} must be row numbers, from 0 to {self._num_rows - 1}."
        )
        return validation.in_range(super().keys(keys), 0, self._num_rows - 1, message)


class RowArray(Variable):
    """A table of a fixed number of rows, from 0 on.

    Rows are held once they were written or trained. All others have their initial row, and take no
    memory.

    Args:
        num_rows: The number of rows, at least 1.
        **kwargs: Arguments of `Variable`, without `key_dtype`. The `policy` must admit and keep all
            rows.

    Raises:
        ValueError: If an argument is out of range. All methods that take row numbers raise it for a
            number that is not from 0 to `num_rows` - 1; their ops raise
            tf.errors.InvalidArgumentError.

    Example:
        >>> from tf_embed.variable.row_array import RowArray
        >>> rows = RowArray(3, dim=2)
        >>> rows.upsert([1], [[1.0, 2.0]])
        >>> rows.lookup([0, 1]).numpy().tolist()
        [[0.0, 0.0], [1.0, 2.0]]
    """

    def __init__(self, num_rows: int, **kwargs: Any) -> None:
        self._num_rows = validation.int_in(num_rows, "num_rows")
        super().__init__(key_dtype=tf.int64, **kwargs)

    @property
    def num_rows(self) -> int:
        """The number of rows, held or not."""
        return self._num_rows

    def _arguments_of_methods(self) -> RowArguments:
        return RowNumberArguments(self._table.options, self._num_rows)
