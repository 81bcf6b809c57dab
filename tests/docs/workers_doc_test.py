# SPDX-License-Identifier: Apache-2.0
"""docs/guides/workers.md and examples/distributed: the code runs as written, the rest parses."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml
from absl.testing import absltest

from support import PYTHONPATH, ROOT
from tf_embed.distributed import run

DOC = (ROOT / "docs" / "guides" / "workers.md").read_text()
EXAMPLES = ROOT / "examples" / "distributed"

# Stand-ins for Slurm's commands: two nodes, whose tasks run one after the other.
SCONTROL = '#!/bin/sh\n[ "$3" = "n[1-2]" ] && printf "n1\\nn2\\n"\n'
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" || exit; done
"""
PRINT = """
import json, os, sys
print(json.dumps([json.loads(os.environ["TF_CONFIG"]), sys.argv[1:]]))
"""


def pieces(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOC, re.DOTALL)


class WorkersDocTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_programs_run_with_two_workers(self):
        program, tables, _, loop, together, saving = pieces("python")
        script = self.folder / "train.py"
        code = "\n".join((program, tables, loop, together, saving))
        script.write_text(f"import os\nos.chdir({str(self.folder)!r})\n{code}")
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "2"}
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcome = run.launch([script], workers=2, timeout_seconds=120, environment=environment)
        self.assertEqual(outcome.code, 0, err.getvalue()[-5000:])
        printed = out.getvalue()
        self.assertIn("[worker 0] Epoch 2/2", printed)
        self.assertRegex(printed, r"\[worker 0\] loss \d")
        self.assertNotIn("[worker 1] Epoch", printed)
        self.assertNotIn("[worker 1] loss", printed)
        self.assertCountEqual(os.listdir(self.folder / "shared"), ["best.keras", "loop"])
        self.assertIn("ckpt-1.index", os.listdir(self.folder / "shared" / "loop"))

    def test_the_call_of_the_launcher_runs(self):
        script = self.folder / "train.py"
        script.write_text("import sys\nsys.exit(sys.argv[1:] != ['--epochs', '3'])\n")
        before, out = os.getcwd(), io.StringIO()
        try:
            os.chdir(self.folder)
            with contextlib.redirect_stdout(out):
                exec(pieces("python")[2], {})
        finally:
            os.chdir(before)
        self.assertEqual(out.getvalue(), "0 None \n")

    def test_the_command_has_the_options_of_the_launcher(self):
        command, elastic = pieces("console")
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
            run.main(["--help"])
        options = re.findall(r"--[a-z-]+", command.partition("train.py")[0])
        self.assertCountEqual(options, ["--workers", "--timeout", "--log-dir"])
        options += re.findall(r"--[a-z-]+", elastic.partition("train.py")[0])
        self.assertIn("--elastic", options)
        for option in options:
            self.assertIn(option, out.getvalue())

    def test_the_tf_config_is_of_the_form_that_the_launcher_sets(self):
        script = self.folder / "print.py"
        script.write_text(PRINT)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run.launch([script], workers=2, timeout_seconds=60)
        shown = json.loads(pieces("json")[0])
        for line in out.getvalue().splitlines():
            found, _ = json.loads(line.partition("] ")[2])
            self.assertEqual(found.keys(), shown.keys())
            self.assertEqual(found["task"].keys(), shown["task"].keys())
            self.assertLen(found["cluster"]["worker"], len(shown["cluster"]["worker"]))

    def test_it_links_to_each_example(self):
        both = DOC + (ROOT / "docs" / "guides" / "servers.md").read_text()
        links = re.findall(r"\(\.\./\.\./examples/distributed/([^)]*)\)", both)
        self.assertCountEqual(links, [path.name for path in EXAMPLES.iterdir() if path.is_file()])

    def test_the_manifest_of_kubernetes_parses(self):
        job = yaml.safe_load((EXAMPLES / "tfjob.yaml").read_text())
        self.assertEqual(job["kind"], "TFJob")
        worker = job["spec"]["tfReplicaSpecs"]["Worker"]
        pod = worker["template"]["spec"]
        (container,) = pod["containers"]
        self.assertEqual(container["name"], "tensorflow")
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        self.assertEqual(mounts, [volume["name"] for volume in pod["volumes"]])

    def test_the_script_for_slurm_sets_tf_config(self):
        script = EXAMPLES / "workers.sbatch"
        subprocess.run(["bash", "-n", script], check=True)
        for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "print.py").write_text(PRINT)
        environment = {
            **os.environ,
            "PATH": f"{self.folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NODELIST": "n[1-2]",
        }
        command = ["bash", script, str(self.folder / "print.py"), "--name", "a b"]
        printed = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        found = [json.loads(line) for line in printed.splitlines()]
        cluster = {"worker": ["n1:24567", "n2:24567"]}
        expected = [
            [{"cluster": cluster, "task": {"type": "worker", "index": index}}, ["--name", "a b"]]
            for index in range(2)
        ]
        self.assertEqual(found, expected)
        failed = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
        self.assertEqual(failed.returncode, 2)
        self.assertIn("must get a script", failed.stderr)

    def test_the_program_for_ray_parses(self):
        source = (EXAMPLES / "ray_workers.py").read_text()
        names = {node.name for node in ast.walk(ast.parse(source)) if hasattr(node, "name")}
        self.assertContainsSubset({"Worker", "train", "main"}, names)


if __name__ == "__main__":
    absltest.main()
