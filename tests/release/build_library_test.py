# SPDX-License-Identifier: Apache-2.0
"""setup.py builds a tree for two versions of TensorFlow at once.

Bazel and TensorFlow are stand-ins. Like the real Bazel, this Bazel has a single output folder.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest

from support import ROOT

FILES = (
    "setup.py",
    "configure.sh",
    "pyproject.toml",
    "README.md",
    "tf_embed/__init__.py",
    "tf_embed/_version.py",
)

BAZEL = """#!/bin/bash
cd "$(dirname "$0")"
case " $* " in
  *" --version "*) echo "bazel 6.5.0" ;;
  *" build "*)
    exec 9>bazel_lock
    flock 9
    sleep 1
    sed -n 's/.*TENSORFLOW_VERSION=//p' "${1#--bazelrc=}" >_tf_embed.so ;;
  *" info "*)
    sleep 2
    pwd ;;
esac
"""


class BuildLibraryTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.tree = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in FILES:
            (self.tree / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)
        self.bazel = self.tree / "bazel"
        self.bazel.write_text(BAZEL)
        self.bazel.chmod(0o755)

    def tensorflow(self, version: str) -> pathlib.Path:
        folder = self.tree / f"tf{version}"
        (folder / "tensorflow" / "include").mkdir(parents=True)
        (folder / "tensorflow" / "__init__.py").touch()
        (folder / "tensorflow" / "libtensorflow_framework.so.2").touch()
        info = folder / f"tensorflow_cpu-{version}.dist-info"
        info.mkdir()
        (info / "top_level.txt").write_text("tensorflow\n")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: {version}\n"
        )
        return folder

    def start(self, version: str) -> subprocess.Popen:
        variables = {
            "PYTHONPATH": str(self.tensorflow(version)),
            "BAZEL": str(self.bazel),
            "HIREDIS": "",
            "TF_EMBED_CUDA": "0",
            "TF_EMBED_CACHE": str(self.tree / "cache"),
        }
        command = [sys.executable, "setup.py", "-q", "build_py", f"--build-lib=build/{version}"]
        return subprocess.Popen(
            command,
            cwd=self.tree,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def test_two_at_once_have_each_its_own_library(self):
        versions = ["2.16.2", "2.19.1"]
        for build in [self.start(version) for version in versions]:
            said = build.communicate()[0]
            self.assertEqual(build.returncode, 0, said)
        for version in versions:
            folder = self.tree / "build" / version / "tf_embed"
            built_for = json.loads((folder / "_tf_embed.json").read_text())
            self.assertEqual(built_for["tensorflow_version"], version)
            self.assertEqual((folder / "_tf_embed.so").read_text(), f"{version}\n")


if __name__ == "__main__":
    absltest.main()
