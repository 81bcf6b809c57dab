# SPDX-License-Identifier: Apache-2.0
"""Saves that claim far more than they hold: reported as damaged, before memory is allocated.

All of their checksums are valid.
"""

from __future__ import annotations

import pathlib
import struct
from typing import Any

import h5py
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.dtype_pairs import as_dict
from support.cases.saved_files import FilesTestCase
from support.faults.crafted_saves import CraftedFilesTestCase
from tf_embed.saving import keras_files

_EXTERNAL = 12  # the kind of a rule that runs outside of a table


class CraftedFilesTest(CraftedFilesTestCase):
    def test_what_is_put_together_unchanged_is_loaded(self):
        folder, file = self.saved()
        file.write()
        v = tf_embed.Variable(dim=2, name="v")
        v.load_rows(folder)
        self.assertLen(as_dict(v), 3)

    def with_slots(self, width: int, groups: int = 1) -> pathlib.Path:
        """A save of no rows, with `width * groups` slots in each row."""
        folder, file = self.saved(keys=0)
        file.meta[3], file.meta[4] = _EXTERNAL, 1
        file.meta[7], file.meta[8] = width * groups, groups
        file.meta += [width, 0] * groups
        file.write()
        return folder

    @parameterized.parameters((2**30, 1), (2**31 - 1, 16), (65537, 1), (4097, 16))
    def test_no_rows_of_more_slots_than_a_rule_may_have_are_damage(self, width, groups):
        folder = self.with_slots(width, groups)
        self.check_refused(folder, r"rows' is damaged: .*no more slots than a rule may have")

    def test_no_rows_of_many_slots_are_loaded(self):
        v = tf_embed.Variable(dim=2, name="v")
        v.upsert([1], [[1.0, 1.0]])
        v.load_rows(self.with_slots(4096, 16))
        self.assertEqual(as_dict(v), {1: [1.0, 1.0]})

    @parameterized.parameters(2**63 - 1, 2**64 - 1, 2**64 - 16, 2**32, 1, 0)
    def test_a_block_that_is_longer_than_the_file_is_damage(self, length):
        folder, file = self.saved()
        for rows in (0, 1, 2**32 - 1):
            file.tail = struct.pack("<IIQQ", ord("r"), rows, length, 0)
            file.write()
            self.check_refused(
                folder, r"rows' is damaged: the block at byte \d+ has a wrong length"
            )

    @parameterized.parameters(
        ([16, 64, 1e-300, 1],),
        ([16, 64 * 20, 1e-9, 1],),
        ([1, 2**62, 0.01, 1],),
        ([2**32 + 1, 64, 0.01, 1],),
        ([1, 1, 5e-324, 64],),
        ([1, 1, float("nan"), 1],),
        ([16, 1, 0.01, 2**40],),
    )
    def test_a_filter_that_is_longer_than_its_numbers_is_damage(self, numbers):
        policy = tf_embed.TablePolicy(admission=tf_embed.BloomAdmission(3, 0.01))
        folder, file = self.saved(policy=policy)
        cell_bits, capacity, error_rate, filters = numbers
        (error_bits,) = struct.unpack("<q", struct.pack("<d", error_rate))
        kind_and_threshold = file.policy[3:5]
        claimed = [cell_bits, capacity, error_bits, filters]
        file.policy = [*file.policy[:3], *kind_and_threshold, *claimed, *[0] * 20]
        file.write()
        v = tf_embed.Variable(dim=2, name="v", policy=policy)
        with self.assertRaisesRegex(
            tf.errors.DataLossError,
            "rows' is damaged: The saved state of an admission is damaged, or of another",
        ):
            v.load_rows(folder)
        self.assertEqual(int(v.size()), 0)

    def test_a_manifest_of_more_files_or_bytes_than_a_save_has_is_damage(self):
        folder, file = self.saved()
        (manifest,) = folder.glob("*.manifest")
        lines = manifest.read_text().splitlines()[:-1]
        file.write_manifest("\n".join([*lines[:-1], *[lines[-1]] * 65_537]) + "\n")
        self.check_refused(folder, "manifest' is damaged")
        with open(manifest, "r+b") as whole:
            whole.truncate(2**40)  # a file of holes
        self.check_refused(folder, "manifest' is damaged: it has more than 33554432 bytes")


class CraftedArraysTest(FilesTestCase):
    """The arrays of Keras's files and checkpoints."""

    def import_with(self, **changes: Any) -> None:
        table = tf_embed.Variable(dim=2, name="v").table
        table.import_(table.export()._replace(**changes))

    def test_meta_numbers_that_claim_too_many_slots_are_refused(self):
        meta = [2, 0, 0, _EXTERNAL, 1, 0, 2, 2**30, 1, 2**30, 0]
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "no more slots than a rule"):
            self.import_with(meta=tf.constant(meta, tf.int64), slots=tf.zeros([0, 2**30]))

    @parameterized.parameters(-1, 2**62, 4)
    def test_lengths_of_strings_that_are_not_those_of_the_bytes_are_damage(self, length):
        v = tf_embed.Variable("string", dim=1, name="v")
        v.upsert(["abc", "de"], [[1.0], [2.0]])
        arrays = {name: np.asarray(one) for name, one in keras_files.arrays_of(v.table).items()}
        arrays["key_lengths"] = np.array([3, length], np.int64)
        with self.assertRaisesRegex(ValueError, "of 'v' is damaged.*strings are of 5 bytes"):
            keras_files.import_into(v.table, arrays)
        self.assertEqual(int(v.size()), 2)

    def test_an_array_that_is_not_in_the_file_is_damage(self):
        path = self.folder("rows.h5")
        v = tf_embed.Variable(dim=2, name="v")
        pathlib.Path(path).parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as store:
            keras_files.write(store, keras_files.arrays_of(v.table))
            del store["keys"]
            store.create_dataset("keys", [2**40], "i8", chunks=(1024,))  # without any stored chunk
        with (
            h5py.File(path) as store,
            self.assertRaisesRegex(
                ValueError,
                "of 'v' is damaged.*'keys' is of 8796093022208 bytes, and 0 are in the file",
            ),
        ):
            keras_files.load(v.table, store)


if __name__ == "__main__":
    tf.test.main()
