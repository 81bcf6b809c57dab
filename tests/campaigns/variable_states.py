# SPDX-License-Identifier: Apache-2.0
"""Calls all methods of a `Variable` in random orders, and compares it with a dict.

    python tests/campaigns/variable_states.py [--seconds=3600] [--seed=1] [--plant]

Machines of Hypothesis (tests/support/cases/variable_machines.py), in memory and over a disk, with
integer and string keys, take turns. The last line has the figures. If a variable had other rows
than the dict, the exit status is 1, and the shortest such sequence of calls is printed.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

EXAMPLES = 20  # examples in a turn
STEPS = 50  # most steps in an example
TURNS_BETWEEN_FIGURES = 100


def main() -> None:
    from support.cases.variable_machines import MACHINES, Planted

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--plant", action="store_true", help="plant a defect, which is found")
    arguments = parser.parse_args()
    machines = (Planted,) if arguments.plant else MACHINES
    until = time.monotonic() + arguments.seconds
    turns = failures = 0
    while turns < len(machines) or (time.monotonic() < until and not failures):
        machine = machines[turns % len(machines)]
        run = settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        machine = seed(arguments.seed + turns)(machine)
        try:
            run_state_machine_as_test(machine, settings=run)
        except Exception as error:  # the error of the shortest sequence, of any kind
            failures += 1
            print(f"{machine.__name__}: {type(error).__name__}: {error}")
            print(*getattr(error, "__notes__", ()), sep="\n")
        turns += 1
        if turns % TURNS_BETWEEN_FIGURES == 0:
            print(f"{turns} turns, {sum(one.steps for one in machines)} steps", flush=True)
    steps = sum(machine.steps for machine in machines)
    print(
        f"variable states: {turns} turns, {steps} steps, {failures} failures, seed {arguments.seed}"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
