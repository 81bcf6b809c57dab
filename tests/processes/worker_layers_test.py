# SPDX-License-Identifier: Apache-2.0
"""Layers of `one_embedding` that two workers train, in real processes, against one process."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from support.processes import worker_layers, worker_programs

FOLDER = tempfile.TemporaryDirectory()
ORACLE = tempfile.TemporaryDirectory()


@functools.cache
def launched() -> worker_programs.Launched:
    cases = ["trained", "loaded"]
    return worker_programs.launch(worker_layers.__file__, cases, 2, FOLDER.name)


def results(case: str) -> list[Any]:
    assert launched().code == 0, launched().printed
    return [launched().results[rank][case] for rank in (0, 1)]


@functools.cache
def oracle(way: str) -> dict[str, Any]:
    """The results of one process with the global batches."""
    strategy = tf.distribute.get_strategy()
    if way in ("loop", "together"):
        folder = f"{ORACLE.name}/{way}"
        return worker_layers.stepped(strategy, 0, 1, folder, together=way == "together")
    if way == "table ids":
        return worker_layers.with_table_ids(strategy, 1, f"{ORACLE.name}/table-ids")
    return worker_layers.fitted(strategy, f"{ORACLE.name}/{way}", way == "fit True")[1]


def tearDownModule():
    FOLDER.cleanup()
    ORACLE.cleanup()


class WorkerLayersTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, found: dict[str, Any], expected: dict[str, Any], names: Any) -> None:
        for name in names:
            self.assertAllClose(found[name], expected[name], rtol=2e-5, atol=2e-6, msg=name)

    @parameterized.parameters("loop", "together", "fit False", "fit True")
    def test_two_workers_train_as_one_process(self, way):
        expected = oracle(way)
        for kind in worker_layers.KINDS:  # the check is meaningful only if all tables are trained
            self.assertGreater(expected[f"{kind} size"], 20)
        for found in results("trained"):
            self.check(found[way], expected, expected.keys() - {"exchanges"})

    def test_table_ids_may_be_inputs_computed_or_constant(self):
        expected = oracle("table ids")
        for found in results("trained"):
            self.check(found["table ids"], expected, expected.keys() - {"exchanges"})
            self.assertEqual(found["table ids"]["exchanges"], 3)  # shared by all layers

    def test_all_tables_of_a_model_share_their_exchanges(self):
        for found in results("trained"):
            # Exchanges of keys, rows and gradients, for 12 tables in five layers. If shared ids
            # have different initial rows, a layer also inserts and looks up separately.
            for way in ("fit True", "fit False"):
                self.assertEqual(found[way]["exchanges"], 3 + 4)

    def test_layers_of_a_loop_share_their_exchanges_if_called_together(self):
        for found in results("trained"):
            self.assertEqual(found["together"]["exchanges"], 3 + 4)
            self.assertGreater(found["loop"]["exchanges"], 3 + 4)

    def test_workers_load_files_checkpoints_and_snapshots(self):
        for trained, found in zip(results("trained"), results("loaded"), strict=True):
            for way in ("file", "checkpoint", "snapshot"):
                self.check(found[way], trained["fit True"], found[way].keys())
            self.check(found["other folders"], trained["fit True"], ["apart rows", "apart size"])
            self.assertEqual(trained["rows"], 0)  # no changes since the previous snapshot

    def test_one_process_loads_files_and_snapshots(self):
        (expected, _) = results("trained")
        found = worker_layers.loaded(tf.distribute.get_strategy(), 0, FOLDER.name)
        for way in ("file", "checkpoint", "snapshot"):
            self.check(found[way], expected["fit True"], found[way].keys())

    def test_workers_share_the_room_for_the_capacity(self):
        layers = worker_layers.new_layers(f"{ORACLE.name}/rooms", True)
        of_one_process = worker_layers.rooms(layers)
        self.assertEqual(of_one_process["packed"], [1000])
        self.assertEqual(of_one_process["apart"], [250] * 4)
        for found in results("trained"):
            halves = {kind: [-(-one // 2) for one in of] for kind, of in of_one_process.items()}
            self.assertEqual(found["rooms"], halves)

    def test_what_is_of_one_process_is_refused(self):
        for found in results("trained"):
            for word in (
                "ValueError",
                "'disk_True' can't prefetch for a dataset: 'disk_True/table_0' is",
                "sharded over 2 workers",
            ):
                self.assertIn(word, found["prefetch"])
            self.assertEqual(found["report"], 1)

    def test_ids_of_all_tables_are_looked_up(self):
        ids, _ = worker_layers.data()
        self.assertEqual(set(np.unique(ids)), set(worker_layers.IDS))


if __name__ == "__main__":
    absltest.main()
