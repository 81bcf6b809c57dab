# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, or that accept no file, for tests."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import subprocess
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def file_system(*options: str) -> Iterator[pathlib.Path | None]:
    """A small file system in memory; None if this user may not mount it."""
    folder = pathlib.Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@contextlib.contextmanager
def file_limit(most_bytes: int) -> Iterator[None]:
    """Limits the length of files. Python ignores the signal, so a longer write raises an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
