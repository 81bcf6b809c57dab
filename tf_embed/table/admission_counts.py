# SPDX-License-Identifier: Apache-2.0
"""Saved admission counts of keys without a row: gather from workers, and split by owner.

A CounterAdmission saves a list of keys and counts, at the end of the vector `policy` of an export:

    | 1 or 2, step, statistics, epoch if 2 | 1, threshold | keys | key, count ... | keys | ... |

The two lists are the younger and the older generation (cc/core/policy/admission.h). A
BloomAdmission saves the cells of filters, from which keys can't be recovered. Counts of strings
have the number of the string as a key, from which the owner can't be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_embed.table.policies import CounterAdmission
from tf_embed.table.table_options import TableOptions

_COUNTER = 1  # Admission::Kind::kCounter


def knows_keys(options: TableOptions) -> bool:
    """Whether the saved admission counts name their keys. True without admission."""
    admission = None if options.policy is None else options.policy.admission
    if admission is None:
        return True
    return isinstance(admission, CounterAdmission) and options.key_dtype != tf.string


def gathered(policy: tf.Tensor, gather: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> tf.Tensor:
    """The vector `policy` of a worker with the counts of all workers.

    Args:
        policy: The vector.
        gather: Returns the rows of all workers for matrices [n, 2].
    """
    head, young, old, is_counter = _split(policy)
    young, old = gather([young, old])
    return _joined(head, young, old, is_counter)


def joined(policies: Sequence[tf.Tensor]) -> tf.Tensor:
    """The vector `policy` of the first of several tables with the counts of all tables."""
    heads, young, old, are_counters = zip(*map(_split, policies), strict=True)
    return _joined(heads[0], tf.concat(young, 0), tf.concat(old, 0), are_counters[0])


def chosen(
    policy: tf.Tensor, is_mine: Callable[[tf.Tensor], tf.Tensor], key_dtype: tf.DType
) -> tf.Tensor:
    """A vector `policy` with the counts of some keys.

    Args:
        policy: The vector. A vector without counts, or a damaged vector, is unchanged.
        is_mine: A function of keys [n] that returns bool [n]: the keys to keep.
        key_dtype: The table's key dtype, of integers.
    """

    def kept(pairs: tf.Tensor) -> tf.Tensor:
        # Saved as int64: keys of uint64 by their bits, narrower keys by their value.
        numbers = pairs[:, 0]
        wide = key_dtype == tf.uint64
        keys = tf.bitcast(numbers, tf.uint64) if wide else tf.cast(numbers, key_dtype)
        return tf.boolean_mask(pairs, is_mine(keys))

    head, young, old, is_counter = _split(policy)
    return _joined(head, kept(young), kept(old), is_counter)


def _split(policy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The vector before the counts, both generations [n, 2], and whether there are counts."""
    kinds = (tf.int64, tf.int64, tf.int64, tf.bool)
    # In NumPy, because the lengths of both lists are among the numbers.
    head, young, old, is_counter = tf.numpy_function(_split_array, [policy], kinds)
    # tf.numpy_function loses all shapes.
    return (
        tf.ensure_shape(head, [None]),
        tf.ensure_shape(young, [None, 2]),
        tf.ensure_shape(old, [None, 2]),
        tf.ensure_shape(is_counter, []),
    )


def _split_array(policy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.bool_]:
    none = np.zeros([0, 2], np.int64)
    fixed = 4 if policy[:1].tolist() == [2] else 3
    if policy[fixed : fixed + 1].tolist() == [_COUNTER]:
        rest = policy[fixed + 2 :]
        young, rest = _pairs(rest)
        old, rest = _pairs(rest)
        # Any other vector is unchanged, and the table that imports it checks it.
        if young is not None and old is not None and len(rest) == 0:
            return policy[: fixed + 2], young, old, np.bool_(True)
    return policy, none, none, np.bool_(False)


def _pairs(numbers: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """A generation, or None if it is truncated; and the rest of the vector."""
    if len(numbers) == 0 or not 0 <= numbers[0] <= len(numbers) // 2:
        return None, numbers
    end = 1 + 2 * int(numbers[0])
    whole = end <= len(numbers)
    return (numbers[1:end].reshape(-1, 2), numbers[end:]) if whole else (None, numbers)


def _joined(head: tf.Tensor, young: tf.Tensor, old: tf.Tensor, is_counter: tf.Tensor) -> tf.Tensor:
    """The inverse of `_split`."""
    parts = [head]
    for pairs in (young, old):
        count = tf.shape(pairs, tf.int64)[:1]
        parts += [count, tf.reshape(pairs, [-1])]
    return tf.cond(is_counter, lambda: tf.concat(parts, 0), lambda: head)
