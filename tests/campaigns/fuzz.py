# SPDX-License-Identifier: Apache-2.0
"""Lets libFuzzer feed each reader of bytes, under AddressSanitizer and UBSan.

    python tests/campaigns/fuzz.py --programs=FOLDER --replays=FOLDER [--seconds=60] [--only=NAME]

`make fuzz` builds the programs and runs this. All readers together get `--seconds`. Each begins
with the seeds from the library's writers, the corpus in tests/cc/fuzz/corpus, and the inputs that
earlier runs kept in build/fuzz/kept. A reader must take no more memory than MEMORY_MB in all and
ALLOCATION_MB at once, nor more than INPUT_SECONDS for an input. The last line has the figures. The
exit status is 1 if there is a finding. Its input is then in build/fuzz/found. Once the reader is
fixed, move the input to the corpus, which tests replay.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = ROOT / "tests" / "cc" / "fuzz"
PLANTED = "planted"  # a reader with a defect
MEMORY_MB = 1024
ALLOCATION_MB = 128
INPUT_SECONDS = 20
MAX_BYTES = 1 << 16


def names() -> list[str]:
    """The readers."""
    found = sorted(path.name.removesuffix("_fuzzer.cc") for path in TARGETS.glob("*_fuzzer.cc"))
    return [name for name in found if name != PLANTED]


def run(name: str, arguments: argparse.Namespace, seconds: float) -> tuple[int, bool]:
    """Feeds a reader.

    Returns:
        The number of inputs, and whether there is a finding.
    """
    folder = pathlib.Path(arguments.folder).resolve()
    kept, found, seeds = (folder / part / name for part in ("kept", "found", "seeds"))
    for one in (kept, found, seeds):
        one.mkdir(parents=True, exist_ok=True)
    replays = pathlib.Path(arguments.replays).resolve()
    if name != PLANTED:
        replay = replays / "tests/cc/fuzz" / f"{name}_replay_test"
        subprocess.run([replay, f"--seeds={seeds}"], cwd=replays, check=True)
    corpus = TARGETS / "corpus" / name
    programs = pathlib.Path(arguments.programs).resolve()
    done = subprocess.run(
        [
            programs / "tests/cc/fuzz" / f"{name}_fuzzer",
            *(kept, seeds, *([corpus] if corpus.is_dir() else [])),
            f"-max_total_time={max(1, round(seconds))}",
            *(f"-rss_limit_mb={MEMORY_MB}", f"-malloc_limit_mb={ALLOCATION_MB}"),
            *(f"-timeout={INPUT_SECONDS}", f"-max_len={MAX_BYTES}", f"-artifact_prefix={found}/"),
            *("-print_final_stats=1", "-detect_leaks=0", "-use_value_profile=1"),
        ],
        cwd=programs,
        capture_output=True,
        text=True,
        errors="replace",
    )
    inputs = re.findall(r"number_of_executed_units: (\d+)", done.stderr)
    edges = re.findall(r" cov: (\d+) ", done.stderr)
    failed = done.returncode != 0
    print(
        f"{name}: {inputs[-1] if inputs else 0} inputs, {edges[-1] if edges else 0} edges"
        f"{', a finding' if failed else ''}",
        flush=True,
    )
    if failed:
        print("\n".join(f"    {line}" for line in done.stderr.splitlines()[-60:]), flush=True)
    return int(inputs[-1]) if inputs else 0, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", required=True, help="bazel-bin of --config=fuzz")
    parser.add_argument("--replays", required=True, help="bazel-bin with the replay tests")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="names of readers, with commas")
    parser.add_argument("--folder", default=str(ROOT / "build" / "fuzz"))
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else names()
    results = [run(name, arguments, arguments.seconds / len(chosen)) for name in chosen]
    inputs = sum(count for count, _ in results)
    findings = sum(failed for _, failed in results)
    print(f"fuzz: {len(chosen)} readers, {inputs} inputs, {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
