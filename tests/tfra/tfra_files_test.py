# SPDX-License-Identifier: Apache-2.0
"""Tables that TFRA saved, read from its files."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import TESTS
from support.cases.dtype_pairs import as_dict

# Written by TFRA 0.8.1 on TensorFlow 2.16.2: a variable "user/emb" with two shards, saved as
# process 0 and as process 1 of two. Row i of these keys is [3i, 3i + 1, 3i + 2] / 4.
GOLDEN = TESTS / "golden" / "tfra"
KEYS = (0, 1, -7, 2**40, -(2**63), 2**63 - 1, 12)
ROWS = {key: [(3 * i + j) / 4 for j in range(3)] for i, key in enumerate(KEYS)}


class TfraFilesTest(tf.test.TestCase, parameterized.TestCase):
    def copy(self) -> pathlib.Path:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir())) / "copy"
        shutil.copytree(GOLDEN, folder)
        return folder

    @parameterized.parameters((1, 1), (3, 1 << 20))
    @pytest.mark.smoke
    def test_the_peers_own_files_are_read(self, shards, buffer_size):
        v = tf_embed.tfra.Variable(dim=3, name="user/emb", devices=["/CPU:0"] * shards)
        v.upsert([1, 5], [[9.0] * 3] * 2)
        v.load_tfra_files(GOLDEN, buffer_size=buffer_size)
        self.assertEqual(as_dict(v), {**ROWS, 5: [9.0] * 3})

    def test_the_name_may_be_another(self):
        v = tf_embed.tfra.Variable(dim=3, name="mine")
        v.load_tfra_files(str(GOLDEN), file_name="user/emb")
        self.assertEqual(as_dict(v), ROWS)

    @parameterized.parameters(
        ({"dim": 2}, "rows of 8 bytes"),
        ({"dim": 3, "value_dtype": "float16"}, "rows of 6 bytes"),
        ({"dim": 3, "key_dtype": "int32"}, "keys of 4 bytes"),
    )
    def test_other_dtypes_and_dims_are_refused(self, options, message):
        v = tf_embed.tfra.Variable(name="user/emb", **options)
        with self.assertRaisesRegex(ValueError, message):
            v.load_tfra_files(GOLDEN)
        self.assertEqual(int(v.size()), 0)

    @parameterized.parameters("keys", "values")
    def test_a_missing_file_is_named(self, end):
        folder, name = self.copy(), f"user_emb_mht_2of2_rank1_size2-{end}"
        (folder / name).unlink()
        v = tf_embed.tfra.Variable(dim=3, name="user/emb")
        with self.assertRaisesRegex(
            ValueError, f"A file of the table 'user/emb' is missing: .*{name}"
        ):
            v.load_tfra_files(folder)
        self.assertEqual(int(v.size()), 0)

    def test_a_short_file_is_named(self):
        folder, name = self.copy(), "user_emb_mht_1of2_rank0_size2"
        (folder / f"{name}-values").write_bytes(b"\0" * 12)
        v = tf_embed.tfra.Variable(dim=3, name="user/emb")
        with self.assertRaisesRegex(ValueError, f"{name}.*32 bytes of keys, 12 of values"):
            v.load_tfra_files(folder)
        self.assertEqual(int(v.size()), 0)

    def test_two_saves_in_a_folder_are_not_mixed(self):
        folder = self.copy()
        for end in ("keys", "values"):
            (folder / f"user_emb_mht_1of1_rank0_size1-{end}").write_bytes(b"")
        v = tf_embed.tfra.Variable(dim=3, name="user/emb")
        with self.assertRaisesRegex(ValueError, "1 shards of 1 processes and 2 shards of 2"):
            v.load_tfra_files(folder)

    def test_no_table_and_no_folder_are_refused(self):
        v = tf_embed.tfra.Variable(dim=3, name="emb")
        for folder in (GOLDEN, GOLDEN / "nowhere"):
            with self.assertRaisesRegex(ValueError, "which holds none"):
                v.load_tfra_files(folder)

    def test_strings_are_refused(self):
        v = tf_embed.tfra.Variable("string", dim=3, name="user/emb")
        with self.assertRaisesRegex(TypeError, "hold no strings"):
            v.load_tfra_files(GOLDEN)

    def test_a_graph_is_refused(self):
        v = tf_embed.tfra.Variable(dim=3, name="user/emb")
        with self.assertRaisesRegex(RuntimeError, "eager execution only"):
            tf.function(lambda: v.load_tfra_files(GOLDEN))()

    def test_integers_are_read_bit_for_bit(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        keys, rows = np.array([3, -1], np.int32), np.array([[2**62], [-5]], np.int64)
        keys.tofile(folder / "v_mht_1of1_rank0_size1-keys")
        rows.tofile(folder / "v_mht_1of1_rank0_size1-values")
        v = tf_embed.tfra.Variable("int32", "int64", 1, name="v")
        v.load_tfra_files(folder)
        self.assertEqual(as_dict(v), {3: [2**62], -1: [-5]})


if __name__ == "__main__":
    tf.test.main()
