# SPDX-License-Identifier: Apache-2.0
"""Saves of two workers, loaded by one process and by several."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import pytest
import tensorflow as tf
from absl.testing import absltest

from support.processes import worker_programs, worker_saves

FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def launched(case: str, workers: int) -> worker_programs.Launched:
    if case == "read":
        launched("write", 2)
    return worker_programs.launch(worker_saves.__file__, [case], workers, FOLDER.name)


def results(case: str, workers: int) -> list[Any]:
    done = launched(case, workers)
    assert done.code == 0, done.printed
    return [result[case] for result in done.results.values()]


def tearDownModule():
    FOLDER.cleanup()


class WorkerSavingTest(tf.test.TestCase):
    def check(self, found: dict[str, Any]) -> None:
        expected = results("write", 2)[0]
        for way, what in {
            "files": "table",
            "checkpoint": "table",
            "model.keras": "model",
            "model.weights.h5": "model",
            "model.keras, trained on": "model, trained on",
        }.items():
            self.assertEqual(found[way].keys(), expected[what].keys(), way)
            for name, value in expected[what].items():
                if "slot" in name and way.startswith("model.weights"):
                    continue
                self.assertAllClose(
                    found[way][name], value, rtol=2e-5, atol=2e-6, msg=f"{way} {name}"
                )

    def test_workers_save_the_same(self):
        first, second = results("write", 2)
        for what in ("table", "model", "model, trained on"):
            for name, value in first[what].items():
                self.assertAllClose(second[what][name], value, msg=f"{what} {name}")
        self.assertGreater(first["table"]["size"], 10)

    def test_a_saved_model_is_refused(self):
        for found in results("write", 2):
            for what in ("export", "model export"):
                self.assertIn("a SavedModel is of one process", found[what])
            for what in ("static export", "static export of a module"):
                self.assertIn("a static export is of one process", found[what])

    def test_another_number_of_processes_is_refused(self):
        for found in results("write", 2):
            for word in (
                "ValueError",
                "`proc_size` must be 2 or left out, because",
                "2 workers",
                "proc_size=3",
            ):
                self.assertIn(word, found["proc_size"])

    def test_each_worker_is_told_of_its_own_rows(self):
        found = [result["progress"] for result in results("write", 2)]
        self.assertEqual(sum(one["own"] for one in found), found[0]["all"])
        for one in found:
            self.assertEqual(one["save"], [one["own"]] * 2)
            self.assertEqual(one["snapshot"], [one["own"]] * 2)
            self.assertEqual(one["load"], [one["all"]] * 2)  # each worker reads all files
            expected = "KeyError: 'of the caller'" if one["rank"] == 1 else "no error"
            self.assertEqual(one["errors"], [expected] * 3)

    def test_one_process_loads_it(self):
        results("write", 2)
        strategy = tf.distribute.get_strategy()
        found = worker_saves.read(strategy, 0, FOLDER.name)
        self.assertEqual(found["files apart"], found["files"]["size"])
        self.check(found)

    def test_keys_that_wait_go_on_waiting_in_any_number_of_processes(self):
        six = list(range(1, 7))
        expected = [1, [0, *six], [0, *six, 20], [0, *six, 20, 30, 31]]
        self.assertEqual(results("admitting_write", 2), [expected] * 2)
        self.assertEqual(results("admitting_read", 2), [expected] * 2)
        strategy = tf.distribute.get_strategy()
        self.assertEqual(worker_saves.admitting_read(strategy, 0, FOLDER.name), expected)

    def test_as_many_workers_load_it(self):
        self.check_workers(2)

    @pytest.mark.smoke
    def test_another_number_of_workers_loads_it(self):
        self.check_workers(3)

    def check_workers(self, workers: int) -> None:
        found = results("read", workers)
        self.assertLen(found, workers)
        for way in ("files", "checkpoint"):
            apart = [one[f"{way} apart"] for one in found]
            self.assertEqual(sum(apart), found[0][way]["size"])
            self.assertGreater(min(apart), 0)
        for one in found:
            self.check(one)


if __name__ == "__main__":
    absltest.main()
