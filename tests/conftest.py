# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all test files share: a printed seed, a clean Keras, names for doctests.

Random tests draw from SEED. It is the same in every run unless TF_EMBED_TEST_SEED is set.
"""

from __future__ import annotations

import gc
import inspect
import zlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_embed
from support.oracles.reference import SEED

# Helpers, and programs with command-line flags of their own.
collect_ignore_glob = ["campaigns/*.py", "cc/*", "golden/*", "support/*", "tables/*"]

# Two logical CPUs for the tests of replicas. They must be set before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def pytest_report_header() -> str:
    return f"tensorflow {tf.__version__}, keras {keras.__version__}, TF_EMBED_TEST_SEED={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # tf.test.TestCase has a method of this name that is no test.
    items[:] = [item for item in items if not item.name.startswith("test_session")]
    grids: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            grids.setdefault((item.cls, inspect.unwrap(item.function)), []).append(item)
    for grid in grids.values():
        for item in _not_drawn(grid):
            item.add_marker(pytest.mark.slow)


def _not_drawn(grid: list[pytest.Item]) -> list[pytest.Item]:
    """All cases of a test but a fifth, and at least one, that SEED draws."""

    def chance(item: pytest.Item) -> int:
        name = item.nodeid.rpartition("/")[2]
        return zlib.crc32(f"{SEED} {name}".encode())

    return sorted(grid, key=chance)[max(1, round(len(grid) / 5)) :]


def pytest_collection_finish() -> None:
    # Traces make so many objects that the garbage collector took a third of the time. Freeze the
    # objects that exist now and search the rest less often; but often enough, because the graphs
    # of many tests at once take far longer to free than one by one.
    gc.collect()
    gc.freeze()
    gc.set_threshold(3_000)


@pytest.fixture(autouse=True)
def clean_keras() -> None:
    """Layers are named, and so their initial rows drawn, as in a new process."""
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(tf_embed=tf_embed, keras=keras, np=np, tf=tf)
