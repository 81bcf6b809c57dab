# SPDX-License-Identifier: Apache-2.0
"""Fixtures and hooks for all tests: tiers, a printed seed, a clean Keras, names for doctests.

Random tests draw from SEED, which is the same in every run unless TF_EMBED_TEST_SEED is set.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_embed
from support import CAMPAIGNS, tiers
from support.oracles.reference import SEED

# Helpers, and programs with command-line flags.
collect_ignore = ["cc", "support", "tables", *map(str, CAMPAIGNS.glob("*.py"))]

_COUNTS = pytest.StashKey[str]()

# Two logical CPUs for the tests of replicas. They must be set before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, default="nightly", help="which cases to run")
    parser.addoption(
        "--write-slow-cases", action="store_true", help=f"write {tiers.SLOW_CASES.name} anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # a worker of pytest-xdist
    if config.getoption("--write-slow-cases") and not is_worker:
        has_all_files = config.args_source == pytest.Config.ArgsSource.TESTPATHS
        is_cut = config.getoption("keyword") or config.getoption("markexpr")
        if not has_all_files or is_cut or config.getoption("--tier") != "nightly":
            raise pytest.UsageError("--write-slow-cases takes every case, so it takes no choice.")
        config.pluginmanager.register(tiers.Writer())


def pytest_report_header() -> str:
    return (
        f"tensorflow {tf.__version__}, keras {keras.__version__}, random tests of seed {SEED}, "
        f"grids of TF_EMBED_TEST_SEED={tiers.DRAW}"
    )


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # tf.test.TestCase has a method of this name that is not a test.
    tests = [item for item in items if not item.name.startswith("test_session")]
    for item in tests:
        item.user_properties.append(("case", (tiers.function_of(item), tiers.name_of(item))))
    items[:] = tiers.chosen(tests, config.getoption("--tier"))
    chosen = set(items)
    config.hook.pytest_deselected(items=[item for item in tests if item not in chosen])
    config.stash[_COUNTS] = tiers.counts(tests, items)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return config.stash.get(_COUNTS, "")  # "" if workers of pytest-xdist collect


def pytest_collection_finish() -> None:
    # Traces make so many objects that garbage collection took a third of the time. Freeze the
    # existing objects, and collect the rest less often. Still collect often enough, because the
    # graphs of many tests take far longer to free at once than test by test.
    gc.collect()
    gc.freeze()
    gc.set_threshold(3_000)


@pytest.fixture(autouse=True)
def clean_keras() -> None:
    """Gives layers the names, and so the initial rows, that they have in a new process."""
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Obeys the marks `cpu` and `of_cpu`."""
    of_cpu = request.node.get_closest_marker("of_cpu")
    if of_cpu and tf.config.list_physical_devices("GPU"):
        pytest.skip(f"of the CPU: {of_cpu.args[0]}")
    on_cpu = request.node.get_closest_marker("cpu")
    with tf.device("/CPU:0") if on_cpu else contextlib.nullcontext():
        yield


# What TensorFlow lacks on the emulated GPU (tests/cc/gpu), and a real GPU has.
_NOT_EMULATED = (
    "compiler for platform TF_EMBED_HOST",  # XLA
    "xla/known_issues#tfvariable_on_a_different_device",
    "'CudnnRNNV3'",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips a test that needs what the emulated GPU lacks."""
    report = yield
    if report.failed and call.excinfo and os.environ.get("TF_EMBED_EMULATE_GPU") == "1":
        missing = [text for text in _NOT_EMULATED if text in str(call.excinfo.value)]
        if missing:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: not emulated: {missing[0]}")
    return report


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(tf_embed=tf_embed, keras=keras, np=np, tf=tf)
