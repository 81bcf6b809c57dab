# SPDX-License-Identifier: Apache-2.0
"""Prints the faults of a release, a line each. The exit status is 1 if there are faults.

python release/check.py tree      no change is uncommitted, and the changelog has the version
python release/check.py wheels    a tested wheel of this commit for each TensorFlow
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys

from wheels import TENSORFLOWS

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def tree_faults(status: str, version: str, changelog: str) -> list[str]:
    """The faults of the tree.

    Args:
        status: The output of `git status --porcelain`.
        version: The version of the package.
        changelog: The text of CHANGELOG.md.
    """
    found = [f"This is not committed: {line.strip()}" for line in status.splitlines()]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"The version must be three numbers. Received: {version}")
    heading = re.search(rf"^## \[{re.escape(version)}\] - (.+)$", changelog, re.MULTILINE)
    if heading is None:
        found.append(f"CHANGELOG.md has no heading '## [{version}] - date'.")
    elif not DATE.fullmatch(heading.group(1)):
        found.append(f"CHANGELOG.md gives {version} no date. Received: {heading.group(1)}")
    return found


def wheel_faults(folder: pathlib.Path, version: str, commit: str) -> list[str]:
    """The faults of a version's wheels. `wheels.json` in the folder describes the tested wheels."""
    listed = folder / "wheels.json"
    if not listed.exists():
        return [f"There is no {listed}: run `make wheels`."]
    known = {one["tensorflow"]: one for one in json.loads(listed.read_text())}
    found = []
    for tensorflow in TENSORFLOWS:
        wheel = known.get(tensorflow)
        if wheel is None:
            found.append(f"There is no wheel for TensorFlow {tensorflow}.")
            continue
        path = folder / wheel["file"]
        if not wheel["file"].startswith(f"tf_embed-{version}+tf{tensorflow}-"):
            found.append(f"{wheel['file']} is not of version {version}.")
        if wheel["commit"] != commit:
            found.append(f"{wheel['file']} is of commit {wheel['commit'][:12]}, not of this one.")
        if not path.exists():
            found.append(f"{path} is gone.")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != wheel["sha256"]:
            found.append(f"{path} is not the file that was tried.")
        if "manylinux" not in wheel["tag"]:
            found.append(f"{wheel['file']} earned no manylinux tag. Received: {wheel['tag']}")
    return found


def git(*arguments: str) -> str:
    """The output of a git command in the tree."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Checks the parts that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("tree", "wheels"))
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    match = VERSION.search((ROOT / "tf_embed" / "_version.py").read_text())
    version = match.group(1) if match else ""
    found = []
    if "tree" in arguments.parts:
        changelog = (ROOT / "CHANGELOG.md").read_text()
        found += tree_faults(git("status", "--porcelain"), version, changelog)
    if "wheels" in arguments.parts:
        found += wheel_faults(arguments.output, version, git("rev-parse", "HEAD").strip())
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"tf_embed {version}: {' and '.join(arguments.parts)} as a release demands.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
