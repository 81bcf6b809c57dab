# SPDX-License-Identifier: Apache-2.0
"""`RowsView`: a table's weights, or a state of its optimizer, as a writable array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import validation


class RowsView(np.lib.mixins.NDArrayOperatorsMixin):
    """Rows of a table, read and written in place.

    A view holds no rows: each read looks them up, and each write goes into the table at once. It is
    indexed like a NumPy array, and NumPy and TensorFlow functions accept it. A read returns a
    read-only copy, so that no write is lost: indexing returns a tf.Tensor, and `numpy` a read-only
    array.

    REQUIRES: no concurrent writes to the table, because a write first reads the rest of the rows.

    Args:
        name: Its name in messages.
        keys: The keys of its rows, int64 [n]; None for the row numbers 0 to `count` - 1.
        count: n.
        row_shape: The shape of a row: (dim,), or () for a single number.
        dtype: The dtype of its results.
        read: A function from keys [m] to their rows, [m] + row_shape.
        write: A function of keys [m], all different, and such rows, which writes them.

    Example:
        >>> import tf_embed
        >>> layer = tf_embed.tbe.TableBatchedEmbeddingBags([(3, 2)], optimizer="ADAM")
        >>> (weights,) = layer.split_embedding_weights()
        >>> weights[1] = [0.5, 1.0]
        >>> weights += 1.0
        >>> layer.tables[0].lookup([0, 1]).numpy().tolist()
        [[1.0, 1.0], [1.5, 2.0]]
        >>> exp_avg, exp_avg_sq = layer.split_optimizer_states()[0]
        >>> exp_avg_sq.assign([[0.25, 0.25]] * 3)
        >>> exp_avg_sq[2].numpy().tolist()
        [0.25, 0.25]
    """

    def __init__(
        self,
        *,
        name: str,
        keys: tf.Tensor | None,
        count: int,
        row_shape: tuple[int, ...],
        dtype: tf.DType,
        read: Callable[[tf.Tensor], tf.Tensor],
        write: Callable[[tf.Tensor, tf.Tensor], Any],
    ) -> None:
        self._name, self._keys, self._count = name, keys, count
        self._row_shape, self._dtype = row_shape, dtype
        self._read, self._write = read, write

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._name

    @property
    def shape(self) -> tf.TensorShape:
        """[n, dim], or [n]."""
        return tf.TensorShape([self._count, *self._row_shape])

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return 1 + len(self._row_shape)

    @property
    def dtype(self) -> tf.DType:
        """The dtype of its numbers."""
        return self._dtype

    def value(self) -> tf.Tensor:
        """The current rows."""
        keys = tf.range(self._count, dtype=tf.int64) if self._keys is None else self._keys
        return self._read(keys)

    def numpy(self) -> np.ndarray:
        """The current rows, in a read-only array."""
        return _read_only(self.value())

    def assign(self, value: Any) -> None:
        """Writes all rows.

        Args:
            value: Numbers of the shape of the view.

        Raises:
            TypeError: If `value` has no numbers, or floats for integer rows.
            ValueError: If `value` has another shape, or integers out of the range of the rows.
            RuntimeError: If this is called in a graph.
        """
        value = self._numbers(value)
        if value.shape != tuple(self.shape):
            raise ValueError(
                f"`value` of {self._name!r} must have shape {tuple(self.shape)}. Received: "
                f"shape={value.shape}"
            )
        self[...] = value

    def assign_add(self, delta: Any) -> None:
        """Adds to all rows; see `assign`."""
        self.assign(self.numpy() + delta)

    def assign_sub(self, delta: Any) -> None:
        """Subtracts from all rows; see `assign`."""
        self.assign(self.numpy() - delta)

    def __getitem__(self, index: Any) -> tf.Tensor:
        if not tf.executing_eagerly():
            return self.value()[index]
        block, _, within = self._block(index)
        return tf.convert_to_tensor(block[within])

    def __setitem__(self, index: Any, value: Any) -> None:
        numbers = self._numbers(value)
        block, rows, within = self._block(index)
        # A read returns a read-only array.
        block = block.copy()
        block[within] = numbers
        # Even without rows: other workers may have rows, and wait.
        self._write(self._keys_of(rows), tf.convert_to_tensor(block))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self._name!r} holds no array that could be given without a copy.")
        rows = self.numpy()
        rows = rows if dtype is None else rows.astype(dtype)
        if copy:
            return rows.copy()
        rows.flags.writeable = False
        return rows

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        plain = [one.numpy() if isinstance(one, RowsView) else one for one in inputs]
        if out is None or not any(isinstance(one, RowsView) for one in out):
            return getattr(ufunc, method)(*plain, out=out, **options)
        if len(out) > 1:
            return NotImplemented
        if "where" in options:  # the other elements keep their values
            options["where"] = np.asarray(options["where"])
            options["out"] = (out[0].numpy().copy(),)
        out[0].assign(getattr(ufunc, method)(*plain, **options))
        return out[0]

    def __repr__(self) -> str:
        return f"<RowsView of {self._name!r}, shape={self.shape}, dtype={self._dtype.name}>"

    def _numbers(self, value: Any) -> np.ndarray:
        """Converts a value to an array of the rows' dtype."""
        if not tf.executing_eagerly():
            raise RuntimeError(f"{self._name!r} must be written to outside of a tf.function.")
        if isinstance(value, (RowsView, tf.Tensor, tf.Variable)):
            value = value.numpy()
        return validation.tensor_of(value, self._dtype, "value", self._name).numpy()

    def _block(self, index: Any) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
        """The rows that an index selects from, their numbers, and the index within them."""
        first, rest = index, ()
        if isinstance(index, tuple):
            first, rest = (index[0], index[1:]) if index else (..., ())
        # A mask of several axes needs all rows.
        if first is Ellipsis or first is None or (isinstance(first, np.ndarray) and first.ndim > 1):
            rows, within = np.arange(self._count), index
        elif isinstance(first, slice):
            rows = np.asarray(range(self._count)[first], np.int64)
            within = (slice(None), *rest)
        else:
            chosen = np.asarray(first)
            if chosen.dtype == bool:
                rows, within = np.arange(self._count), index
            else:
                # Each row is read and written once, even if the index repeats it.
                rows, places = np.unique(self._row_numbers(chosen), return_inverse=True)
                places = places.reshape(chosen.shape)
                within = (int(places) if chosen.ndim == 0 else places, *rest)
        return _read_only(self._read(self._keys_of(rows))), rows, within

    def _row_numbers(self, chosen: np.ndarray) -> np.ndarray:
        """Row numbers from 0; negative numbers count from the end."""
        if chosen.dtype.kind not in "iu" and chosen.size:
            raise IndexError(
                f"An index of {self._name!r} must be integers, bools, slices or an ellipsis. "
                f"Received: {chosen!r}"
            )
        chosen = chosen.astype(np.int64)
        wrong = chosen[(chosen < -self._count) | (chosen >= self._count)]
        if wrong.size:
            raise IndexError(
                f"Row {wrong.flat[0]} is out of bounds of {self._name!r}, which has {self._count}."
            )
        return np.where(chosen < 0, chosen + self._count, chosen)

    def _keys_of(self, rows: np.ndarray) -> tf.Tensor:
        numbers = tf.constant(rows, tf.int64)
        return numbers if self._keys is None else tf.gather(self._keys, numbers)


def _read_only(rows: tf.Tensor) -> np.ndarray:
    array = rows.numpy()
    array.flags.writeable = False
    return array


def _as_tensor(view: RowsView, dtype: Any = None, name: Any = None, as_ref: Any = False) -> Any:
    """Converts a view to a tensor, for tf.convert_to_tensor."""
    del name, as_ref
    if dtype is not None and not tf.as_dtype(dtype).is_compatible_with(view.dtype):
        return NotImplemented
    return view.value()


tf.register_tensor_conversion_function(RowsView, _as_tensor)
