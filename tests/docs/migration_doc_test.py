# SPDX-License-Identifier: Apache-2.0
"""docs/migrating/from_tfra.md, line by line: the names it gives exist and run, or do not exist."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import ROOT
from support.cases.doc_tables import code_in, rows_of
from tf_embed import tfra

DOC = ROOT / "docs" / "migrating" / "from_tfra.md"

# The names in `__all__` of TFRA 0.8.1's dynamic_embedding, and its names outside of `__all__`.
NAMES = """
    CuckooHashTable CuckooHashTableConfig CuckooHashTableCreator HkvEvictStrategy HkvHashTable
    HkvHashTableConfig HkvHashTableCreator RedisTable RedisTableConfig RedisTableCreator Variable
    TrainableWrapper DistributedVariableWrapper DynamicEmbeddingOptimizer GraphKeys ModelMode
    RestrictPolicy TimestampRestrictPolicy FrequencyRestrictPolicy get_variable embedding_lookup
    embedding_lookup_sparse embedding_lookup_unique safe_embedding_lookup_sparse
    enable_inference_mode enable_train_mode get_model_mode trainable_wrapper_filter train keras
    math data_flow shadow_ops DEResourceVariable
    KVCreator FileSystemSaver ragged_embedding_ops warm_start WarmStartHook patch_on_tf
    patch_on_tf_save_restore create_slots
"""
# The fields of TFRA's file for a RedisTable.
REDIS_FIELDS = """
    redis_connection_mode redis_master_name redis_host_ip redis_host_port redis_user redis_password
    redis_db redis_read_access_slave redis_connect_keep_alive redis_connect_timeout
    redis_socket_timeout redis_conn_pool_size redis_wait_timeout redis_connection_lifetime
    redis_sentinel_user redis_sentinel_password redis_sentinel_connect_timeout
    redis_sentinel_socket_timeout storage_slice_import storage_slice using_hash_storage_slice
    keys_sending_size using_md5_prefix_name redis_hash_tags_hypodispersion model_tag_import
    redis_hash_tags_import model_tag_runtime redis_hash_tags_runtime expire_model_tag_in_seconds
    table_store_mode model_lib_abs_dir
"""
METHODS = """
    upsert lookup accum remove clear size export export_keys_and_scores restrict
    save_to_file_system load_from_file_system load_from_file_system_with_restore_function
    get_slot_variables get_slot_names get_slot get_trainable_by_name get_eager_trainable_by_name
    trainable_store tables restrict_policy
"""


ROWS = rows_of(DOC.read_text(), "TFRA")


def is_there(name: str) -> bool:
    """Whether `tf_embed.tfra` has a name, `de.` and the rest."""
    found: Any = tfra
    for part in name.removeprefix("de.").split("."):
        found = getattr(found, part, None)
    return found is not None


def config(**fields: Any) -> tf_embed.RedisServer:
    """The server of a file of TFRA with these fields."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(fields, file)
        file.flush()
        return tfra.RedisTableConfig(file.name).server()


def refused(**fields: Any) -> None:
    """Fails unless a file with these fields is refused, by a sentence with the first one's name."""
    try:
        config(**fields)
    except ValueError as error:
        assert f"`{next(iter(fields))}`" in str(error), error
    else:
        raise AssertionError(f"{fields} is not refused")


def names_for(folder: str) -> dict[str, Any]:
    """The names that the code of the second column may use."""
    v = tf_embed.Variable(dim=2, name="v", restrict_policy=tf_embed.FrequencyRestrictPolicy)
    keys = tf.constant([1, 2, 3], tf.int64)
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([1, 2], tf.int64), [2, 3])
    return {
        "de": tfra,
        "tf_embed": tf_embed,
        "keras": keras,
        "tf": tf,
        "v": v,
        "keys": keys,
        "values": tf.ones([3, 2]),
        "exists": tf.constant([False, False, True]),
        "sparse": ids,
        "ragged": tf.RaggedTensor.from_sparse(ids),
        "optimizer": tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam()),
        "folder": folder,
        "config": config,
        "refused": refused,
    }


class MigrationTest(tf.test.TestCase, parameterized.TestCase):
    def tearDown(self):
        for name in ("v", "users"):
            tfra.forget_variable(name)
        super().tearDown()

    @parameterized.parameters(*ROWS)
    def test_a_line_says_what_is_so(self, theirs, ours, differs):
        self.assertNotEmpty(code_in(theirs))
        if ours == "not there":
            self.assertNotEmpty(differs)
            for name in code_in(theirs):
                self.assertFalse(is_there(name), name)
            return
        (code,) = code_in(ours)
        self.assertEqual(ours, f"`{code}`")
        with tempfile.TemporaryDirectory() as folder:
            exec(code, names_for(folder))

    @parameterized.parameters(*(row for row in ROWS if row[1] != "not there"))
    def test_a_name_of_tfra_is_that_of_tf_embed_unless_it_says_another(self, theirs, ours, _):
        for name in code_in(theirs):
            if name.startswith("de.") and name not in OTHERS:
                self.assertTrue(is_there(name), name)

    def test_every_name_has_a_line(self):
        said = {name for theirs, _, _ in ROWS for name in code_in(theirs)}
        self.assertEmpty({f"de.{name}" for name in NAMES.split()} - said)
        self.assertEmpty(set(METHODS.split()) - said)

    def test_every_field_of_a_table_in_redis_has_a_line(self):
        said = {name for theirs, _, _ in ROWS for name in code_in(theirs)}
        self.assertEmpty(set(REDIS_FIELDS.split()) - said)

    def test_a_field_of_a_table_in_redis_that_is_taken_changes_the_server(self):
        lines = [ours for _, ours, differs in ROWS if "`config(" in ours]
        taken = [line for line in lines if ")." in line]
        self.assertLen(taken, 12)
        for line in taken:
            (code,) = code_in(line)
            argument = code.rpartition(".")[2]
            value = eval(code, {"config": config})
            self.assertNotEqual(value, getattr(tf_embed.RedisServer(), argument), line)
        for line in set(lines) - set(taken):
            (code,) = code_in(line)
            self.assertEqual(eval(code, {"config": config}), tf_embed.RedisServer(), line)

    def test_a_field_of_a_table_in_redis_that_is_unknown_is_refused(self):
        with self.assertRaisesRegex(ValueError, "must have these fields: .*Received: redis_hosts"):
            config(redis_hosts=["10.0.0.7"])

    def test_the_code_in_it_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
        self.assertLen(blocks, 2)
        for block in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(block, {})
        self.assertEqual(printed.getvalue(), "4\n")

    def test_what_it_calls_refused_is_refused(self):
        v = tf_embed.Variable(dim=2, name="v")
        with tempfile.TemporaryDirectory() as folder:
            for wrong, words in (
                (lambda: v.save_to_file_system(folder, append_to_file=True), "`append_to_file`"),
                (lambda: tf_embed.Variable(value_dtype=tf.int32, initializer=0.1), "whole number"),
                (lambda: tf_embed.TimestampRestrictPolicy(v), "restrict_policy=Timestamp"),
            ):
                with self.assertRaisesRegex(ValueError, words):
                    wrong()

    @parameterized.parameters("ids", "exists", "read_value", "prefetch_values", "size")
    def test_what_it_says_a_shadow_lacks_is_not_there(self, name):
        shadow = tfra.shadow_ops.ShadowVariable(tf_embed.Variable(dim=2))
        self.assertFalse(hasattr(shadow, name))
        self.assertEqual(shadow.value.shape, (0, 2))
        self.assertIn(f"`{name}`", DOC.read_text())


# Names for which the second column has a replacement.
OTHERS = (
    "de.TrainableWrapper",
    "de.DEResourceVariable",
    "de.trainable_wrapper_filter",
    "de.train",
)


class HelpersTest(tf.test.TestCase):
    def test_a_missing_name_would_be_noticed(self):
        self.assertFalse(is_there("de.Variables"))
        self.assertFalse(is_there("de.keras.layers.Nothing"))
        self.assertTrue(is_there("de.keras.layers.Embedding"))

    def test_lines_are_read(self):
        table = "| TFRA | tf_embed | x |\n|---|---|---|\n| `a`, `b` | `c(1)` | so |\n"
        self.assertEqual(rows_of(table, "TFRA"), [("`a`, `b`", "`c(1)`", "so")])
        self.assertEqual(code_in("`a`, `b`"), ["a", "b"])

    def test_there_are_lines(self):
        self.assertGreater(len(ROWS), 40)
