# SPDX-License-Identifier: Apache-2.0
"""`Snapshots`: named saves of tables in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import snapshot_ops
from tf_embed.saving.progress import Progress, RowCalls, calls_of
from tf_embed.snapshots import files, manifest
from tf_embed.snapshots.loading import Part, check_chain, load_parts
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.snapshots.pending import PendingSnapshot
from tf_embed.snapshots.sources import Source, sources_of, tables_in
from tf_embed.snapshots.writing import Writer, drop_moments
from tf_embed.table.collective_calls import CollectiveCalls, OneProcess, agree
from tf_embed.table.table import Table
from tf_embed.variable.row_statistics import stats_of


class Snapshots:
    """Named saves of tables, each in a subfolder of `path`.

    A snapshot has the rows of all tables with their optimizer slots, as of the call of `save`. It
    appears only when it is complete: a crash or a full disk leaves the earlier snapshots intact.
    Every byte has a checksum, and a load of a damaged snapshot raises an error that names the file.
    A snapshot loads into tables with any number of shards, with or without a `storage`.

    `TablePolicy(track_changes=True)`, at 8 bytes a row, adds two features. First, training can
    continue while a snapshot is written (`wait=False`): rows that change are copied before they
    change and kept until they are written. Second, a snapshot can be incremental (`since=`): it has
    only the rows that changed since an earlier snapshot, and the keys that were removed. The
    earlier snapshot must have been saved or loaded by this process. A single `load` loads a chain
    of incremental snapshots. `fold` merges it into a full snapshot.

    Snapshots hold only tables. Dense variables and the step of an optimizer are saved by
    `model.save` and tf.train.Checkpoint.

    If tables are sharded over the workers of a strategy, each worker writes the rows that it owns
    to `path`, which must be a folder that all workers share. All workers must call the methods in
    the same order, except `list_snapshots` and `latest`. A call that fails on any worker raises on
    all. The number of workers may differ between save and load, and either may be a single process
    without a strategy.

    Only one process, and only one of its threads, may save, fold or remove snapshots in a folder at
    a time. If a second process saves under the same name or removes old snapshots, the first save
    raises an error.

    Args:
        path: A folder, or a path of any file system that TensorFlow knows. It is created.
        tables: A `tf_embed.Variable`, a layer, a model, or a list of these. A load matches tables
            by their order, not by their names.

    Raises:
        TypeError: If `path` is not a path, or `tables` holds something else.
        ValueError: If `path` is empty, or the rows of tables are in different processes.

    Example:
        >>> import tempfile, tf_embed
        >>> v = tf_embed.Variable(dim=2, policy=tf_embed.TablePolicy(track_changes=True))
        >>> v.upsert([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        >>> snapshots = tf_embed.Snapshots(tempfile.mkdtemp(), v)
        >>> snapshots.save("monday").wait().rows
        3
        >>> v.upsert([3], [[4.0, 4.0]])
        >>> snapshots.save("tuesday", since="monday").wait().rows
        1
        >>> v.clear()
        >>> snapshots.load("tuesday")
        >>> v.lookup([3]).numpy().tolist()
        [[4.0, 4.0]]
    """

    _keys: str | None = None  # `SnapshotInfo.keys` of the snapshots that it saves

    def __init__(self, path: str | os.PathLike[str], tables: Any) -> None:
        self.path = validation.path_of(path, "path")
        self._sources: list[Source] = sources_of(tables)
        self._made_calls: CollectiveCalls | None = None
        self._calls_of_writers: CollectiveCalls = OneProcess()
        self._check_places()  # refuses tables now; unbuilt layers have no tables yet
        self._pending: PendingSnapshot | None = None

    # Saving.

    def save(
        self,
        name: str,
        *,
        since: str | None = None,
        wait: bool = True,
        if_busy: str = "wait",
        progress: Progress = None,
    ) -> PendingSnapshot:
        """Saves the rows as of this call.

        Args:
            name: The name of the snapshot and of its folder, at most 255 bytes of UTF-8. An
                existing snapshot of this name is replaced when the new snapshot is complete.
            since: The name of an earlier snapshot, to save only the changes since then. Default:
                all rows.
            wait: Whether to write the snapshot before this returns. False: a thread writes it. In
                both cases, rows are saved as of this call. Tables without change tracking need
                True, and training must wait until this returns.
            if_busy: The behavior while an earlier snapshot is being written: "wait" for it, or
                "raise".
            progress: Reports the number of written rows; see `Variable.save_rows`. It
                counts the rows of all tables. With `since`, the number of changed rows is known
                only at the end: before the last call, `total_rows` is the number of all rows. If a
                call raises an error, `wait()` of the result raises it. Default: None.

        Returns:
            The pending snapshot. Its `wait()` returns a `SnapshotInfo`, or raises.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If a name is a path or too long, there is no snapshot `since`, other
                snapshots build on the snapshot that `name` would replace, a table must track
                changes but does not, or there is no table.
            RuntimeError: If this is called in a graph, or an earlier snapshot is being written and
                `if_busy` is "raise".
            tf.errors.FailedPreconditionError: If a table does not know its changes since the
                snapshot `since`. Either the snapshot was saved by another process, or is older than
                the last 64. Or the table has since been cleared, been restored, or got an
                optimizer. Save all rows then.
            tf.errors.OpError: If the snapshot can't be written.
        """
        _check_eager("save")
        calls = self._calls()
        row_calls: list[RowCalls | None] = []

        def check() -> None:  # runs on all workers, even if their arguments differ
            files.new_folder_name(name, "name")
            validation.flag(wait, "wait")
            validation.one_of(if_busy, ("wait", "raise"), "if_busy")
            row_calls.append(calls_of(progress, prints=calls.rank == 0))
            if if_busy == "raise":
                self._check_idle()  # the write may have finished on some workers only

        calls.run(check)
        self._be_alone()
        for table in tables_in(self._sources):
            table.wait_until_written()  # another `Snapshots` may be saving the same table
        writers: list[Writer] = []
        replaced: list[SnapshotInfo] = []

        def begin() -> Any:
            folder, tables = self._folder(name, "name"), self._tables()
            base = None if since is None else self._base(since, name, tables)
            files.check_no_base(self.path, name, "name")
            tracked = _is_tracked(tables, since, wait)
            moment = files.next_time(self.path)
            replaced.extend(files.readable(self.path, [name]))
            writers.append(
                Writer(
                    *(folder, name, base, tables, self._keys, self._calls_of_writers),
                    moment=moment,
                    row_calls=row_calls[0],
                )
            )
            return writers[0].begin(tracked)

        try:
            begun = calls.run(begin)
            (writer,) = writers
            writer.agree(begun)
        # Also on an interrupt, because the moment keeps rows in memory.
        except BaseException:
            for one in writers:
                one.give_up()
            raise
        tables = self._tables()

        def write() -> SnapshotInfo:
            info = writer.write()
            # The new snapshot is complete, so an error here must not suggest otherwise.
            with contextlib.suppress(tf.errors.OpError):
                drop_moments(tables, replaced, files.readable(self.path))
            return info

        self._pending = PendingSnapshot(name, write, background=not wait)
        if wait:
            self._pending.wait()
        for table in tables:
            table.wait_until_written = self._pending.join
        return self._pending

    def wait(self) -> None:
        """Waits until the last snapshot is written.

        Raises:
            tf.errors.OpError: If the write failed.
        """
        if self._pending is not None:
            self._pending.wait()

    def fold(self, name: str, to: str | None = None) -> SnapshotInfo:
        """Merges an incremental snapshot and the snapshots it builds on into a full snapshot.

        The tables are not read. A load of the new snapshot equals a load of the old chain. If some
        snapshots of the chain lack statistics, because the tables had another policy, the
        statistics begin with the load. Snapshots since `name` are unchanged. The new snapshot shows
        the moment of `name`, so changes can be saved `since` it.

        Args:
            name: The name of the incremental snapshot.
            to: The name of the full snapshot. Default: `name`, which is replaced if no snapshot
                builds on it.

        Returns:
            The new snapshot.

        Raises:
            TypeError: If a name is not a str.
            ValueError: If there is no such snapshot, or others build on the replaced snapshot.
            RuntimeError: If this is called in a graph.
            tf.errors.OpError: If files are damaged, or the new files can't be written. The
                snapshots are then unchanged.
        """
        _check_eager("fold")
        calls = self._calls()
        self._be_alone()
        to = name if to is None else to
        agree(
            calls,
            lambda: [files.folder_name(name, "name"), files.new_folder_name(to, "to")],
            "names of a fold",
        )
        with self._dropping(calls, [to]):
            calls.run(lambda: self._fold(name, to) if calls.rank == 0 else None)
        return _read_by_all(calls, lambda: self._folder(to, "to"))

    def _fold(self, name: str, to: str) -> None:
        folder, to_folder = self._present(name, "name"), self._folder(to, "to")
        files.check_no_base(self.path, to, "to")
        info = manifest.read(folder)
        check_chain(folder, info)
        tables = []
        with files.new_files(to_folder) as number:
            for place, table in enumerate(info.tables):
                file_name = files.name_of(place, number)
                snapshot_ops.fold_rows(folder, table.file_name, to_folder, file_name)
                tables.append(manifest.files_of(to_folder, file_name, table.table))
            folded = SnapshotInfo(to, None, info.time, tuple(tables), info.keys)
            files.commit(to_folder, folded)

    # Loading.

    def load(self, name: str, *, progress: Progress = None) -> None:
        """Loads a snapshot, with the snapshots that it builds on, into empty tables.

        Afterwards, snapshots can be saved `since` this snapshot. Nothing may write to the tables
        until this returns: later incremental snapshots would miss rows that are written before.
        Build a DynamicEmbeddingOptimizer before the load: if it is built later, it begins with new
        slots.

        Args:
            name: The snapshot's name.
            progress: Reports the number of loaded rows; see `Variable.load_rows`. It
                counts the rows of all tables, in the snapshot and the snapshots that it builds on.
                Default: None.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If there is no such snapshot, or its number of tables differs.
            RuntimeError: If a table has rows, or this is called in a graph.
            tf.errors.OpError: If files are damaged, missing, or of another kind of table. All
                tables are then empty.
        """
        _check_eager("load")
        calls = self._calls()
        self._be_alone()
        tables = self._tables()
        row_calls: list[RowCalls | None] = []

        def present() -> str:
            row_calls.append(calls_of(progress, prints=calls.rank == 0))
            return self._present(name, "name")

        info = _read_by_all(calls, present)
        folder = self._folder(name, "name")
        if len(info.tables) != len(tables):
            raise ValueError(
                f"The snapshot in {folder!r} must have as many tables as are to be loaded, "
                f"{len(tables)}. Received: {len(info.tables)} tables"
            )
        for table in tables:
            if rows := int(table.size()):
                raise RuntimeError(
                    f"{table.options.name!r} must have no rows when it loads a snapshot, or rows "
                    f"that came after the snapshot would stay: clear it. Received: {rows} rows"
                )
        evicted = [stats_of(table)["evicted"] for table in tables]
        pairs = zip(tables, info.tables, strict=True)
        parts = [Part(table, saved) for table, saved in pairs]
        load_parts(folder, info, parts, calls, row_calls[0])
        for table, saved, before in zip(tables, info.tables, evicted, strict=True):
            # A bounded table may evict rows during the load, which are then only in the snapshot.
            has_all = stats_of(table)["evicted"] == before
            if table.options.tracks_changes and has_all:
                for part in table.parts:
                    with tf.device(part.options.device):
                        snapshot_ops.note_snapshot(part.handle_on_host, saved.save)
        if row_calls[0] is not None:
            row_calls[0].end()

    # Listing and removal.

    def list_snapshots(self) -> list[SnapshotInfo]:
        """Returns the snapshots in the folder, oldest first.

        Raises:
            tf.errors.OpError: If a manifest can't be read, or is damaged.
        """
        return sorted(manifest.all_in(self.path), key=files.age)

    def latest(self) -> str | None:
        """Returns the name of the newest snapshot, or None if there is none.

        A snapshot is left out, with a warning, if its manifest is damaged, or if the manifest of a
        snapshot that it builds on is damaged or missing.

        Raises:
            tf.errors.OpError: If all snapshots are left out, or a manifest can't be read.
        """
        found, errors = files.loadable(self.path)
        files.warn(self.path, errors)
        if errors and not found:
            raise next(reversed(errors.values()))
        return found[-1].name if found else None

    def remove(self, name: str) -> None:
        """Removes a snapshot.

        Args:
            name: The snapshot's name.

        Raises:
            TypeError: If `name` is not a str.
            ValueError: If there is no such snapshot, or others build on it.
            RuntimeError: If this is called in a graph.
        """
        _check_eager("remove")
        calls = self._calls()
        self._be_alone()
        agree(calls, lambda: files.folder_name(name, "name"), "snapshot to remove")
        with self._dropping(calls, [name]):
            calls.run(lambda: self._remove(name) if calls.rank == 0 else None)

    def _remove(self, name: str) -> None:
        folder = self._present(name, "name")
        if dependent := files.dependents(self.path, name):
            raise ValueError(
                f"`name` must not be that of a snapshot since which {dependent[0]!r} has the "
                f"changes: fold that one, or remove it first. Received: name={name!r}"
            )
        files.remove(folder)

    def keep(self, last: int) -> Sequence[str]:
        """Removes old snapshots, and the files of crashed saves.

        A snapshot that `latest` leaves out is not removed and does not count towards `last`. A
        warning names it.

        Args:
            last: Number of the newest snapshots to keep, an int from 1. Snapshots that these build
                on are kept as well.

        Returns:
            The names of the removed snapshots.

        Raises:
            TypeError: If `last` is not an int.
            ValueError: If it is less than 1.
            RuntimeError: If this is called in a graph.
            tf.errors.OpError: If a manifest can't be read for a reason other than damage.
        """
        _check_eager("keep")
        calls = self._calls()
        self._be_alone()
        leaving: list[str] = []
        agree(calls, lambda: validation.int_in(last, "last"), "`last`")
        calls.run(lambda: leaving.extend(self._older_than(last)))
        with self._dropping(calls, leaving):
            calls.run(lambda: self._tidy(leaving) if calls.rank == 0 else None)
        return leaving

    @contextlib.contextmanager
    def _dropping(self, calls: CollectiveCalls, names: Sequence[str]) -> Iterator[None]:
        """Makes tables forget the moments of snapshots that the block removes or replaces."""
        found: list[SnapshotInfo] = []
        left: list[SnapshotInfo] = []
        # Read before the block removes them.
        calls.run(lambda: found.extend(files.readable(self.path, names)))
        yield
        calls.run(lambda: left.extend(files.readable(self.path)))
        drop_moments(tables_in(self._sources), found, left)

    def _older_than(self, last: int) -> Sequence[str]:
        """Returns the snapshots that the newest `last` do not build on, dependents first."""
        validation.int_in(last, "last")
        found, errors = files.loadable(self.path)
        files.warn(self.path, errors)
        since = {info.name: info.since for info in found}
        stay: set[str] = set()
        for info in found[-last:]:
            needed: str | None = info.name
            while needed is not None and needed not in stay:
                stay.add(needed)
                needed = since.get(needed)
        # A snapshot is removed before the snapshots that it builds on.
        return [info.name for info in reversed(found) if info.name not in stay]

    def _tidy(self, leaving: Sequence[str]) -> None:
        """Removes snapshots, and the files of crashed saves."""
        for name in leaving:
            files.remove(os.path.join(self.path, name))
        for name in manifest.names_in(self.path):
            folder = os.path.join(self.path, name)
            if files.is_left_over(folder):
                files.remove(folder)

    # Helpers.

    def _tables(self) -> list[Table]:
        tables = tables_in(self._sources)
        if not tables:
            raise ValueError(
                "`tables` must have a table. Received: variables and layers without any; layers "
                "have theirs once they are built"
            )
        return tables

    def _check_places(self) -> None:
        """Refuses tables whose rows are in different processes.

        Raises:
            ValueError: If there are such tables.
        """
        tables = tables_in(self._sources)
        for table in tables:
            if table.spread.group is not tables[0].spread.group:
                raise ValueError(
                    "`tables` must all have their rows in the same processes: make several "
                    "Snapshots, with a path for each worker if tables are its own. Received: "
                    f"{tables[0].options.name!r}, which is {tables[0].spread.where}, and "
                    f"{table.options.name!r}, which is {table.spread.where}"
                )

    def _calls(self) -> CollectiveCalls:
        """Returns the calls that run together on all processes with rows of the tables."""
        self._check_places()
        tables = tables_in(self._sources)
        if tables and self._made_calls is None:
            # Created here because it needs all workers: the constructor and `list_snapshots` may
            # run on a single worker. The writing thread has separate calls, which block no others.
            self._made_calls = tables[0].spread.new_calls()
            self._calls_of_writers = tables[0].spread.new_calls()
        return self._made_calls or OneProcess()

    def _folder(self, name: Any, argument: str) -> str:
        return os.path.join(self.path, files.folder_name(name, argument))

    def _present(self, name: Any, argument: str) -> str:
        folder = self._folder(name, argument)
        if not manifest.exists(folder):
            raise ValueError(
                f"`{argument}` must be the name of a snapshot in {self.path!r}. Received: "
                f"{argument}={name!r}"
            )
        return folder

    def _base(self, since: Any, name: str, tables: Sequence[Table]) -> SnapshotInfo:
        """Returns the snapshot that an incremental snapshot of `tables` will build on."""
        info = manifest.read(self._present(since, "since"))
        if since == name:
            raise ValueError(f"`since` must not be the snapshot itself. Received: since={since!r}")
        if len(info.tables) != len(tables):
            raise ValueError(
                f"`since` must be the name of a snapshot of {len(tables)} tables. Received: "
                f"since={since!r}, of {len(info.tables)}"
            )
        return info

    def _be_alone(self) -> None:
        """Waits for an earlier snapshot. Its error is raised by its `wait`, not here."""
        if self._pending is not None:
            self._pending.join()

    def _check_idle(self) -> None:
        if self._pending is not None and not self._pending.done():
            raise RuntimeError(
                f"The snapshot {self._pending.name!r} is still being written. Received: a second "
                'one with if_busy="raise"'
            )


def _read_by_all(calls: CollectiveCalls, folder: Callable[[], str]) -> SnapshotInfo:
    """Returns the snapshot in a folder. Raises on all processes if any process can't read it."""
    found: list[SnapshotInfo] = []
    calls.run(lambda: found.append(manifest.read(folder())))
    return found[0]


def _is_tracked(tables: Sequence[Table], since: str | None, wait: bool) -> bool:
    """Returns whether all tables track changes.

    Raises:
        ValueError: If a table does not track changes, but the arguments require it.
    """
    if all(table.options.tracks_changes for table in tables):
        return True
    if since is not None or not wait:
        argument = "since" if since is not None else "wait"
        first = next(one for one in tables if not one.options.tracks_changes)
        raise ValueError(
            f"`{argument}` is for tables that keep track of changes: give the policy of "
            f"{first.options.name!r} track_changes=True. Received: "
            f"{argument}={validation.shown(since if since is not None else wait)}"
        )
    return False


def _check_eager(method: str) -> None:
    """Refuses a call in a graph, which would only change files during the trace."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"`Snapshots.{method}` runs in eager execution. Received: a call in a graph"
        )
