# SPDX-License-Identifier: Apache-2.0
"""Planted losses are found as the errors that tests/tables/save_paths.py documents."""

from __future__ import annotations

from typing import Any

import save_paths
import tensorflow as tf
from absl.testing import parameterized

from support.cases import save_path_cases, save_path_models
from support.cases.save_path_cases import SavePath
from support.cases.save_path_models import ASPECTS
from support.faults import damage_cases


def lost(way: str, folder: Any) -> Any:
    return save_path_models.trained(way), save_path_models.untrained(way, seed=2)


def whole(way: str, folder: Any) -> Any:
    model = save_path_models.trained(way)
    return model, model


def failing(way: str, folder: Any) -> Any:
    raise KeyError("something else")


class SavePathsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*save_path_models.WAYS)
    def test_what_is_lost_is_wrong(self, way):
        cells = save_path_cases.outcome(SavePath("lost", lost), way)
        self.assertEqual(cells, dict.fromkeys(ASPECTS, "WRONG: lost"))

    def test_what_is_kept_is_kept(self):
        cells = save_path_cases.outcome(SavePath("whole", whole), "own")
        self.assertEqual(cells, dict.fromkeys(ASPECTS, "kept"))

    def test_what_a_door_lacks_is_said(self):
        lacks = {"slots": "not carried: ..."}
        self.assertEqual(
            save_path_cases.outcome(SavePath("lost", lost, lacks), "own")["slots"], lacks["slots"]
        )
        self.assertEqual(
            save_path_cases.outcome(SavePath("whole", whole, lacks), "own")["slots"], "kept"
        )

    def test_an_error_must_be_the_one_that_is_said(self):
        for raises in ((), "another"):
            cells = save_path_cases.outcome(SavePath("failing", failing, raises=raises), "own")
            self.assertEqual(cells["rows"], "WRONG: 'something else'")
        cells = save_path_cases.outcome(SavePath("failing", failing, raises="'something"), "own")
        self.assertEqual(cells["rows"], "raises: 'something else'")
        cells = save_path_cases.outcome(SavePath("whole", whole, raises="'something"), "own")
        self.assertEqual(cells["rows"], "WRONG: does not raise")

    def test_a_file_that_is_not_harmed_is_wrongly_read(self):
        damage_cases.HARMS["nothing"] = (lambda path, model: None, {})
        try:
            for kind in damage_cases.FORMATS:
                said = damage_cases.outcome(kind, "nothing", "own")
                self.assertEqual(said, "WRONG: it was read")
        finally:
            del damage_cases.HARMS["nothing"]

    def test_cells_that_differ_say_where_and_what_is_wrong_is_counted(self):
        def run(version: str, own: str) -> dict[str, Any]:
            answers = {"wrapper": {"rows": "kept"}, "own": {"rows": own}}
            return {
                "versions": version,
                "date": "today",
                "save_paths": {"a save path": answers},
                "harms": {},
            }

        same = [run("A, x", "kept"), run("B, x", "kept")]
        self.assertIn("| a save path | kept |", save_paths.text_of(same))
        self.assertEmpty(save_paths.wrong_in(same))
        other = [run("A, x", "kept"), run("B, x", "WRONG: lost")]
        self.assertIn("wrapper, own on A: kept; own on B: WRONG: lost", save_paths.text_of(other))
        self.assertLen(save_paths.wrong_in(other), 1)
        raising = [run("A, x", "raises: No 123456."), run("B, x", "raises: No 654321.")]
        self.assertIn("wrapper: kept; own: raises (1)", save_paths.text_of(raising))
        self.assertIn("1. No ....", save_paths.text_of(raising))


if __name__ == "__main__":
    tf.test.main()
