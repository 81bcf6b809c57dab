# SPDX-License-Identifier: Apache-2.0
"""The engine without TensorFlow, compared with the minimum of any hash table.

The minimum is measured in the same run: rows gathered from an array, with a read of a random index
line for each row.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

from machine import LoadWatch
from rows import Row
from settings import BUILD, Settings

PROGRAM = BUILD / "host_store_benchmark"
FIGURE = "lookup_share_of_floor"


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Runs the C++ program. Its last line is an object of JSON with names and numbers."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    command = [os.fspath(PROGRAM), "--json", str(keys), str(dim), "65536"]
    watch = LoadWatch()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{PROGRAM.name} --json gave no line of JSON, but {done.returncode}.")
    values = json.loads(lines[-1])
    share = values.pop(FIGURE)
    load = watch.load()
    by_ids: dict[str, dict[str, float]] = {}  # names begin with the distribution of the ids
    for name, value in values.items():
        ids, _, verb = name.partition(", ")
        by_ids.setdefault(ids, {})[verb] = value
    for ids, verbs in by_ids.items():
        uniform = ids == "uniform"
        yield Row(
            section="core",
            case=f"{part}, 65536 ids, {ids}",
            unit="ns/key",
            values=verbs,
            load=load,
            figures={FIGURE: share} if uniform and part == "1e7x64" else {},
            note=f"find is {share:.0%} of the floor" if uniform else "",
        )
