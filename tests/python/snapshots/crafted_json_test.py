# SPDX-License-Identifier: Apache-2.0
"""JSON files of arbitrary content are read, or reported as damaged by name.

Most have a valid checksum, so that the reader parses their content.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as draw

import tf_embed
from tf_embed.serving import publication
from tf_embed.serving.publication import Publication, Weight, WeightsFile
from tf_embed.snapshots import checked_json, manifest
from tf_embed.snapshots.manifest import SnapshotInfo, TableFiles

# The same cases in each run. Hypothesis shrinks and prints a failing case.
SETTINGS = settings(max_examples=300, derandomize=True, database=None, deadline=None)

FILES = TableFiles(table="items", file_name="items", save=7, rows=3, bytes=100)
SNAPSHOT = SnapshotInfo(name="s", since="r", time=1.5, tables=(FILES, FILES), keys="hashes")
WEIGHTS = WeightsFile(bytes=8, checksum=9, weights=(Weight("w", (2, 1), "float32"),))
PUBLICATION = Publication(3, 2, "run", 1.5, (FILES,), ("kind",), WEIGHTS)

anything = draw.recursive(
    draw.none()
    | draw.booleans()
    | draw.integers()
    | draw.floats()
    | draw.text(max_size=9)
    | draw.sampled_from(["", "..", "../x", "/etc", "\0"]),
    lambda inner: (
        draw.lists(inner, max_size=3) | draw.dictionaries(draw.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places_in(body: Any) -> list[tuple[Any, ...]]:
    """The paths to all parts of a body."""
    items = body.items() if isinstance(body, dict) else enumerate(body)
    found: list[tuple[Any, ...]] = []
    for key, value in items:
        found.append((key,))
        if isinstance(value, (dict, list)):
            found += [(key, *way) for way in places_in(value)]
    return found


@draw.composite
def changed(choose: draw.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A body with one to three values replaced or removed."""
    body = copy.deepcopy(body)
    for _ in range(choose(draw.integers(1, 3))):
        way = choose(draw.sampled_from(places_in(body) or [("more",)]))
        parent = body
        for key in way[:-1]:
            parent = parent[key]
        if choose(draw.integers(0, 3)) == 0 and isinstance(parent, dict):
            parent.pop(way[-1], None)
        else:
            parent[way[-1]] = choose(anything)
    return body


def plain(record: Any) -> dict[str, Any]:
    """The content of a record's file."""
    return dict(json.loads(json.dumps(dataclasses.asdict(record))))


class CraftedJsonTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        self.snapshot = pathlib.Path(self.path) / "s"
        self.publication = pathlib.Path(self.path) / publication.folder_name(3)
        for one in (self.snapshot, self.publication):
            one.mkdir()

    def read(self, reader: Any, file: pathlib.Path) -> Any:
        """Returns the parsed content, or None if it is reported as damaged."""
        try:
            return reader()
        except tf.errors.DataLossError as error:
            self.assertIn(str(file), str(error))
            return None

    def read_both(self) -> list[Any]:
        return [
            self.read(lambda: manifest.read(str(self.snapshot)), self.snapshot),
            self.read(lambda: publication.read(self.path, 3), self.publication),
        ]

    def write(self, body: dict[str, Any]) -> None:
        for folder, name in (
            (self.snapshot, manifest.FILE),
            (self.publication, publication.FILE),
        ):
            checked_json.write(str(folder), name, body)

    def check_types(self, found: Any) -> None:
        """Checks that a record has the types of its class."""
        checked_json.record(type(found), dataclasses.asdict(found) | nested(found))
        for table in found.tables:
            self.assertIs(type(table.rows), int)
            self.assertNotIn("/", table.file_name)

    def test_what_was_written_is_read(self):
        manifest.write(str(self.snapshot), SNAPSHOT)
        publication.write(self.path, PUBLICATION)
        self.assertEqual(self.read_both(), [SNAPSHOT, PUBLICATION])

    @SETTINGS
    @given(body=changed(plain(SNAPSHOT)))
    def test_a_snapshot(self, body):
        self.write(body)
        found = self.read_both()[0]
        if found is not None:
            self.check_types(found)

    @SETTINGS
    @given(body=changed(plain(PUBLICATION)))
    def test_a_publication(self, body):
        self.write(body)
        found = self.read_both()[1]
        if found is not None:
            self.check_types(found)

    @SETTINGS
    @given(text=draw.binary(max_size=99))
    def test_any_bytes(self, text):
        self.write_text(text)
        self.assertEqual(self.read_both(), [None, None])

    @parameterized.parameters(
        b"[" * 1_000_000, b'{"a":' * 100_000, b"1" * 5000, b"null", b'{"checksum": NaN}', b"\xff"
    )
    def test_hostile_texts(self, text):
        self.write_text(text)
        self.assertEqual(self.read_both(), [None, None])
        with self.assertRaisesRegex(tf.errors.DataLossError, "is damaged, or of another format"):
            manifest.read(str(self.snapshot))

    def write_text(self, text: bytes) -> None:
        (self.snapshot / manifest.FILE).write_bytes(text)
        (self.publication / publication.FILE).write_bytes(text)

    @parameterized.parameters(
        ("rows", "3"), ("rows", True), ("rows", None), ("file_name", 7), ("save", 1.0)
    )
    def test_a_table_of_other_types_is_refused(self, name, value):
        body = plain(SNAPSHOT)
        body["tables"][0][name] = value
        self.write(body)
        self.assertIsNone(self.read_both()[0])
        with self.assertRaises(tf.errors.DataLossError) as caught:
            manifest.read(str(self.snapshot))
        kind = "str" if name == "file_name" else "int"
        self.assertEqual(
            str(caught.exception.__cause__),
            f"`{name}` must be of type <class '{kind}'>. Received: {value!r}",
        )

    def test_rows_of_another_save_than_that_of_the_manifest_are_refused(self):
        v = tf_embed.Variable(dim=1, name="v")
        v.upsert([1], [[1.0]])
        snapshots = tf_embed.Snapshots(self.path, v)
        info = snapshots.save("rows").wait()
        (files,) = info.tables
        for changes in ({"rows": 2}, {"save": files.save ^ 1}, {"bytes": files.bytes + 1}):
            others = (dataclasses.replace(files, **changes),)
            folder = str(pathlib.Path(self.path) / "rows")
            manifest.write(folder, dataclasses.replace(info, tables=others))
            v.clear()
            with self.assertRaisesRegex(
                tf.errors.DataLossError,
                f"'{folder}/.*manifest' is damaged, or names files of rows that",
            ):
                snapshots.load("rows")
            self.assertEqual(int(v.size()), 0)


def nested(record: Any) -> dict[str, Any]:
    """The fields of a record that hold records."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: getattr(record, name) for name in names if name in ("tables", "weights")}


if __name__ == "__main__":
    absltest.main()
