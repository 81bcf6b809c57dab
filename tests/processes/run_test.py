# SPDX-License-Identifier: Apache-2.0
"""The launcher of workers, in real processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from absl.testing import absltest, parameterized

from support.processes.launched_scripts import TIMEOUT, LauncherTestCase, printed_by
from tf_embed.distributed import run
from tf_embed.launch import processes

LAUNCHER = pathlib.Path(run.__file__)

# The first lines of each script.
OPENING = """
import json, os, signal, socket, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
others = [address for address in config["cluster"]["worker"]]
"""

# Starts a process that ignores SIGTERM, and prints its id. The process ends by itself, but later
# than any test waits.
GRANDCHILD = """
code = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(1, flush=True)"
child = subprocess.Popen(
    [sys.executable, "-c", code + "; time.sleep(300)"], stdout=subprocess.PIPE
)
child.stdout.readline()
print("grandchild", child.pid, flush=True)
"""


def runs(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def eventually(condition: Callable[[], object]) -> bool:
    """Waits for a condition, at most 30 seconds."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class RunTest(LauncherTestCase):
    opening = OPENING

    def launch(self, body: str, *arguments: str, workers: int = 2, **options):
        """Returns the outcome, and the text that the launcher printed to stdout and stderr."""
        options = {"timeout_seconds": TIMEOUT, **options}
        command = [self.script(body), *arguments]
        return printed_by(lambda: run.launch(command, workers=workers, **options))

    def started(self, body: str, *options: str) -> subprocess.Popen:
        """Starts the command line. `body` prints when the test may continue."""
        limits = ["--workers", "2", "--timeout", str(TIMEOUT)]
        return self.command(*limits, *options, self.script(body))

    def numbers(self, launcher: subprocess.Popen, word: str, count: int) -> list[int]:
        """The numbers after `word` in the next `count` lines of output with that word."""
        found: list[int] = []
        while len(found) < count:
            line = launcher.stdout.readline()
            self.assertNotEmpty(line, f"The output ended before {count} lines had {word}.")
            if match := re.search(rf"{word} (\d+)", line):
                found.append(int(match[1]))
        return found

    @parameterized.parameters(1, 2, 3)
    @pytest.mark.smoke
    def test_each_worker_gets_its_arguments_and_its_place_in_the_cluster(self, workers):
        outcome, out, err = self.launch(
            """
            print(config["task"]["type"], rank, len(set(others)), sys.argv[1:])
            print("an error", rank, file=sys.stderr)
            """,
            "--lr",
            "0.1",
            workers=workers,
        )
        self.assertEqual(outcome, run.Outcome(0, None, ""))
        lines = [
            f"[worker {rank}] worker {rank} {workers} ['--lr', '0.1']" for rank in range(workers)
        ]
        self.assertEqual(sorted(out.splitlines()), lines)
        lines = [f"[worker {rank}] an error {rank}" for rank in range(workers)]
        self.assertEqual(sorted(err.splitlines()), lines)

    def test_workers_reach_each_other_at_the_addresses(self):
        outcome, out, _ = self.launch(
            """
            host, port = others[rank].split(":")
            server = socket.create_server((host, int(port)))  # sets SO_REUSEADDR, as gRPC does
            host, port = others[1 - rank].split(":")
            for _ in range(500):
                try:
                    client = socket.create_connection((host, int(port)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            client.sendall(b"from %d" % rank)
            print(server.accept()[0].recv(6).decode())
            """
        )
        self.assertEqual(outcome.code, 0)
        self.assertEqual(sorted(out.splitlines()), ["[worker 0] from 1", "[worker 1] from 0"])

    def test_a_reserved_port_is_given_to_no_other(self):
        with processes.reserved_ports(8) as ports:
            self.assertLen(set(ports), 8)
            with contextlib.ExitStack() as stack:
                for _ in range(200):
                    other = stack.enter_context(processes.reserved_ports(1))
                    self.assertNotIn(other[0], ports)

    def test_a_log_has_the_whole_output_of_its_worker(self):
        folder = self.folder / "a" / "b"
        outcome, _, _ = self.launch(
            """
            os.write(1, b"one\\n\\xff two\\n")
            os.write(2, b"no newline %d" % rank)
            """,
            log_dir=folder,
        )
        self.assertEqual(outcome.code, 0)
        for rank in range(2):
            log = (folder / f"worker-{rank}.log").read_bytes()
            lines = log.splitlines(keepends=True)
            last = b"no newline %d\n" % rank
            self.assertIn(last, lines)  # at any position, as it is from the other pipe
            lines.remove(last)
            self.assertEqual(lines, [b"one\n", b"\xff two\n"])

    def test_a_log_that_can_not_be_written_ends_no_training(self):
        folder = self.folder / "logs"
        folder.mkdir()
        (folder / "worker-0.log").symlink_to("/dev/full")
        outcome, _, said = self.launch(
            """
            for i in range(100):
                print("line", i, flush=True)
            """,
            log_dir=folder,
        )
        self.assertEqual(outcome.code, 0)
        self.assertEqual(said.count("worker-0.log' ends here, as it can't be written: "), 1)
        self.assertLen((folder / "worker-1.log").read_text().splitlines(), 100)

    @parameterized.parameters(
        ("sys.exit(7)", 7, "worker 1 exited with code 7"),
        ("raise ValueError", 1, "worker 1 exited with code 1"),
        ("os.kill(os.getpid(), 9)", 137, "worker 1 was ended by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 15)", 143, "worker 1 was ended by signal 15 (SIGTERM)"),
    )
    def test_a_worker_that_fails_ends_the_others(self, death, code, reason):
        outcome, out, err = self.launch(
            f"""
            if rank == 1:
                {death}
            print("pid", os.getpid())
            time.sleep(300)
            """,
            workers=3,
        )
        self.assertEqual(outcome, run.Outcome(code, 1, reason))
        self.assertIn(f"[launcher] {reason}.", err)
        for pid in re.findall(r"pid (\d+)", out):
            self.assertFalse(runs(int(pid)))

    def test_a_worker_may_end_in_its_own_way_within_the_grace_period(self):
        outcome, out, _ = self.launch(
            """
            def end(*_):
                print("saved")
                sys.exit(0)
            flag = os.path.dirname(__file__) + "/ready"
            if rank == 0:
                signal.signal(signal.SIGTERM, end)
                open(flag, "w")
                time.sleep(300)
            while not os.path.exists(flag):
                time.sleep(0.02)
            sys.exit(3)
            """
        )
        self.assertEqual((outcome.code, outcome.worker), (3, 1))
        self.assertIn("[worker 0] saved\n", out)

    def test_time_is_up_for_a_worker_that_hangs(self):
        outcome, _, err = self.launch(
            """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(300)
            """,
            timeout_seconds=2,
            grace_seconds=0.2,
        )
        self.assertEqual((outcome.code, outcome.worker), (run.TIMED_OUT, None))
        self.assertIn("time is up with workers still running: 0, 1", outcome.reason)
        self.assertIn(outcome.reason, err)

    @parameterized.parameters(0, 5)
    def test_a_process_of_a_worker_ends_with_it(self, code):
        outcome, out, _ = self.launch(GRANDCHILD + f"\nsys.exit({code})")
        self.assertEqual(outcome.code, code)
        pids = [int(pid) for pid in re.findall(r"grandchild (\d+)", out)]
        self.assertNotEmpty(pids)
        for pid in pids:
            self.assertTrue(eventually(lambda pid=pid: not runs(pid)))

    def test_no_process_stays_behind_a_launcher_that_is_killed(self):
        launcher = self.started(GRANDCHILD + "print('worker', os.getpid())\ntime.sleep(300)")
        pids = []
        while len(pids) < 4:
            line = launcher.stdout.readline()
            pids += [int(pid) for pid in re.findall(r"\] (?:grandchild|worker) (\d+)", line)]
        self.assertTrue(all(map(runs, pids)))
        launcher.kill()
        for pid in pids:
            self.assertTrue(eventually(lambda pid=pid: not runs(pid)), pid)

    @parameterized.parameters(
        (signal.SIGINT, "KeyboardInterrupt 2", 130),
        (signal.SIGTERM, "", 143),
    )
    def test_a_signal_to_the_launcher_ends_all(self, number, said, code):
        launcher = self.started(
            """
            try:
                print("ready", os.getpid())
                time.sleep(300)
            except KeyboardInterrupt:
                print("KeyboardInterrupt 2")
            """
        )
        pids = self.numbers(launcher, "ready", 2)
        launcher.send_signal(number)
        rest = launcher.stdout.read()
        self.assertEqual(launcher.wait(), code)
        self.assertEqual(rest.count("KeyboardInterrupt"), 2 if said else 0)
        self.assertFalse(any(map(runs, pids)))

    def test_the_command_line_exits_with_the_first_code_that_is_not_0(self):
        launcher = self.started("sys.exit(4 if rank else 0)", "--log-dir", str(self.folder))
        self.assertEqual(launcher.wait(), 4)
        self.assertTrue((self.folder / "worker-1.log").is_file())

    @parameterized.parameters(
        ("--workers", ["--workers", "0", __file__]),
        ("--workers", ["--workers", "257", __file__]),
        ("--workers", ["--workers", "two", __file__]),
        ("--workers", ["--workers"]),
        ("--workers", [__file__]),
        (
            "--timeout: must be a positive number of seconds",
            ["--workers", "2", "--timeout", "0", __file__],
        ),
        ("--timeout", ["--workers", "2", "--timeout", "nan", __file__]),
        ("--timeout", ["--workers", "2", "--timeout", "soon", __file__]),
        (
            "Argument --log-dir: must be a folder",
            ["--workers", "2", "--log-dir", __file__, __file__],
        ),
        ("--loops", ["--loops=3", "--workers", "2", __file__]),
        ("following argument is required: a script", ["--workers", "2"]),
        ("Argument script: must be a file. Received", ["--workers", "2", "no_such_script.py"]),
    )
    def test_a_bad_argument_is_one_sentence_that_names_it(self, name, arguments):
        self.assert_refused(name, arguments)

    @parameterized.parameters(
        (TypeError, {"workers": 2.0}, "`workers`"),
        (TypeError, {"workers": True}, "`workers`"),
        (ValueError, {"workers": 0}, "`workers`"),
        (ValueError, {"workers": 2, "command": []}, "`command` must name a script"),
        (ValueError, {"workers": 2, "command": ["none.py"]}, "`command` must begin with a script"),
        (ValueError, {"workers": 2, "timeout_seconds": 0}, "`timeout_seconds`"),
        (TypeError, {"workers": 2, "timeout_seconds": "9"}, "`timeout_seconds`"),
        (
            ValueError,
            {"workers": 2, "grace_seconds": -1},
            "`grace_seconds` must be finite and at least",
        ),
    )
    def test_the_function_refuses_a_bad_argument(self, kind, options, name):
        options = {"command": [__file__], **options}
        with self.assertRaisesRegex(kind, name):
            run.launch(options.pop("command"), **options)

    def test_threads_are_shared_out_unless_the_user_set_them(self):
        body = 'print(*(os.environ.get(n) for n in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")))'
        unset = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        for workers, environment, printed in (
            (2, unset, f"{share} {share}"),
            (1, unset, "None None"),
            (2, {**unset, "OMP_NUM_THREADS": "5"}, "5 None"),
        ):
            _, out, _ = self.launch(body, workers=workers, environment=environment)
            self.assertEqual(out.count(f"] {printed}\n"), workers, out)

    def test_the_launcher_does_not_import_tensorflow(self):
        code = "import runpy, sys; runpy.run_path(sys.argv[1]); print('tensorflow' in sys.modules)"
        command = [sys.executable, "-c", code, str(LAUNCHER)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertEqual(printed, "False\n")


if __name__ == "__main__":
    absltest.main()
