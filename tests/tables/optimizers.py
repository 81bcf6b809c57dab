# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/optimizers.md: every Keras optimizer and option, against Keras itself.

Each cell is "equal", or the number of the sentence that refuses the case when the optimizer is
built. Anything else is WRONG, is printed on standard error, and makes the exit status 1.

Example:
    python tests/tables/optimizers.py --write docs/reference/optimizers.md
    python tests/tables/optimizers.py --kind Nadam --option plain --option clipnorm --way own
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable

import keras
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.cases import optimizer_cases as cases

HEAD = """# Optimizers

Every optimizer of Keras {keras} times every option, for rows of dynamic tables. *Equal* is equal
to the result of the Keras optimizer itself on a dense variable: two tables and two dense
variables are trained together for {steps} updates, and after each of them all rows and all dense
variables are within rtol {rtol:g} and atol {atol:g} of Keras's, and so are the finalized ones if
there is a moving average. Each step touches every row, in random order and multiplicity, and
Keras is given the dense gradient, in which those of equal keys are summed. A number is that of
the sentence below with which the optimizer is refused when it is built. There is no third kind of
cell: `{command}` fails on one.

If a step touches some rows, the reference is the Keras optimizer on a dense variable of these
rows: slots, weight decay and moving averages of other rows stand still, norms are of the touched
rows. SmartDecayAdam makes up for those steps when the row comes again, and equals Keras's Adam on
a dense variable of all rows (`tests/python/optimizers/smart_decay_adam_test.py`). A NaN or
infinite gradient changes touched rows as Keras changes that variable, clipped or not, and leaves
other rows finite; those of a dense variable of all rows may turn NaN.
`tests/python/optimizers/every_optimizer_test.py` holds that, half precision and float64.

Printed by `{command}` on {date}: TensorFlow {tensorflow}, Keras {keras}, Python {python}, CPU.
"""

WRAPPER = """
## `tf_embed.DynamicEmbeddingOptimizer(optimizer)`

One optimizer for tables and dense variables. *Outside* is a LossScaleOptimizer around the wrapper.
"""

OWN = """
## `tf_embed.layers.DynamicEmbedding(dim, optimizer=optimizer)`

Each table has a copy of the optimizer, the dense variables have SGD.
"""

OUTER = """
## Options of the outer optimizer, for a table with its own

The tables have their own Adam, and the option is that of the SGD outside. *Equal* means that
tables are as without the option, and dense variables as in Keras with it.
"""

FIRST_COLUMN = "optimizer"


class Tables:
    """Runs cases, and collects sentences and errors."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self.wrong: list[str] = []
        self.largest = 0.0

    def cell(self, answer: cases.Answer, where: str) -> str:
        """The text of a cell."""
        if answer.refusal is not None:
            # Optimizers that are refused in the same words share a footnote.
            sentence = re.sub(r"Received: \w+\((?=\w+=)", "Received: <optimizer>(", answer.refusal)
            return str(self.refusals.setdefault(sentence, len(self.refusals) + 1))
        if answer.difference is not None:
            self.largest = max(self.largest, answer.difference)
            return "equal"
        self.wrong.append(f"{where}: {answer.wrong}")
        print(f"WRONG {self.wrong[-1]}", file=sys.stderr, flush=True)
        return "WRONG"

    def table(
        self,
        rows: Iterable[str],
        options: Iterable[str],
        run: Callable[[str, str], cases.Answer],
        where: str,
    ) -> str:
        """A Markdown table of `run(row, option)`."""
        options = list(options)
        lines = [f"| {FIRST_COLUMN} | {' | '.join(options)} |", "|---" * (len(options) + 1) + "|"]
        for row in rows:
            start = time.perf_counter()
            cells = [self.cell(run(row, o), f"{where}, {row}, {o}") for o in options]
            lines.append(f"| {row} | {' | '.join(cells)} |")
            seconds = time.perf_counter() - start
            print(f"{where}, {row}: {seconds:.0f} s", file=sys.stderr, flush=True)
        return "\n" + "\n".join(lines) + "\n"

    def foot(self) -> str:
        """The list of the sentences."""
        lines = ["\n## Sentences\n"]
        lines += [f"{number}. {_plain(text)}" for text, number in self.refusals.items()]
        lines.append(f"\nThe largest difference among the equal is {self.largest:.1e}.")
        return "\n".join(lines) + "\n"


def _plain(sentence: str) -> str:
    """A sentence escaped for Markdown, except for its code."""
    parts = re.split(r"(`[^`]*`)", sentence)
    return "".join(p if p.startswith("`") else re.sub(r"([*<>|\[\]])", r"\\\1", p) for p in parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=pathlib.Path, help="write here too, unless it is WRONG")
    parser.add_argument("--way", action="append", choices=(*cases.WAYS, "outer"))
    parser.add_argument("--kind", action="append", choices=list(cases.KINDS))
    parser.add_argument("--option", action="append", choices=list(cases.OPTIONS))
    parser.add_argument("--mode", choices=cases.MODES, default="graph")
    return parser.parse_args()


def main() -> int:
    """Prints the tables, and writes them if `--write` is given."""
    arguments = _arguments()
    mode = arguments.mode
    ways = arguments.way or [*cases.WAYS, "outer"]
    kinds = arguments.kind or list(cases.KINDS)
    options = arguments.option or list(cases.OPTIONS)
    inside = [option for option in options if cases.OPTIONS[option].wraps != "outside"]
    tables = Tables()
    text = HEAD.format(
        command="make tables",
        date=datetime.date.today().isoformat(),
        steps=cases.STEPS,
        tensorflow=tf.__version__,
        keras=keras.__version__,
        python=platform.python_version(),
        **cases.CLOSE,
    )
    if "wrapper" in ways:
        text += WRAPPER + tables.table(
            kinds, options, lambda k, o: cases.check("wrapper", k, o, mode), "wrapper"
        )
    if "own" in ways:
        text += OWN + tables.table(
            kinds, inside, lambda k, o: cases.check("own", k, o, mode), "own"
        )
    if "outer" in ways:
        text += OUTER + tables.table(
            ("plain", "wrapper"), inside, lambda k, o: cases.check_outer(k, o, mode), "outer"
        ).replace(FIRST_COLUMN, "outer optimizer", 1)
    text += tables.foot()
    print(text)
    if tables.wrong:
        print(f"{len(tables.wrong)} cells are WRONG:", *tables.wrong, sep="\n", file=sys.stderr)
        return 1
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
