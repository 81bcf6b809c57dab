# SPDX-License-Identifier: Apache-2.0
"""The ops of lookups that need no table, made of TensorFlow's. See `substitutes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

_PRUNED = -1  # an index that is skipped, which is not a fault
_TAIL = 8  # bytes after the codes of a quantized row: scale and bias, float32 each


class CheckedBounds(NamedTuple):
    """The outputs of `TfEmbedCheckBounds`; see cc/ops/bounds_ops.cc."""

    checked_indices: tf.Tensor
    checked_offsets: tf.Tensor
    kept: tf.Tensor
    changed: tf.Tensor
    num_events: tf.Tensor


def as_int64(padding: int) -> int:
    """The int64 number that has the bits of a uint64 number."""
    return padding - 2**64 if padding >= 2**63 else padding


def bag_of_each(splits: tf.Tensor) -> tf.Tensor:
    """The bag of each key, int64 [n].

    tf.repeat would make a mask of as many columns as the longest bag has keys.

    Args:
        splits: [bags + 1], from 0 to n, never falling.
    """
    splits = tf.cast(splits, tf.int64)
    ends = splits[1:-1, tf.newaxis]  # the start of the next bag
    # Empty bags put several steps at the same position, which scatter_nd adds up.
    steps = tf.scatter_nd(ends, tf.ones_like(ends[:, 0]), splits[-1:] + 1)
    numbers = tf.cumsum(steps)[:-1]
    numbers.set_shape([None])  # TensorFlow can't infer it from a computed size
    return numbers


def places_of(starts: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers that count up from each start.

    Args:
        starts: int64 [m].
        counts: int64 [m]; how many numbers to count.

    Returns:
        The numbers [sum of counts], start by start, and the index of each number's start; int64.
    """
    splits = tf.concat([[tf.constant(0, tf.int64)], tf.cumsum(counts)], 0)
    which = bag_of_each(splits)
    return tf.range(splits[-1]) + tf.gather(starts - splits[:-1], which), which


def unique_keys(keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """See `pooling_ops.unique_keys`."""
    distinct, inverse = tf.unique(tf.reshape(keys, [-1]))
    return distinct, tf.reshape(inverse, tf.shape(keys))


def checked_sparse(
    indices: tf.Tensor, values: tf.Tensor, dense_shape: tf.Tensor, label: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """See `pooling_ops.checked_sparse`."""
    good = tf.logical_and(
        tf.reduce_all(dense_shape >= 0),
        tf.reduce_all(tf.logical_and(indices >= 0, indices < dense_shape)),
    )
    check = tf.debugging.Assert(
        good,
        [f"{label} must have a dense_shape of numbers from 0, and indices within it.", dense_shape],
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(indices), tf.identity(values), tf.identity(dense_shape)


def dequantized(rows: tf.Tensor) -> tf.Tensor:
    """The weights, float32 [..., dim], of rows of `tbe.quantized_rows`, int8 [..., dim + 8]."""
    codes = tf.cast(tf.bitcast(rows[..., :-_TAIL], tf.uint8), tf.float32)
    scale = tf.bitcast(rows[..., -_TAIL : -_TAIL // 2], tf.float32)
    bias = tf.bitcast(rows[..., -_TAIL // 2 :], tf.float32)
    return codes * scale[..., tf.newaxis] + bias[..., tf.newaxis]


def find_pooled_tables(
    rows_of: Sequence[Callable[[tf.Tensor], tf.Tensor]],
    indices: tf.Tensor,
    offsets: tf.Tensor,
    pieces: tf.Tensor,
    size: tf.Tensor,
    weights: tf.Tensor | None,
    *,
    dims: Sequence[int],
    combiner: str,
) -> tf.Tensor:
    """See `table_batch_ops.find_pooled_tables`.

    Args:
        rows_of: For each table, a function from keys [n] to rows [n, dim].
    """
    lengths = offsets[1:] - offsets[:-1]
    values, places = [], []
    for number, (find, dim) in enumerate(zip(rows_of, dims, strict=True)):
        mine = tf.boolean_mask(pieces, tf.equal(pieces[:, 0], number))
        bags, piece = places_of(mine[:, 1], mine[:, 2])
        # The place of each bag's first number in the output.
        first = tf.gather(mine[:, 3], piece) + tf.gather(mine[:, 4], piece) * (
            bags - tf.gather(mine[:, 1], piece)
        )
        counts = tf.gather(lengths, bags)
        positions, bag = places_of(tf.gather(offsets, bags), counts)
        rows = find(tf.gather(indices, positions))
        rows = dequantized(rows) if rows.dtype == tf.int8 else tf.cast(rows, tf.float32)
        if weights is not None:
            rows = rows * tf.gather(weights, positions)[:, tf.newaxis]
        pooled = tf.math.unsorted_segment_sum(rows, bag, tf.size(bags))
        if combiner == "mean":
            divisor = tf.cast(counts, tf.float32)[:, tf.newaxis]
            pooled = tf.math.divide_no_nan(pooled, divisor)
        values.append(tf.reshape(pooled, [-1]))
        # A place for each number, because the tables have different dims.
        places.append(tf.reshape(first[:, tf.newaxis] + tf.range(dim, dtype=tf.int64), [-1, 1]))
    return tf.scatter_nd(tf.concat(places, 0), tf.concat(values, 0), [size])


def check_bounds(
    indices: tf.Tensor,
    offsets: tf.Tensor,
    num_bags: tf.Tensor,
    *,
    rows: Sequence[int],
    owner: str,
    mode: str,
    padding: Sequence[int],
) -> CheckedBounds:
    """See `TfEmbedCheckBounds`, in cc/ops/bounds_ops.cc. Faults are not logged."""
    count = tf.size(indices, tf.int64)
    wanted = tf.reduce_sum(num_bags) + 1
    checks = [
        tf.debugging.assert_equal(
            tf.size(offsets, tf.int64),
            wanted,
            f"`offsets` of {owner!r} must have one for each bag and one more.",
        )
    ]
    mends = mode in ("warning", "ignore")
    good_offsets = _mended(offsets, count)
    wrong = tf.not_equal(offsets, good_offsets)
    if not mends:
        must = f"`offsets` of {owner!r} must not decrease, and go from 0 to the number of indices."
        checks.append(tf.debugging.Assert(tf.logical_not(tf.reduce_any(wrong)), [must, offsets]))
    events = tf.math.count_nonzero(wrong) if mends else tf.constant(0, tf.int64)
    with tf.control_dependencies([check for check in checks if check is not None]):
        good_offsets = tf.identity(good_offsets)
    is_good = tf.ones_like(indices, tf.bool)
    # If all tables are dynamic, every id is good.
    if any(limit >= 0 for limit in rows):
        feature_of_bag = bag_of_each(tf.concat([[0], tf.cumsum(num_bags)], 0))
        limits = tf.gather(tf.constant(list(rows), tf.int64), feature_of_bag)
        limits = tf.gather(limits, bag_of_each(good_offsets))
        is_good = tf.logical_or(
            limits < 0, tf.logical_and(indices >= 0, indices < tf.maximum(limits, 0))
        )
    is_fault = tf.logical_and(tf.logical_not(is_good), tf.not_equal(indices, _PRUNED))
    for one in padding:
        is_padding = tf.equal(indices, one)
        is_fault = tf.logical_and(is_fault, tf.logical_not(is_padding))
        is_good = tf.logical_and(is_good, tf.logical_not(is_padding))
    if mode == "fatal":
        must = f"`indices` of {owner!r} must be row numbers of their tables."
        check = tf.debugging.Assert(tf.logical_not(tf.reduce_any(is_fault)), [must, indices])
        with tf.control_dependencies([check] if check is not None else []):
            is_good = tf.identity(is_good)
    if mends:
        events += tf.math.count_nonzero(is_fault)
    kept = tf.where(is_good)[:, 0]
    # The number of kept indices before each index, which gives the new offsets.
    before = tf.concat([[tf.constant(0, tf.int64)], tf.cumsum(tf.cast(is_good, tf.int64))], 0)
    return CheckedBounds(
        checked_indices=tf.gather(indices, kept),
        checked_offsets=tf.gather(before, good_offsets),
        kept=kept,
        changed=tf.logical_not(tf.reduce_all(is_good)),
        num_events=events,
    )


def _mended(offsets: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The nearest offsets that go from 0 to `count` and never fall."""
    inner = tf.clip_by_value(offsets[1:-1], 0, count)
    # Offsets are nearly always in order, which saves the passes.
    inner = tf.cond(
        tf.reduce_all(inner[1:] >= inner[:-1]), lambda: inner, lambda: _running_maximum(inner)
    )
    last = tf.size(offsets) - 1
    ends = tf.concat([[tf.constant(0, tf.int64)], inner, count[tf.newaxis]], 0)
    # Without bags there is only the last offset.
    return tf.cond(last > 0, lambda: ends, lambda: count[tf.newaxis])


def _running_maximum(numbers: tf.Tensor) -> tf.Tensor:
    """For each number, the greatest number up to it, in as many passes as the length has bits."""

    def double(shift: tf.Tensor, highest: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        later = tf.maximum(highest[shift:], highest[:-shift])
        return shift * 2, tf.concat([highest[:shift], later], 0)

    _, highest = tf.while_loop(
        lambda shift, _: shift < tf.size(numbers),
        double,
        [tf.constant(1), numbers],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    return highest
