# SPDX-License-Identifier: Apache-2.0
"""The model of a cluster against simulations, the ops of the exchange, and a table's memory."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import cluster_model
import scaling
import tf_embed
from cluster_model import Cluster, Collective, Costs, Linear, Model
from ids import Zipf
from support import PYTHONPATH, ROOT
from support.oracles.reference import SEED
from tf_embed.exchange import routing
from tf_embed.ops import exchange_ops
from tf_embed.ops.exchange_ops import Part, PartType, Sent
from worker_parts import zipf_ids


def some_costs(**changes):
    """Costs that are 0 unless given here."""
    nothing = Linear({})
    free = Collective(0.0, [256, 4096], [0.0, 0.0], [0.0, 0.0])
    kinds = ("all_to_all", "all_gather", "all_reduce")
    parts = dict.fromkeys(cluster_model.PARTS, nothing)
    pack = {"wall": 0.0, "work": 0.0}
    cold = {"lookup": 0, "apply": 0}
    costs = Costs(parts, parts, pack, 0.0, dict.fromkeys(kinds, free), cold, 30.0)
    return dataclasses.replace(costs, **changes)


def run_benchmark(script, *arguments):
    """Runs a script of benchmarks/ and returns its output."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class DistinctTest(parameterized.TestCase):
    @parameterized.parameters((1000, 0.0), (1000, 1.05), (200_000, 1.05), (200_000, 1.3))
    def test_expected_distinct_ids_are_those_of_a_simulation(self, keys, exponent):
        drawn = Zipf(keys, exponent, seed=SEED)
        counts = [len(np.unique(drawn.numbers(5000))) for _ in range(30)]
        expected = cluster_model.expected_distinct(5000, keys, exponent)
        # Four deviations of the mean of 30; the ranges beyond 100,000 keys add the rest.
        deviation = max(np.std(counts), 1.0) / np.sqrt(30)
        np.testing.assert_allclose(expected, np.mean(counts), atol=4 * deviation, rtol=1e-3)

    def test_ranges_of_keys_stand_for_each_key(self):
        chances = np.arange(1, 3_000_001) ** -1.1
        chances /= chances.sum()
        each = -np.expm1(10**6 * np.log1p(-chances)).sum()
        found = cluster_model.expected_distinct(10**6, 3_000_000, 1.1)
        np.testing.assert_allclose(found, each, rtol=1e-4)

    def test_ids_are_as_distinct_as_expected(self):
        found = np.mean([len(np.unique(zipf_ids(i, 16384, 1.2, 1 << 40))) for i in range(20)])
        expected = cluster_model.expected_distinct(16384, 1 << 40, 1.2)
        np.testing.assert_allclose(found, expected, rtol=0.01)

    def test_few_draws_are_distinct_and_many_are_all_keys(self):
        self.assertAlmostEqual(cluster_model.expected_distinct(1, 10**12, 1.05), 1.0, places=6)
        self.assertAlmostEqual(cluster_model.expected_distinct(1e9, 100, 1.0), 100.0)


class MessagesTest(parameterized.TestCase):
    def test_lengths_are_those_of_the_op(self):
        for words in [0, 1, 63, 64, 65, 100, 127, 128, 129, 1000, 4097, 10**6, 2**30 - 1]:
            plan = exchange_ops.plan_exchange(
                tf.constant([0, words]), num_workers=1, num_tables=1, rank=0, reply_parts=[]
            )
            self.assertEqual(cluster_model.rounded_words(words), int(plan.capacity), words)

    @parameterized.parameters((2, 4), (8, 4), (32, 4), (8, 2))
    def test_messages_of_a_step_are_as_long_as_the_ops_make_them(self, workers, wire_bytes):
        """The lengths that the workers agree on, when each routes a batch of its own."""
        model = Model(1024, 16, 16, exponent=1.2, keys=1 << 40, wire_bytes=wire_bytes)
        sharding = tf_embed.distributed.WorkerSharding()
        wire = "same" if wire_bytes == 4 else "bfloat16"
        rows = [PartType(0, tf.float32, model.dim, wire)]
        agreed = []
        for seed in range(8):
            by_kind = [[], []]
            for rank in range(workers):
                ids = zipf_ids(1000 * seed + rank, model.batch, model.exponent, int(model.keys))
                routed = routing.route(tf.constant(ids), workers, sharding, "items")
                counts = routed.counts[tf.newaxis]
                keys = Part(0, routed.keys)
                sums = Part(0, tf.zeros([len(routed.keys), model.dim]), wire)
                for found, parts in zip(by_kind, ([keys], [keys, sums]), strict=True):
                    words = exchange_ops.message_words(Sent(parts, counts, rank))
                    found.append(tf.concat([routed.counts, words], 0))
            lookup, gradient = (
                exchange_ops.plan_exchange(
                    tf.concat(found, 0), num_workers=workers, num_tables=1, rank=0, reply_parts=rows
                )
                for found in by_kind
            )
            agreed.append([lookup.capacity, lookup.reply_capacity, gradient.capacity])
        found = 4 * np.median(np.array(agreed, np.float64), axis=0)
        sizes = cluster_model.traffic(model, workers)
        # Within a length, of which there are eight to an octave.
        np.testing.assert_allclose(sizes.messages, found, rtol=0.13)
        self.assertEqual(sizes.counts, 4 * len(tf.concat([routed.counts, words], 0)))

    @parameterized.parameters(2, 16, 128)
    def test_largest_count_is_that_of_a_simulation(self, workers):
        random = np.random.default_rng(SEED)
        spread = random.multinomial(20_000, np.full(workers, 1 / workers), size=[40, workers])
        spread[:, range(workers), range(workers)] = 0  # keys that a worker keeps
        found = spread.max(axis=(1, 2)).mean()
        expected = cluster_model.largest_count(20_000 / workers, workers)
        np.testing.assert_allclose(expected, found, rtol=0.02)


class MemoryTest(tf.test.TestCase):
    def test_memory_is_that_of_a_table_with_its_slots(self):
        rows, dim = 20_000, 8
        variable = tf_embed.Variable(dim=dim)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
        optimizer.build(variable.trainable_variables)
        (trainer,) = optimizer.table_trainers
        trainer.train(tf.range(rows, dtype=tf.int64), tf.ones([rows, dim]))
        stats = variable.stats()
        overhead = (stats["index_bytes"] + stats["slack_bytes"]) / rows
        model = Model(dim=dim, slots=1, keys=rows * 4)
        costs = some_costs(overhead=0.0)
        self.assertEqual(cluster_model.memory(model, 4, costs), stats["payload_bytes"])
        costs = some_costs(overhead=overhead)
        total = sum(stats[f"{name}_bytes"] for name in ("payload", "index", "slack"))
        self.assertAllClose(cluster_model.memory(model, 4, costs), total)


class StepTest(tf.test.TestCase):
    def test_linear_costs_are_found_again_and_none_is_below_zero(self):
        cases = [{"one": 1, "keys": a, "rows": b} for a, b in ((1, 1), (9, 2), (5, 5), (2, 9))]
        truth = Linear({"one": 2.0, "keys": 0.5, "rows": 0.0})
        found = Linear.fit(cases, [truth.at(**case) for case in cases])
        self.assertAllClose([found.at(**case) for case in cases], [3 - 0.5, 6.5, 4.5, 3.0])
        falling = Linear.fit(cases, [5.0, 1.0, 3.0, 2.0])
        self.assertAllGreaterEqual(list(falling.terms.values()), 0.0)

    def test_collectives_take_the_hops_of_their_algorithms(self):
        """With latency alone: a ring goes round, pairs go at once."""
        model = Model()
        for workers in (8, 1024):
            cluster = Cluster(workers, gigabits=1e12, latency=1.0)
            parts = cluster_model.cluster_step(model, cluster, some_costs())
            self.assertAllClose(parts["counts"], 2 * (workers - 1), rtol=1e-6)
            self.assertAllClose(parts["messages"], 3.0, rtol=1e-6)
            self.assertAllClose(parts["all_reduce"], 2 * (workers - 1), rtol=1e-6)

    def test_on_a_slow_link_a_step_takes_what_its_bytes_take(self):
        model = Model(dense=10**6)
        for workers in (8, 64):
            cluster = Cluster(workers, gigabits=1e-3, latency=0.0)
            step = cluster_model.cluster_step(model, cluster, some_costs())["sum"]
            sent = cluster_model.traffic(model, workers).sent
            self.assertAllClose(step, sent * 8 / 1e3, rtol=1e-6)

    def test_processes_share_cores(self):
        """Work that fills the cores takes as often the time as there are workers a core."""
        costs = some_costs()
        work = dict.fromkeys(cluster_model.PARTS, Linear({"one": 1.0}))
        costs = some_costs(wall=work, work=work)
        model = Model(examples=16, ids=1, keys=100)
        steps = [cluster_model.local_step(model, n, 2, costs)["whole"] for n in (1, 2, 4, 8)]
        self.assertAllClose(steps, [3.0, 4.0, 8.0, 16.0])


class ScriptTest(tf.test.TestCase):
    def document(self):
        """A folder with a copy of the document, and the arguments that make scripts write there."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        doc = folder / "scaling.md"
        doc.write_text((ROOT / "docs" / "scaling.md").read_text())
        return doc, ["--costs", str(folder / "costs.json"), "--doc", str(doc), "--write"]

    def test_document_has_a_place_for_each_table_once(self):
        text = (ROOT / "docs" / "scaling.md").read_text()
        for name in ("measure", "check", "predict"):
            found = [text.count(f"<!-- {mark}{name} -->") for mark in ("", "end of ")]
            self.assertEqual(found, [1, 1], name)

    def test_predictions_are_written(self):
        doc, common = self.document()
        costs = dataclasses.asdict(some_costs(overhead=16.0))
        for kind in ("wall", "work"):
            costs[kind] = {name: one["terms"] for name, one in costs[kind].items()}
        pathlib.Path(common[1]).write_text(json.dumps(costs))
        scaling.main(
            ["predict", "--workers", "8", "1024", "--key-counts", "1e9", "--dim", "62", *common]
        )
        lines = doc.read_text().partition("<!-- predict -->")[2].splitlines()
        self.assertLen([line for line in lines if line.startswith("| 1,024 |")], 2)
        # 62 weights and as many slots: 512 bytes a row.
        self.assertTrue(any(line.startswith("| 8 | 59.6 GiB (") for line in lines))

    def test_costs_must_be_measured_first(self):
        _, common = self.document()
        with self.assertRaisesRegex(SystemExit, "no costs in .* run `scaling.py measure` first"):
            scaling.main(["predict", *common])

    def test_picture_is_drawn_or_says_what_it_needs(self):
        doc, common = self.document()
        costs = dataclasses.asdict(some_costs(call=-1.0))  # so that no time is 0
        for kind in ("wall", "work"):
            costs[kind] = {name: {"one": 1.0} for name in costs[kind]}
        pathlib.Path(common[1]).write_text(json.dumps(costs))
        common += ["--picture", str(doc.with_suffix(".svg"))]
        without = mock.patch.dict(sys.modules, {"matplotlib.figure": None})
        with without, self.assertRaisesRegex(SystemExit, "needs matplotlib"):
            scaling.main(["plot", *common])
        self.assertFalse(doc.with_suffix(".svg").exists())
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
        scaling.main(["plot", *common])
        self.assertIn("<svg", doc.with_suffix(".svg").read_text())

    def test_measured_costs_and_steps_are_written(self):
        doc, common = self.document()
        common += ["--batch", "256", "--repeats", "2", "--rounds", "1", "--tiny"]
        run_benchmark("scaling.py", "measure", "--table-rows", "1000", *common)
        run_benchmark("scaling.py", "check", "--local-workers", "1", "2", *common)
        found = doc.read_text()
        self.assertRegex(found, r"\| 2 \| [\d.]+, [\d.]+ \|")
        self.assertIn("| all-reduce |", found)

    def test_parts_of_a_step_on_workers_are_printed_apart(self):
        printed = run_benchmark(
            "workers.py", "--workers", "1", "2", "--batch", "256", "--steps", "2"
        )
        for line, workers in zip(printed.strip().splitlines()[-2:], (1, 2), strict=True):
            found = json.loads(line)
            self.assertEqual(found["workers"], workers)
            parts = [found[f"{name}_ms"] for name in ("exchange", "find", "dense", "apply")]
            self.assertAllClose(sum(parts), found["parts_ms"], atol=0.01)
            self.assertEqual(parts[0] > 0, workers > 1)
            self.assertAllGreater(parts[1:], 0.0)
            self.assertGreater(found["whole_ms"], 0.0)

    def test_without_its_marks_a_document_is_left_alone(self):
        doc = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "other.md"
        doc.write_text("# Other\n<!-- check -->\n")
        with self.assertRaisesRegex(ValueError, "no place for 'check'"):
            scaling.write(doc, "check", ["a line"])
        self.assertEqual(doc.read_text(), "# Other\n<!-- check -->\n")


if __name__ == "__main__":
    tf.test.main()
