# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tf_embed.inspect PATH`. See docs/guides/inspect.md."""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import signal
import sys
from collections.abc import Sequence

from tf_embed.inspect.diff import difference, difference_text, pairs_of
from tf_embed.inspect.export import export
from tf_embed.inspect.histogram import histogram_text, histograms_of, write_png
from tf_embed.inspect.recognize import save_at
from tf_embed.inspect.report import report
from tf_embed.inspect.rows import rows_text
from tf_embed.inspect.saves import InspectError, Save
from tf_embed.variable.memory_report import size_text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tf_embed.inspect",
        description="Shows what is in a save of tf_embed: a snapshot, a publication, a folder of "
        "these, row files, a checkpoint, a SavedModel, a .keras file or a .weights.h5 file. "
        "Nothing is loaded or changed.",
    )
    parser.add_argument("path", help="the file or folder; the prefix of a checkpoint")
    parser.add_argument("--table", metavar="NAME", help="only this table")
    parser.add_argument("--verify", action="store_true", help="read all, check every checksum")
    parser.add_argument("--rows", nargs="+", metavar="KEY", help="show the rows of these keys")
    parser.add_argument(
        "--histogram", action="store_true", help="draw the norms of rows, and their saved use"
    )
    parser.add_argument("--png", metavar="FILE", help="draw the histograms as an image too")
    parser.add_argument("--diff", metavar="OTHER", help="compare with a newer save")
    parser.add_argument(
        "--to", metavar="FILE", help="write all rows to FILE.parquet, FILE.npz or FILE.csv"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.png and not options.histogram:
        parser.error("argument --png: needs --histogram")
    try:
        return _run(options)
    except InspectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:  # of the rows that are compared or drawn
        print(f"error: '{options.path}' needs more memory than there is.", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    save = _chosen(save_at(options.path), options.table)
    asks_for_rows = options.rows or options.histogram or options.diff or options.to
    if asks_for_rows and not save.tables:
        names = ", ".join(member.name for member in save.members)
        raise InspectError(
            f"'{save.path}' is a {save.kind}: name one of {names}."
            if names and save.kind != "storage"
            else f"'{save.path}' has no table whose rows can be read."
        )
    if options.to and len(save.tables) > 1:
        raise InspectError(
            "`--to` writes one table: choose one by `--table`. Received: "
            f"{[table.name for table in save.tables]}"
        )
    other = _chosen(save_at(options.diff), options.table) if options.diff else None
    pairs = pairs_of(save, other) if other is not None else []
    if not asks_for_rows:
        print(report(save))
    if options.verify and not _verify(save):
        return 1
    if options.rows:
        print("\n".join(rows_text(table, options.rows) for table in save.tables))
    if options.histogram:
        _draw(save, options.png)
    for old, new in pairs:
        print(difference_text(old, difference(old, new)))
    if options.to:
        count = export(save.tables[0], options.to)
        print(f"{count:,} rows in {options.to}")
    return 0


def _chosen(save: Save, name: str | None) -> Save:
    """A save with one of its tables."""
    if name is None:
        return save
    tables = tuple(table for table in save.tables if table.name == name)
    if not tables:
        raise InspectError(
            f"`--table` must be a table of '{save.path}', which has "
            f"{[table.name for table in save.tables]}. Received: {name!r}"
        )
    return dataclasses.replace(save, tables=tables)


def _verify(save: Save) -> bool:
    """Checks all that a save consists of, and prints each finding once."""
    if save.kind == "storage":
        raise InspectError(f"'{save.path}' has working files, which have nothing to verify.")
    found: list[str] = []
    for check in save.checks:
        try:
            check()
        except InspectError as error:
            found.append(str(error))
    for message in dict.fromkeys(found):
        print(f"error: {message}", file=sys.stderr)
    if not found:
        print(f"\nEvery checksum is right: {size_text(save.checked_bytes)} read.")
    return not found


def _draw(save: Save, png: str | None) -> None:
    all_found = {}
    for table in save.tables:
        all_found[table.name] = histograms_of(table)
        print(histogram_text(table, all_found[table.name]))
    if png:
        write_png(png, all_found)


def _run_as_program() -> int:
    """Runs the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have the bars
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has enough, such as `head`. Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # the status that shells give


if __name__ == "__main__":
    sys.exit(_run_as_program())
