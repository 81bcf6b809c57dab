# SPDX-License-Identifier: Apache-2.0
"""`Writer`: writes a snapshot. `drop_moments` lets tables forget the moments of snapshots.

If tables are sharded over workers, each worker writes its rows. If tables are on parameter servers,
a single process makes each server write its rows. A table on several GPUs writes those of each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed.ops import row_file_ops, snapshot_ops
from tf_embed.saving.progress import RowCalls, watched
from tf_embed.snapshots import files, manifest
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.table.collective_calls import CollectiveCalls
from tf_embed.table.table import Table
from tf_embed.variable.memory_report import size_text
from tf_embed.variable.row_files import DEFAULT_BUFFER_BYTES


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a table that this process writes.

    Attributes:
        place: The number of the table.
        rank: The number of the part among the parts of its table.
        count: Number of parts of the table.
        table: The part.
    """

    place: int
    rank: int
    count: int
    table: Table

    @property
    def process(self) -> int:
        """The number of the process that has it."""
        return 0 if self.table.spread.group is None else self.rank


class Writer:
    """Writes a snapshot.

    Args:
        folder: The folder of the snapshot.
        base: The snapshot that it builds on. None: it has all rows.
        keys: A description of the key encoding, see `SnapshotInfo`.
        calls: The processes that write the snapshot.
        moment: The time of the snapshot, see `SnapshotInfo`. The first worker's value is used.
            Default: now.
        with_slots: Whether to write the optimizer slots of rows.
        row_calls: Called as rows are written.
    """

    def __init__(
        self,
        folder: str,
        name: str,
        base: SnapshotInfo | None,
        tables: Sequence[Table],
        keys: str | None,
        calls: CollectiveCalls,
        *,
        moment: float | None = None,
        with_slots: bool = True,
        row_calls: RowCalls | None = None,
    ) -> None:
        self._folder = folder
        self._name = name
        self._base = base
        self._tables = list(tables)
        self._keys = keys
        self._calls = calls
        self._with_slots = with_slots
        self._row_calls = row_calls
        if calls.count == 1:
            self._parts = [
                _Part(place, rank, len(table.parts), part)
                for place, table in enumerate(tables)
                for rank, part in enumerate(table.parts)
            ]
        else:
            self._parts = [
                _Part(place, calls.rank, calls.count, table) for place, table in enumerate(tables)
            ]
        self._time = time.time() if moment is None else moment
        self._start = time.monotonic()
        self._number = secrets.token_hex(8)
        # The moment of each part, and the part's number in it.
        self._begun: dict[_Part, tuple[tf.Tensor, int]] = {}

    def begin(self, tracked: bool) -> list[Any]:
        """Fixes the moment that the snapshot shows, if tables track changes.

        Returns:
            A description, which must be equal on all workers, and the time and save number that
            this worker proposes.
        """
        if tracked:
            # 0 means all rows.
            bases = [0] * len(self._tables)
            if self._base is not None:
                bases = [_signed(table.save) for table in self._base.tables]
            for process in sorted({part.process for part in self._parts}):
                parts = [part for part in self._parts if part.process == process]
                handles = [part.table.handle_on_host for part in parts]
                with tf.device(parts[0].table.options.device):
                    begun = snapshot_ops.begin_snapshot(
                        handles, [bases[one.place] for one in parts]
                    )
                self._begun.update({one: (begun, number) for number, one in enumerate(parts)})
        kinds = [table.options.kind for table in self._tables]
        digest = hashlib.blake2b(repr((kinds, self._base)).encode(), digest_size=8).hexdigest()
        since = None if self._base is None else self._base.name
        what = f"{self._name[:200]!r} since {since!r:.200} of {len(kinds)} tables ({digest})"
        return [what, self._time, self._number]

    def agree(self, begun: Sequence[list[Any]]) -> None:
        """Adopts the time and the save number of the first worker.

        Args:
            begun: The result of `begin` on each worker.

        Raises:
            ValueError: If the workers save different snapshots.
        """
        for rank, (what, _, _) in enumerate(begun):
            if what != begun[0][0]:
                raise ValueError(
                    "All workers must save the same snapshot at the same time. Received: worker 0 "
                    f"saves {begun[0][0]}, worker {rank} saves {what}"
                )
        _, self._time, self._number = begun[0]

    def give_up(self) -> None:
        """Releases the moment that `begin` fixed."""
        self._begun = {}

    def write(self) -> SnapshotInfo:
        """Writes all files. Each worker must call it."""
        try:
            info = self._write_all()
        except BaseException as error:
            _drop_frames(error)
            raise
        # A moment keeps the old rows in memory until it is released.
        finally:
            self._begun = {}
        if self._calls.rank == 0:
            logging.info(
                "Snapshot %r: %d rows of %d tables%s, %s, in %.1f s.",
                self._folder,
                info.rows,
                len(info.tables),
                "" if info.since is None else f" since {info.since!r}",
                size_text(info.bytes),
                time.monotonic() - self._start,
            )
        if self._row_calls is not None:
            self._row_calls.end()
        return info

    def _write_all(self) -> SnapshotInfo:
        calls = self._calls
        try:
            # All processes must write their rows before any of them writes the manifest.
            calls.run(self._write_rows)
            calls.run(self._commit)
        except BaseException:
            # Only the worker that commits may remove files: it knows whether the commit was made.
            if calls.rank == 0:
                files.give_up(self._folder, self._file_number)
            raise
        found: list[SnapshotInfo] = []
        calls.run(lambda: found.append(manifest.read(self._folder)))
        return found[0]

    @property
    def _file_number(self) -> str:
        return self._number[:8]

    def _write_rows(self) -> None:
        with watched(self._row_calls, [part.table for part in self._parts]):
            for part in self._parts:
                with tf.device(part.table.options.device), part.table.save_turn:
                    self._write_part(part)

    def _write_part(self, written: _Part) -> None:
        table, since = written.table, "" if self._base is None else self._base.name
        file_name = files.name_of(written.place, self._file_number)
        part = self._part_of_save(written)
        if written in self._begun:
            begun, number = self._begun[written]
            snapshot_ops.write_snapshot(
                begun, number, self._folder, file_name, since, part, with_slots=self._with_slots
            )
        elif part is not None:
            row_file_ops.save_part(
                table.resource_handle,
                self._folder,
                file_name,
                part,
                buffer_bytes=DEFAULT_BUFFER_BYTES,
                with_slots=self._with_slots,
            )
        else:
            self._save_rows(table, file_name)

    def _save_rows(self, table: Table, file_name: str) -> None:
        place = row_file_ops.Place(tf.constant(self._folder), "", file_name, rank=0, processes=1)
        row_file_ops.save_rows(
            table.resource_handle,
            place,
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            # Files that a link shares have slots in their rows.
            links=self._with_slots,
            with_slots=self._with_slots,
        )

    def _part_of_save(self, part: _Part) -> row_file_ops.Part | None:
        if part.count == 1:
            return None
        # All processes compute the same number from the number that they agreed on.
        digest = hashlib.blake2b(f"{self._number}/{part.place}".encode(), digest_size=8).digest()
        # 0 means no save.
        save = int.from_bytes(digest, "little", signed=True) or 1
        return row_file_ops.Part(save, part.rank, part.count)

    def _commit(self) -> None:
        """Joins the files of all workers and writes the manifest, on the first worker only."""
        if self._calls.rank > 0:
            return
        written = []
        for place, table in enumerate(self._tables):
            file_name = files.name_of(place, self._file_number)
            # Parts of a table have the same count, also on other workers.
            count = next(part.count for part in self._parts if part.place == place)
            if count > 1:
                self._join(file_name, count)
            written.append(manifest.files_of(self._folder, file_name, table.options.name))
        since = None if self._base is None else self._base.name
        info = SnapshotInfo(self._name, since, self._time, tuple(written), self._keys)
        files.commit(self._folder, info)

    def _join(self, file_name: str, count: int) -> None:
        try:
            snapshot_ops.join_rows(self._folder, file_name, count)
        except tf.errors.NotFoundError as error:
            raise tf.errors.NotFoundError(
                None,
                None,
                f"'{self._folder}' must be in a file system that all processes share: it does not "
                f"have the files of each of them. {error.message}",
            ) from error


def drop_moments(
    tables: Sequence[Table], gone: Sequence[SnapshotInfo], left: Iterable[SnapshotInfo] = ()
) -> None:
    """Tells the tables that no later snapshot will build on some snapshots.

    A table that tracks changes knows 64 moments at most, each by the number of a save. It remembers
    every key that left since the oldest moment.

    Args:
        tables: The tables of the snapshots, in their order.
        gone: The snapshots. A snapshot of another number of tables, or of a moment that the tables
            do not know, is ignored.
        left: The remaining snapshots. A folded snapshot shows the moment of the snapshot that it
            was made from, so that moment stays known. Default: none.
    """
    known = {saved.save for info in left for saved in info.tables}
    for info in gone:
        if len(info.tables) != len(tables):
            continue
        for table, saved in zip(tables, info.tables, strict=True):
            if saved.save in known or not table.options.tracks_changes:
                continue
            for part in table.parts:
                with tf.device(part.options.device):
                    snapshot_ops.drop_snapshot(part.handle_on_host, saved.save)


def _drop_frames(error: BaseException | None) -> None:
    """Clears the frames of an error, which would keep the pending snapshot and its tables alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _signed(save: int) -> int:
    """Converts a save number from uint64 to int64, as ops take it."""
    return save - 2**64 if save >= 2**63 else save
