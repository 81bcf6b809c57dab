# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks and reports.

    .venv/bench216/bin/python benchmarks/run.py [--quick] [--sections lookup,adam] [--write]

Prints rows as soon as they are measured; at the end the table of goals, and a line of JSON with
every name in `goals.GOALS`. Writes all of it to build/bench/results.json, and a chart to
build/bench/results.png.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

import chart
import goals
import machine
import report
from rows import Row
from sections import ASKED_FOR, PARTS
from settings import BUILD, ROOT, TENSORFLOW_PYTHON, Settings

RESULTS, END = "<!-- results -->", "<!-- end of results -->"


def run_part(section: str, part: str, settings: Settings) -> tuple[list[Row], str]:
    """Returns the rows of a part, and an error message or ""."""
    command = [os.fspath(TENSORFLOW_PYTHON), os.fspath(ROOT / "benchmarks" / "section.py")]
    command += [section, part, f"--folder={settings.folder}"]
    command += ["--quick"] if settings.quick else []
    log = BUILD / "logs" / f"{section}-{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        for line in process.stdout or ():
            rows.append(Row.from_json(line))
            print(rows[-1], flush=True)
    if process.returncode:
        last = log.read_text().strip().rpartition("\n")[2][:200]
        return rows, f"{section} {part} failed ({process.returncode}), see {log.name}: {last}"
    return rows, ""


def run_sections(sections: Sequence[str], settings: Settings) -> tuple[list[Row], dict[str, str]]:
    """All rows, and the reason for each incomplete section."""
    rows: list[Row] = []
    failures = {goal.section: "left out" for goal in goals.GOALS if goal.section not in sections}
    for section in sections:
        parts, more = PARTS[section]
        for part in parts if settings.quick else (*parts, *more):
            begin = time.monotonic()
            print(f"--- {section} {part}: load average {os.getloadavg()[0]:.2f}", flush=True)
            found, failure = run_part(section, part, settings)
            rows += found
            if failure:
                failures[section] = failure
                print(f"!!! {failure}", flush=True)
            print(f"    {time.monotonic() - begin:.0f} s", flush=True)
    return rows, failures


def write_results(
    rows: Sequence[Row], figures: Sequence[report.Figure], about: dict[str, str]
) -> None:
    """Writes the results to build/bench."""
    results = {
        "about": about,
        "figures": json.loads(report.json_line(figures)),
        "rows": [json.loads(row.to_json()) for row in rows],
    }
    (BUILD / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def write_readme(
    rows: Sequence[Row], figures: Sequence[report.Figure], about: dict[str, str]
) -> None:
    """Puts the results into benchmarks/README.md."""
    path = ROOT / "benchmarks" / "README.md"
    before, _, rest = path.read_text().partition(RESULTS)
    _, _, after = rest.partition(END)
    lines = [
        RESULTS,
        f"`{about['command']}` on {about['date']}, {about['minutes']} minutes, on "
        f"{about['processor']}, {about['cores']} cores, {about['memory']}, {about['system']}; "
        f"{report.summary(figures)}.",
        "",
        report.table(figures),
        "",
        "*Over ours*: the median of the ratios of each round. *Load* is the load average of a",
        "minute before the row, the benchmark itself included.",
        "",
        report.row_table(rows),
        END,
    ]
    path.write_text(before + "\n".join(lines) + after)


def draw_chart(figures: Sequence[report.Figure], about: dict[str, str]) -> None:
    """Writes the chart, if matplotlib is installed."""
    title = f"tf_embed on {about['processor']}, {about['cores']} cores, {about['date']}"
    try:
        chart.draw(figures, title, BUILD / "results.png")
    except ImportError as error:
        print(f"There is no chart: {error}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the benchmarks and reports.")
    parser.add_argument("--quick", action="store_true", help="only what goals are about")
    parser.add_argument(
        "--sections",
        default=",".join(section for section in PARTS if section not in ASKED_FOR),
        help=f"some of %(default)s,{','.join(ASKED_FOR)}; the last only where named",
        metavar="NAMES",
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, default=BUILD, help="where tables over disk have their rows"
    )
    parser.add_argument("--write", action="store_true", help="put results into the README")
    options = parser.parse_args()
    sections = options.sections.split(",")
    unknown = [section for section in sections if section not in PARTS]
    if unknown:
        parser.error(f"There is no section {', '.join(unknown)}: take some of {', '.join(PARTS)}.")
    begin = time.monotonic()
    about = {
        **machine.description(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/run.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{name}: {value}" for name, value in about.items()))
    rows, failures = run_sections(sections, Settings(options.quick, options.folder.resolve()))
    figures = report.figures(rows, failures)
    about["minutes"] = f"{(time.monotonic() - begin) / 60:.1f}"
    write_results(rows, figures, about)
    draw_chart(figures, about)
    if options.write:
        write_readme(rows, figures, about)
    print()
    print(report.table(figure for figure in figures if figure.goal.section in sections))
    print()
    print(f"{report.summary(figures)}; {about['minutes']} minutes")
    print(report.json_line(figures))


if __name__ == "__main__":
    main()
