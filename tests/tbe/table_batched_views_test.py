# SPDX-License-Identifier: Apache-2.0
"""Views of a table-batched layer's weights and optimizer states: their reads and writes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.cases.table_batched_cases import (
    SPECS,
    Inputs,
    content,
    first_rows,
    layer_of,
    plain,
    settings_of,
    steps_of,
    train,
)
from support.cases.tbe_cases import CASES
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

# A case for each kind of slots.
KINDS = (
    *("Adagrad", "RowwiseAdagrad, global", "counter, share", "Adam, by row"),
    *("PartialRowwiseAdam", "LARS, decay", "Ensemble", "EmaInplace"),
)
ROWS = np.arange(12.0, dtype="f").reshape(4, 3)
INDICES = (
    *(0, -1, np.int64(2), slice(None), slice(1, 3), slice(None, None, -2), slice(9, 2)),
    *([2, 0], [1, 1], np.array([-1, 0]), [], np.array([True, False, True, False]), ..., ()),
    *((1, 2), (1, slice(1)), (slice(1, 3), 0), ([0, 2], [1, 2]), ([3, 3], 1), (..., 0)),
    *((slice(None), [2, 0]), np.array([[0, 1], [2, 3]]), ROWS > 5.0, (slice(None, None, 3), -1)),
)


def layer_with(rows: np.ndarray = ROWS, **options: Any) -> TableBatchedEmbeddingBags:
    return layer_of([rows], [rows.shape], None, **options)


class IndexTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*({"index": index} for index in INDICES))
    def test_an_index_is_that_of_an_array(self, index):
        (view,) = layer_with().split_embedding_weights()
        wanted = ROWS.copy()
        self.assertAllEqual(view[index], wanted[index])
        self.assertEqual(np.shape(view[index]), wanted[index].shape)
        wanted[index] = -wanted[index] - 1.0
        view[index] = -view[index] - 1.0
        self.assertAllEqual(view, wanted)
        wanted[index] = view[index] = 7.0
        self.assertAllEqual(view, wanted)

    @parameterized.parameters(*({"index": index} for index in (4, -5, [0, 4], 1.5, "a", None)))
    def test_what_is_no_index_of_an_array_is_none_of_a_view(self, index):
        (view,) = layer_with().split_embedding_weights()
        if index is None:
            self.assertEqual(view[index].shape, (1, 4, 3))
            return
        of_type = "must be integers, bools, slices or an ellipsis" * (index in (1.5, "a"))
        with self.assertRaisesRegex(IndexError, of_type):
            view[index]
        with self.assertRaises(IndexError):
            view[index] = 0.0
        self.assertAllEqual(view, ROWS)

    def test_a_key_that_is_no_row_number_is_refused(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must be row numbers, from 0 to 3.*Received: 4 at"
        ):
            layer_with().tables[0].lookup([0, 1, 2, 3, 4])

    def test_an_array_without_a_copy_is_refused(self):
        (view,) = layer_with().split_embedding_weights()
        with self.assertRaisesRegex(ValueError, "no array that could be given without a copy"):
            np.array(view, copy=False)

    def test_what_it_gives_takes_no_writes(self):
        layer = layer_with(optimizer="ADAM")
        for view in (layer.split_embedding_weights()[0], layer.split_optimizer_states()[0][1]):
            before = view.numpy()
            for copy in (view.numpy(), np.asarray(view), next(iter(view))):
                with self.assertRaisesRegex(ValueError, "read-only"):
                    copy[...] = 5.0
            with self.assertRaisesRegex(TypeError, "does not support item assignment"):
                view[1][0] = 5.0
            mine = np.array(view)
            mine[0] = 5.0
            self.assertAllEqual(view, before)

    def test_it_is_an_array_to_numpy_and_a_tensor_to_tensorflow(self):
        (view,) = layer_with().split_embedding_weights()
        self.assertEqual((view.shape, view.dtype, view.ndim), ((4, 3), tf.float32, 2))
        self.assertLen(view, 4)
        self.assertAllEqual(view + 1, ROWS + 1)
        self.assertAllEqual(1 - view, 1 - ROWS)
        self.assertAllEqual(view * view, ROWS**2)
        self.assertAllEqual(np.sum(view, axis=0), ROWS.sum(0))
        self.assertAllEqual(tf.constant(1.0) + view, ROWS + 1)
        self.assertAllEqual(tf.gather(view, [2]), ROWS[[2]])
        self.assertAllEqual(tf.function(lambda: tf.reduce_sum(view))(), ROWS.sum())
        self.assertIn("weights', shape=(4, 3), dtype=float32", repr(view))

    def test_arithmetic_in_place_writes(self):
        views = layer_with().split_embedding_weights()
        views[0] += 1
        views[0] *= views[0]
        self.assertAllEqual(views[0], (ROWS + 1) ** 2)
        views[0].assign_sub(ROWS)
        views[0].assign_add(1.0)
        self.assertAllEqual(views[0], (ROWS + 1) ** 2 - ROWS + 1)

    def test_a_masked_write_leaves_the_other_rows(self):
        (view,) = layer_with().split_embedding_weights()
        mask = np.array([[True], [False], [True], [False]])
        np.multiply(view, 0.5, out=view, where=mask)
        self.assertAllEqual(view, np.where(mask, ROWS * 0.5, ROWS))
        sums = np.full([4], 7.0, np.float32)
        np.add(view[:, 0], 1.0, out=sums, where=mask[:, 0])
        self.assertAllEqual(sums[1::2], [7.0, 7.0])

    @parameterized.parameters(
        (np.zeros([3, 3]), ValueError, r"`value` of .*weights' must have shape \(4, 3\).*\(3, 3\)"),
        (0.0, ValueError, r"`value` of .* must have shape \(4, 3\).*shape=\(\)"),
        ("a", TypeError, "`value` of .* must be of dtype float32"),
        (None, TypeError, "`value` of .* must be of dtype float32"),
    )
    def test_values_of_another_shape_or_type_are_refused(self, value, error, words):
        (view,) = layer_with().split_embedding_weights()
        with self.assertRaisesRegex(error, words):
            view.assign(value)
        with self.assertRaisesRegex(RuntimeError, "outside of a tf.function"):
            tf.function(lambda: view.assign(ROWS))()
        self.assertAllEqual(view, ROWS)


class WeightsTest(tf.test.TestCase, parameterized.TestCase):
    def test_writes_go_into_tables_and_steps_show(self):
        layer = layer_of(first_rows())
        views = layer.split_embedding_weights()
        wanted = np.random.default_rng(SEED).normal(size=SPECS[1]).astype("f")
        views[1].assign(wanted)
        self.assertAllEqual(layer.tables[1].lookup(range(SPECS[1][0])), wanted)
        before = [view.numpy() for view in views]
        train(layer, plain(), *steps_of(1))
        for view, table, old in zip(views, layer.tables, before, strict=True):
            self.assertAllEqual(view, table.lookup(range(len(old))))
            self.assertNotAllEqual(view, old)

    def test_a_table_of_many_rows_is_written_row_by_row(self):
        (view,) = TableBatchedEmbeddingBags([(2**40, 2)], initializer=1.0).split_embedding_weights()
        view[[5, -1]] = [[2.0, 3.0], [4.0, 5.0]]
        self.assertAllEqual(view[[-1, 6, 5]], [[4.0, 5.0], [1.0, 1.0], [2.0, 3.0]])
        self.assertEqual(view.shape, (2**40, 2))

    def test_a_view_of_a_dynamic_table_is_of_the_ids_that_it_had(self):
        keys = [2**60, -7, 0]
        layer = layer_of([ROWS[:3]], [(None, 3)], None, keys=[keys])
        (view,) = layer.split_embedding_weights()
        present = layer.tables[0].export()[0].numpy()
        layer.tables[0].upsert([99], [[1.0, 1.0, 1.0]])
        self.assertEqual(view.shape, (3, 3))
        view[1] = 8.0
        self.assertAllEqual(layer.tables[0].lookup([present[1]]), np.full([1, 3], 8.0))
        self.assertEqual(int(layer.tables[0].size()), 4)

    @parameterized.parameters("FP16", "BF16")
    def test_narrow_weights(self, precision):
        (view,) = layer_with(weights_precision=precision).split_embedding_weights()
        view[1] = [0.1, 0.2, 0.3]
        wanted = tf.cast([0.1, 0.2, 0.3], tbe.SparseType[precision].dtype)
        self.assertAllEqual(view[1], wanted)

    def test_bytes_are_written_as_they_are(self):
        layer = TableBatchedEmbeddingBags([(3, 4)], weights_precision="INT8", optimizer="NONE")
        (view,) = layer.split_embedding_weights()
        rows = tbe.quantized_rows.quantize(tf.constant([[1.0, 2.0, 3.0, 4.0]] * 3))
        view.assign(rows)
        self.assertAllEqual(view, rows)
        self.assertAllClose(layer(tf.constant([1]), tf.constant([0, 1])), [[1, 2, 3, 4]], 1e-2)
        with self.assertRaises(TypeError):
            view[0] = 0.5

    def test_optimizer_states_stay(self):
        layer = layer_with(optimizer="EXACT_ADAGRAD")
        layer.split_optimizer_states()[0][0].assign(ROWS)
        layer.split_embedding_weights()[0].assign(ROWS + 1)
        self.assertAllEqual(layer.split_optimizer_states()[0][0], ROWS)


class StatesTest(tf.test.TestCase, parameterized.TestCase):
    def copied(self, layer: Any, other: Any) -> None:
        """Writes all weights and states of a layer into another layer."""
        for views, theirs in (
            ([other.split_embedding_weights()], [layer.split_embedding_weights()]),
            (other.split_optimizer_states(), layer.split_optimizer_states()),
        ):
            for one, two in zip(itertools.chain(*views), itertools.chain(*theirs), strict=True):
                one.assign(two)
        if layer._trainer.state:
            other._trainer.state[0].assign(layer._trainer.state[0])
        other.set_optimizer_step(int(layer.optimizer.iterations))

    @parameterized.product(case=KINDS, trained=(False, True))
    def test_a_layer_with_the_states_of_another_goes_on_as_that(self, case, trained):
        layer, other = (layer_of(first_rows(), **settings_of(CASES[case])) for _ in range(2))
        steps = steps_of(6)
        ours, theirs = plain(), plain()
        for step in steps[:4]:
            train(layer, ours, step)
        if trained:  # the copy then replaces its own states
            train(other, theirs, steps[4])
        self.copied(layer, other)
        for step in steps[4:]:
            for found, wanted in zip(content(other)[:2], content(layer)[:2], strict=True):
                self.assertAllEqual(found, wanted)
            train(layer, ours, step)
            train(other, theirs, step)
        states = (itertools.chain(*one.split_optimizer_states()) for one in (layer, other))
        for one, two in zip(*states, strict=True):
            self.assertAllEqual(one, two)

    def test_one_state_of_one_row_is_written_and_no_other(self):
        layer = layer_of(first_rows(), **settings_of(CASES["Adam, by row"]))
        train(layer, plain(), *steps_of(1))
        exp_avg, exp_avg_sq, row_counter = layer.split_optimizer_states()[1]
        weights = layer.split_embedding_weights()[1]
        before = [np.array(view) for view in (weights, exp_avg, exp_avg_sq, row_counter)]
        exp_avg_sq[3] = before[2][3] = 0.25
        for view, wanted in zip((weights, exp_avg, exp_avg_sq, row_counter), before, strict=True):
            self.assertAllEqual(view, wanted)
        row_counter[0] += 2
        self.assertEqual(row_counter[0], before[3][0] + 2)

    @parameterized.parameters("FP16", "BF16")
    def test_narrow_states(self, precision):
        layer = layer_with(optimizer="ADAM", optimizer_state_dtypes={"momentum1": precision})
        exp_avg, _ = layer.split_optimizer_states()[0]
        dtype = tbe.SparseType[precision].dtype
        values = tf.cast(ROWS / 7, dtype)
        nothing = Inputs(np.zeros([0], np.int64), np.zeros([2], np.int64))
        for _ in range(2):  # before and after the rows have this layout
            exp_avg.assign(values)
            self.assertEqual(exp_avg.dtype, dtype)
            self.assertAllEqual(exp_avg, values)
            train(layer, plain(), (nothing, np.zeros([1, 3], "f")))

    def test_states_of_rows_that_nobody_wrote(self):
        layer = TableBatchedEmbeddingBags([(4, 3)], optimizer="EXACT_ADAGRAD", initializer=0.5)
        (total,) = layer.split_optimizer_states()[0]
        total[2] = 4.0
        self.assertAllEqual(total.numpy()[:, 0], [0.0, 0.0, 4.0, 0.0])
        self.assertAllEqual(layer.split_embedding_weights()[0], np.full([4, 3], 0.5))

    def test_slot_variables_are_those_of_the_table(self):
        layers = [layer_of(first_rows(), **settings_of(CASES["Adam"])) for _ in range(2)]
        train(layers[0], plain(), *steps_of(1))
        table = layers[0].tables[2]
        slots = table.slot_variables(layers[0].optimizer)
        self.assertEqual(
            [slot.name.rpartition("/")[2] for slot in slots], ["exp_avg", "exp_avg_sq"]
        )
        for slot, state in zip(slots, layers[0].split_optimizer_states()[2], strict=True):
            self.assertAllEqual(slot.lookup(range(SPECS[2][0])), state)
            self.assertGreater(np.abs(state).max(), 0.0)
        self.assertEmpty(table.slot_variables(layers[1].optimizer))


if __name__ == "__main__":
    tf.test.main()
