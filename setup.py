# SPDX-License-Identifier: Apache-2.0
"""Builds the package and, through Bazel, its op library.

    pip install .                                 with or without --no-build-isolation
    pip install -e . --no-build-isolation
    python setup.py build_library                 the library alone, into the source tree

The library is built for the TensorFlow of the Python that runs this file. `_tf_embed.json` beside
it and the local part of the package's version (0.1.0+tf2.21.0) name that TensorFlow.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import ClassVar

import setuptools

# Read here, because older versions fail in pyproject.toml with a page of errors.
if int(setuptools.__version__.split(".")[0]) < 77:
    raise SystemExit(
        f"setup.py: setuptools {setuptools.__version__} is too old: run "
        "`pip install --upgrade setuptools` to get version 77 or newer."
    )

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent
LIBRARY = "_tf_embed.so"
REDIS_LIBRARY = "libtf_embed_redis.so"  # where there is hiredis to build it with
REDIS_TARGET = f"//cc/stores/redis/client:{REDIS_LIBRARY}"

_TENSORFLOW_VERSION = """
import importlib.metadata, importlib.util
names = importlib.metadata.packages_distributions().get("tensorflow", [])
if names and importlib.util.find_spec("tensorflow"):
    print(importlib.metadata.version(names[0]).split("+")[0])
"""


def environment() -> dict[str, str]:
    """The variables under which this Python sees its own packages.

    pip's build isolation hides them by these two.
    """
    hidden = ("PYTHONPATH", "PYTHONNOUSERSITE") if "PIP_BUILD_TRACKER" in os.environ else ()
    return {name: value for name, value in os.environ.items() if name not in hidden} | {
        "PYTHON": sys.executable
    }


def tensorflow_version() -> str:
    """The version of this Python's TensorFlow, "" where there is none."""
    command = [sys.executable, "-c", _TENSORFLOW_VERSION]
    return subprocess.run(
        command, env=environment(), check=True, capture_output=True, text=True
    ).stdout.strip()


def package_version() -> str:
    source = (ROOT / "tf_embed" / "_version.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE).group(1)
    tensorflow = tensorflow_version()
    return f"{version}+tf{tensorflow}" if tensorflow else version


def bazel(rc: pathlib.Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    command = os.environ.get("BAZEL") or shutil.which("bazel") or "bazelisk"
    done = subprocess.run([command, f"--bazelrc={rc}", *arguments], cwd=ROOT, text=True, **options)
    if done.returncode:
        raise SystemExit(f"setup.py: `bazel {' '.join(arguments)}` failed; its messages are above.")
    return done


def quiet_progress() -> list[str]:
    """Options of a build that shows its progress in a line, or a line now and then in a log."""
    seconds = 0.2 if sys.stderr.isatty() else 20
    return [
        "--ui_event_filters=-info",
        "--noshow_loading_progress",
        f"--show_progress_rate_limit={seconds}",
    ]


def put(library: pathlib.Path, folder: pathlib.Path) -> None:
    """Renames a copy into place: a process that has the old library open keeps it."""
    fresh = folder / f"{library.name}.new"
    shutil.copyfile(library, fresh)
    fresh.chmod(0o755)
    fresh.replace(folder / library.name)


def build_library(folder: pathlib.Path) -> None:
    """Builds the library for this Python's TensorFlow and puts it into `folder`."""
    tensorflow = tensorflow_version()
    if not tensorflow:
        raise SystemExit(
            f"setup.py: {sys.executable} has no TensorFlow to build for: install tensorflow-cpu or "
            "tensorflow there, and run pip with --no-build-isolation if it still is not found."
        )
    rc = ROOT / "build" / f"tf{tensorflow}.bazelrc"
    configure = [ROOT / "configure.sh", f"--output={rc}"]
    if subprocess.run(configure, env=environment()).returncode:
        raise SystemExit(1)
    has_hiredis = re.search("TF_EMBED_HIREDIS=.", rc.read_text()) is not None
    folder.mkdir(parents=True, exist_ok=True)
    with (ROOT / "build" / "lock").open("w") as lock:
        # Builds for all versions of TensorFlow have one folder of outputs.
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("Building the op library; the first time takes minutes ...", flush=True)
        targets = [f"//:{LIBRARY}", *([REDIS_TARGET] if has_hiredis else [])]
        bazel(rc, "build", *quiet_progress(), *targets)
        built = bazel(rc, "info", "bazel-bin", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        outputs = pathlib.Path(built.stdout.strip())
        put(outputs / LIBRARY, folder)
        if has_hiredis:
            put(outputs / REDIS_TARGET.strip("/").replace(":", "/"), folder)
        else:
            (folder / REDIS_LIBRARY).unlink(missing_ok=True)
    cuda = b".nv_fatbin" in (folder / LIBRARY).read_bytes()  # the section of what nvcc compiled
    built_for = {"tensorflow_version": tensorflow, "cuda": cuda}
    (folder / "_tf_embed.json").write_text(json.dumps(built_for) + "\n")


class BuildLibrary(setuptools.Command):
    """Builds the op library into the source tree."""

    description = "build the op library into the source tree"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self):
        pass

    def finalize_options(self):
        pass

    def run(self):
        build_library(ROOT / "tf_embed")


class BuildPy(build_py):
    """Builds the op library with the modules: into the source tree for -e, else into the wheel."""

    def run(self):
        if getattr(self, "editable_mode", False):
            folder = ROOT / "tf_embed"
        else:
            folder = pathlib.Path(self.build_lib) / "tf_embed"
            # An earlier build may have left modules there that the tree has no more.
            shutil.rmtree(folder, ignore_errors=True)
        super().run()
        build_library(folder)


class BdistWheel(bdist_wheel):
    """An op library uses no Python ABI: one wheel serves every Python 3."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(setuptools.Distribution):
    def has_ext_modules(self):
        return True


setuptools.setup(
    version=package_version(),
    packages=setuptools.find_packages(include=["tf_embed", "tf_embed.*"]),
    distclass=BinaryDistribution,
    cmdclass={"build_library": BuildLibrary, "build_py": BuildPy, "bdist_wheel": BdistWheel},
)
