# SPDX-License-Identifier: Apache-2.0
"""Hostile values for every argument of every public name; see tests/campaigns/hostile_calls.py."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from absl.testing import absltest

import tf_embed
from support import CAMPAIGNS
from support.oracles.reference import SEED

PROGRAM = CAMPAIGNS / "hostile_calls.py"

PLANTED = """
    import os, time
    import tf_embed
    from hostile_call import Call
    from hostile_values import kind

    ONE = kind()

    def raises(error):
        def function(x):
            raise error
        return function

    def planted(x):
        return x

    tf_embed.planted = planted
    tf_embed.__all__.append("planted")

    def call(function, then=lambda made: None):
        return Call(lambda: function, dict, {"x": ONE}, then)

    CALLS = {
        "planted.good": call(raises(ValueError("`x` must be 5. Received: x=..."))),
        "planted.riddle": call(raises(TypeError("'int' object is not iterable"))),
        "planted.other": call(raises(KeyError("`x` must be 5. Received: x=..."))),
        "planted.late": call(planted, raises(ValueError("`x` must be 5. Received: x=..."))),
        "planted.taken": call(planted),
        "planted.crash": call(lambda x: os.abort()),
        "planted.hang": call(lambda x: time.sleep(600)),
    }
"""


def run(*arguments: str) -> tuple[int, str]:
    """The exit status and the output of the program."""
    package = str(pathlib.Path(tf_embed.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=900,
        check=False,
    )
    return done.returncode, done.stdout


class HostileCallsTest(absltest.TestCase):
    def test_hostile_values_are_refused_in_words_or_taken_for_a_reason(self):
        status, said = run("--every=10", f"--seed={SEED}")
        self.assertEqual(status, 0, said)
        calls, refused = (int(one) for one in re.findall(r"(\d+) (?:calls|refused)", said))
        self.assertGreater(calls, 1_000)
        self.assertGreater(refused, calls / 2)

    def test_all_of_them(self):
        status, said = run()
        self.assertEqual(status, 0, said)

    def test_planted_defects_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "planted.py"
            path.write_text(textwrap.dedent(PLANTED))
            status, said = run("--names=planted", f"--also={path}", "--every=60", "--seconds=2")
        self.assertEqual(status, 1)
        for expected in (
            r"uncovered: planted\(x\) has no cases",
            r"riddle: planted.riddle\(x=.*'int' object is not iterable",
            r"riddle: planted.other\(x=.*KeyError",
            r"riddle: planted.late\(x=.*at the first use only",
            r"unlisted: planted.taken\(x=",
            r"crash: planted.crash\(x=.*rc -6",
            r"crash: planted.hang\(x=.*no answer in 2 s",
            r"7 calls, 1 refused, 0 taken, 1 unlisted, 3 riddle, 2 crash, 1 uncovered",
        ):
            self.assertRegex(said, expected)


if __name__ == "__main__":
    absltest.main()
