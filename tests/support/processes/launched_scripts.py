# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of launchers: scripts, the command line, and its errors."""

from __future__ import annotations

import contextlib
import io
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any

from absl.testing import parameterized

from tf_embed.distributed import run

TIMEOUT = 60  # for tests that end long before


def printed_by(call: Callable[[], Any]) -> tuple[Any, str, str]:
    """Returns the result of a call, and the text that it prints to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        outcome = call()
    return outcome, out.getvalue(), err.getvalue()


class LauncherTestCase(parameterized.TestCase):
    """Launches scripts that begin with `opening`."""

    opening = ""

    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def script(self, body: str) -> str:
        """Writes a script, and returns its path."""
        path = self.folder / "script.py"
        path.write_text(self.opening + textwrap.dedent(body))
        return str(path)

    def command(self, *arguments: str, **options: Any) -> subprocess.Popen:
        """Starts the command line."""
        launcher = subprocess.Popen(
            [sys.executable, run.__file__, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            # A shell without job control lets processes that it starts by `&` ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        self.addCleanup(launcher.stdout.close)
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.kill)
        return launcher

    def assert_refused(self, name: str, arguments: list[str]) -> None:
        """Checks that the command line names the wrong argument in a single sentence."""
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as raised:
            run.main(arguments)
        self.assertEqual(raised.exception.code, 2)
        self.assertEqual(err.getvalue().count("\n"), 1, err.getvalue())
        self.assertEndsWith(err.getvalue(), ".\n")
        self.assertIn(name, err.getvalue())
