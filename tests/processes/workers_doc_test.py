# SPDX-License-Identifier: Apache-2.0
"""docs/guides/workers.md and examples/distributed: the code runs as written, the rest parses."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from support import PYTHONPATH, ROOT
from support.cases.doc_pages import DOCS, blocks_of, execute
from tf_embed.distributed import run

PAGE = "guides/workers.md"
TEXT = (DOCS / PAGE).read_text()
EXAMPLES = ROOT / "examples" / "distributed"

# Stand-ins for Slurm's commands: two nodes with tasks that run in sequence.
SCONTROL = '#!/bin/sh\n[ "$3" = "n[1-2]" ] && printf "n1\\nn2\\n"\n'
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" || exit; done
"""
PRINT = """
import json, os, sys
print(json.dumps([json.loads(os.environ["TF_CONFIG"]), sys.argv[1:]]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_programs_run_with_two_workers(capsys):
    blocks = blocks_of(TEXT)
    assert len(blocks) == 6
    pathlib.Path("train.py").write_text("".join(blocks[:2] + blocks[3:]))
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "2"}
    outcome = run.launch(["train.py"], workers=2, timeout_seconds=120, environment=environment)
    printed, errors = capsys.readouterr()
    assert outcome.code == 0, errors[-5000:]
    assert "[worker 0] Epoch 2/2" in printed
    assert re.search(r"\[worker 0\] loss \d", printed)
    assert not re.search(r"\[worker 1\] (Epoch|loss)", printed)
    assert sorted(os.listdir("shared")) == ["best.keras", "loop"]
    assert "ckpt-1.index" in os.listdir("shared/loop")


def test_the_call_of_the_launcher_runs(capsys):
    code = "import sys\nsys.exit(sys.argv[1:] != ['--epochs', '3'])\n"
    pathlib.Path("train.py").write_text(code)
    execute(blocks_of(TEXT)[2], PAGE, {})
    assert capsys.readouterr().out == "0 None \n"


def test_the_command_has_the_options_of_the_launcher(capsys):
    with pytest.raises(SystemExit):
        run.main(["--help"])
    help_text = capsys.readouterr().out
    command, elastic = (
        re.findall(r"--[a-z-]+", block.partition("train.py")[0])
        for block in blocks_of(TEXT, "console")
    )
    assert sorted(command) == ["--log-dir", "--timeout", "--workers"]
    assert "--elastic" in elastic
    for option in command + elastic:
        assert option in help_text


def test_the_tf_config_is_of_the_form_that_the_launcher_sets(capsys):
    pathlib.Path("print.py").write_text(PRINT)
    run.launch(["print.py"], workers=2, timeout_seconds=60)
    (shown,) = map(json.loads, blocks_of(TEXT, "json"))
    for line in capsys.readouterr().out.splitlines():
        found, _ = json.loads(line.partition("] ")[2])
        assert found.keys() == shown.keys()
        assert found["task"].keys() == shown["task"].keys()
        assert len(found["cluster"]["worker"]) == len(shown["cluster"]["worker"])


def test_it_links_to_each_example():
    both = TEXT + (DOCS / "guides" / "servers.md").read_text()
    links = re.findall(r"\(\.\./\.\./examples/distributed/([^)]*)\)", both)
    assert sorted(links) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())


def test_the_manifest_of_kubernetes_parses():
    job = yaml.safe_load((EXAMPLES / "tfjob.yaml").read_text())
    assert job["kind"] == "TFJob"
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "tensorflow"
    mounts = [mount["name"] for mount in container["volumeMounts"]]
    assert mounts == [volume["name"] for volume in pod["volumes"]]


def test_the_script_for_slurm_sets_tf_config(tmp_path):
    script = EXAMPLES / "workers.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("print.py", PRINT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 60}
    command = ["bash", script, tmp_path / "print.py", "--name", "a b"]
    printed = subprocess.run(command, **options, check=True).stdout
    cluster = {"worker": ["n1:24567", "n2:24567"]}
    assert [json.loads(line) for line in printed.splitlines()] == [
        [{"cluster": cluster, "task": {"type": "worker", "index": index}}, ["--name", "a b"]]
        for index in range(2)
    ]
    failed = subprocess.run(["bash", script], **options, check=False)
    assert failed.returncode == 2
    assert "must get a script" in failed.stderr


def test_the_program_for_ray_parses():
    source = (EXAMPLES / "ray_workers.py").read_text()
    names = {node.name for node in ast.walk(ast.parse(source)) if hasattr(node, "name")}
    assert {"Worker", "train", "main"} <= names
