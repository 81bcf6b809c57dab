# SPDX-License-Identifier: Apache-2.0
"""Memory that the host of a virtual machine has already provided.

The host provides a page when it is first touched. This takes up to 3 ms a MiB, far longer than a
table's work with the page. A guest may return memory to the host that has been free for half a
second. So another process holds the memory for a measurement until shortly before it.

    python benchmarks/warm_memory.py BYTES

holds that many bytes, and frees as many as it reads in each line.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import machine

_HUGE_PAGE_BYTES = 2 << 20
_LEFT_BYTES = 3 << 30  # for other processes


class WarmMemory:
    """Memory in another process, so that it does not count as memory of this process."""

    def __init__(self, size_bytes: int) -> None:
        """Touches `size_bytes`, or as much as other processes can spare."""
        size = max(0, min(size_bytes, machine.available_bytes() - _LEFT_BYTES))
        command = [sys.executable, os.path.abspath(__file__), str(size)]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._wait()

    def release(self, size_bytes: int) -> None:
        """Frees at least `size_bytes`, or the rest. The next user of memory gets it."""
        assert self._keeper.stdin is not None
        print(size_bytes, file=self._keeper.stdin, flush=True)
        self._wait()

    def held_bytes(self) -> int:
        """The approximate number of bytes that are not yet freed."""
        return machine.resident_bytes(self._keeper.pid)

    def close(self) -> None:
        """Frees all memory, and waits, so that this process bears the cost."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def _wait(self) -> None:
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline().strip() != "done":
            raise RuntimeError("The process that holds memory has ended.")


def _hold(size_bytes: int) -> None:
    size = -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    with mmap.mmap(-1, size + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1
        print("done", flush=True)
        released = 0
        for line in sys.stdin:
            wanted = -(-int(line) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            some = min(wanted, size - released)
            if some > 0:
                memory.madvise(mmap.MADV_DONTNEED, released, some)
                released += some
            print("done", flush=True)


if __name__ == "__main__":
    _hold(int(sys.argv[1]))
