# SPDX-License-Identifier: Apache-2.0
"""Runs a program again with a preloaded library, which intercepts system calls."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def start_under(source: pathlib.Path, variable: str) -> None:
    """Runs this program again under a library, unless it does already.

    Args:
        source: The source file of the library.
        variable: The environment variable that holds the library's path in the new process.
    """
    if variable in os.environ:
        os.environ.pop("LD_PRELOAD", None)  # not for programs that this program starts
        return
    folder = tempfile.mkdtemp(prefix=source.stem)
    library = os.path.join(folder, f"{source.stem}.so")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise SystemExit(f"There is no {compiler}: apt-get install g++, or set CXX to a compiler.")
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, str(source), "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": library, variable: library}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def remove_library(variable: str) -> None:
    """Removes the library that `start_under` built. The program continues."""
    path = pathlib.Path(os.environ[variable])
    path.unlink(missing_ok=True)
    path.parent.rmdir()
