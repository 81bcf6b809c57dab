# SPDX-License-Identifier: Apache-2.0
"""`Publisher`: publishes the weights of a training process."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.serving import dense_weights, publication
from tf_embed.serving.publication import Publication, WeightsFile
from tf_embed.serving.with_block import WithBlock
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.snapshots.sources import Source, sources_of, tables_in
from tf_embed.snapshots.writing import Writer, drop_moments
from tf_embed.table.collective_calls import OneProcess
from tf_embed.table.table import Table


class Publisher(WithBlock):
    """Publishes the rows and dense weights of a model, for processes that serve it.

    A publication has the rows of all tables at a moment, without optimizer slots, and the dense
    weights of that moment. It appears only when it is complete: a crash or a full disk leaves the
    earlier publications. A Publisher's first publication has all rows, and later publications have
    the changed rows. Tables need `TablePolicy(track_changes=True)` for that; otherwise each
    publication has all rows.

    After `whole_every` incremental publications, a full publication is also written, for followers
    that start later, and older publications are removed. A running follower takes only the changes.

    Only one process, and one thread, may publish in a folder at a time.

    Args:
        model: A `tf_embed.Variable`, a layer, a model, or a list of these. The follower must have
            the same tables and weights in the same order.
        path: A folder, or a path of any file system that TensorFlow knows. It is created.
        keep: Number of newest publications to keep, in addition to the publications that a new
            follower needs; an int from 1. Followers that are further behind load all rows again.
        whole_every: Number of incremental publications until the next full one, an int from 1.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If `path` is empty, a number is out of range, or tables are sharded over
            workers.

    Example:
        >>> import tempfile, tf_embed
        >>> from tf_embed.serving import Follower, Publisher
        >>> policy = tf_embed.TablePolicy(track_changes=True)
        >>> trained, served = tf_embed.Variable(dim=1, policy=policy), tf_embed.Variable(dim=1)
        >>> publisher = Publisher(trained, tempfile.mkdtemp())
        >>> follower = Follower(served, publisher.path)
        >>> trained.upsert([1, 2], [[1.0], [2.0]])
        >>> publisher.publish()
        1
        >>> follower.update()
        True
        >>> served.lookup([2]).numpy().tolist()
        [[2.0]]
    """

    def __init__(
        self, model: Any, path: str | os.PathLike[str], *, keep: int = 16, whole_every: int = 256
    ) -> None:
        self.path = validation.path_of(path, "path")
        self._sources: list[Source] = sources_of(model, "model")
        self._keep = validation.int_in(keep, "keep")
        self._whole_every = validation.int_in(whole_every, "whole_every")
        self._run = secrets.token_hex(8)
        self._last: tuple[int, SnapshotInfo] | None = None  # the last publication
        self._highest = 0  # highest version, even if its folder is gone
        self._changes = 0  # publications of changes since all rows were written
        self._known: dict[int, Publication] = {}  # in the folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _check_places(tables_in(self._sources))

    def publish(self, *, whole: bool = False, wait: bool = True) -> int:
        """Publishes the current rows and dense weights.

        Waits for the previous publication.

        Args:
            whole: Whether to publish all rows, even if the changed rows suffice. Followers then
                load all rows.
            wait: Whether to return only after the write. False: a thread writes the publication,
                and the next `publish` or `wait` raises its error. Both publish the rows at the time
                of the call. Tables that do not track changes need True.

        Returns:
            The version. Versions increase, and may skip numbers. A new Publisher begins at 1 if the
            folder is empty.

        Raises:
            TypeError: If an argument is not a bool.
            ValueError: If the model has no table, or a table must track changes but does not.
            RuntimeError: If this is called in a graph.
            tf.errors.OpError: If it can't be written, or the previous publication could not be.
        """
        validation.flag(whole, "whole")
        validation.flag(wait, "wait")
        if not tf.executing_eagerly():
            raise RuntimeError(
                "`Publisher.publish` runs in eager execution. Received: a call in a graph"
            )
        self.wait()
        tables = self._tables()
        tracked = all(table.options.tracks_changes for table in tables)
        if not tracked and not wait:
            first = next(one for one in tables if not one.options.tracks_changes)
            raise ValueError(
                "`wait` must be True if a table does not keep track of changes: give the policy of "
                f"{first.options.name!r} track_changes=True. Received: wait={wait}"
            )
        for table in tables:
            table.wait_until_written()  # a snapshot of the table may be in progress
        version = self._next_version()
        last = self._last
        if last is not None and len(last[1].tables) != len(tables):
            last = None  # tables were added to the model
        if last is None or not publication.exists(self.path, last[0]):
            whole = True  # followers could not know that changes are missing
        writer, since = self._begin(version, tables, tracked, None if whole else last)
        try:
            # Copied now: `_begin` has just fixed the moment of the rows.
            dense = dense_weights.weights_of(self._sources)
            weights, values = dense_weights.descriptions(dense), dense_weights.values_of(dense)
        except BaseException:  # a caller that keeps the error must not keep the moment alive
            writer.give_up()
            raise

        def write() -> None:
            info = writer.write()
            folder = self._folder(version)
            self._commit(version, since, info, tables, dense_weights.write(folder, weights, values))
            # No later publication has changes since that moment, so tables need not keep them.
            if last is not None:
                drop_moments(tables, [last[1]])
            self._last = (version, info)
            self._changes = 0 if since is None else self._changes + 1
            if self._changes >= self._whole_every:
                self._write_all_rows(self._next_version(), tables)
            self._tidy()

        if wait:
            write()
            return version
        # Not a daemon: Python waits for it at exit, so the publication is completed.
        self._thread = threading.Thread(
            target=self._run_writer, args=[write], name=f"publication {version}"
        )
        self._thread.start()
        for table in tables:
            table.wait_until_written = self._thread.join
        return version

    def wait(self) -> None:
        """Waits until the last publication is written.

        Raises:
            tf.errors.OpError: If it could not be written. The error is raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    # Helpers.

    def _end(self) -> None:
        self.wait()

    def _tables(self) -> list[Table]:
        tables = tables_in(self._sources)
        if not tables:
            raise ValueError(
                "`model` must have a table. Received: variables and layers without any; layers "
                "have theirs once they are built"
            )
        _check_places(tables)
        return tables

    def _folder(self, version: int) -> str:
        return os.path.join(self.path, publication.folder_name(version))

    def _next_version(self) -> int:
        self._highest = 1 + max([self._highest, *publication.versions_in(self.path)])
        return self._highest

    def _begin(
        self,
        version: int,
        tables: Sequence[Table],
        tracked: bool,
        last: tuple[int, SnapshotInfo] | None,
    ) -> tuple[Writer, int | None]:
        """Begins a publication. Returns its writer and the version that it builds on."""
        if tracked and last is not None:
            since, base = last
            try:
                return self._begin_since(version, tables, base), since
            except tf.errors.FailedPreconditionError as error:
                # The table does not know the changes since then, so all rows are written.
                logging.info("Publication %d has all rows: %s", version, error.message)
        return self._begin_since(version, tables, None, tracked=tracked), None

    def _begin_since(
        self,
        version: int,
        tables: Sequence[Table],
        base: SnapshotInfo | None,
        *,
        tracked: bool = True,
    ) -> Writer:
        name = publication.folder_name(version)
        writer = Writer(
            self._folder(version), name, base, tables, None, OneProcess(), with_slots=False
        )
        try:
            writer.agree([writer.begin(tracked)])
        except BaseException:
            writer.give_up()
            raise
        return writer

    def _commit(
        self,
        version: int,
        since: int | None,
        info: SnapshotInfo,
        tables: Sequence[Table],
        weights: WeightsFile | None,
    ) -> None:
        """Writes the manifest, which completes the publication."""
        kinds = tuple(table.options.kind for table in tables)
        made = Publication(version, since, self._run, info.time, tuple(info.tables), kinds, weights)
        publication.write(self.path, made)
        logging.info(
            "Publication %d in %r: %d rows of %d tables%s.",
            version,
            self.path,
            made.rows,
            len(tables),
            "" if since is None else f" since {since}",
        )

    def _write_all_rows(self, version: int, tables: Sequence[Table]) -> None:
        """Writes all rows for followers that start later. These also need the next changes."""
        writer = self._begin_since(version, tables, None)
        info = writer.write()
        drop_moments(tables, [info])
        self._commit(version, None, info, tables, None)
        self._changes = 0

    def _tidy(self) -> None:
        """Removes publications that no follower needs, and leftovers of crashes."""
        present = publication.versions_in(self.path)
        self._known = {one: self._known[one] for one in present if one in self._known}
        for version in present:
            if version in self._known or not publication.exists(self.path, version):
                continue
            try:
                self._known[version] = publication.read(self.path, version)
            except tf.errors.OpError as error:  # followers can't use it either
                logging.warning("Publication %d is left out: %s", version, error.message)
        start = publication.route(self._known.values(), None, 0)
        if not start:
            return
        newest = sorted(self._known)[-self._keep :]
        for version in present:
            if version < start[0].version and version not in newest:
                publication.remove(self.path, version)
                self._known.pop(version, None)

    def _run_writer(self, write: Callable[[], None]) -> None:
        try:
            write()
        # The next `wait` raises it.
        except BaseException as error:
            self._error = error


def _check_places(tables: Sequence[Table]) -> None:
    """Refuses tables that can't be published."""
    for table in tables:
        if table.spread.is_collective:
            raise ValueError(
                "`model` must have no tables that are sharded over workers: save them by "
                f"tf_embed.Snapshots. Received: {table.options.name!r}, which is "
                f"{table.spread.where}"
            )
