# SPDX-License-Identifier: Apache-2.0
"""The initial rows of a table, computed by TensorFlow's ops, bit-identical to the table's own.

The formulas are in cc/core/rows/initializer.h, which explains why they only need the four
operations and a square root. The hash of a string is in cc/core/batch/string_batch.h. Each op
rounds its result, and the table is compiled to do the same. But TensorFlow's graph optimizer folds
constants that are added in succession, which could change a bit. A maximum between the two sums
prevents this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_embed.table.initializers import RowInitializer

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64

# The quantile function of the normal distribution: algorithm AS 241, PPND16.
_MIDDLE = (
    (
        *(3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550),
        *(3.64784832476320460504, 1.27045825245236838258, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL = (
    (
        *(6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)


def random_rows(
    initializer: RowInitializer, keys: tf.Tensor, *, dim: int, value_dtype: tf.DType
) -> tf.Tensor:
    """Returns the initial rows of keys for a random initializer.

    Args:
        initializer: The table's initializer.
        keys: int64 or string, [n].
        dim: Number of weights in a row.
        value_dtype: A floating dtype.

    Returns:
        [n, dim], of `value_dtype`.
    """
    if keys.dtype == tf.string:
        keys = _keys_of_strings(keys)
    first, second = initializer.values
    seed, table_id = initializer.seed % _WORD, initializer.table_id % _WORD
    of_table = _mixed_number(_mixed_number((seed + _GOLDEN) % _WORD) ^ table_id)
    key_bits = tf.bitcast(keys, tf.uint64)
    state = _mixed(_word(of_table) + _mixed(key_bits + _word(_GOLDEN)))
    lanes = np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(_GOLDEN)  # modulo 2^64
    bits = _mixed(state[:, tf.newaxis] + tf.constant(lanes))
    high = tf.bitcast(tf.bitwise.right_shift(bits, _word(12)), tf.int64)
    # Adding 0.5 keeps the number above 0 and below 1.
    unit = (tf.cast(high, tf.float64) + 0.5) * 2.0**-52
    if initializer.kind == "uniform":
        drawn = first + (second - first) * unit
    else:
        if initializer.kind == "truncated_normal":
            below, between = 0.022750131948179207, 0.9544997361036416
            unit = tf.maximum(below + between * unit, 0.0)
        drawn = first + second * _normal_quantile(unit)
    # Rounded twice, as the table does.
    if value_dtype in (tf.float16, tf.bfloat16):
        drawn = tf.cast(drawn, tf.float32)
    return tf.cast(drawn, value_dtype)


def _word(number: int) -> tf.Tensor:
    return tf.constant(number, tf.uint64)


def _mixed(words: tf.Tensor) -> tf.Tensor:
    """The finalizer of SplitMix64."""
    xor, shift = tf.bitwise.bitwise_xor, tf.bitwise.right_shift
    words = xor(words, shift(words, _word(30))) * _word(0xBF58476D1CE4E5B9)
    words = xor(words, shift(words, _word(27))) * _word(0x94D049BB133111EB)
    return xor(words, shift(words, _word(31)))


def _mixed_number(word: int) -> int:
    """`_mixed` for a Python number."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % _WORD
    return word ^ (word >> 31)


def _keys_of_strings(strings: tf.Tensor) -> tf.Tensor:
    """Returns the 64-bit keys of strings [n], int64: blocks of 8 bytes, chained by `_mixed`."""
    lengths = tf.strings.length(strings)
    num_blocks = (lengths + 7) // 8
    # `decode_raw` takes no length of 0.
    most = tf.maximum(tf.reduce_max(tf.concat([num_blocks, [0]], 0)), 1)
    blocks = tf.reshape(
        tf.io.decode_raw(strings, tf.int64, little_endian=True, fixed_length=most * 8), [-1, most]
    )
    # The hash begins with the length, because zeros fill the last block of a string.
    state = _mixed((tf.cast(lengths, tf.uint64) + _word(1)) * _word(_GOLDEN))

    def chain(number: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        block = tf.bitcast(blocks[:, number], tf.uint64)
        following = _mixed(tf.bitwise.bitwise_xor(state, block))
        return number + 1, tf.where(number < num_blocks, following, state)

    _, state = tf.while_loop(lambda number, _: number < most, chain, [tf.constant(0), state])
    return tf.bitcast(state, tf.int64)


def _logarithm(numbers: tf.Tensor) -> tf.Tensor:
    bits = tf.bitcast(numbers, tf.uint64)
    exponent = tf.bitcast(tf.bitwise.right_shift(bits, _word(52)), tf.int64) - 1023
    mantissa = tf.bitwise.bitwise_or(
        tf.bitwise.bitwise_and(bits, _word(0xFFFFFFFFFFFFF)), _word(0x3FF0000000000000)
    )
    m = tf.bitcast(mantissa, tf.float64)
    is_high = m > 1.4142135623730951
    m = tf.where(is_high, m * 0.5, m)
    exponent += tf.cast(is_high, tf.int64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    total = tf.constant(1.0 / 21.0, tf.float64)
    for odd in range(19, 0, -2):
        total = total * square + 1.0 / odd
    return 2.0 * s * total + tf.cast(exponent, tf.float64) * 0.6931471805599453


def _polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
    total = tf.constant(coefficients[-1], tf.float64)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _ratio(coefficients: tuple[Sequence[float], Sequence[float]], x: tf.Tensor) -> tf.Tensor:
    return _polynomial(coefficients[0], x) / _polynomial(coefficients[1], x)


def _normal_quantile(p: tf.Tensor) -> tf.Tensor:
    q = p - 0.5
    r = 0.180625 - q * q
    middle = q * _polynomial(_MIDDLE[0], r) / _polynomial(_MIDDLE[1], r)
    # A seventh of the numbers is outside, and takes most of the work.
    outside = tf.where(tf.abs(q) >= 0.425)
    return tf.tensor_scatter_nd_update(middle, outside, _tail_quantile(tf.gather_nd(p, outside)))


def _tail_quantile(p: tf.Tensor) -> tf.Tensor:
    """`_normal_quantile` for numbers [n] that are far from 1/2."""
    is_low = p < 0.5
    root = tf.sqrt(-_logarithm(tf.where(is_low, p, 1.0 - p)))
    far = tf.where(root <= 5.0, _ratio(_TAIL, root - 1.6), _ratio(_FAR_TAIL, root - 5.0))
    return tf.where(is_low, -far, far)
