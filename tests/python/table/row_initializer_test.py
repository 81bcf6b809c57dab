# SPDX-License-Identifier: Apache-2.0
"""The numbers from which the op draws rows: of a variable's name, and of an initializer's axes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_embed.table.initializers import row_initializer, table_id_of


class RowInitializerTest(tf.test.TestCase):
    def test_the_number_of_a_name_fits_int64_and_stays_as_it_is(self):
        self.assertEqual(table_id_of("v"), -7063935088641709149)
        self.assertEqual(table_id_of("table"), 5715596626311811563)

    def test_axes_that_an_initializer_names_are_its_fans(self):
        def spread(**axes: Any) -> float:
            initializer = keras.initializers.HeNormal(seed=2)
            vars(initializer).update(axes)
            return row_initializer(initializer, dim=9, value_dtype=tf.float32, name="v").values[1]

        plain = spread(input_axes=None, output_axes=None)
        self.assertAllClose(spread(input_axes=(1,), output_axes=(0,)), plain / 3)
        self.assertEqual(spread(input_axes=(0,), output_axes=(1,)), plain)
        self.assertEqual(spread(input_axes=(1,), output_axes=None), plain)
        self.assertEqual(spread(input_axes=None, output_axes=(0,)), plain)


if __name__ == "__main__":
    tf.test.main()
