# SPDX-License-Identifier: Apache-2.0
"""After any sequence of operations a `Variable` has the rows that a dict would have."""

from __future__ import annotations

from absl.testing import absltest, parameterized
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.cases.variable_machines import MACHINES, Planted

# The same steps in each run. Hypothesis shrinks and prints a failing sequence.
SETTINGS = settings(
    max_examples=30,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

# Stops once the defect is found, without shrinking the sequence.
PLANTED = settings(SETTINGS, max_examples=300, phases=[Phase.generate])


class VariableStatesTest(parameterized.TestCase):
    @parameterized.parameters(*MACHINES)
    def test_it_has_the_rows_of_a_dict(self, machine):
        run_state_machine_as_test(machine, settings=SETTINGS)
        self.assertGreater(machine.steps, SETTINGS.max_examples)

    def test_a_planted_defect_is_found(self):
        with self.assertRaises(AssertionError):
            run_state_machine_as_test(Planted, settings=PLANTED)


if __name__ == "__main__":
    absltest.main()
