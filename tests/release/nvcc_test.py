# SPDX-License-Identifier: Apache-2.0
"""The headers that bazel/nvcc.sh tells Bazel to ignore. nvcc is a stand-in."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile

from absl.testing import absltest

from support import ROOT

# Names included files as nvcc does: nvcc's own in full, files found by -I. from ./ on.
NVCC = """#!/bin/bash
while (($#)); do
  case $1 in
    -MF) dependencies=$2 ;;
    -o) object=$2 ;;
  esac
  shift
done
cat >"$dependencies" <<'END'
out/a.o : cc/a.cu \\
    /usr/local/cuda/include/cuda_runtime.h \\
    ./cc/used.h \\
    ./cc/used_too.h
END
touch "$object"
"""


class NvccTest(absltest.TestCase):
    def test_only_headers_that_are_not_included_are_unused(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        nvcc = folder / "nvcc"
        nvcc.write_text(NVCC)
        nvcc.chmod(0o755)
        listed, unused, made = folder / "listed", folder / "unused", folder / "a.o"
        headers = ["cc/not_used.h", "cc/used.h", "cc/used_too.h", "cc/used_too.hpp"]
        listed.write_text("".join(f"{header}\n" for header in headers))
        command = [ROOT / "bazel/nvcc.sh", nvcc, "cc/a.cu", made, listed, unused, "-O3"]
        subprocess.run(command, check=True)
        self.assertTrue(made.exists())
        self.assertEqual(unused.read_text().split(), ["cc/not_used.h", "cc/used_too.hpp"])
        self.assertFalse((folder / "a.o.d").exists())


if __name__ == "__main__":
    absltest.main()
