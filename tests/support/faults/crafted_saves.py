# SPDX-License-Identifier: Apache-2.0
"""Saved rows that are taken apart, changed, and put together with valid checksums."""

from __future__ import annotations

import pathlib
import struct
from typing import Any

import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.dtype_pairs import as_dict
from support.cases.saved_files import FilesTestCase

_FIXED = 7  # numbers of a header before the rule's numbers
_TABLE = [0] * 256
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE[_byte] = _crc


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


class RowFile:
    """A file of rows, taken apart; see cc/core/files/row_file.h."""

    def __init__(self, folder: pathlib.Path) -> None:
        (self.path,) = folder.glob("*.rows")
        (self._manifest,) = folder.glob("*.manifest")
        data = self.path.read_bytes()
        (length,) = struct.unpack("<Q", data[16:24])
        self.start = data[:16]
        body = list(struct.unpack(f"<{length // 8}q", data[24 : 24 + length]))
        self.fixed, self.meta = body[:_FIXED], body[_FIXED : _FIXED + body[6]]
        self.policy = body[_FIXED + body[6] :]
        self.blocks, self.tail = data[24 + length + 4 : -24], b""

    def write(self) -> None:
        """Puts the file together, with valid checksums and a valid manifest."""
        body = [*self.fixed[:6], len(self.meta), *self.meta, *self.policy]
        start = self.start + struct.pack(f"<Q{len(body)}q", 8 * len(body), *body)
        crc = struct.pack("<I", crc32c(start))
        of_all, rows, count, at = crc, 0, 0, 0
        while at < len(self.blocks):
            (some, size) = struct.unpack("<IQ", self.blocks[at + 4 : at + 16])
            at += 16 + size + 4
            of_all += self.blocks[at - 4 : at]
            rows, count = rows + some, count + 1
        footer = struct.pack("<IIQI", ord("e"), count, rows, crc32c(of_all))
        footer += struct.pack("<I", crc32c(footer))
        self.path.write_bytes(start + crc + self.blocks + (self.tail or footer))
        lines = self._manifest.read_text().splitlines()[:-2]
        checksum = crc32c(of_all + footer[-4:])
        name = self.path.name
        lines.append(f"file {name} {self.path.stat().st_size} {rows} {checksum:08x}")
        self.write_manifest("\n".join(lines) + "\n")

    def write_bytes(self, data: bytes) -> None:
        """Replaces the file's bytes, and puts their length into the manifest."""
        self.path.write_bytes(data)
        *lines, file = self._manifest.read_text().splitlines()[:-1]
        words = file.split(" ")
        words[2] = str(len(data))
        self.write_manifest("\n".join([*lines, " ".join(words)]) + "\n")

    def write_manifest(self, text: str) -> None:
        self._manifest.write_text(text + f"checksum {crc32c(text.encode()):08x}\n")


class CraftedFilesTestCase(FilesTestCase):
    """Saves a variable "v". Loads of crafted files must not change it."""

    def saved(self, keys: int = 3, **options: Any) -> tuple[pathlib.Path, RowFile]:
        folder = pathlib.Path(self.folder())
        v = tf_embed.Variable(dim=2, name="v", **options)
        v.upsert(range(keys), np.ones([keys, 2]))
        v.save_rows(folder)
        return folder, RowFile(folder)

    def check_refused(self, folder: pathlib.Path, words: str, **options: Any) -> None:
        v = tf_embed.Variable(dim=2, name="v", **options)
        v.upsert([9], [[7.0, 7.0]])
        with self.assertRaisesRegex(tf.errors.DataLossError, words):
            v.load_rows(folder)
        self.assertEqual(as_dict(v), {9: [7.0, 7.0]})
