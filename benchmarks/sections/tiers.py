# SPDX-License-Identifier: Apache-2.0
"""Tables larger than memory: steps, misses compared with fio's reads, resident memory, overwriting.

The C++ program tiers_benchmark measures. RocksDB below the same cache is measured if the program
was built with it, and misses are compared with fio's reads if fio is installed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from machine import Load, LoadWatch
from rows import OURS, Row
from settings import BUILD, Settings

PROGRAM = BUILD / "tiers_benchmark"
WITH_ROCKSDB = BUILD / "tiers_benchmark_rocksdb"
BATCH = 65536
BLOCK = 4096  # the size of the store's reads at dim 64
QUEUE_DEPTH = 256
# A mapped array that has more than its bound in memory is not compared.
MOST_MAPPED = 1.1

PREFETCH, MEMORY, ROCKSDB, MAPPED = "with prefetch", "in memory", "RocksDB", "mapped array"
NAMES = {
    "disk": OURS,
    "disk+prefetch": PREFETCH,
    "memory": MEMORY,
    "rocksdb": ROCKSDB,
    "rocksdb+prefetch": "RocksDB with prefetch",
    "mapped": MAPPED,
}


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a part. It begins with the name of the measurement: "steps 1e6x64"."""
    what, size = part.split()
    measure = {
        "steps": _steps,
        "ahead": _ahead,
        "resident": _resident,
        "overwrites": _overwrites,
    }[what]
    settings.folder.mkdir(parents=True, exist_ok=True)
    # The files of a run are removed, also after a failure.
    with tempfile.TemporaryDirectory(prefix="tiers-", dir=settings.folder) as folder:
        yield from measure(size, pathlib.Path(folder), settings)


def _steps(size: str, folder: pathlib.Path, settings: Settings) -> Iterator[Row]:
    """Steps at several shares of hits; fio runs before and after them."""
    keys, dim = (int(float(number)) for number in size.split("x"))
    tables = ["memory", "disk", "disk+prefetch"]
    program = PROGRAM
    if WITH_ROCKSDB.exists():
        program = WITH_ROCKSDB
        tables += ["rocksdb"] if settings.quick else ["rocksdb", "rocksdb+prefetch"]
    if settings.more:
        tables.append("mapped")
    steps = 8 if settings.quick else 20
    watch = LoadWatch()
    reads = [_fio_reads(folder, keys * 12 * dim)]
    found = _run(
        program,
        folder,
        f"--tables={','.join(tables)}",
        *(str(number) for number in (keys, dim, BATCH, 2, steps)),
    )
    reads.append(_fio_reads(folder, keys * 12 * dim))
    load = watch.load()
    yield from step_rows(f"{size}, batches of {BATCH}", found["cells"], load, reads)
    yield misses_row(f"{size}, 50% hits", found["cells"], reads, load)


def _ahead(size: str, folder: pathlib.Path, settings: Settings) -> Iterator[Row]:
    """Steps by one thread, so that prefetch has a core to itself."""
    keys, dim = (int(float(number)) for number in size.split("x"))
    steps = 10 if settings.quick else 40
    watch = LoadWatch()
    found = _run(
        PROGRAM,
        folder,
        "--hits=1,0.99,0.95",
        *(str(number) for number in (keys, dim, BATCH, 1, steps)),
    )
    case = f"{size}, batches of {BATCH}, one thread"
    for row in step_rows(case, found["cells"], watch.load()):
        spare = row.figures.get("tiers_hits99_prefetch_of_memory")
        figures = {} if spare is None else {"tiers_hits99_prefetch_spare_core": spare}
        yield dataclasses.replace(row, figures=figures)


def step_rows(
    case: str, cells: Sequence[dict[str, Any]], load: Load, reads: Sequence[float | None] = ()
) -> Iterator[Row]:
    """A row for each share of hits, from the program's output for each table.

    Args:
        reads: What fio read in a second, which makes a floor: the longer of the step in memory and
            the reads of the misses.
    """
    for share in sorted({cell["hits"] for cell in cells}, reverse=True):
        times: dict[str, list[float]] = {}
        for cell in cells:
            if cell["hits"] != share:
                continue
            milliseconds = cell["steps_ms"]
            if "dropping_ms" in cell:
                if cell["resident_over_bound"] > MOST_MAPPED:
                    continue
                # The kernel would do this work too, in another way. So it does not count.
                pairs = zip(milliseconds, cell["dropping_ms"], strict=True)
                milliseconds = [all_of_it - dropping for all_of_it, dropping in pairs]
            times[NAMES[cell["table"]]] = milliseconds
        of_memory = _median_ratio(times[MEMORY], times[OURS])
        with_prefetch = _median_ratio(times[MEMORY], times[PREFETCH])
        figures: dict[str, float] = {}
        floors: dict[str, float] = {}
        if share == 1.0:
            figures["tiers_hits100_of_memory"] = of_memory
        elif share == 0.99:
            figures["tiers_hits99_of_memory"] = of_memory
            figures["tiers_hits99_prefetch_of_memory"] = with_prefetch
        elif share == 0.9 and ROCKSDB in times:
            figures["tiers_vs_rocksdb"] = _median_ratio(times[ROCKSDB], times[OURS])
            done = [one for one in reads if one is not None]
            if done:
                of_misses = BATCH * (1 - share) / statistics.mean(done) * 1e3
                floor = [max(milliseconds, of_misses) for milliseconds in times[MEMORY]]
                floors["tiers_vs_rocksdb"] = _median_ratio(times[ROCKSDB], floor)
        yield Row(
            section="tiers",
            case=f"step of Adam, {case}, {share:.0%} hits",
            unit="ms",
            values={name: statistics.median(steps) for name, steps in times.items()},
            load=load,
            ratios={
                name: _median_ratio(steps, times[OURS])
                for name, steps in times.items()
                if name != OURS
            },
            figures=figures,
            floors=floors,
            note=f"throughput {of_memory:.2f} of memory's, with prefetch {with_prefetch:.2f}",
        )


def misses_row(
    case: str, cells: Sequence[dict[str, Any]], reads: Sequence[float | None], load: Load
) -> Row:
    """Rows promoted in a second of steps, compared with fio's reads before and after."""
    at_half = {cell["table"]: cell for cell in cells if cell["hits"] == 0.5}
    values = {
        NAMES[table]: cell["rows_up_per_second"]
        for table, cell in at_half.items()
        if cell.get("rows_up_per_second", 0) > 0
    }
    disk = at_half["disk"]
    done = [one for one in reads if one is not None]
    if not done:
        note, figures = "fio is not installed: apt-get install fio", {}
    elif round(disk["bytes_per_read"]) != BLOCK:
        note, figures = f"fio read blocks of {BLOCK} bytes, which are not the table's", {}
    else:
        values["fio"] = statistics.mean(done)
        figures = {"tiers_misses_vs_fio": values[OURS] / values["fio"]}
        both = " and ".join(f"{one:,.0f}" for one in done)
        note = f"fio read {both}; the table {disk['reads_per_second']:,.0f} blocks a second"
    return Row("tiers", f"misses, {case}", "rows/s", values, load, figures=figures, note=note)


def _resident(size: str, folder: pathlib.Path, settings: Settings) -> Iterator[Row]:
    keys, dim = size.split("x")
    watch = LoadWatch()
    found = _run(PROGRAM, folder, "--measure=resident", keys, dim, str(BATCH), "2", "8")
    yield Row(
        section="tiers",
        case=f"resident memory over bound and index, {size}, batches of {BATCH}",
        unit="x",
        values={OURS: found["over"]},
        load=watch.load(),
        figures={"tiers_resident_over_plan": found["over"]},
        note=f"{found['resident_bytes'] / 1e6:.4g} MB, bound {found['cache_bytes'] / 1e6:.4g}, "
        f"index {found['index_bytes'] / 1e6:.4g}",
    )


def _overwrites(size: str, folder: pathlib.Path, settings: Settings) -> Iterator[Row]:
    """Assigns all rows 100 times."""
    keys, dim = size.split("x")
    watch = LoadWatch()
    batch = str(int(float(keys)) // 16)
    found = _run(PROGRAM, folder, "--measure=overwrites", keys, dim, batch, "2", "100")
    load = watch.load()
    case = f"{size}, batches of {batch}, all rows assigned {found['rounds']:.0f} times"
    yield Row(
        section="tiers",
        case=f"disk over live rows at most: {case}",
        unit="x",
        values={OURS: found["disk_over_live"]},
        load=load,
        figures={"tiers_disk_over_live": found["disk_over_live"]},
    )
    over_median = found["worst_ms"] / found["median_ms"]
    yield Row(
        section="tiers",
        case=f"longest step: {case}",
        unit="ms",
        values={
            "median": found["median_ms"],
            "99% within": found["ms_99"],
            "longest": found["worst_ms"],
        },
        load=load,
        figures={"tiers_worst_step_over_median": over_median},
        note=f"{over_median:.2f} x the median",
    )


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def _run(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> dict[str, Any]:
    """The last object of JSON that the program prints."""
    command = (os.fspath(program), f"--folder={folder}", "--json", *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def _fio_reads(folder: pathlib.Path, size: int) -> float | None:
    """Random reads a second of a file of this size; None without fio.

    Direct I/O by one thread, with the store's blocks and queue, so the page cache is not involved.
    """
    if shutil.which("fio") is None:
        return None
    command = ["fio", "--name=read", f"--directory={folder}", f"--size={size}", f"--bs={BLOCK}"]
    command += ["--rw=randread", "--direct=1", "--ioengine=io_uring", f"--iodepth={QUEUE_DEPTH}"]
    command += ["--runtime=3", "--time_based", "--output-format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])
