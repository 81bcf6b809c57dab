# SPDX-License-Identifier: Apache-2.0
"""Names in files that point out of their folder, and links in folders: nothing outside changes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.dtype_pairs import as_dict
from support.cases.saved_files import FilesTestCase
from support.faults.crafted_saves import RowFile, crc32c
from tf_embed.saving import guarded_files
from tf_embed.serving import Follower, Publisher, publication
from tf_embed.snapshots import checked_json, manifest
from tf_embed.static_export import export_static

OUTSIDE = ("../x", "/etc/passwd", "a/b", "..", ".", "a\0b", "../" * 100)


def variable(name: str = "v") -> tf_embed.Variable:
    return tf_embed.Variable(dim=2, name=name, policy=tf_embed.TablePolicy(track_changes=True))


def filled(name: str = "v") -> tf_embed.Variable:
    v = variable(name)
    v.upsert([1, 2], np.ones([2, 2]))
    return v


def rewrite(folder: pathlib.Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a JSON file, and keeps its checksum valid."""
    with checked_json.reading(str(folder / name)) as body:
        change(body)
        checked_json.write(str(folder), name, body)


class NamesInFilesTest(FilesTestCase):
    def check_manifest(self, change: Callable[[list[str]], list[str]], outside: str) -> None:
        folder = pathlib.Path(self.folder())
        filled().save_rows(folder)
        (path,) = folder.glob("*.manifest")
        lines = change(path.read_text().splitlines()[:-1])
        RowFile(folder).write_manifest("\n".join(lines) + "\n")
        v = filled()
        with self.assertRaises(tf.errors.DataLossError) as caught:
            v.load_rows(folder)
        shown = outside[:200].replace("\0", "?")
        self.assertIn(f"'{path}' is damaged: it names '{shown}'", caught.exception.message)
        self.assertLen(as_dict(v), 2)

    @parameterized.parameters(*OUTSIDE)
    def test_a_manifest_of_rows_that_names_a_file_elsewhere(self, name):
        self.check_manifest(
            lambda lines: [*lines[:-1], " ".join(["file", name, *lines[-1].split()[2:]])], name
        )

    @parameterized.parameters(*OUTSIDE)
    def test_a_manifest_of_rows_that_links_a_file_elsewhere(self, name):
        self.check_manifest(lambda lines: [*lines, f"link {name} 10 00000000"], name)

    @parameterized.parameters(*OUTSIDE)
    def test_a_manifest_of_rows_that_are_changes_of_a_save_elsewhere(self, name):
        def change(lines: list[str]) -> list[str]:
            return ["tf_embed changes 1", *lines[1:-1], f"since {7:016x} {name}", lines[-1]]

        self.check_manifest(change, name)

    def test_changes_of_themselves_are_refused(self):
        path = pathlib.Path(self.folder())
        v = filled()
        snapshots = tf_embed.Snapshots(path, v)
        snapshots.save("a")
        v.upsert([3], [[3.0, 3.0]])
        snapshots.save("b", since="a")
        (manifest_path,) = (path / "b").glob("*.manifest")
        lines = manifest_path.read_text().splitlines()[:-1]
        save = next(line.split()[1] for line in lines if line.startswith("save "))
        lines = [f"since {save} b" if line.startswith("since") else line for line in lines]
        text = "\n".join(lines) + "\n"
        manifest_path.write_text(text + f"checksum {crc32c(text.encode()):08x}\n")
        w = variable()
        with self.assertRaisesRegex(tf.errors.DataLossError, "b' is changes of itself"):
            tf_embed.Snapshots(path, w).load("b")
        self.assertEqual(int(w.size()), 0)

    @parameterized.product(name=OUTSIDE, field=("since", "file_name"))
    def test_a_snapshot(self, name, field):
        path = pathlib.Path(self.folder())
        tf_embed.Snapshots(path, filled()).save("s")

        def change(body: dict[str, Any]) -> None:
            (body if field == "since" else body["tables"][0])[field] = name

        rewrite(path / "s", manifest.FILE, change)
        w = variable()
        for call in (
            lambda: tf_embed.Snapshots(path, w).load("s"),
            lambda: tf_embed.Snapshots(path, w).fold("s", to="t"),
            lambda: tf_embed.Snapshots(path, w).list_snapshots(),
        ):
            with self.assertRaises(tf.errors.DataLossError) as caught:
                call()
            self.assertIn(
                f"'{path / 's' / manifest.FILE}' is damaged: its `{field}` must be a name, not a "
                f"path. Received: {name[:200]!r}",
                caught.exception.message,
            )

    @parameterized.parameters(*OUTSIDE)
    def test_a_publication(self, name):
        path = pathlib.Path(self.folder())
        version = Publisher(filled(), path).publish()
        folder = path / publication.folder_name(version)
        rewrite(folder, publication.FILE, lambda body: body["tables"][0].update(file_name=name))
        with self.assertRaises(tf.errors.DataLossError) as caught:
            Follower(variable(), path).update()
        self.assertIn(
            f"'{folder / publication.FILE}' is damaged: its `file_name` must be a name",
            caught.exception.message,
        )

    @parameterized.parameters((8, [-1]), (2**62, [2**61]), (4, [2]), (9, [2]), (8, [2**32, 2**32]))
    def test_dense_weights_of_another_size_than_their_file(self, size, shape):
        path = pathlib.Path(self.folder())
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, use_bias=False)])
        version = Publisher([filled(), model], path).publish()
        folder = path / publication.folder_name(version)

        def change(body: dict[str, Any]) -> None:
            body["weights"]["bytes"] = size
            body["weights"]["weights"][0]["shape"] = shape

        rewrite(folder, publication.FILE, change)
        with self.assertRaisesRegex(tf.errors.DataLossError, f"{publication.FILE}' is damaged"):
            Follower([variable(), model], path).update()

    @parameterized.parameters("../x", "/etc", "a/b", "..", ".", "a\0b", "a\nb")
    def test_names_that_users_give(self, name):
        snapshots = tf_embed.Snapshots(self.folder(), filled())
        snapshots.save("s")
        for argument, call in {
            "name": snapshots.save,
            "since": lambda since: snapshots.save("t", since=since),
            "to": lambda to: snapshots.fold("s", to=to),
        }.items():
            wanted = "be the name of a folder, not a path"
            if not name.isprintable():
                wanted = "have no control characters"
            words = f"`{argument}` must {wanted}. Received: {argument}="
            with self.assertRaisesRegex(ValueError, words):
                call(name)


class BackupTest(FilesTestCase):
    """The file that names the newest backup, and links beside it."""

    def fit(self, folder: pathlib.Path) -> None:
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = tf_embed.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        model.fit(np.ones([2, 1]), np.ones([2]), verbose=0, callbacks=[backup])

    @parameterized.parameters(
        "../x", "/etc", "..", ".", "", "backup-1/../../x", "backup-1\0", "x" * 999
    )
    def test_a_backup_elsewhere(self, name):
        folder = pathlib.Path(self.folder())
        folder.mkdir()
        (folder / "current").write_text(name)
        words = "it must have the name of a backup. Received: "
        if len(name) > 256:
            words = "it has more than 256 bytes"
        with self.assertRaisesRegex(tf.errors.DataLossError, f"/current' is damaged: {words}"):
            self.fit(folder)

    def test_links_are_removed_and_not_what_they_lead_to(self):
        folder, victim = pathlib.Path(self.folder()), pathlib.Path(self.folder("victim"))
        victim.mkdir()
        (victim / "file").write_text("mine")
        self.fit(folder)
        (folder / "backup-000000").symlink_to(victim)
        (folder / "unfinished-00000000").symlink_to(victim)
        (folder / "current.new").symlink_to(victim / "file")
        (folder / "current").unlink()
        self.fit(folder)
        self.assertEqual((victim / "file").read_text(), "mine")
        self.assertEqual(sorted(os.listdir(folder)), ["backup-000002", "current"])


class LinksTest(FilesTestCase):
    def victim(self) -> pathlib.Path:
        victim = pathlib.Path(self.folder("victim"))
        victim.mkdir()
        (victim / "file").write_text("mine")
        return victim

    def test_a_folder_that_can_not_be_removed_is_named(self):
        file = self.victim() / "file"
        with self.assertRaisesRegex(
            tf.errors.UnavailableError, f"'{file}' can't be removed: Not a directory"
        ):
            guarded_files.remove_tree(str(file))
        self.assertEqual(file.read_text(), "mine")

    @parameterized.parameters("remove", "keep", "save")
    def test_snapshots_remove_links_and_not_what_they_lead_to(self, how):
        path, victim = pathlib.Path(self.folder()), self.victim()
        snapshots = tf_embed.Snapshots(path, filled())
        snapshots.save("s")
        links = [path / "s" / f"rows_{i}-01234567.rank0of1.x" for i in range(3)]
        for link, target in zip(links, (victim, victim / "file", victim / "gone"), strict=True):
            link.symlink_to(target)
        if how == "remove":
            snapshots.remove("s")
            self.assertFalse((path / "s").exists())
        elif how == "keep":
            snapshots.save("t")
            self.assertEqual(snapshots.keep(1), ["s"])
        else:
            snapshots.save("s")
        self.assertFalse(any(map(os.path.islink, links)))
        self.assertEqual(os.listdir(victim), ["file"])
        self.assertEqual((victim / "file").read_text(), "mine")

    def test_a_manifest_is_not_written_through_a_link(self):
        path, victim = pathlib.Path(self.folder()), self.victim()
        v = filled()
        snapshots = tf_embed.Snapshots(path, v)
        snapshots.save("s")
        # The names of temporary files are unpredictable. The name of the manifest is not.
        for name in (f"{manifest.FILE}.{'0' * 16}.aside", "x.aside"):
            (path / "s" / name).symlink_to(victim / "file")
        (path / "s" / manifest.FILE).rename(victim / "manifest")
        (path / "s" / manifest.FILE).symlink_to(victim / "manifest")
        before = (victim / "manifest").read_bytes()
        snapshots.save("s")
        self.assertEqual((victim / "manifest").read_bytes(), before)
        self.assertFalse((path / "s" / manifest.FILE).is_symlink())
        self.assertEqual((victim / "file").read_text(), "mine")
        w = variable()
        tf_embed.Snapshots(path, w).load("s")
        self.assertEqual(as_dict(w), as_dict(v))

    def test_a_snapshot_whose_files_are_links_is_read(self):
        path, elsewhere = pathlib.Path(self.folder()), pathlib.Path(self.folder("elsewhere"))
        v = filled()
        tf_embed.Snapshots(path, v).save("s")
        (path / "s").rename(elsewhere)
        (path / "s").mkdir()
        for file in elsewhere.iterdir():
            (path / "s" / file.name).symlink_to(file)
        w = variable()
        tf_embed.Snapshots(path, w).load("s")
        self.assertEqual(as_dict(w), as_dict(v))

    def test_a_static_export_that_replaces_a_link_leaves_what_it_leads_to(self):
        path, real = pathlib.Path(self.folder("link")), pathlib.Path(self.folder("real"))
        layer = tf_embed.layers.DynamicEmbedding(2, combiner="mean", name="t")
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
        layer.variable.upsert([1], [[1.0, 2.0]])
        export_static(model, real)
        before = sorted(file.name for file in real.rglob("*"))
        path.symlink_to(real)
        export_static(model, path, overwrite=True)
        self.assertEqual(sorted(file.name for file in real.rglob("*")), before)
        self.assertFalse(path.is_symlink())
        self.assertEqual(os.listdir(path.parent), ["link"])


if __name__ == "__main__":
    tf.test.main()
