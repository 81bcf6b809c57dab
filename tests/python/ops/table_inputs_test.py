# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of the ops of tables: refused by name."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import NO_OWNERS, RawTable
from support.cases.refused_ops import BATCH, RAW, RefusedTestCase, int64

pytestmark = pytest.mark.cpu


def rows(*shape: int) -> tf.Tensor:
    return tf.ones(shape)


IN_REDIS = {"redis_host": "nowhere", "redis_prefix": "p"}


class PooledInputsTest(RefusedTestCase):
    def pooled(self, **changes: Any) -> tf.Tensor:
        arguments = {
            "table": RawTable(2).handle,
            "keys": int64([[1, 2]]),
            "owners": NO_OWNERS,
            "defaults": tf.zeros([0]),
            "tokens": [],
            "bags": [],
            "weights": [],
            "pooled_dtype": tf.float32,
            "combiner": "sum",
            "dim": 2,
        }
        return RAW.tf_embed_find_pooled(**{**arguments, **changes})

    @parameterized.parameters(
        ({"padding": [1, 2]}, "`padding` must be at most one key. Received: 2 keys"),
        (
            {"padding": [1], "padding_text": ["a"]},
            "`padding` must be at most one key. Received: 2 keys",
        ),
        ({"keys": int64(1)}, "`keys` must have an axis to pool over. Received: a scalar"),
        (
            {"keys": tf.zeros([2**33, 0], tf.int64)},
            "A pooled batch may have at most 4294967295 bags. Received: 8589934592",
        ),
        (
            {"keys": int64([]), "bags": [tf.zeros([0, 2], tf.int64), int64([2**33, 1])]},
            "A pooled batch may have at most 4294967295 bags",
        ),
        (
            {"keys": int64([1]), "bags": [int64([[0, 0]]), int64([1])]},
            r"Sparse keys must have int64 indices \[1, rank\] and a dense_shape \[rank\]. Received",
        ),
        (
            {"keys": int64([1]), "bags": [tf.zeros([1, 0], tf.int64), int64([])]},
            "A sparse array of bags must have an axis",
        ),
        (
            {"keys": int64([1]), "bags": [int64([[0, 2]]), int64([1, 2])]},
            "Sparse ids must have indices within their dense_shape. Received: 2 on axis 1 of 2",
        ),
        (
            {"weights": [rows(3)]},
            r"`weights` must have one for each of 2 keys. Received: shape \[3\]",
        ),
        (
            {"pooled_dtype": tf.float64},
            "Rows of table 'raw' are pooled in float. Asked for: double",
        ),
    )
    def test_keys_that_can_not_be_pooled_are_refused(self, wrong, words):
        self.pooled()
        with self.refused(words):
            self.pooled(**wrong)


class BatchInputsTest(RefusedTestCase):
    """The ops of many tables, with two tables."""

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {
            **{name: int64(value) for name, value in BATCH.items()},
            "tables": [RawTable(2, **options).handle for _ in range(2)],
            "dims": [2, 2],
            "combiner": "sum",
            "size": int64(6),
            "weights": [],
        }

    def apply(self, options: Any = (), **changes: Any) -> None:
        arguments = self.arguments(**dict(options))
        packed = RAW.tf_embed_pack_batch(**arguments)
        step = {
            **{name: arguments[name] for name in ("tables", "dims", "combiner")},
            "batches": packed,
            "gradients": tf.ones([6]),
            "hyper": tf.constant([0.1, 0.0], tf.float64),
            "step": int64(1),
            "rule": "sgd",
        }
        RAW.tf_embed_apply_tables(**{**step, **changes})

    @parameterized.parameters(
        ({"weights": [rows(2)]}, "`weights` must have one for each of 3 indices. Received: 2"),
        (
            {"offsets": int64([0, 2, 1, 3])},
            "`offsets` must not decrease. Received: 2 and then 1 at 2",
        ),
        (
            {"pieces": int64([[0, 0, 3, 0, 2], [1, 2, 1, 4, 2]])},
            "`pieces` must cover each of 6 pooled values once. Received: pieces of more",
        ),
        (
            {"pieces": int64([[0, 0, 2, 0, 2], [1, 2, 1, 2, 2]])},
            "`pieces` must cover each of 6 pooled values once. Received: value 2 twice",
        ),
        ({"dims": [2]}, "`dims` must have one for each of 2 tables. Received: 1"),
    )
    def test_a_wrong_batch_is_refused(self, wrong, words):
        arguments = self.arguments()
        RAW.tf_embed_pack_batch(**arguments)
        with self.refused(words):
            RAW.tf_embed_pack_batch(**{**arguments, **wrong})

    @parameterized.parameters(
        (
            {"batches": int64([1, 2, 3])},
            "`batch` must be what TfEmbedPackBatch gave. Received: 3 words that are not",
        ),
        (
            {"gradients": tf.ones([5])},
            "`gradients` must be those of all pooled values of `batches`, 0 and then 6 or more. Re",
        ),
        (
            {"gradients": tf.ones([7])},
            "`gradients` must be those of all pooled values of `batches`, 6. Received: 7",
        ),
        (
            {"hyper": tf.zeros([3, 2], tf.float64)},
            r"`hyper` must be a vector, or one for each of 2 tables. Received shape: \[3,2\]",
        ),
        (
            {"slot_types": [tf.float32]},
            "`slot_types` must be none, or one for each of 0 groups of slots. Received: 1",
        ),
        (
            {"options": {"num_shards": 2}},
            "Table 'raw' of a batch must have one shard to be trained. Received: 2",
        ),
    )
    def test_a_step_of_wrong_gradients_is_refused(self, wrong, words):
        self.apply()
        with self.refused(words):
            self.apply(**wrong)

    def test_a_sum_by_key_has_dims_from_one(self):
        arguments = self.arguments()
        del arguments["tables"], arguments["size"]
        sums = {
            **arguments,
            "gradient": tf.ones([6]),
            "distinct_dtypes": [tf.int64] * 2,
            "sum_dtypes": [tf.float32] * 2,
        }
        with self.refused("`dims` must be from 1. Received: 0"):
            tf.function(lambda: RAW.tf_embed_sum_by_key_tables(**{**sums, "dims": [0, 2]}))()

    def test_as_many_dtypes_of_rows_as_tables_are_wanted(self):
        find = {**self.arguments(), "tokens": [], "row_dtypes": [tf.float32]}
        with self.refused("`row_dtypes` must have one for each of 2 tables. Received: 1"):
            RAW.tf_embed_find_pooled_tables(**find)


class NewTableTest(RefusedTestCase):
    """Settings of a table, which are inputs of the op in eager execution."""

    def new(self, settings: Mapping[str, Any], **options: Any) -> RawTable:
        return RawTable(**{"shared_name": None, "settings": settings, **options})

    @parameterized.parameters(
        ({"eviction": "x"}, "`eviction` must be a known order. Received: x"),
        ({"admission": "x"}, "`admission` must be 'none', 'counter' or 'bloom'. Received: x"),
        ({"statistics": 64}, "`statistics` must be from 0 to 63. Received: 64"),
        (
            {"admission": "bloom", "admission_threshold": 65_536},
            "`admission_threshold` must be at most 65535. Received: 65536",
        ),
    )
    def test_a_policy_that_is_not_known_is_refused(self, policy, words):
        with self.refused(words):
            self.new(policy)

    @parameterized.parameters(
        (
            {"path": "/nowhere", "host_bytes": -1},
            "'raw' is on a CPU with a `path`, and needs `host_bytes` or `gpu_bytes`: rows go",
        ),
        (
            {**IN_REDIS, "path": "/nowhere"},
            "'raw' is in Redis, and must be on a CPU, in one shard, without a `path`. Received: a",
        ),
    )
    def test_a_storage_that_can_not_be_is_refused(self, storage, words):
        with self.refused(words):
            self.new(storage)

    @parameterized.parameters({"value_dtype": "string"}, {"key_dtype": "string"})
    def test_strings_are_in_one_process(self, **options):
        with self.refused("is in Redis, and can't have string keys or values: their dictionary"):
            self.new(IN_REDIS, **options)
        with self.refused("`track_changes` of table 'raw' must be False: tables with string"):
            self.new({"statistics": 32}, **options)

    @parameterized.parameters(
        ({"max_rows": 5}, "can't have `max_rows`: no process sees all rows. Use `ttl_sec"),
        (
            {"admission": "counter"},
            "can't have `admission`: each process would count keys for itself",
        ),
        (
            {"statistics": 32},
            "can't have `track_changes`: other processes change rows too. Save whole tables",
        ),
        (
            {"statistics": 1},
            "can't have statistics of rows: each lookup would be a write. Use `ttl_seconds`",
        ),
        ({"log_evicted": True}, "can't have a log of evicted rows: the server drops rows"),
        (
            {"redis_port": 0},
            "`port` of table 'raw' in Redis must be from 1 to 65535. Received: port=",
        ),
        ({"redis_prefix": "{a}"}, "`prefix` of table 'raw' in Redis must be a name without braces"),
    )
    def test_a_table_in_redis_has_no_policy_of_one_process(self, settings, words):
        with self.refused(words):
            self.new({**IN_REDIS, **settings})

    def test_a_folder_that_is_not_ours_is_refused(self):
        path = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        disk = {"host_bytes": 10_000}
        (path / "raw-0").mkdir()
        (path / "raw-0" / "mine").write_text("not of a table")
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            "has files that are not of a tier on disk. Name another folder, or remove it",
        ):
            self.new({**disk, "path": str(path)})
        with self.assertRaisesRegex(
            tf.errors.UnavailableError, "Can't make the folder '/proc/nowhere'"
        ):
            self.new({**disk, "path": "/proc/nowhere"})

    def test_files_in_the_way_of_a_folder_are_named(self):
        folders = [pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir())) for _ in range(4)]
        table = self.new({"host_bytes": 10_000, "path": str(folders[0])})
        ours = (folders[0] / "raw-0" / "LOCK").read_bytes()
        del table
        locks = [folder / "raw-0" / "LOCK" for folder in folders[1:]]
        for lock in locks:
            lock.parent.mkdir()
        locks[0].mkdir()
        os.mkfifo(locks[1])
        locks[2].write_bytes(ours)
        rows_file = locks[2].parent / "rows-0000000000000001.seg"
        rows_file.mkdir()
        for lock, words in (
            (locks[0], f"Can't open '{locks[0]}'"),
            (locks[1], f"Can't write to '{locks[1]}'"),
            (locks[2], f"Can't remove '{rows_file}', which a process left behind"),
        ):
            with self.subTest(words), self.assertRaisesRegex(tf.errors.UnavailableError, words):
                self.new({"host_bytes": 10_000, "path": str(lock.parent.parent)})


class RowInputsTest(RefusedTestCase):
    def keys(self, **options: Any) -> dict[str, Any]:
        return {
            "table": RawTable(2, **options).handle,
            "keys": int64([1]),
            "owners": NO_OWNERS,
            "dim": 2,
        }

    @parameterized.parameters(
        ("x", [1], "`slot_initial_values` must be decimal numbers. Received: x"),
        ("0", [0], "`slot_widths` must be from 1 to 2147483647. Received: 0"),
    )
    def test_slots_that_no_rule_has_are_refused(self, values, widths, words):
        with self.refused(words):
            RAW.tf_embed_find_slots(
                **self.keys(),
                defaults=tf.zeros([0]),
                slot_dtype=tf.float32,
                rule_id=1,
                slot_widths=widths,
                slot_initial_values=values,
            )

    def test_a_token_of_a_step_has_two_numbers(self):
        with self.refused("`token` of table 'raw' must be the number of a step, and one below wh"):
            RAW.tf_embed_apply(
                **self.keys(),
                gradients=rows(1, 2),
                hyper=tf.constant([0.1, 0.0], tf.float64),
                step=int64(1),
                scores=[],
                token=[int64([1])],
                trained=[],
                rule="sgd",
            )

    def test_gradients_have_a_row_for_each_key(self):
        with self.refused(
            r"`values` must have one row for each of `keys`. Received: \[2,2\] for k"
        ):
            RAW.tf_embed_row_gradients(keys=int64([1]), values=rows(2, 2))
        turn = RAW.tf_embed_take_turn(table=RawTable(2).handle)
        with self.refused("`gradients` must be a variant of tf_embed::RowGradients. Received: "):
            RAW.tf_embed_unpack_row_gradients(
                gradients=turn, key_dtype=tf.int64, value_dtype=tf.float32, dim=2
            )

    @parameterized.parameters(0.0, -1.0)
    def test_a_watch_ends(self, seconds):
        with self.refused("`seconds` must be above 0 and at most .*. Received: "):
            RAW.tf_embed_start_watch(seconds=tf.constant(seconds), what="x")

    def test_a_sparse_tensor_has_an_index_of_each_value(self):
        with self.refused(
            "ids must have an index of each value, with a number for each axis of its"
        ):
            RAW.tf_embed_check_sparse(
                indices=int64([[0, 0]]),
                values=int64([1, 2]),
                dense_shape=int64([1, 1]),
                label="ids",
            )

    def test_a_tensor_of_too_many_elements_is_refused_in_a_graph(self):
        @tf.function(input_signature=[tf.TensorSpec([2**40, 2**22], tf.int64)])
        def find(keys: tf.Tensor) -> tf.Tensor:
            some: Callable[..., Any] = RAW.tf_embed_find
            return some(
                table=handle, keys=keys, owners=NO_OWNERS, defaults=tf.zeros([0]), tokens=[], dim=9
            )[0]

        handle = RawTable(9).handle
        with self.refused(r"no tensor of shape \[.*\]: it would have too many elements, or axes"):
            find.get_concrete_function()


if __name__ == "__main__":
    tf.test.main()
