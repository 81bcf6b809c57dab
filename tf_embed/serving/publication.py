# SPDX-License-Identifier: Apache-2.0
"""`Publication`: the manifest of a publication, and its file.

The file is written last, so a folder without it is not a complete publication. It names the row
files of each table and the file of dense weights, with their sizes and checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterable

import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.saving import durable
from tf_embed.snapshots import checked_json, files, manifest
from tf_embed.snapshots.manifest import TableFiles

FILE = "publication.json"
WEIGHTS = "weights"

_PREFIX = "publication-"
_FOLDER = re.compile(rf"{_PREFIX}(\d{{10,}})")
# The names of files while they are written.
_ASIDE = snapshot_ops.aside_of(rf"{re.escape(FILE)}|{WEIGHTS}")


@dataclasses.dataclass(frozen=True)
class Weight:
    """A dense weight of a model.

    Attributes:
        name: Its name in its layer.
        shape: Its shape.
        dtype: The name of its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class WeightsFile:
    """The dense weights of a publication.

    Attributes:
        bytes: Size of the file.
        checksum: The CRC-32 of the file's bytes.
        weights: The weights, in the order of the model.
    """

    bytes: int
    checksum: int
    weights: tuple[Weight, ...]


@dataclasses.dataclass(frozen=True)
class Publication:
    """The description of a publication, which is read without its rows.

    Attributes:
        version: Its number. Numbers increase until the folder is emptied.
        since: The base version of an incremental publication; None if it has all rows. The changes
            apply to the rows of that version, or of any later version of the same `run`.
        run: An id that the publications of one `Publisher` share.
        time: The moment of its rows, in seconds since 1970.
        tables: A `TableFiles` for each table.
        kinds: The kind of each table's rows.
        weights: The dense weights; None if it has none, and needs the next changes.
    """

    version: int
    since: int | None
    run: str
    time: float
    tables: tuple[TableFiles, ...]
    kinds: tuple[str, ...]
    weights: WeightsFile | None

    @property
    def rows(self) -> int:
        """Number of rows in its files. An incremental publication has only the changed rows."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Size of its files."""
        weights = 0 if self.weights is None else self.weights.bytes
        return sum(table.bytes for table in self.tables) + weights


def folder_name(version: int) -> str:
    """The folder of a publication."""
    return f"{_PREFIX}{version:010d}"


def version_of(name: str) -> int | None:
    """Returns the version of a folder name, or None if the folder is not a publication's."""
    found = _FOLDER.fullmatch(name)
    return int(found.group(1)) if found else None


def versions_in(path: str) -> list[int]:
    """Returns the versions that have a folder, complete or not, in ascending order."""
    found = map(version_of, manifest.names_in(path))
    return sorted(version for version in found if version is not None)


def exists(path: str, version: int) -> bool:
    """Whether a complete publication exists."""
    return bool(tf.io.gfile.exists(os.path.join(path, folder_name(version), FILE)))


def write(path: str, publication: Publication) -> None:
    """Writes the manifest, which makes a folder with all other files a publication."""
    folder = os.path.join(path, folder_name(publication.version))
    checked_json.write(folder, FILE, dataclasses.asdict(publication))


def read(path: str, version: int) -> Publication:
    """Reads the description of a publication.

    Raises:
        tf.errors.DataLossError: If the file is damaged.
        tf.errors.NotFoundError: If there is no such publication.
    """
    file = os.path.join(path, folder_name(version), FILE)
    with checked_json.reading(file) as body:
        weights = body.pop("weights")
        if weights is not None:
            found = [
                checked_json.record(Weight, {**one, "shape": tuple(one["shape"])})
                for one in weights.pop("weights")
            ]
            weights = checked_json.record(WeightsFile, {**weights, "weights": tuple(found)})
            # `reading` converts it to an error that names the file.
            if weights.bytes != sum(map(_bytes_of, found)):
                raise ValueError
        tables = tuple(manifest.table_files(file, table) for table in body.pop("tables"))
        parts = {"tables": tables, "kinds": tuple(body.pop("kinds")), "weights": weights}
        publication = checked_json.record(Publication, {**body, **parts})
        if publication.version != version or len(publication.kinds) != len(tables):
            raise ValueError
    return publication


def _bytes_of(weight: Weight) -> int:
    """Returns the size of a dense weight in bytes.

    Raises:
        TypeError: If its dtype does not exist.
        ValueError: If it has a negative dimension.
    """
    if any(size < 0 for size in weight.shape):
        raise ValueError
    return math.prod(weight.shape) * int(tf.as_dtype(weight.dtype).size)


def remove(path: str, version: int) -> None:
    """Removes a publication, or a crash's leftovers. The manifest is removed first."""
    folder = os.path.join(path, folder_name(version))
    present = set(manifest.names_in(folder))
    for name in [FILE, WEIGHTS, *filter(_ASIDE.fullmatch, present)]:
        if name in present:
            with contextlib.suppress(tf.errors.NotFoundError):  # gone already
                tf.io.gfile.remove(os.path.join(folder, name))
        if name == FILE and present:
            durable.sync(folder)  # or a crash of the machine may restore it without its rows
    files.remove(folder)


def route(
    publications: Iterable[Publication], run: str | None, version: int
) -> tuple[Publication, ...]:
    """Returns the publications to load next to approach the newest version.

    Args:
        publications: The publications that can be loaded.
        run: The run of the loaded version; None if no version is loaded.
        version: The last loaded version.

    Returns:
        An incremental publication, or a full publication, followed by the incremental publication
        that it may need. Empty if nothing newer can be reached.
    """
    found = list(publications)
    if run is not None and (changes := _furthest(found, run, version)):
        return (changes,)
    routes: list[tuple[int, tuple[Publication, ...]]] = []
    for whole in found:
        if whole.since is not None:
            continue
        changes = _furthest(found, whole.run, whole.version)
        if whole.weights is not None:
            routes.append((changes.version if changes else whole.version, (whole,)))
        elif changes:
            routes.append((changes.version, (whole, changes)))
    # The newest full publication, and the furthest changes from there.
    newer = [one for one in routes if run is None or one[0] > version]
    return max(newer, key=lambda one: (one[1][0].version, one[0]), default=(0, ()))[1]


def _furthest(found: Iterable[Publication], run: str, version: int) -> Publication | None:
    """Returns the newest incremental publication that applies to a version."""
    after = [
        one
        for one in found
        if one.run == run
        and one.weights is not None
        and one.since is not None
        and one.since <= version < one.version
    ]
    return max(after, key=lambda one: one.version, default=None)
