# SPDX-License-Identifier: Apache-2.0
"""Files that are far too long, are pipes, or claim more than they hold: errors, within 512 MiB."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# A publication has the file of a snapshot too, which no follower reads.
NOT_READ = ("publication-0000000001", "snapshot.json")


class HostileFilesTest(absltest.TestCase):
    def test_each_file_is_refused_by_name(self):
        program = ROOT / "tests" / "support" / "hostile_files.py"
        done = subprocess.run(
            [sys.executable, program],
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        found = json.loads(done.stdout)
        self.assertEqual(len(found), 32)
        for case, file, kind, message in found:
            with self.subTest(case=case, file=file):
                path = pathlib.Path(file)
                if (path.parent.name, path.name) == NOT_READ:
                    self.assertEqual(kind, "NoneType")
                elif case.startswith("array by"):  # Keras has opened the file
                    self.assertEqual(kind, "ValueError")
                    self.assertIn("'values' is an array of another file", message)
                else:
                    wanted = "ValueError" if case == "claim of a tensor" else "DataLossError"
                    self.assertEqual(kind, wanted, message)
                    self.assertIn(f"'{file}'", message)


if __name__ == "__main__":
    absltest.main()
