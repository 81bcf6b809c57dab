# SPDX-License-Identifier: Apache-2.0
"""The CUDA that configure.sh finds, and its message about an unsuitable CUDA.

Bazel and nvcc are stand-ins; TensorFlow and the C++ compiler are the machine's.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from support import ROOT

NVCC = """#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.131" ;;
  *" -E "*) {preprocess} ;;
  --dryrun*) echo '#$ LIBRARIES=  "-L{folder}/nothing" "-L{folder}/lib"' >&2 ;;
esac
"""


class ConfigureTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (self.folder / "bin").mkdir()
        (self.folder / "lib").mkdir()
        self.cudart = self.folder / "lib" / "libcudart_static.a"
        self.cudart.touch()
        self.program("bazel", "#!/bin/sh\necho bazel 6.5.0\n")

    def program(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def nvcc(self, version: str = "12.4", preprocess: str = ":") -> pathlib.Path:
        text = NVCC.format(version=version, preprocess=preprocess, folder=self.folder)
        return self.program("nvcc", text)

    def configure(self, *options: str, **variables: object) -> tuple[str, dict[str, str]]:
        """Returns the last line and the libraries for Bazel: none if configure.sh fails."""
        output = self.folder / "bazelrc"
        output.unlink(missing_ok=True)
        keep = {name: os.environ[name] for name in ("CC", "HOME") if name in os.environ}
        settings = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "BAZEL": self.folder / "bin" / "bazel",
            "TF_EMBED_CACHE": self.folder / "cache",
            "HIREDIS": "",
        } | variables
        done = subprocess.run(
            [ROOT / "configure.sh", f"--output={output}", *options],
            env=keep | {name: str(value) for name, value in settings.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        said = (done.stdout + done.stderr).strip()
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertEqual(done.returncode, 0 if output.exists() else 1, said)
        told = {}
        for line in output.read_text().splitlines() if output.exists() else ():
            if "=TF_EMBED_" in line and "TENSORFLOW" not in line:
                _, name, value = line.split("=", 2)
                told[name] = value
        return said, told

    def told(self, nvcc: pathlib.Path | str = "", version: str = "") -> dict[str, str]:
        return {
            "TF_EMBED_NVCC": str(nvcc),
            "TF_EMBED_NVCC_VERSION": version,
            "TF_EMBED_CUDART": str(self.cudart) if nvcc else "",
            "TF_EMBED_HIREDIS": "",
            "TF_EMBED_HIREDIS_HEADERS": "",
        }

    @parameterized.parameters([[]], [["--cuda"]])
    def test_nvcc_is_used_where_there_is_one(self, options):
        nvcc = self.nvcc()
        said, told = self.configure(*options)
        self.assertEndsWith(said, ", CPU and CUDA 12.4.131")
        self.assertEqual(told, self.told(nvcc, "12.4.131"))

    def test_nvcc_is_the_one_that_is_named(self):
        named = self.nvcc("13.0").rename(self.folder / "named")
        self.nvcc("12.4")
        said, told = self.configure(NVCC=named)
        self.assertEndsWith(said, ", CPU and CUDA 13.0.131")
        self.assertEqual(told, self.told(named, "13.0.131"))

    def test_cpu_leaves_it_out(self):
        nvcc = self.nvcc()
        for options, variables in (
            (["--cpu"], {}),
            (["--cpu"], {"TF_EMBED_CUDA": 1}),
            (["--cpu"], {"NVCC": nvcc}),
            ([], {"TF_EMBED_CUDA": 0}),
        ):
            said, told = self.configure(*options, **variables)
            self.assertEndsWith(said, ", CPU")
            self.assertEqual(told, self.told())

    def test_hiredis_is_the_one_of_the_folder_that_is_named(self):
        headers = self.folder / "include" / "hiredis"
        headers.mkdir(parents=True)
        (headers / "hiredis.h").touch()
        archive = self.folder / "lib" / "libhiredis.a"
        archive.touch()
        said, told = self.configure("--cpu", HIREDIS=self.folder)
        self.assertEndsWith(said, ", hiredis, CPU")
        self.assertEqual(told["TF_EMBED_HIREDIS"], str(archive))
        self.assertEqual(told["TF_EMBED_HIREDIS_HEADERS"], str(headers))

    def test_hiredis_that_is_named_must_be_there(self):
        said, told = self.configure("--cpu", HIREDIS="/nowhere")
        self.assertRegex(said, "^configure.sh: There is no hiredis in /nowhere: HIREDIS must be")
        self.assertEmpty(told)

    def test_one_that_is_named_must_be_there(self):
        for options, variables in (([], {}), (["--cuda"], {}), ([], {"TF_EMBED_CUDA": 1})):
            said, told = self.configure(*options, NVCC="/nowhere/nvcc", **variables)
            self.assertRegex(said, "^configure.sh: There is no nvcc at /nowhere/nvcc: install .*")
            self.assertEmpty(told)

    def test_one_that_does_not_serve_is_named_with_the_reason(self):
        cases = [
            ("of CUDA 12.0.131, not of 12.1 to 13", {"version": "12.0"}),
            ("of CUDA 14.0.131, not of 12.1 to 13", {"version": "14.0"}),
            (r"fails with .* \(x.h:1: error: this GCC is too new\)", {
                "preprocess": "echo 'x.h:1: error: this GCC is too new'; exit 1"
            }),
        ]  # fmt: skip
        for reason, options in cases:
            nvcc = self.nvcc(**options)
            said, told = self.configure()
            self.assertRegex(said, rf", CPU \({nvcc} .*{reason}\)$")
            self.assertEqual(told, self.told())
            said, told = self.configure("--cuda")
            self.assertRegex(said, rf"^configure.sh: {nvcc} .*{reason}: install the CUDA toolkit")
            self.assertEmpty(told)

    def test_one_without_a_static_runtime_is_refused(self):
        self.cudart.unlink()
        self.nvcc()
        compiler = self.program("gcc", '#!/bin/sh\ncase $1 in -print*) echo "${1#*=}" ;; esac\n')
        said, _ = self.configure("--cuda", CC=compiler)
        self.assertIn("has no libcudart_static.a: install", said)

    def test_the_variable_is_0_or_1(self):
        said, _ = self.configure(TF_EMBED_CUDA="yes")
        self.assertIn("TF_EMBED_CUDA must be 0 or 1. Received: yes", said)


if __name__ == "__main__":
    absltest.main()
