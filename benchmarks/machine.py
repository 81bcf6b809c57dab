# SPDX-License-Identifier: Apache-2.0
"""The machine: its hardware, its other load, the memory of a process. Linux only."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import re
import time
from collections.abc import Sequence

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Load:
    """The other load of a machine during a measurement.

    Attributes:
        average: The load average of one minute at the beginning, the benchmark included.
        others: Mean number of cores that other processes, and the host of a virtual machine, kept
            busy during the measurement. The benchmark is not included.
    """

    average: float
    others: float


def _busy_seconds() -> float:
    """Seconds that all cores together were busy or stolen since the machine booted."""
    line = pathlib.Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


def _process_seconds(pid: int) -> float:
    """Processor seconds of a process and of the children that it has waited for."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND


class LoadWatch:
    """Measures the load since its construction. `pids` are the processes of the benchmark."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self._pids = pids or (os.getpid(),)
        self._average = os.getloadavg()[0]
        self._begin = self._seconds()

    def _seconds(self) -> tuple[float, float, float]:
        return time.monotonic(), _busy_seconds(), sum(map(_process_seconds, self._pids))

    def load(self) -> Load:
        """The load since the beginning."""
        elapsed, busy, own = (
            now - then for now, then in zip(self._seconds(), self._begin, strict=True)
        )
        return Load(self._average, max(0.0, busy - own) / max(elapsed, 1e-9))


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, huge pages included."""
    return _kilobytes(f"/proc/{pid}/smaps_rollup", "Rss") * 1024


def peak_resident_bytes() -> int:
    """The highest resident memory since `forget_peak`."""
    return _kilobytes("/proc/self/status", "VmHWM") * 1024


def forget_peak() -> None:
    """Resets `peak_resident_bytes`."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def available_bytes() -> int:
    """Memory that is available without swapping."""
    return _kilobytes("/proc/meminfo", "MemAvailable") * 1024


def description() -> dict[str, str]:
    """The machine in a few words."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpu, re.MULTILINE)
    return {
        "processor": model.group(1) if model else platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{_kilobytes('/proc/meminfo', 'MemTotal') / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _kilobytes(path: str, name: str) -> int:
    text = pathlib.Path(path).read_text()
    found = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{path} has no line {name}.")
    return int(found.group(1))
