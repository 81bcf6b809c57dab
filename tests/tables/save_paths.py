# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/save_paths.md: each save path, the aspects that it keeps, damaged files.

Each cell is "kept", or the reason that the save path cannot carry the aspect, or the sentence with
which it raises. Anything else is WRONG, is printed on standard error, and makes the exit status 1.
A run uses the installed TensorFlow; `--merge` puts several runs into a single table.

Example:
    python tests/tables/save_paths.py --json build/save_paths/2.21.0.json
    python tests/tables/save_paths.py --merge build/save_paths/*.json \
        --write docs/reference/save_paths.md
    python tests/tables/save_paths.py --path EarlyStopping
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import sys
from collections.abc import Iterable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

HEAD = """# Save paths

Every way to save, copy or restore a trained model. Each is tested by a round trip: a model is
trained and goes through the save path, and the result is compared with it, to the last bit. The
aspects are its *rows*, their optimizer *slots*, the *statistics* that policies use, the
optimizer's *step*, and the initial rows of *unknown ids*, which no table has seen. If the save
path restores into an existing model, that model has other rows and another seed before. A cell
holds for a table with its own optimizer and for one under `tf_embed.DynamicEmbeddingOptimizer`,
and for all these runs:

{runs}

A number refers to a sentence below. A cell is *kept*, *not carried* or *raises*, and nothing
else: `{command}`, which printed this, fails on one.
"""

RAGGED = """
## Ragged and sparse ids

The signature that an export makes takes dense ids. A layer that gets ragged or sparse ids in the
model must have a `padding_id`, or every export raises `ValueError`, unless the exported function
gives the layer ragged or sparse ids again. A layer is known to get them by the model's
`keras.Input`, or by its calls, which `.keras` and `.weights.h5` files carry. A checkpoint does not
carry them: call the model once before it is exported.
"""

HARM = """
## Damaged files, and files of another table

In each case the model raises, and its table is as it was.
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="write the run here")
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", help="read runs, and run nothing")
    parser.add_argument("--write", type=pathlib.Path, help="write the table here too")
    parser.add_argument("--path", help="only save paths whose name has this")
    return parser.parse_args()


def run(part: str) -> dict[str, Any]:
    """Tries all save paths and damages with the installed TensorFlow.

    Args:
        part: A part of the name of a save path; others are left out.

    Returns:
        Versions, and the answer of every save path and damage each way.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    from support.cases import save_path_cases, save_path_models
    from support.faults import damage_cases

    tried: dict[str, dict[str, dict[str, str]]] = {}
    for save_path in save_path_cases.SAVE_PATHS:
        if part in save_path.name:
            tried[save_path.name] = {
                way: save_path_cases.outcome(save_path, way) for way in save_path_models.WAYS
            }
            print(save_path.name, file=sys.stderr, flush=True)
    harms: dict[str, dict[str, dict[str, str]]] = {}
    for harm in damage_cases.HARMS:
        if not part or part in harm:
            harms[harm] = {
                way: {kind: damage_cases.outcome(kind, harm, way) for kind in damage_cases.FORMATS}
                for way in save_path_models.WAYS
            }
            print(harm, file=sys.stderr, flush=True)
    versions = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    return {
        "versions": f"{versions}, Python {platform.python_version()}",
        "date": datetime.date.today().isoformat(),
        "save_paths": tried,
        "harms": harms,
    }


class Sentences:
    """The sentences, numbered in order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def cell(self, said: dict[str, dict[str, str]]) -> str:
        """A cell from the answers of each way in each run. It has a shared answer only once."""
        cells: dict[str, list[str]] = {}
        for way, runs in said.items():
            given = {run: self._short(what) for run, what in runs.items()}
            if len(set(given.values())) == 1:
                cells.setdefault(next(iter(given.values())), []).append(way)
                continue
            for run, cell in given.items():
                cells.setdefault(cell, []).append(f"{way} on {run}")
        if len(cells) == 1:
            return next(iter(cells))
        return "; ".join(f"{', '.join(who)}: {cell}" for cell, who in cells.items())

    def _short(self, what: str) -> str:
        kind, _, sentence = what.partition(": ")
        if kind not in ("not carried", "raises"):
            return what
        sentence = re.sub(r"\d{3,}", "...", sentence)  # checksums and sizes differ
        return f"{kind} ({self.numbers.setdefault(sentence, len(self.numbers) + 1)})"

    def foot(self) -> str:
        """The list of the sentences."""
        lines = [f"{number}. {_markdown(text)}" for text, number in self.numbers.items()]
        return "\n## Sentences\n\n" + "\n".join(lines) + "\n"


def _markdown(sentence: str) -> str:
    """A sentence escaped for Markdown, except for its code."""
    parts = re.split(r"(`[^`]*`)", sentence)
    return "".join(p if p.startswith("`") else re.sub(r"([*<>|\[\]_])", r"\\\1", p) for p in parts)


def table(
    title: str, runs: list[dict[str, Any]], part: str, columns: Iterable[str], said: Sentences
) -> str:
    """A Markdown table of a part of all runs."""
    columns = list(columns)
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in runs[0][part]:
        cells = []
        for column in columns:
            said_there = {
                way: {one["versions"].split(",")[0]: one[part][name][way][column] for one in runs}
                for way in runs[0][part][name]
            }
            cells.append(said.cell(said_there))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def text_of(runs: list[dict[str, Any]]) -> str:
    """The document."""
    said = Sentences()
    text = HEAD.format(
        command="make tables",
        runs="\n".join(f"- {one['versions']}, on {one['date']}" for one in runs),
    )
    for title, part, head in (("save path", "save_paths", ""), ("harm", "harms", RAGGED + HARM)):
        if runs[0][part]:
            first = next(iter(next(iter(runs[0][part].values())).values()))
            text += head + table(title, runs, part, first, said)
    return text + said.foot()


def wrong_in(runs: list[dict[str, Any]]) -> list[str]:
    """The WRONG answers, a line each."""
    return [
        f"{one['versions']}: {name}, {way}, {column}: {what}"
        for one in runs
        for part in ("save_paths", "harms")
        for name, ways in one[part].items()
        for way, answer in ways.items()
        for column, what in answer.items()
        if what.startswith("WRONG")
    ]


def main() -> int:
    """Runs or reads, prints, and writes if `--write` is given."""
    arguments = _arguments()
    if arguments.merge:
        runs = [json.loads(path.read_text()) for path in arguments.merge]
        if any(one["save_paths"].keys() != runs[0]["save_paths"].keys() for one in runs):
            raise SystemExit("The runs are of different save paths: make all of them again.")
    else:
        runs = [run(arguments.path or "")]
    wrong = wrong_in(runs)
    if wrong:
        print(f"{len(wrong)} cells are WRONG:", *wrong, sep="\n", file=sys.stderr)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(runs[0], indent=1) + "\n")
    else:
        print(text_of(runs))
    if wrong:
        return 1
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text_of(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
