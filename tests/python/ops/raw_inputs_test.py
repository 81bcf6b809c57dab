# SPDX-License-Identifier: Apache-2.0
"""Raw ops refuse tensors of shapes that tf_embed never passes, and name them.

TensorFlow ends the process if a kernel reads a non-scalar tensor as a scalar, or makes a shape
with too many elements or axes. tests/campaigns/raw_ops.py tries such calls at random.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import NO_OWNERS, RawTable
from support.cases.refused_ops import BATCH, RAW, RefusedTestCase, int64
from tf_embed.snapshots import manifest

pytestmark = pytest.mark.cpu

NOT_SCALARS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 3), (1, 1))
MAX_AXES = 254


def many_axes(count: int = MAX_AXES) -> tf.Tensor:
    """A tensor of one key."""
    tensor = tf.ones([1] * 250, tf.int64)
    while tensor.shape.rank < count:
        tensor = tensor[tf.newaxis]
    return tensor


class ScalarsTest(RefusedTestCase):
    """All inputs that an op reads as a scalar."""

    def calls(self) -> dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]]:
        table = RawTable(2, settings={"statistics": 31})
        table.assign([1], [[1.0, 1.0]])
        keys = {"table": table.handle, "keys": int64([1]), "owners": NO_OWNERS}
        batch = {name: int64(value) for name, value in BATCH.items()}
        tables = {"tables": [table.handle] * 2, "weights": []}
        two = {"dims": [2, 2], "combiner": "sum", **tables}
        size = {"size": int64(6)}
        packed = RAW.tf_embed_pack_batch(**batch, **two, **size)
        apply = {"hyper": tf.constant([0.1, 0.0], tf.float64), "step": int64(1), "rule": "sgd"}
        folder = {"folder": tf.constant(self.get_temp_dir()), "file_name": "v"}
        saved = {**folder, "key_dtype": tf.int64}
        RAW.tf_embed_save_rows(table=table.handle, **folder)
        rows = RAW.tf_embed_open_saved_rows(table=table.handle, **saved)[0]
        published = {**folder, "folder": tf.constant(tempfile.mkdtemp(dir=self.get_temp_dir()))}
        RAW.tf_embed_save_rows(table=table.handle, **published)
        number = manifest.files_of(published["folder"].numpy().decode(), "v", "v").save
        save = tf.bitcast(tf.constant(number, tf.uint64), tf.int64)
        block = {"table": table.handle, "rows": rows, "block": int64(0)}
        clock = {name: int64(1) for name in ("step", "milliseconds", "epoch")}
        gradients = RAW.tf_embed_row_gradients(keys=int64([1]), values=tf.ones([1, 2]))
        types = {"key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 2}
        taken = RawTable(2)
        turn = {"table": taken.handle, "turn": RAW.tf_embed_take_turn(table=taken.handle)}
        return {
            "find_pooled_tables": (
                RAW.tf_embed_find_pooled_tables,
                {**batch, **two, **size, "tokens": [], "row_dtypes": [tf.float32] * 2},
                ("size",),
            ),
            "pack_batch": (RAW.tf_embed_pack_batch, {**batch, **two, **size}, ("size",)),
            "apply_tables": (
                RAW.tf_embed_apply_tables,
                {
                    **{name: two[name] for name in ("tables", "dims", "combiner")},
                    "batches": packed,
                    "gradients": tf.ones([6]),
                    **apply,
                },
                ("step",),
            ),
            "unless_frozen": (
                RAW.tf_embed_unless_frozen,
                {
                    "keys": int64([1]),
                    "gradients": tf.ones([1, 2]),
                    "trained": tf.constant(True),
                },
                ("trained",),
            ),
            "apply": (
                lambda trained, **rest: RAW.tf_embed_apply(trained=[trained], **rest),
                {
                    **keys,
                    "gradients": tf.ones([1, 2]),
                    "scores": [],
                    "token": [],
                    "trained": tf.constant(True),
                    "dim": 2,
                    **apply,
                },
                ("table", "step", "trained"),
            ),
            "size": (
                RAW.tf_embed_size,
                {"table": table.handle, "shard": int64(-1)},
                ("table", "shard"),
            ),
            "restrict": (
                RAW.tf_embed_restrict,
                {"table": table.handle, "num_reserved": int64(9), "order": "lru"},
                ("table", "num_reserved"),
            ),
            "export_scores": (
                RAW.tf_embed_export_scores,
                {
                    "table": table.handle,
                    "split_size": int64(9),
                    "key_dtype": tf.int64,
                    "order": "lru",
                },
                ("table", "split_size"),
            ),
            "set_clock": (
                RAW.tf_embed_set_clock,
                {"table": table.handle, **clock},
                ("table", *clock),
            ),
            "save_rows": (
                RAW.tf_embed_save_rows,
                {"table": table.handle, **folder},
                ("folder", "file_name"),
            ),
            "open_saved_rows": (
                RAW.tf_embed_open_saved_rows,
                {"table": table.handle, **saved},
                ("folder", "file_name"),
            ),
            "forget_waiting": (
                RAW.tf_embed_forget_waiting,
                {"table": table.handle, "keys": int64([1])},
                ("table",),
            ),
            "open_published_rows": (
                RAW.tf_embed_open_published_rows,
                {"table": table.handle, **published, "save": save},
                ("file_name", "save"),
            ),
            "begin_published_rows": (
                RAW.tf_embed_begin_published_rows,
                {"table": table.handle, "rows": rows, "key_dtype": tf.int64},
                ("table", "rows"),
            ),
            "drop_snapshot": (
                RAW.tf_embed_drop_snapshot,
                {"table": table.handle, "save": int64(1)},
                ("table", "save"),
            ),
            "saved_row_counts": (
                RAW.tf_embed_saved_row_counts,
                {name: block[name] for name in ("table", "rows")},
                ("table", "rows"),
            ),
            "saved_keys": (
                RAW.tf_embed_saved_keys,
                {**block, "key_dtype": tf.int64},
                ("table", "rows"),
            ),
            "load_saved_rows": (
                RAW.tf_embed_load_saved_rows,
                {**block, "owners": NO_OWNERS},
                ("table", "rows"),
            ),
            "clear": (RAW.tf_embed_clear, {"table": table.handle}, ("table",)),
            "share_table": (RAW.tf_embed_share_table, {"table": table.handle}, ("table",)),
            "table_here": (
                RAW.tf_embed_table_here,
                {"shared": RAW.tf_embed_share_table(table=table.handle)},
                ("shared",),
            ),
            "rows_saved": (RAW.tf_embed_rows_saved, {"table": table.handle}, ("table",)),
            "origin": (RAW.tf_embed_origin, {"table": table.handle}, ("table",)),
            "stats": (RAW.tf_embed_stats, {"table": table.handle}, ("table",)),
            "take_turn": (RAW.tf_embed_take_turn, {"table": table.handle}, ("table",)),
            "end_turn": (RAW.tf_embed_end_turn, turn, ("table", "turn")),
            "unpack_row_gradients": (
                RAW.tf_embed_unpack_row_gradients,
                {"gradients": gradients, **types},
                ("gradients",),
            ),
        }

    def test_what_is_no_scalar_is_refused_by_its_name(self):
        for op, (function, arguments, scalars) in self.calls().items():
            for name in scalars:
                for shape in NOT_SCALARS:
                    if name == "table" and 0 in shape:
                        continue  # TensorFlow refuses to make such a tensor
                    size = int(np.prod(shape))
                    one = tf.reshape(tf.stack([arguments[name]] * max(size, 1))[:size], shape)
                    wanted = {"folder": "dirpath", "rows": "rows"}.get(name, name)
                    with self.subTest(op, name=name, shape=shape), self.refused(f"`{wanted}` must"):
                        function(**{**arguments, name: one})
            with self.subTest(op):
                function(**arguments)

    def test_each_handle_of_many_tables_must_be_a_scalar(self):
        for op in ("find_pooled_tables", "apply_tables"):
            function, arguments, _ = self.calls()[op]
            good = arguments["tables"][0]
            for handle in (tf.reshape(good, [1]), tf.stack([good, good])):
                with self.subTest(op), self.refused("`tables` must be a scalar"):
                    function(**{**arguments, "tables": [good, handle]})

    def test_a_turn_is_taken_by_no_empty_tensor_of_handles(self):
        # Eagerly, TensorFlow itself refuses it. In this graph the number of handles is unknown.
        handles = tf.stack([RawTable(2).handle] * 2)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
        def take(shape: tf.Tensor) -> tf.Tensor:
            table = tf.gather(handles, tf.zeros(shape, tf.int32))
            with tf.control_dependencies([RAW.tf_embed_take_turn(table=table)]):
                return tf.constant(0)

        for shape in ([0], [1], [2], [0, 3]):
            with self.refused("`table` must be a scalar"):
                take(tf.constant(shape))
        take(tf.constant([], tf.int32))


class ShapesTest(RefusedTestCase):
    def test_keys_of_too_many_axes_for_their_rows_are_refused(self):
        table = RawTable(2, settings={"statistics": 31})
        keys = {"table": table.handle, "keys": many_axes(), "owners": NO_OWNERS}
        defaults = {"defaults": tf.zeros([0]), "dim": 2}
        rule = {"rule_id": 1, "slot_widths": [1], "slot_initial_values": "0"}
        calls = {
            "find": lambda: RAW.tf_embed_find(**keys, **defaults, tokens=[]),
            "find_or_insert": lambda: RAW.tf_embed_find_or_insert(**keys, **defaults, scores=[]),
            "row_statistics": lambda: RAW.tf_embed_row_statistics(**keys),
            "find_slots": lambda: RAW.tf_embed_find_slots(
                **keys, **defaults, **rule, slot_dtype=tf.float32
            ),
            "read_slots": lambda: RAW.tf_embed_read_slots(
                **keys, rule="external", **rule, slot_dtype=tf.float32
            ),
            "sum_by_key": lambda: RAW.tf_embed_sum_by_key(
                keys=many_axes(),
                gradients=tf.ones([1, 2]),
                bags=[],
                weights=[],
                tables=[],
                sum_dtype=tf.float32,
            ),
        }
        for name, call in calls.items():
            with (
                self.subTest(name),
                self.refused("with one more axis, of .*: it would have too many el"),
            ):
                call()

    @parameterized.parameters(
        ([2**62, 0], "at most 4294967295 bags"),
        ([2**33, 0], "at most 4294967295 bags"),
    )
    def test_lines_of_no_keys_are_not_more_than_bags_can_be(self, shape, words):
        table, keys = RawTable(2), tf.zeros(shape, tf.int64)
        with self.refused(words):
            self.pooled(table, keys, [])

    @parameterized.parameters(
        ([2**62, 2**62, 0, 3], "too many elements, or axes"),
        ([0, -1, 3], "dense_shape of numbers from 0. Received: -1 on axis 1"),
        ([-(2**63), 0, 3], "dense_shape of numbers from 0. Received: -9223372036854775808 on axis"),
        ([2, 2, -1], "dense_shape of numbers from 0. Received: -1 on axis 2"),
        ([2**62, 2, 3], "at most 4294967295 bags"),
    )
    def test_a_dense_shape_that_no_tensor_has_is_refused(self, shape, words):
        indices = tf.zeros([0, len(shape)], tf.int64)
        with self.refused(words):
            self.pooled(RawTable(2), int64([]), [indices, int64(shape)])

    def pooled(self, table: RawTable, keys: tf.Tensor, bags: list[tf.Tensor]) -> tf.Tensor:
        return RAW.tf_embed_find_pooled(
            table=table.handle,
            keys=keys,
            owners=NO_OWNERS,
            defaults=tf.zeros([0]),
            tokens=[],
            bags=bags,
            weights=[],
            pooled_dtype=tf.float32,
            combiner="sum",
            dim=2,
        )

    def test_bags_that_are_no_vector_and_a_third_tensor_are_refused(self):
        splits = int64([0, 1])
        with self.refused("`bags` must be a vector"):
            self.pooled(RawTable(2), int64([1]), [splits[tf.newaxis]])
        with self.refused("`bags` must be at most 2 tensors. Received: 3"):
            self.pooled(RawTable(2), int64([1]), [splits] * 3)

    def test_two_tensors_of_scores_are_refused(self):
        table = RawTable(2, settings={"statistics": 8})
        with self.refused("`scores` must be at most 1 tensor. Received: 2"):
            RAW.tf_embed_insert_or_assign(
                table=table.handle,
                keys=int64([1]),
                owners=NO_OWNERS,
                values=tf.ones([1, 2]),
                scores=[int64([1])] * 2,
                dim=2,
            )

    def test_an_anchor_of_another_shape_is_refused(self):
        for shape in ((), (0,), (0, 5), (1, 4), (0, 4, 1), (2**62, 0)):
            with self.refused(r"`anchor` must have shape \[0,4\]"):
                RAW.tf_embed_token(anchor=tf.zeros(shape), key_dtype=tf.uint64, dim=4)
        self.assertEqual(
            RAW.tf_embed_token(anchor=tf.zeros([0, 4]), key_dtype=tf.uint64, dim=4).shape, ()
        )

    def test_a_table_of_too_many_shards_or_slots_is_refused(self):
        with self.refused("`num_shards` must be from 1 to 65536. Received: 1099511627776"):
            RawTable(2, num_shards=2**40)
        table = RawTable(2)
        with self.refused("`slot_widths` of table 'raw', of dim 2, must be at most 65536"):
            RAW.tf_embed_find_slots(
                table=table.handle,
                keys=int64([]),
                owners=NO_OWNERS,
                defaults=tf.zeros([0]),
                slot_dtype=tf.float32,
                dim=2,
                rule_id=1,
                slot_widths=[2**30],
                slot_initial_values="0",
            )


class SavedRowsTest(RefusedTestCase):
    """Rows that were opened for a table and are passed to the ops of another."""

    @parameterized.parameters(
        ({"dim": 2}, {"dim": 64}),
        ({"dim": 2}, {"dim": 2, "value_dtype": "float64"}),
        ({"dim": 2}, {"dim": 2, "value_dtype": "string"}),
        ({"dim": 2, "value_dtype": "string"}, {"dim": 2}),
        ({"dim": 2}, {"dim": 2, "key_dtype": "string"}),
        ({"dim": 2, "key_dtype": "string"}, {"dim": 2}),
    )
    def test_rows_of_another_kind_of_table_are_refused(self, saved, other):
        tables = [RawTable(**saved), RawTable(**other)]
        keys = ["1", "2"] if "key_dtype" in saved else [1, 2]
        tables[0].assign(keys, [["a", "b"]] * 2 if "value_dtype" in saved else [[1.0, 2.0]] * 2)
        folder = {"folder": tf.constant(self.get_temp_dir()), "file_name": "rows"}
        RAW.tf_embed_save_rows(table=tables[0].handle, **folder)
        key_dtype = tf.as_dtype(saved.get("key_dtype", "int64"))
        rows = RAW.tf_embed_open_saved_rows(table=tables[0].handle, key_dtype=key_dtype, **folder)[
            0
        ]
        words = "can't load '.*': it has key .*, and the rows in the file have key"
        self.load(tables[0], rows)
        for op in (self.read_keys, self.load):
            with self.subTest(op.__name__), self.refused(words):
                op(tables[1], rows)

    def read_keys(self, table: RawTable, rows: tf.Tensor) -> None:
        RAW.tf_embed_saved_keys(
            table=table.handle, rows=rows, block=int64(0), key_dtype=table.keys_as
        )

    def load(self, table: RawTable, rows: tf.Tensor) -> None:
        RAW.tf_embed_load_saved_rows(
            table=table.handle, rows=rows, block=int64(0), owners=NO_OWNERS
        )


class BatchesTest(RefusedTestCase):
    """The inputs of ops of many tables."""

    def sum_by_key(self, **changes: Any) -> Any:
        arguments = {
            **{name: int64(value) for name, value in BATCH.items()},
            "gradient": tf.ones([6]),
            "weights": [],
            "distinct_dtypes": [tf.int64] * 2,
            "dims": [2, 2],
            "combiner": "sum",
            "sum_dtypes": [tf.float32] * 2,
        }
        return RAW.tf_embed_sum_by_key_tables(**{**arguments, **changes})

    @parameterized.parameters(
        ({"dims": [-2, 2]}, "`dims` must be from 1 to 2147483647. Received: -2"),
        ({"dims": [2**40, 2]}, "`dims` must be from 1 to"),
        ({"dims": [2]}, "must have one for each"),
        ({"gradient": (1, 6)}, "`gradient` must be a vector"),
        ({"indices": (3, 1)}, "`indices` must be a vector"),
        ({"offsets": (1, 4)}, "`offsets` must be a vector"),
        ({"pieces": (10,)}, "`pieces` must have shape"),
    )
    def test_shapes_and_dims_that_do_not_go_together_are_refused(self, changes, words):
        self.sum_by_key()
        shapes = {name: one for name, one in changes.items() if isinstance(one, tuple)}
        for name, shape in shapes.items():
            good = tf.ones([6]) if name == "gradient" else int64(BATCH[name])
            changes = {**changes, name: tf.reshape(good, shape)}
        with self.refused(words):
            self.sum_by_key(**changes)

    def test_as_many_dtypes_of_sums_as_tables_are_wanted(self):
        for dtypes in ([tf.float32], [tf.float32] * 3):
            with self.refused("`sum_dtypes` must have one for each"):
                self.sum_by_key(sum_dtypes=dtypes)
            with self.refused("`sum_dtypes` must have one for each"):
                tf.function(lambda dtypes=dtypes: self.sum_by_key(sum_dtypes=dtypes))()

    def test_a_batch_of_more_values_than_there_are_gradients_is_refused(self):
        # The sum of these batches' sizes overflows, and then equals the size of the gradients.
        handles = [RawTable(2).handle, RawTable(2).handle]
        two = {"tables": handles, "dims": [2, 2], "combiner": "sum"}
        batch = {name: int64(value) for name, value in BATCH.items()}
        good = RAW.tf_embed_pack_batch(**batch, **two, size=int64(6), weights=[]).numpy()
        empty = RAW.tf_embed_pack_batch(
            **two,
            indices=int64([]),
            offsets=int64([0]),
            pieces=tf.zeros([0, 5], tf.int64),
            size=int64(0),
            weights=[],
        ).numpy()
        huge = good.copy()
        huge[1] = 2**63 - 1  # the number of pooled values
        with self.refused("`pieces` must cover all"):
            RAW.tf_embed_pack_batch(**batch, **two, size=int64(2**62), weights=[])
        for words in ([good, huge], [good, empty, huge, huge]):
            with self.refused("`pieces` must cover|`gradients` must be those"):
                RAW.tf_embed_apply_tables(
                    **two,
                    batches=tf.concat(words, 0),
                    gradients=tf.ones([6]),
                    hyper=tf.constant([0.1, 0.0], tf.float64),
                    step=int64(1),
                    rule="sgd",
                )


if __name__ == "__main__":
    tf.test.main()
