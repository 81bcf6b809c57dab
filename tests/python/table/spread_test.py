# SPDX-License-Identifier: Apache-2.0
"""The spread of a table in this process. Tests of spreads over processes are in tests/processes."""

import tensorflow as tf

import tf_embed
from tf_embed.table.collective_calls import OneProcess
from tf_embed.table.spread import Local


class LocalTest(tf.test.TestCase):
    def test_a_table_without_a_strategy_has_all_rows(self):
        spread = tf_embed.Variable(dim=1).table.spread
        self.assertEqual((spread.count, spread.rank, spread.where), (1, 0, "in this process"))
        self.assertIsNone(spread.group)
        self.assertIsNone(spread.owns)
        self.assertFalse(spread.is_collective)
        self.assertFalse(spread.steps_may_repeat)

    def test_a_single_process_has_the_answers_of_all(self):
        spread, part = Local(), tf.constant([1, 2])
        spread.barrier()
        self.assertAllEqual(spread.gather([part])[0], part)
        self.assertEqual(spread.largest(tf.constant(3)), 3.0)
        self.assertIsInstance(spread.new_calls(), OneProcess)


if __name__ == "__main__":
    tf.test.main()
