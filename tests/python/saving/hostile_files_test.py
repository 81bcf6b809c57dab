# SPDX-License-Identifier: Apache-2.0
"""Files that are far too long, are pipes, or claim more than they hold: errors, within 512 MiB."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

from support import ROOT

# A publication also has the file of a snapshot, which no follower reads.
NOT_READ = ("publication-0000000001", "snapshot.json")
# The errors for invalid files of dense variables.
CLAIMS = {
    "claim of an array": "'value_0.npy' has a wrong length",
    "compressed array": "'state.npy' is compressed, or has a wrong length",
    "claim of a tensor": "must have a value of shape (",
    "no tensor": "is damaged: a value is no tensor: ",
    "pickled objects": "'value_0.npy' has a wrong length",
    "no array": "'value_0.npy' is no array: ",
    "another version": "'value_0.npy' is no array: another version",
    "fewer arrays": "must have as many dense variables as the model, 4. Received: 3",
}


class HostileFilesTest(absltest.TestCase):
    def test_each_file_is_refused_by_name(self):
        program = ROOT / "tests" / "support" / "faults" / "hostile_files.py"
        done = subprocess.run(
            [sys.executable, program],
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        found = json.loads(done.stdout)
        self.assertEqual(len(found), 35)
        self.assertEqual({case for case, _, _, _ in found} & CLAIMS.keys(), CLAIMS.keys())
        for case, file, kind, message in found:
            with self.subTest(case=case, file=file):
                path = pathlib.Path(file)
                if (path.parent.name, path.name) == NOT_READ:
                    self.assertEqual(kind, "NoneType")
                elif case.startswith("array by"):  # Keras has opened the file
                    self.assertEqual(kind, "ValueError")
                    self.assertIn("'values' is an array of another file", message)
                else:
                    of_model = case in ("claim of a tensor", "fewer arrays")
                    wanted = "ValueError" if of_model else "DataLossError"
                    self.assertEqual(kind, wanted, message)
                    self.assertIn(f"'{file}'", message)
                    self.assertIn(CLAIMS.get(case, ""), message)
                    if case == "pipe":
                        self.assertIn("' is damaged: it is no regular file.", message)


if __name__ == "__main__":
    absltest.main()
