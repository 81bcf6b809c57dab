# SPDX-License-Identifier: Apache-2.0
"""Damage to each part of a row file, and the error that names the part.

If possible, the manifest matches the damaged file, so that only the part itself is wrong.
"""

from __future__ import annotations

import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.dtype_pairs import as_dict
from support.faults.crafted_saves import CraftedFilesTestCase, RowFile, crc32c
from tf_embed.ops import snapshot_ops

FOOTER = 24
ROWS = 3


def with_crc(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def header_bytes(data: bytes) -> int:
    """The bytes of a file before its first block."""
    return 24 + struct.unpack("<Q", data[16:24])[0] + 4


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 4
    return bytes(changed)


def of_more_rows(data: bytes) -> bytes:
    """A file with a footer that claims an additional row."""
    tag, blocks, rows, crc = struct.unpack("<IIQI", data[-FOOTER:-4])
    return data[:-FOOTER] + with_crc(struct.pack("<IIQI", tag, blocks, rows + 1, crc))


def of_no_rows(data: bytes) -> bytes:
    """A file with a block that claims to have no rows."""
    begin = header_bytes(data)
    block = bytearray(data[begin : -FOOTER - 4])
    block[4:8] = bytes(4)
    return data[:begin] + with_crc(bytes(block)) + data[-FOOTER:]


BYTES: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (lambda data: data[:9], "it has only 9 bytes"),
    (lambda data: flipped(data, 0), "it does not begin as a file of rows does"),
    (lambda data: flipped(data, 16), "its header has a wrong length"),
    (lambda data: flipped(data, 30), "the checksum of its header is wrong"),
    (lambda data: data + b"\0", "bytes follow its end"),
    (lambda data: flipped(data, -1), "the checksum of its end is wrong"),
    (of_more_rows, "its blocks are not those that were written"),
    (
        lambda data: flipped(data, header_bytes(data)),
        r"no block of rows begins at byte \d+",
    ),
    (
        lambda data: flipped(data, header_bytes(data) + 20),
        r"the rows at byte \d+ have a wrong checksum",
    ),
    (of_no_rows, r"the rows at byte \d+ have a wrong length"),
)


class DamagedPartsTest(CraftedFilesTestCase):
    @parameterized.parameters(*BYTES)
    def test_the_damaged_part_of_a_file_is_named(self, damage, words):
        folder, file = self.saved(ROWS)
        file.write_bytes(damage(file.path.read_bytes()))
        self.check_refused(folder, rf"\.rows' is damaged: {words}\.")

    def test_a_file_without_an_end_is_damage(self):
        folder, file = self.saved(0)
        file.write_bytes(file.path.read_bytes()[:-FOOTER])
        self.check_refused(folder, r"\.rows' is damaged: its end is missing\.")

    def test_rows_of_a_later_format_are_refused(self):
        folder, file = self.saved(ROWS)
        data = bytearray(file.path.read_bytes())
        data[8] = 6
        file.write_bytes(bytes(data))
        self.check_refused(folder, r"has rows in the format 6, and only 1 to 5 are known")

    @parameterized.parameters(
        (0, 99, "its header has numbers that no table has"),
        (5, 128, "it has statistics that are not known"),
    )
    def test_numbers_of_a_header_that_no_table_has_are_damage(self, place, number, words):
        folder, file = self.saved(ROWS)
        file.fixed[place] = number
        file.write()
        self.check_refused(folder, rf"\.rows' is damaged: {words}")

    def test_a_padded_file_is_filled_up_with_zeros(self):
        folder, file = self.saved(0)
        file.start = b"tf_embed" + struct.pack("<II", 2, 0)
        file.tail = with_crc(struct.pack("<IIQQ", ord("f"), 0, 8, 1)) + bytes(FOOTER)
        file.write()
        self.check_refused(folder, r"\.rows' is damaged: the zeros at byte \d+ are none")

    @parameterized.parameters("key", "value")
    def test_a_string_that_is_longer_than_its_file_is_damage(self, which):
        folder = pathlib.Path(self.folder())
        dtypes = {f"{which}_dtype": "string"}
        keys, rows = (["a"], [[1.0]]) if which == "key" else ([1], [["a"]])
        v = tf_embed.Variable(dim=1, name="v", **dtypes)
        v.upsert(keys, rows)
        v.save_rows(folder)
        file = RowFile(folder)
        block = bytearray(file.blocks[:-4])
        length = 16 if which == "key" else 24  # after the start of the block, and its keys
        block[length : length + 4] = struct.pack("<I", 2**20)
        file.blocks = with_crc(bytes(block))
        file.write()
        with self.assertRaisesRegex(
            tf.errors.DataLossError, r"the rows at byte \d+ have a wrong string"
        ):
            v.load_rows(folder)
        self.assertLen(as_dict(v), 1)

    def test_a_file_of_another_length_than_its_manifest_says_is_damage(self):
        folder, file = self.saved(ROWS)
        file.path.write_bytes(file.path.read_bytes()[:-1])
        self.check_refused(
            folder, r"\.rows' is damaged: it has \d+ bytes, and had \d+ when it was saved"
        )

    @parameterized.parameters(
        ("save ", "sale "), ("dim 2", "dim 02"), ("rows 1", "rows 9"), ("keys int64", "keys int65")
    )
    def test_a_manifest_of_another_form_is_damage(self, good, bad):
        folder, file = self.saved(ROWS)
        (manifest,) = folder.glob("*.manifest")
        text = manifest.read_text()
        self.assertIn(good, text)
        file.write_manifest(text[: text.index("checksum")].replace(good, bad))
        self.check_refused(folder, "manifest' is damaged, or no manifest of a save of this format")

    def test_a_manifest_by_the_name_of_another_process_is_damage(self):
        folder, file = self.saved(ROWS)
        (manifest,) = folder.glob("*.manifest")
        text = manifest.read_text()
        file.write_manifest(text[: text.index("checksum")].replace("rank 0 of 1", "rank 1 of 2"))
        self.check_refused(folder, "is the manifest of process 1 of 2, and has the name of another")

    def test_rows_with_slots_of_another_optimizer_are_not_loaded_over_rows(self):
        folder = self.folder()
        v, w = (self.trained(optimizer) for optimizer in ("adam", "ftrl"))
        v.save_rows(folder)
        before = as_dict(w)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            "its rows have slots of another optimizer than those in the file. Clear it first",
        ):
            w.load_rows(folder)
        self.assertEqual(as_dict(w), before)

    def trained(self, optimizer: str) -> tf_embed.Variable:
        v = tf_embed.Variable(dim=2, name="v")
        trains = tf_embed.DynamicEmbeddingOptimizer(tf.keras.optimizers.get(optimizer))
        trains.build([v.anchor])
        gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64))
        trains.apply([gradient], [v.anchor])
        return v


class PartsTest(CraftedFilesTestCase):
    def test_parts_have_no_more_shards_than_a_save(self):
        folder = pathlib.Path(self.folder())
        folder.mkdir()
        for rank in range(2):
            text = "tf_embed rows 1\nsave 0000000000000001\ntime 1\nkeys int64\nvalues float32\n"
            text += f"dim 2\nrank {rank} of 2\n" + "file a 1 0 00000000\n" * 40_000
            text += f"checksum {crc32c(text.encode()):08x}\n"
            (folder / f"v.rank{rank}of2.manifest").write_text(text)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "A save has at most 65536 shards. Received: 80000"
        ):
            snapshot_ops.join_rows(str(folder), "v", 2)


# In another process: earlier tests may have set another level of TensorFlow's log.
def test_a_file_that_can_not_be_removed_is_told_of(tmp_path):
    program = f"""
import pathlib, tf_embed
v = tf_embed.Variable(dim=2, name="v")
v.save_rows({str(tmp_path)!r})
pathlib.Path({str(tmp_path)!r}, "v.rank0of1.0000000000000001.shard0of1.rows").mkdir()
v.save_rows({str(tmp_path)!r})
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shard0of1.rows' is of no use any more and can't be removed: " in run.stderr


class MetaNumbersTest(CraftedFilesTestCase):
    @parameterized.parameters(
        ([2, 0], r"at least \d numbers. Received: count = 2"),
        ([1, 0, 0, 0, 0, 0, 2, 0, 0], "format 2. Received: number 0 = 1"),
        ([2, 0, 0, 99, 0, 0, 2, 0, 0], "a known rule. Received: number 3 = 99"),
        ([2, 0, 0, 0, 0, 99, 2, 0, 0], "a known value type. Received: number 5 = 99"),
        ([2, 0, 0, 0, 0, 0, 0, 0, 0], "a dim. Received: number 6 = 0"),
        ([2, 0, 0, 0, 0, 0, 2, 0, 17], "at most 16 slot groups. Received: number 8 = 17"),
        ([2, 0, 0, 12, 1, 0, 2, 1, 1], "two numbers for each slot group. Received: count = 9"),
        (
            [2, 0, 0, 12, 1, 0, 2, 0, 1, 0, 0],
            "a width and a known type of a slot group. Received: number 9 = 0",
        ),
        (
            [2, 0, 0, 12, 1, 0, 2, 3, 1, 1, 0],
            "as many slots in a row as its groups have. Received: number 7 = 3",
        ),
        (
            [2, 0, 0, 12, 1, 0, 2, 2**20, 1, 2**20, 0],
            "no more slots than a rule may have. Received: number 7 = 1048576",
        ),
        ([2, 0, 0, 1, 0, 0, 2, 1, 1, 1, 0], "the slot groups of its rule. Received: number 3 = 1"),
    )
    def test_meta_numbers_of_a_saved_table_are_refused_by_their_place(self, meta, words):
        table = tf_embed.Variable(dim=2, name="v").table
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"The meta numbers of a saved table are damaged or of another version: they must have "
            f"{words}",
        ):
            table.import_(table.export()._replace(meta=np.array(meta, np.int64)))

    def test_a_policy_of_another_form_is_refused(self):
        table = tf_embed.Variable(dim=2, name="v").table
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "The saved policy is damaged, or of an unknown format. It has 2 numbers",
        ):
            table.import_(table.export()._replace(policy=np.array([1, 2])))


if __name__ == "__main__":
    tf.test.main()
