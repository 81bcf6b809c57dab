# SPDX-License-Identifier: Apache-2.0
"""The bill of materials in a wheel. The wheel is a real one, around a library that is a dummy."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import tensorflow as tf
from absl.testing import absltest

import bill_of_materials
from support import ROOT

# A fake Bazel, whose libraries are built already.
BAZEL = """#!/bin/sh
case "$*" in
  *bazel-bin*) echo "{outputs}" ;;
  *version*) echo "bazel 7.4.1" ;;
esac
"""
COPIED = ("configure.sh", "LICENSE", "pyproject.toml", "README.md", "setup.py")


def _built_wheel(folder: pathlib.Path) -> pathlib.Path:
    source, outputs = folder / "source", folder / "outputs"
    source.mkdir()
    for name in COPIED:
        shutil.copy(ROOT / name, source)
    for name in ("bazel", "release"):
        shutil.copytree(ROOT / name, source / name)
    (source / "tf_embed").mkdir()
    for name in ("__init__.py", "_version.py", "py.typed"):
        shutil.copy(ROOT / "tf_embed" / name, source / "tf_embed")
    redis = outputs / "cc" / "redis" / "client"
    redis.mkdir(parents=True)
    (outputs / "_tf_embed.so").write_bytes(b"dummy")
    (redis / "libtf_embed_redis.so").write_bytes(b"dummy")
    bazel = folder / "bazel"
    bazel.write_text(BAZEL.format(outputs=outputs))
    bazel.chmod(0o755)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    command += ["--wheel-dir", str(folder / "dist"), str(source)]
    variables = os.environ | {"BAZEL": str(bazel), "TF_EMBED_CUDA": "0"}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


class BillOfMaterialsTest(absltest.TestCase):
    def test_a_wheel_has_one(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        with zipfile.ZipFile(_built_wheel(folder)) as wheel:
            (name,) = [one for one in wheel.namelist() if "/sboms/" in one]
            bill = json.loads(wheel.read(name))
            (record,) = [one for one in wheel.namelist() if one.endswith("/RECORD")]
            self.assertIn(name, wheel.read(record).decode())
            has_redis = "tf_embed/libtf_embed_redis.so" in wheel.namelist()
        self.assertRegex(name, r"^tf_embed-.*\.dist-info/sboms/tf_embed\.cdx\.json$")
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        component = bill["metadata"]["component"]
        self.assertEndsWith(component["version"], f"+tf{tf.__version__}")
        self.assertNotEmpty(component["properties"][0]["value"])
        parts = {(one["name"], one["scope"]): one for one in bill["components"]}
        self.assertEqual(parts["tensorflow", "required"]["version"], tf.__version__)
        self.assertRegex(parts["abseil-cpp", "required"]["version"], r"^\d{8}$")
        self.assertRegex(parts["eigen", "required"]["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(("hiredis", "required") in parts, has_redis)
        self.assertNotIn(("cuda-runtime", "required"), parts)
        self.assertIn(("absl-py", "excluded"), parts)
        self.assertIn(("numpy", "excluded"), parts)
        references = [one["bom-ref"] for one in bill["components"]]
        self.assertCountEqual(references, set(references))

    def test_a_header_without_a_version_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "a.h"
            header.write_text("#define MAJOR 1\n#define MINOR x\n")
            self.assertEqual(bill_of_materials.defined(header, "MAJOR"), "1")
            with self.assertRaisesRegex(ValueError, "a.h must define MINOR as a number"):
                bill_of_materials.defined(header, "MAJOR", "MINOR")


if __name__ == "__main__":
    absltest.main()
