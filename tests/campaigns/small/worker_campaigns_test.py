# SPDX-License-Identifier: Apache-2.0
"""Small forms of the workers' campaigns, on generated data."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from support import CAMPAIGNS
from support.processes import worker_models


def campaign(name: str, *arguments: str) -> str:
    command = [sys.executable, str(CAMPAIGNS / name), "--data=made", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("changed", "losses", "wrong"),
    [
        ({}, {0: 0.5, 1: 0.25}, ()),
        ({"a rows": np.array([[1.0], [2.0 + 1e-6]])}, {0: 0.5, 1: 0.25}, ()),
        ({"a rows": np.array([[1.0], [2.0 + 1e-4]])}, {0: 0.5, 1: 0.25}, ("a rows",)),
        ({"a slot 0": np.array([[0.0], [1e-5]])}, {0: 0.5, 1: 0.25}, ("a slot 0",)),
        ({"a size": np.array(3)}, {0: 0.5, 1: 0.25}, ("a size",)),
        ({"hidden 0": np.zeros([3])}, {0: 0.5, 1: 0.25}, ("hidden 0",)),
        ({"b rows": np.zeros([1, 1])}, {0: 0.5, 1: 0.25}, ("b rows",)),
        ({}, {1: 0.2501}, ("losses",)),
        ({}, {}, ("losses",)),
    ],
)
def test_a_comparison_sees_what_differs(changed: Any, losses: Any, wrong: Any):
    expected = {
        "a size": np.array(2),
        "a rows": np.array([[1.0], [2.0]]),
        "a slot 0": np.zeros([2, 1]),
        "hidden 0": np.zeros([2]),
    }
    found = worker_models.compare(expected | changed, losses, expected, {0: 0.5, 1: 0.25})
    assert found.wrong == wrong


def test_two_workers_learn_of_flights_as_one_process():
    # The full campaign has the other ways, optimizers and bounds; worker_training_test.py has them
    # on generated data.
    small = ("--workers=2", "--steps=20", "--batch=128", "--ways=fit", "--optimizers=adam")
    printed = campaign("worker_parity.py", *small, "--bounds=tight")
    assert "1 of 1 the same as one process" in printed


def test_one_process_goes_on_from_the_row_files_of_two_workers():
    printed = campaign("worker_chain.py", "--workers=2", "--epoch-steps=5", "--saves=rows")
    assert "1 of 1 ways the same as an unbroken run" in printed


def test_workers_come_to_the_same_end_after_a_kill():
    # A busy machine may take longer to end the workers.
    small = ("--kills=1", "--workers=2", "--ways=fit", "--patience=60")
    printed = campaign("worker_kills.py", *small)
    assert "1 kills" in printed and "0 findings" in printed


def test_any_number_of_workers_learns_of_flights_as_one_process():
    assert "24 of 24 the same as one process" in campaign("worker_parity.py")


def test_a_chain_of_numbers_of_workers_is_one_training():
    assert "4 of 4 ways" in campaign("worker_chain.py")
