# SPDX-License-Identifier: Apache-2.0
"""`RowDrawer`: draws initial rows if tables or columns have different initializers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.one_embedding.initializers import Quantile, WeightInitializer
from tf_embed.sharded.worker_sharding import LOCAL
from tf_embed.table.initializers import KeyedInitializer
from tf_embed.table.placement import CPU
from tf_embed.table.pooled_tables import find_pooled_tables
from tf_embed.variable.variable import Variable


class Generators(tf.Module):
    """Tables without rows, used only to draw initial rows.

    A table draws the row of a key from its seed, its name and the key. So a weight does not depend
    on the batch or the process.
    """

    def __init__(self, members: list[Variable]) -> None:
        super().__init__()
        self.members = members


class RowDrawer(KeyedInitializer):
    """Draws the initial row of a key by the initializers of its table's columns.

    One op draws all columns of all tables. A column is bit-identical to the rows of a table that
    has only this column, with the same name and seed.

    Args:
        name: The name of the table of rows, which together with the seed determines its rows. If a
            row has several columns, each column appends "/column_" and its number.
        tables: The initializers of the columns of each table.
        dims: Number of weights of each column.
        table_of: A function from keys [n] to the number of each key's table, int64 [n].
    """

    def __init__(
        self,
        name: str,
        tables: Sequence[Sequence[WeightInitializer]],
        dims: Sequence[int],
        value_dtype: tf.DType,
        seed: int,
        table_of: Callable[[tf.Tensor], tf.Tensor],
    ) -> None:
        self._name = name
        self._tables = [tuple(columns) for columns in tables]
        self._dims = list(dims)
        self._value_dtype = value_dtype
        self._seed = seed
        self._table_of = table_of
        self._quantiles = _Quantiles(self._tables, value_dtype)
        # The generator of each column of each table.
        self._kinds: list[tuple[int, WeightInitializer]] = []
        self._number = np.zeros([len(self._dims), len(self._tables)], np.int64)
        for column in range(len(self._dims)):
            for table, initializers in enumerate(self._tables):
                kind = (column, initializers[column])
                if kind not in self._kinds:
                    self._kinds.append(kind)
                self._number[column, table] = self._kinds.index(kind)
        self._generators: list[Variable] = []

    def make(self) -> Generators:
        """Makes the generators. The layer keeps them."""
        several = len(self._dims) > 1
        for column, initializer in self._kinds:
            self._generators.append(
                Variable(
                    key_dtype=tf.int64,
                    # Input to a quantile needs full precision.
                    value_dtype=self._value_dtype if initializer.is_native else tf.float32,
                    dim=self._dims[column],
                    devices=CPU,
                    name=f"{self._name}/column_{column}" if several else self._name,
                    initializer=initializer.of_table(self._seed),
                    trainable=False,
                    init_size=1,
                    # Every worker draws the rows that it owns.
                    distribution=LOCAL,
                )
            )
        return Generators(self._generators)

    @override
    def rows(self, keys: tf.Tensor) -> tf.Tensor:
        return self.rows_of(keys, self._table_of(keys))

    def rows_of(self, keys: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        """The initial rows of keys in tables.

        Args:
            keys: int64 [n].
            tables: The number of each key's table, int64 [n].

        Returns:
            [n, dim], of the dtype of rows.
        """
        if len(self._tables) == 1:
            return self._of_sorted(keys, tables)
        order = tf.argsort(tables, stable=True)
        rows = self._of_sorted(tf.gather(keys, order), tf.gather(tables, order))
        return tf.gather(rows, tf.math.invert_permutation(order))

    def _of_sorted(self, keys: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        """As `rows_of`, for keys in the order of their tables."""
        num_tables, num_columns, dim = len(self._tables), len(self._dims), sum(self._dims)
        count = tf.size(keys, tf.int64)
        bounds = tf.searchsorted(
            tables, tf.range(num_tables + 1, dtype=tf.int64), out_type=tf.int64
        )
        starts, counts = bounds[:-1], bounds[1:] - bounds[:-1]
        # A run of bags for each table and column. A bag is a single key, and is in every column.
        offsets = np.cumsum([0, *self._dims[:-1]])[:, None]
        columns = tf.range(num_columns, dtype=tf.int64)[:, None]
        shape = [num_columns, num_tables]
        pieces = [
            tf.constant(self._number),
            columns * count + starts[None, :],
            tf.broadcast_to(counts[None, :], shape),
            tf.constant(offsets) + starts[None, :] * dim,
            tf.fill(shape, tf.constant(dim, tf.int64)),
        ]
        drawn = find_pooled_tables(
            [one.table for one in self._generators],
            tf.tile(keys, [num_columns]),
            tf.range(num_columns * count + 1),
            tf.reshape(tf.stack(pieces, axis=-1), [-1, 5]),
            count * dim,
            dims=[one.dim for one in self._generators],
            combiner="sum",
        )
        rows = tf.reshape(drawn, [-1, dim])
        if self._quantiles.has_any:
            return self._quantiles.of(rows, tables, self._dims)
        return tf.cast(rows, self._value_dtype)


class _Quantiles:
    """Maps uniform numbers to weights, in the columns of truncated normals."""

    def __init__(self, tables: list[tuple[WeightInitializer, ...]], dtype: tf.DType) -> None:
        self._dtype = dtype
        self._is_cut = np.array([[not one.is_native for one in row] for row in tables])
        self.has_any = bool(self._is_cut.any())
        every = [[Quantile.of(one) for one in row] for row in tables]

        def numbers(field: str) -> np.ndarray:
            return np.array([[getattr(one, field) for one in row] for row in every], np.float64)

        self._fields = {name: numbers(name) for name in ("mean", "scale", "first", "width")}
        # The bounds, rounded inwards.
        self._least = _rounded(numbers("a"), dtype, up=True)
        self._most = _rounded(numbers("b"), dtype, up=False)

    def of(self, rows: tf.Tensor, tables: tf.Tensor, dims: Sequence[int]) -> tf.Tensor:
        """The weights [n, dim] for drawn rows of tables [n]. Other columns are only cast."""
        columns = np.repeat(np.arange(len(dims)), dims)

        def spread(of_columns: np.ndarray) -> tf.Tensor:  # a number for each weight
            return tf.gather(tf.constant(of_columns[:, columns]), tables)

        field = {name: spread(values) for name, values in self._fields.items()}
        uniform = tf.cast(rows, tf.float64)
        normal = tf.math.ndtri(field["first"] + field["width"] * uniform)
        weights = tf.cast(field["mean"] + field["scale"] * normal, self._dtype)
        weights = tf.clip_by_value(weights, spread(self._least), spread(self._most))
        return tf.where(spread(self._is_cut), weights, tf.cast(rows, self._dtype))


def _rounded(numbers: np.ndarray, dtype: tf.DType, *, up: bool) -> np.ndarray:
    """Numbers in a dtype, rounded up or down."""
    kind = dtype.as_numpy_dtype
    result = numbers.astype(kind)
    exact = result.astype(np.float64)
    limit = kind(np.inf if up else -np.inf)
    return np.where(exact < numbers if up else exact > numbers, np.nextafter(result, limit), result)
