# SPDX-License-Identifier: Apache-2.0
"""`RowArguments`: keys and rows that a user gives, as tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.table.table_options import TableOptions


class RowArguments:
    """Makes tensors of the keys and rows that methods of a `Variable` take, and checks them."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def keys(self, keys: Any) -> tf.Tensor:
        """Keys of any shape.

        Raises:
            TypeError: If the keys are not of the key dtype.
        """
        return validation.keys_of(keys, self._options.key_dtype, "keys", self._options.name)

    def rows(self, keys: tf.Tensor, rows: Any, argument: str) -> tf.Tensor:
        """Rows, keys.shape + [dim].

        Raises:
            TypeError: If the rows are not of the value dtype.
            ValueError: If the rows are of another shape.
        """
        options = self._options
        rows = validation.tensor_of(rows, options.value_dtype, argument, options.name)
        validation.check_rows(keys, rows, options.dim, argument, options.name)
        return rows

    def of_keys(self, keys: tf.Tensor, values: Any, dtype: tf.DType, argument: str) -> tf.Tensor:
        """A value for each key.

        Raises:
            TypeError: If the values are not of the dtype.
            ValueError: If the values are of another shape than the keys.
        """
        name = self._options.name
        values = validation.tensor_of(values, dtype, argument, name)
        if not values.shape.is_compatible_with(keys.shape):
            raise ValueError(
                f"`{argument}` of {name!r} must have the shape of the keys, {keys.shape}. "
                f"Received: {argument}.shape={values.shape}"
            )
        return values
