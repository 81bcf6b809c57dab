# SPDX-License-Identifier: Apache-2.0
"""`Follower`: keeps a model in its last published state."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.serving import dense_weights, publication
from tf_embed.serving.followed_table import FollowedTable
from tf_embed.serving.publication import Publication, Weight
from tf_embed.serving.reading_lock import ReadingLock
from tf_embed.serving.with_block import WithBlock
from tf_embed.snapshots.sources import Source, sources_of, tables_in
from tf_embed.table.table import Table

_MOST_SECONDS = 1e6
_FILE_ERRORS = (tf.errors.OpError, OSError)  # that a retry may not meet again


class Follower(WithBlock):
    """Keeps the rows and dense weights of a model in their last published state.

    A `Publisher` of the same model publishes, in another process. A publication is checked in full
    before the first row changes, so a damaged or incomplete publication changes nothing. Lookups
    continue during an update, and return the old or the new row of each key. Within `reading()`,
    all rows and dense weights are of the same version.

    Rows that were removed from the published tables are removed here, and their memory is freed.
    If the folder is emptied, the numbers of the next Publisher begin at 1 again. The follower then
    takes all its rows, and `version` becomes lower. As long as the folder has publications of the
    Publisher that it follows, it takes no lower version of another Publisher.

    The follower must be the only writer of its tables. They need no optimizer and no policy. The
    first update removes the rows that they had before.

    Args:
        model: A `tf_embed.Variable`, a built layer or model, or a list of these, with the tables
            and dense weights of the Publisher, in the same order.
        path: The path of the Publisher. It need not exist yet.

    Attributes:
        path: The path of the Publisher.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If `path` is empty, or the model has no tables, or tables on servers or sharded
            over workers.

    Example:
        >>> import tempfile, tf_embed
        >>> from tf_embed.serving import Follower, Publisher
        >>> trained, served = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        >>> publisher = Publisher(trained, tempfile.mkdtemp())
        >>> with Follower(served, publisher.path).follow(every_seconds=0.1) as follower:
        ...     trained.upsert([7], [[1.5]])
        ...     version = publisher.publish()
        ...     follower.wait_for(version)
        ...     served.lookup([7]).numpy().tolist()
        [[1.5]]
    """

    def __init__(self, model: Any, path: str | os.PathLike[str]) -> None:
        self.path = validation.path_of(path, "path")
        self._sources: list[Source] = sources_of(model, "model")
        tables = tables_in(self._sources)
        _check_tables(tables)
        self._tables = [FollowedTable(table) for table in tables]
        self._lock = ReadingLock()
        self._updating = threading.Lock()
        self._known: dict[int, Publication] = {}
        # The runs of the versions that were in the folder together with the loaded version.
        self._beside: dict[int, str | None] = {}
        # The run and version whose rows are loaded; None: rows may be of several runs.
        self._rows_of: tuple[str, int] | None = None
        self._served: Publication | None = None
        self._changed = threading.Condition()  # the served version, or the thread's state
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: Exception | None = None  # the thread's error, until it is raised

    # The served state.

    @property
    def publication(self) -> Publication | None:
        """The publication that all rows have at least reached; None before the first update."""
        return self._served

    @property
    def version(self) -> int:
        """The version that all rows have at least reached; 0 before the first update."""
        return 0 if self._served is None else self._served.version

    @property
    def lag(self) -> float:
        """The age of the served rows in seconds; infinite before the first update."""
        return float("inf") if self._served is None else max(0.0, time.time() - self._served.time)

    @property
    def error(self) -> Exception | None:
        """Why the last update could not take the newest version; None if it could."""
        return self._error

    def reading(self) -> AbstractContextManager[None]:
        """Keeps updates out of a block, so that everything that it reads is of the same version.

        Blocks of several threads run together. An update waits for running blocks, and later blocks
        wait for the update. An update takes as long as it takes to write the changed rows.

        Returns:
            A context manager.
        """
        return self._lock.reading()

    # Updates.

    def update(self) -> bool:
        """Takes the publications since the last call.

        Returns:
            Whether there were any.

        Raises:
            ValueError: If another model was published there, or a table has no room for all rows.
            RuntimeError: If this is called in a graph, or within `reading`.
            tf.errors.OpError: If the newest version can't be taken, because files are damaged or
                can't be read. Rows are then of the last version that could be taken. The call may
                be repeated.
        """
        if not tf.executing_eagerly():
            raise RuntimeError(
                "`Follower.update` runs in eager execution. Received: a call in a graph"
            )
        # Before `_updating`: the thread of `follow` may hold it and wait for this reader.
        self._lock.check_not_reading("update")
        with self._updating:
            before = self._served
            try:
                self._update()
            except Exception as error:
                self._error = error
                raise
            self._error = None
            return self._served is not before

    def follow(self, every_seconds: float = 1.0) -> Follower:
        """Starts a thread that takes publications as they appear.

        The first update is over when this returns. If an update fails because files are damaged or
        can't be read, the error is logged and kept in `error`, and the next update tries again. Any
        other error ends the thread, and is raised by `stop`, by `wait_for` and by the end of a
        `with` block.

        Args:
            every_seconds: Time between two polls of `path`, a number above 0.

        Returns:
            This object, for a `with` block that ends with `stop`.

        Raises:
            TypeError: If `every_seconds` is not a number.
            ValueError: If it is out of range, or another model was published there.
            RuntimeError: If the thread runs already.
        """
        seconds = validation.positive_number(every_seconds, "every_seconds", most=_MOST_SECONDS)
        if self._thread is not None:
            raise RuntimeError(
                f"`follow` must be called once before `stop`. Received: a second call, for "
                f"{self.path!r}"
            )
        self._try_update()
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run, args=[seconds], name=f"follower of {self.path}", daemon=True
        )
        self._thread.start()
        return self

    def wait_for(self, version: int = 1, timeout_seconds: float = 60.0) -> None:
        """Waits until the thread of `follow` serves at least the given version.

        If the folder was emptied and another publisher has published there, a version of the
        previous publisher does not count.

        Args:
            version: The result of `Publisher.publish`, an int from 1.
            timeout_seconds: Maximum time to wait, a number above 0.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If an argument is out of range.
            tf.errors.DeadlineExceededError: If it takes longer.
            Exception: The error that ended the thread.
        """
        version = validation.int_in(version, "version")
        seconds = validation.positive_number(timeout_seconds, "timeout_seconds", most=_MOST_SECONDS)
        # If the folder was emptied, a version of the previous publisher does not count.
        old = self._served  # read once, because the thread may replace it meanwhile
        if old is None or old.version < version or not self._is_replaced(old):
            old = None

        def is_served() -> bool:
            return self.version >= version and (old is None or self._served is not old)

        with self._changed:
            self._changed.wait_for(lambda: is_served() or self._failure is not None, seconds)
        if is_served():
            return
        self._raise_failure()
        raise tf.errors.DeadlineExceededError(
            None,
            None,
            f"`version` {version} of {self.path!r} was not served within {seconds} s. Received: "
            f"version {self.version}",
        ) from self._error

    def stop(self) -> None:
        """Ends the thread of `follow`, after the current update. Rows stay.

        Raises:
            RuntimeError: If this is called within `reading` while the thread runs.
            Exception: The error that ended the thread before.
        """
        if self._thread is not None:
            self._lock.check_not_reading("stop")
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()

    # Helpers.

    def _end(self) -> None:
        self.stop()

    def _is_replaced(self, served: Publication) -> bool:
        """Whether another publisher has published in the folder after it was emptied.

        Takes no lock, because a caller within `reading` may hold the thread up.
        """
        beside = self._beside
        try:
            if self._run_of(served.version) == served.run:
                return False
            present = publication.versions_in(self.path)
        except _FILE_ERRORS:
            return False  # unknown; the thread's next update meets and reports the error
        is_damaged = False
        for version in reversed(present):
            try:
                run = self._run_of(version)
            except _FILE_ERRORS:
                is_damaged = True  # the thread's next update reports it
                continue
            if run is not None:
                return run != served.run and run not in beside.values()
        return is_damaged

    def _run_of(self, version: int) -> str | None:
        """Returns the run of a publication, or None if it is missing or incomplete."""
        try:
            return publication.read(self.path, version).run
        except tf.errors.NotFoundError:
            return None  # it was removed, or is not complete yet

    def _run(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self._try_update()
            except Exception as error:
                # The next call of `wait` or `stop` raises it as well.
                logging.exception("The follower of %r ends.", self.path)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return

    def _try_update(self) -> None:
        before = str(self._error)
        try:
            self.update()
        except _FILE_ERRORS as error:
            if str(error) != before:  # warn once for repeated failures
                logging.warning("The follower of %r tries again: %s", self.path, error)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _update(self) -> None:
        failed: dict[int, Exception] = {}
        while True:
            self._look(failed)
            run, version, found = self._start(failed)
            route = publication.route(found, run, version)
            if not route:
                break
            beside = self._runs(failed)
            try:
                self._take(route)
            except _FILE_ERRORS as error:
                failed.update((one.version, error) for one in route if self._blames(one, error))
            else:
                self._beside = beside
        newer = [error for one, error in failed.items() if one > version or self._may_be_new(one)]
        if newer:
            raise newer[-1]

    def _look(self, failed: dict[int, Exception]) -> None:
        """Lists the publications, and reads the new ones."""
        own = self._own()
        for version in own:
            del self._known[version]  # read again, after all lower versions
        if self._rows_of is not None and not own:
            self._known = {}  # numbers may have been reused
        self._list(failed)
        if own and not self._own():
            # The folder may have been emptied, so lower numbers may have been reused, too.
            self._known = {}
            self._list(failed)

    def _own(self) -> list[int]:
        """Returns the known versions of the loaded run, from the loaded version on."""
        if self._rows_of is None:
            return []
        run, version = self._rows_of
        known = self._known.values()
        return [one.version for one in known if one.run == run and one.version >= version]

    def _start(self, failed: dict[int, Exception]) -> tuple[str | None, int, Sequence[Publication]]:
        """Returns the run and version to continue from, and the publications to choose from.

        Run and version are None and 0 if all rows must be loaded. If a folder is emptied, the
        numbers of the next publisher begin at 1, so a lower version may be newer.
        """
        found = [one for one in self._known.values() if one.version not in failed]
        if self._rows_of is None:
            return None, 0, found
        run, version = self._rows_of
        runs = self._runs(failed)
        if self._own():
            self._beside = runs
        elif new := {one for one in runs if self._is_new(one, runs[one], version)}:
            # Publications of other runs are left over.
            new_runs = {runs[one] for one in new}
            return None, 0, [one for one in found if one.run in new_runs]
        return run, version, [one for one in found if one.version >= version]

    def _runs(self, failed: dict[int, Exception]) -> dict[int, str | None]:
        """Returns the run of each version in the folder; None: it can't be read."""
        return {**{one.version: one.run for one in self._known.values()}, **dict.fromkeys(failed)}

    def _is_new(self, version: int, run: str | None, loaded: int) -> bool:
        """Whether a publication was added after the loaded version was."""
        if version > loaded or version not in self._beside:
            return True
        return None not in (run, self._beside[version]) and run != self._beside[version]

    def _may_be_new(self, version: int) -> bool:
        """Whether an unreadable publication may be of a publisher whose numbers begin again."""
        if self._rows_of is None or self._own():
            return False
        return version < self._rows_of[1] and self._beside.get(version, "") is not None

    def _list(self, failed: dict[int, Exception]) -> None:
        present = publication.versions_in(self.path)
        self._known = {one: self._known[one] for one in present if one in self._known}
        for version in present:
            if version in self._known or version in failed:
                continue
            # A folder without a manifest is still being written, or was left by a crash.
            if not publication.exists(self.path, version):
                continue
            try:
                self._known[version] = publication.read(self.path, version)
            except tf.errors.NotFoundError:
                pass  # it was removed just now
            except _FILE_ERRORS as error:
                failed[version] = error

    def _blames(self, one: Publication, error: Exception) -> bool:
        """Whether a publication must not be tried again in this update."""
        is_there = publication.exists(self.path, one.version)
        self._known.pop(one.version, None)  # it may be another publication now
        return is_there or not isinstance(error, tf.errors.NotFoundError)

    def _take(self, route: Sequence[Publication]) -> None:
        """Loads publications as a single update. REQUIRES: the last one has dense weights."""
        last = route[-1]
        dense = dense_weights.weights_of(self._sources)
        for one in route:
            self._check_model(one, dense)
        # Open and check all files before taking the lock, so that a damaged file changes nothing
        # and readers wait only for the writes.
        opened = [
            [
                table.open(self._folder(one), files)
                for table, files in zip(self._tables, one.tables, strict=True)
            ]
            for one in route
        ]
        assert last.weights is not None
        values = dense_weights.read(self._folder(last), last.weights)
        with self._lock.updating():
            if route[0].since is None:
                self._rows_of = None  # until all rows are loaded
            for of_tables in opened:
                for table, rows in zip(self._tables, of_tables, strict=True):
                    table.take(rows)
            for variable, value in zip(dense, values, strict=True):
                variable.assign(value)
            self._rows_of = (last.run, last.version)
        with self._changed:
            self._served = last
            self._error = None
            self._changed.notify_all()

    def _folder(self, one: Publication) -> str:
        return os.path.join(self.path, publication.folder_name(one.version))

    def _check_model(self, one: Publication, dense: Sequence[Any]) -> None:
        """Refuses a publication of another model."""
        names = [followed.table.options.name for followed in self._tables]
        kinds = [followed.table.options.kind for followed in self._tables]
        theirs = [files.table for files in one.tables]
        if list(one.kinds) != kinds or not _are_alike(names, theirs):
            raise ValueError(
                f"`model` must have the tables that are published in {self._folder(one)!r}: "
                f"{_listed(theirs, one.kinds)}. Received: {_listed(names, kinds)}"
            )
        if one.weights is None:
            return
        weights = dense_weights.descriptions(dense)
        if not _are_alike_weights(weights, one.weights.weights):
            pairs = list(zip([*weights, None], [*one.weights.weights, None], strict=False))
            unlike = [pair for pair in pairs if _unnumbered(pair[0]) != _unnumbered(pair[1])]
            # If `unlike` is empty, only the order differs.
            mine, its = [*unlike, *(pair for pair in pairs if pair[0] != pair[1])][0]
            raise ValueError(
                f"`model` must have the dense weights that are published in "
                f"{self._folder(one)!r}, {len(one.weights.weights)} of which this is the first "
                f"that differs: {its}. Received: {len(weights)} weights, and {mine} there"
            )


def _check_tables(tables: Sequence[Table]) -> None:
    if not tables:
        raise ValueError(
            "`model` must have a table. Received: variables and layers without any; layers have "
            "theirs once they are built"
        )
    for table in tables:
        if table.spread.group is not None:
            raise ValueError(
                "`model` must have tables of this process alone: make it without a strategy. "
                f"Received: {table.options.name!r}, which is {table.spread.where}"
            )
        if len(table.parts) > 1:
            raise ValueError(
                "`model` must have tables on one device each: name one in `devices`. Received: "
                f"{table.options.name!r}, which is {table.spread.where}"
            )


def _are_alike(names: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether names may be of the same tables. Keras numbers the names that it chose itself."""
    if list(names) == list(theirs):
        return True
    if sorted(names) == sorted(theirs):
        return False  # in another order
    return [_without_number(one) for one in names] == [_without_number(one) for one in theirs]


def _without_number(name: str) -> str:
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else name


def _are_alike_weights(weights: Sequence[Weight], theirs: Sequence[Weight]) -> bool:
    """Whether weights may be the same, by shapes, dtypes and names."""
    alike = [_unnumbered(one) for one in weights] == [_unnumbered(one) for one in theirs]
    return alike and _are_alike([one.name for one in weights], [one.name for one in theirs])


def _unnumbered(weight: Weight | None) -> Weight | None:
    return weight and dataclasses.replace(weight, name=_without_number(weight.name))


def _listed(names: Sequence[str], kinds: Sequence[str]) -> str:
    return "; ".join(f"{name!r} ({kind})" for name, kind in zip(names, kinds, strict=True))
