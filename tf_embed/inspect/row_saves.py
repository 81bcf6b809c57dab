# SPDX-License-Identifier: Apache-2.0
"""Saves that consist of row files: `save_rows`, snapshots and publications."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_embed.inspect.saves import InspectError, Member, Save, SavedTable, reading
from tf_embed.ops import row_stream_ops
from tf_embed.ops.row_stream_ops import SaveNumbers
from tf_embed.saving.row_streams import Block, RowReader
from tf_embed.serving import dense_weights, publication
from tf_embed.serving.publication import Publication
from tf_embed.snapshots import files, loading, manifest
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.table.policies import STATISTICS
from tf_embed.table.table_meta import TableMeta
from tf_embed.variable.row_files import names_of_saves

_OF_CHANGES = (
    "The table below counts the rows that changed. Options show the rows of the whole chain."
)


def row_files(folder: str) -> Save:
    """The saves of `save_rows` in a folder."""
    manifests = [name for name in manifest.names_in(folder) if name.endswith(".manifest")]
    # The end of a name of over 198 bytes is replaced by a hash (cc/core/files/row_manifest.h).
    shortened = [name for name in manifests if "==" in name]
    if shortened == manifests:
        raise InspectError(_shortened(os.path.join(folder, shortened[0])))
    names = names_of_saves(set(manifests) - set(shortened))
    parts = [_described(folder, name, name) for name in names]
    return Save(
        kind="row files",
        path=folder,
        time=max(numbers.milliseconds for _, numbers in parts) / 1000,
        bytes=sum(table.bytes for table, _ in parts),
        tables=tuple(table for table, _ in parts),
        notes=tuple(f"Left out: {_shortened(name)}" for name in shortened),
        checks=tuple(_check_of_rows(folder, name) for name in names),
    )


def _shortened(name: str) -> str:
    return f"'{name}' is of a variable with so long a name that files don't have it."


def snapshot(folder: str) -> Save:
    """A snapshot, with the snapshots that it builds on."""
    with reading(folder):
        info = manifest.read(folder)
        chain = loading.check_chain(folder, info)
    is_changes = info.since is not None
    return Save(
        kind="snapshot",
        path=folder,
        time=info.time,
        bytes=info.bytes,
        tables=tuple(
            _described(folder, part.file_name, part.table, of_changes=is_changes)[0]
            for part in info.tables
        ),
        members=tuple(map(_member, chain)),
        members_are="chain",
        notes=(_OF_CHANGES,) if is_changes else (),
        checks=tuple(_check_of_rows(folder, part.file_name) for part in info.tables),
    )


def snapshots(path: str) -> Save:
    """A folder of snapshots."""
    with reading(path):
        found, errors = files.loadable(path)
    newest = tuple(reversed(found))
    return Save(
        kind="folder of snapshots",
        path=path,
        time=newest[0].time if newest else None,
        bytes=sum(info.bytes for info in newest),
        members=tuple(map(_member, newest)),
        members_are="snapshots",
        notes=tuple(f"Left out: {error.message}" for error in errors.values()),
        checks=tuple(_check_of_snapshot(os.path.join(path, info.name)) for info in newest)
        + tuple(_raising(error) for error in errors.values()),
    )


def one_publication(folder: str) -> Save:
    """A publication."""
    folder = folder.rstrip("/")
    version = publication.version_of(os.path.basename(folder))
    if version is None:
        raise InspectError(f"'{folder}' has a {publication.FILE}, and not a publication's name.")
    path = os.path.dirname(folder)
    with reading(folder):
        found = publication.read(path, version)
    weights = found.weights

    def check_weights() -> None:
        with reading(os.path.join(folder, publication.WEIGHTS)):
            if weights is not None:
                dense_weights.read(folder, weights)

    since = "all rows" if found.since is None else f"the rows changed since version {found.since}"
    dense = "no dense weights" if weights is None else f"{len(weights.weights)} dense weights"
    return Save(
        kind="publication",
        path=folder,
        time=found.time,
        bytes=found.bytes,
        tables=tuple(
            # Publications before it may be gone, and followers don't need them.
            _described(folder, part.file_name, part.table, alone=True)[0]
            for part in found.tables
        ),
        notes=(f"Version {version} of run {found.run}: {since}, {dense}.",),
        checks=(
            *(_check_of_rows(folder, part.file_name, alone=True) for part in found.tables),
            check_weights,
        ),
    )


def publications(path: str) -> Save:
    """A folder of publications."""
    versions = publication.versions_in(path)
    found: list[Publication] = []
    notes: list[str] = []
    for version in reversed(versions):
        if not publication.exists(path, version):
            notes.append(f"'{publication.folder_name(version)}' is not complete.")
            continue
        with reading(os.path.join(path, publication.folder_name(version))):
            found.append(publication.read(path, version))
    return Save(
        kind="folder of publications",
        path=path,
        time=found[0].time if found else None,
        bytes=sum(one.bytes for one in found),
        members=tuple(
            Member(
                publication.folder_name(one.version),
                None if one.since is None else publication.folder_name(one.since),
                one.rows,
                one.bytes,
                one.time,
            )
            for one in found
        ),
        members_are="publications",
        notes=tuple(notes),
        checks=tuple(
            _check_of_publication(os.path.join(path, publication.folder_name(one.version)))
            for one in found
        ),
    )


def _described(
    folder: str, file_name: str, name: str, *, alone: bool = False, of_changes: bool = False
) -> tuple[SavedTable, SaveNumbers]:
    """Describes a table, and returns the numbers of its save too."""

    def opened() -> RowReader:
        with reading(folder):
            return RowReader(folder, file_name, alone=alone, of_any_type=True)

    def read() -> Iterator[Block]:
        rows = opened()
        with reading(folder):
            yield from rows.blocks_with_statistics()

    with reading(folder):
        found = row_stream_ops.describe_rows(folder, file_name)
    numbers = SaveNumbers(*found.numbers.numpy().tolist())
    key_dtype, value_dtype, _ = (tf.compat.as_text(one) for one in found.names.numpy().tolist())
    meta = TableMeta.of(found.meta)
    table = SavedTable(
        name=name,
        rows=numbers.rows,
        dim=meta.dim,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        slots=meta.slots,
        rule=meta.rule,
        step=numbers.step or None,
        statistics=tuple(one for one, bit in STATISTICS.items() if numbers.statistics & bit),
        bytes=numbers.bytes,
        read=read,
        num_rows=(lambda: opened().num_rows) if of_changes else None,
    )
    return table, numbers


def _check_of_rows(folder: str, file_name: str, *, alone: bool = False) -> Callable[[], None]:
    """Returns a check of a table's files."""

    def check() -> None:
        with reading(folder):
            RowReader(folder, file_name, alone=alone, of_any_type=True).close()

    return check


def _check_of_publication(folder: str) -> Callable[[], None]:
    """Returns a check of a publication."""

    def check() -> None:
        for one in one_publication(folder).checks:
            one()

    return check


def _check_of_snapshot(folder: str) -> Callable[[], None]:
    """Returns a check of one snapshot of a chain alone, so that each snapshot is read once."""

    def check() -> None:
        with reading(folder):
            info = manifest.read(folder)
            manifest.check_saves(folder, info)
        for part in info.tables:
            _check_of_rows(folder, part.file_name, alone=True)()

    return check


def _raising(error: tf.errors.OpError) -> Callable[[], None]:
    """Returns a check that fails."""

    def check() -> None:
        raise InspectError(error.message)

    return check


def _member(info: SnapshotInfo) -> Member:
    return Member(info.name, info.since, info.rows, info.bytes, info.time)
