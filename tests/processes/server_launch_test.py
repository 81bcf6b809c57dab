# SPDX-License-Identifier: Apache-2.0
"""The launcher of clusters with parameter servers, in real processes that are killed."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
from typing import Any
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from support import PYTHONPATH
from support.processes.launched_scripts import TIMEOUT, LauncherTestCase, printed_by
from tf_embed.distributed import run
from tf_embed.launch import servers

# Workers and servers serve until they are ended. The chief continues with the test's code.
# `died(job, index)` waits until a task has killed itself because the chief asked for it.
OPENING = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
folder = pathlib.Path(__file__).parent
def once(name):
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
def kill(job, index):
    (folder / f"kill {job} {index}").touch()
    while (folder / f"kill {job} {index}").exists():
        time.sleep(0.02)
print("begun", os.getpid(), flush=True)
while job != "chief":
    order = folder / f"kill {job} {index}"
    if order.exists():
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
"""


class ServerLaunchTest(LauncherTestCase):
    opening = OPENING

    def launch(self, body: str, **options: Any) -> Any:
        """Returns the outcome, and the text that the launcher printed to stdout and stderr."""
        options = {"workers": 2, "servers": 2, "timeout_seconds": TIMEOUT, **options}
        command = [self.script(body)]
        return printed_by(lambda: run.launch_with_servers(command, **options))

    @pytest.mark.smoke
    def test_all_tasks_run_until_the_chief_has_ended(self):
        outcome, out, err = self.launch(
            """
            names = [f"{job}-0.log" for job in ("chief", "worker", "ps")] + ["worker-1.log"]
            while not all((folder / "logs" / name).stat().st_size for name in names):
                time.sleep(0.02)
            print(json.dumps(config))
            """,
            log_dir=self.folder / "logs",
            servers=1,
        )
        self.assertEqual((outcome, err), (run.ServersOutcome(), ""))
        config = json.loads(re.search(r"^\[chief\] (\{.*)$", out, re.MULTILINE)[1])
        self.assertEqual(config["task"], {"type": "chief", "index": 0})
        sizes = {job: len(hosts) for job, hosts in config["cluster"].items()}
        self.assertEqual(sizes, {"chief": 1, "worker": 2, "ps": 1})
        self.assertLen({one for hosts in config["cluster"].values() for one in hosts}, 4)
        pids = re.findall(r"begun (\d+)", out)
        self.assertLen(pids, 4)
        for pid in pids:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())
        logs = ["chief-0.log", "ps-0.log", "worker-0.log", "worker-1.log"]
        self.assertCountEqual([one.name for one in (self.folder / "logs").iterdir()], logs)

    def test_each_kind_of_task_starts_again_after_a_kill(self):
        outcome, out, err = self.launch(
            f"""
            if once("first"):
                kill("worker", 1)
                kill("worker", 1)
                os.kill(os.getpid(), signal.SIGKILL)
            if once("second"):
                kill("ps", 0)
                sys.exit({servers.LOST_SERVER})
            if once("third"):  # of servers that it could not reach for a while
                sys.exit({servers.LOST_SERVER})
            """,
            max_restarts=5,
        )
        restarts = ("worker 1", "worker 1", "chief", "ps 0", "chief", "chief")
        self.assertCountEqual(outcome.restarts, restarts)
        self.assertEqual((outcome.code, outcome.reason), (0, ""))
        started = re.findall(r"^\[(.*)\] begun", out, re.MULTILINE)
        expected = ["chief"] * 4 + ["worker 1"] * 3 + ["ps 0"] * 2 + ["worker 0", "ps 1"]
        self.assertCountEqual(started, expected)
        said = "ps 0 was ended by signal 9 (SIGKILL) and chief exited with code 75"
        self.assertIn(f"[launcher] {said}; starting again.", err)

    def test_a_chief_that_does_not_see_a_lost_server_is_ended(self):
        with mock.patch.object(servers, "_CHIEF_SECONDS", 0.2):
            outcome, _, _ = self.launch(
                """
                if once("first"):
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    kill("ps", 1)
                    time.sleep(300)
                """,
                grace_seconds=0.2,
            )
        self.assertEqual(outcome, run.ServersOutcome(restarts=("ps 1", "chief")))

    def test_another_code_of_the_chief_ends_all(self):
        outcome, out, err = self.launch("sys.exit(3)")
        self.assertEqual(outcome, run.ServersOutcome(3, None, "chief exited with code 3"))
        self.assertIn("[launcher] chief exited with code 3.", err)
        for pid in re.findall(r"begun (\d+)", out):
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    @parameterized.parameters(
        ("kill('worker', 0)", ("worker 0", 0, 137)),
        ("kill('ps', 0); sys.exit(75)", ("ps 0", None, 137)),
        ("os.kill(os.getpid(), 9)", ("chief", None, 137)),
    )
    def test_failures_beyond_the_bound_end_all(self, death, failed):
        name, worker, code = failed
        outcome, _, _ = self.launch(f"while True:\n    {death}", max_restarts=1)
        self.assertEqual((outcome.code, outcome.worker), (code, worker))
        self.assertStartsWith(outcome.reason, f"{name} was ended by signal 9")
        self.assertEqual(outcome.restarts.count(name), 1)

    def test_a_worker_that_ends_by_itself_has_failed(self):
        (self.folder / "sitecustomize.py").write_text(
            "import json, os, sys\n"
            "if json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'worker':\n"
            "    os._exit(0)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        outcome, _, _ = self.launch("time.sleep(300)", max_restarts=1, environment=environment)
        self.assertEqual(outcome.code, 1)
        self.assertRegex(outcome.reason, r"worker \d exited with code 0")

    def test_time_is_up(self):
        outcome, _, _ = self.launch("time.sleep(300)", timeout_seconds=1)
        self.assertEqual(outcome, run.ServersOutcome(run.TIMED_OUT, None, "time is up"))

    def started(self, script: str, *arguments: str, **options: Any) -> subprocess.Popen:
        """Starts the command line for two workers and two servers."""
        limits = ["--workers", "2", "--servers", "2", "--timeout", "300"]
        return self.command(*limits, script, *arguments, **options)

    @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
    def test_a_signal_ends_all(self, number):
        launcher = self.started(self.script("time.sleep(300)"))
        pids = []
        while len(pids) < 5:
            if match := re.search(r"begun (\d+)", launcher.stdout.readline()):
                pids.append(match[1])
        launcher.send_signal(number)
        self.assertEqual(launcher.wait(), 128 + number)
        for pid in pids:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    @parameterized.parameters(
        ("--servers", ["--servers", "0"]),
        ("--elastic: does not go with --servers", ["--servers", "1", "--elastic"]),
        ("--min-workers", ["--servers", "1", "--min-workers", "1"]),
        ("--max-restarts", ["--servers", "1", "--max-restarts", "x"]),
    )
    def test_a_bad_argument_is_one_sentence_that_names_it(self, name, arguments):
        self.assert_refused(name, ["--workers", "3", *arguments, __file__])

    @parameterized.parameters(
        (TypeError, {"servers": 1.0}, "`servers`"),
        (ValueError, {"servers": 0}, "`servers`"),
        (ValueError, {"workers": 0}, "`workers`"),
        (ValueError, {"max_restarts": -1}, "`max_restarts`"),
    )
    def test_the_function_refuses_a_bad_argument(self, kind, options, name):
        with self.assertRaisesRegex(kind, name):
            run.launch_with_servers([__file__], **{"workers": 2, "servers": 2, **options})

    def test_training_goes_on_after_each_kind_of_task_was_killed(self):
        program = self.folder / "program.py"
        program.write_text(
            "import os, sys\n"
            "print('begun', os.getpid(), flush=True)\n"
            "from support.processes import server_programs\n"
            "server_programs.main(vars(server_programs))\n"
        )
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "2"}
        arguments = ["train", str(self.folder), "12", "wait", "run_id=a"]
        launcher = self.started(str(program), *arguments, env=environment)
        pids: dict[str, list[int]] = {}
        trainings: list[Any] = []

        def read_until(condition: Any) -> None:
            while not condition():
                line = launcher.stdout.readline()
                self.assertNotEmpty(line, "The output ended.")
                if match := re.match(r"\[(.*)\] begun (\d+)", line):
                    pids.setdefault(match[1], []).append(int(match[2]))
                elif match := re.match(r"\[chief\] (\{.*)", line):
                    trainings.append(json.loads(match[1]))

        read_until(lambda: len(trainings) == 1)
        os.kill(pids["worker 0"][-1], signal.SIGKILL)
        read_until(lambda: len(pids["worker 0"]) == 2)
        os.kill(pids["ps 1"][-1], signal.SIGKILL)
        read_until(lambda: len(trainings) == 2)
        os.kill(pids["chief"][-1], signal.SIGKILL)
        read_until(lambda: len(trainings) == 4)
        self.assertEqual(launcher.wait(), 0)
        self.assertEqual({name: len(some) for name, some in pids.items()}["ps 1"], 2)
        self.assertLen(pids["chief"], 3)
        self.assertLen(pids["ps 0"], 1)
        self.assertEqual(trainings[-1]["steps"], 12 * 16)
        self.assertGreater(trainings[-1]["evaluated"]["auc"], 0.74)


if __name__ == "__main__":
    absltest.main()
