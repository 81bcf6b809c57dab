# SPDX-License-Identifier: Apache-2.0
"""Saves tables while they train, and compares the loaded tables with tables that never stopped.

    python tests/campaigns/saves_beside_steps.py [--seconds=60] [--kinds=lru,lfu] [--seed=1]

A kind of table is trained by random steps: gradients, lookups without a gradient, scores, removals.
Each kind of save is begun at a random step and written while the following steps run. The loaded
table must equal the table at a single step in keys, weights, slots, statistics, scores, the clock
and the counts of admission. The loaded table then makes the remaining steps. At the end it must be
equal, in all of these, to a table that made all steps and was never saved.

If a thread begins a save, it may contain a step's lookup without its update, since these are two
ops. The step is repeated after the load, so the end is equal all the same.

`--plant` changes a statistic of the loaded table, to show that the campaign notices.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import figures
import keras
import numpy as np
import tensorflow as tf
from killed_process import Finding

import tf_embed

DIM = 4
KEYS = 400  # keys that all steps draw from; each step adds higher keys
BOUND = 300  # rows
CALM = 4  # steps before the first save
BIG = 100_000  # rows of the large table, which a save writes first
PLANTS = ("statistics",)
CONTENT = {"keys", "weights", "slots", "policy"}


def time_of(step: int) -> int:
    """The time of a step, in milliseconds since 1970."""
    return 1_700_000_000_000 + 1000 * step


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of table.

    Attributes:
        policy: Arguments of its TablePolicy.
        optimizer: Makes its optimizer.
    """

    policy: Mapping[str, Any]
    optimizer: Callable[[], keras.optimizers.Optimizer] = lambda: keras.optimizers.Adagrad(0.1)


def _by_counter() -> keras.optimizers.Optimizer:
    return tf_embed.tbe.RowwiseAdagrad(
        0.1,
        weight_decay=0.01,
        weight_decay_mode=tf_embed.tbe.WeightDecayMode.COUNTER,
        counter_based_regularization=tf_embed.tbe.CounterBasedRegularizationDefinition(
            counter_weight_decay_mode=tf_embed.tbe.CounterWeightDecayMode.L2
        ),
    )


KINDS = {
    "unbounded": Kind({}, lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
    "lru": Kind({"max_rows": BOUND, "eviction": "lru"}),
    "lfu": Kind({"max_rows": BOUND, "eviction": "lfu"}),
    "epochs": Kind({"max_rows": BOUND, "eviction": "epoch_lru", "steps_per_epoch": 3}),
    "scores": Kind({"max_rows": BOUND, "eviction": "score"}),
    "expiring": Kind({"ttl_seconds": 3}),
    "refusing": Kind({"max_rows": BOUND, "eviction": None}),
    "admitting": Kind(
        {"max_rows": BOUND, "eviction": "lru", "admission": tf_embed.CounterAdmission(2)}
    ),
    "by_bloom": Kind({"eviction": "lfu", "admission": tf_embed.BloomAdmission(2, 0.01)}),
    "counter": Kind({"max_rows": BOUND, "eviction": "lfu"}, _by_counter),
    "smart_decay": Kind({}, lambda: tf_embed.optimizers.SmartDecayAdam(0.01)),
    "external": Kind({"max_rows": BOUND, "eviction": "lru"}, lambda: keras.optimizers.Lion(0.01)),
}
PLACES = ("memory", "shards", "disk")


class Trained:
    """A table of a kind, a second, large table, and the steps that change them."""

    def __init__(self, kind: str, place: str, seed: int, folder: pathlib.Path):
        policy = tf_embed.TablePolicy(track_changes=True, **KINDS[kind].policy)
        start = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
        options: dict[str, Any] = {"policy": policy, "initializer": start}
        if place == "shards":
            options["devices"] = ["/CPU:0"] * 3
        if place == "disk":
            path = tempfile.mkdtemp(dir=folder)
            options["storage"] = tf_embed.Storage(host_bytes=12_000, path=path)
        self.seed, self.kind = seed, kind
        self.rows = tf_embed.Variable(dim=DIM, name="rows", **options)
        tracked = tf_embed.TablePolicy(track_changes=True)
        self.big = tf_embed.Variable(dim=8, name="big", policy=tracked)
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(KINDS[kind].optimizer())
        self.optimizer.build(self.rows.trainable_variables)

    def step(self, number: int) -> None:
        """Makes a step. Its number decides its content."""
        draws = np.random.default_rng([self.seed, number])
        self.rows.set_clock(time_ms=time_of(number))
        # The first keys repeat in all steps, and each step adds new keys.
        ids = draws.integers(0, KEYS, 60)
        new = KEYS + 20 * number + np.arange(20)
        kind = draws.integers(0, 8) if number else -1  # the first step gives rows their slots
        # A single operation in a step, as a thread may begin a save between two.
        if kind == 0:
            self.rows.lookup(ids, training=True)
        elif kind == 1:
            self.rows.remove(ids[:10])
        elif kind == 2 and self.kind == "scores":
            self.rows.set_scores(ids, draws.integers(-9, 9, ids.size))
        else:
            self._train(np.concatenate([ids, new]))

    def _train(self, ids: np.ndarray) -> None:
        weights = self.rows.trainable_variables
        with tf.GradientTape() as tape:
            looked_up = tf_embed.embedding_lookup(self.rows, ids, training=True)
            loss = tf.reduce_sum(looked_up**2) + tf.reduce_sum(looked_up)
        self.optimizer.apply(tape.gradient(loss, weights), weights)

    def steps(self, first: int, end: int) -> None:
        for number in range(first, end):
            self.step(number)

    def state(self) -> dict[str, np.ndarray]:
        """All content: rows by ascending key, their statistics, the clock, counts of admission."""
        exported = self.rows.table.export()
        order = np.argsort(exported.keys.numpy())
        state = {
            "keys": exported.keys.numpy()[order],
            "weights": exported.values.numpy()[order],
            "slots": exported.slots.numpy()[order],
            "policy": self._policy(exported.policy.numpy().tolist()),
        }
        if order.size:
            statistics = self.rows.row_statistics(state["keys"])
            state |= {name: value.numpy() for name, value in statistics.items()}
        return state

    def _policy(self, numbers: list[int]) -> np.ndarray:
        """The clock and the counts of admission, by ascending key, as a table has no order."""
        if not isinstance(KINDS[self.kind].policy.get("admission"), tf_embed.CounterAdmission):
            return np.array(numbers)
        head = 5  # the format, the step, bits of statistics, the kind and the threshold
        size = 2 * numbers[head]
        young, old = numbers[head + 1 : head + 1 + size], numbers[head + 2 + size :]
        counts = [sorted(zip(one[::2], one[1::2], strict=True)) for one in (young, old)]
        return np.array([*numbers[:head], *np.ravel(counts[0]), *np.ravel(counts[1])])

    def end(self, steps: int) -> dict[str, np.ndarray]:
        """The state after all steps, without expired rows, which a table removes gradually."""
        state = self.state()
        ttl = KINDS[self.kind].policy.get("ttl_seconds")
        if ttl is None:
            return state
        alive = state["last_time_ms"] + 1000 * ttl > time_of(steps - 1)
        return {name: part if name == "policy" else part[alive] for name, part in state.items()}

    @property
    def iterations(self) -> int:
        """The optimizer's count of steps, which is not part of a table."""
        return int(self.optimizer.iterations)

    @iterations.setter
    def iterations(self, number: int) -> None:
        self.optimizer.iterations.assign(number)


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """The names of the parts that differ between two states."""
    return [
        name
        for name in {**one, **other}
        if name not in one or name not in other or not np.array_equal(one[name], other[name])
    ]


class Beside:
    """Runs a save in a thread, while the main thread continues."""

    def __init__(self, save: Callable[[], object]):
        self._error: BaseException | None = None

        def run() -> None:
            try:
                save()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def wait(self) -> None:
        """Waits for the save, and raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Snapshot:
    """Snapshots of all rows, written beside steps.

    Attributes:
        exact: Whether a save has the state of the step at which it begins.
        parts: The parts of a state in a save; empty: all, and training can continue from it.
    """

    exact = True
    parts: frozenset[str] = frozenset()

    def __init__(self, trained: Trained, folder: pathlib.Path):
        self._sources = [trained.big, trained.rows]
        self._snapshots = tf_embed.Snapshots(folder / "snapshots", self._sources)
        self._folder = folder

    def save(self, name: str) -> Any:
        """Begins a save, and returns an object that waits for it."""
        return self._snapshots.save(name, wait=False)

    def load(self, name: str, loaded: Trained) -> None:
        """Loads a save into new tables."""
        tf_embed.Snapshots(self._folder / "snapshots", [loaded.big, loaded.rows]).load(name)


class Changes(Snapshot):
    """The changed rows since the last snapshot. Rows that were only used count as unchanged."""

    parts = frozenset(CONTENT)

    def __init__(self, trained: Trained, folder: pathlib.Path):
        super().__init__(trained, folder)
        self._last: str | None = None

    def save(self, name: str) -> Any:
        pending = self._snapshots.save(name, since=self._last, wait=False)
        self._last = name
        return pending


class Callback(Snapshot):
    """Snapshots of the Keras callback."""

    def __init__(self, trained: Trained, folder: pathlib.Path):
        super().__init__(trained, folder)
        self._callback = tf_embed.callbacks.Snapshot(
            folder / "snapshots", every_n_batches=1, keep=None, tables=self._sources
        )
        self._names: dict[str, str] = {}
        self._callback.on_train_begin()
        self._callback.on_epoch_begin(0)

    def save(self, name: str) -> Any:
        number = len(self._names)
        self._names[name] = f"snapshot-{number + 1:06d}"
        self._callback.on_train_batch_begin(number)
        self._callback.on_train_batch_end(number)
        return self._callback._snapshots  # its `wait` waits for the save under way

    def load(self, name: str, loaded: Trained) -> None:
        super().load(self._names[name], loaded)


class Publication:
    """Publications, each loaded by a new follower."""

    exact = True
    parts = frozenset({"keys", "weights"})

    def __init__(self, trained: Trained, folder: pathlib.Path):
        self._publisher = tf_embed.serving.Publisher([trained.big, trained.rows], folder)
        self._tables: list[tf_embed.Variable] = []
        self._served: dict[str, tf_embed.Variable] = {}

    def save(self, name: str) -> Publication:
        """As `Snapshot.save`."""
        self._served[name] = tf_embed.Variable(dim=DIM, name="rows")
        self._tables = [tf_embed.Variable(dim=8, name="big"), self._served[name]]
        self._publisher.publish(wait=False)
        return self

    def wait(self) -> None:
        """Waits for the publication, and follows it."""
        self._publisher.wait()
        tf_embed.serving.Follower(self._tables, self._publisher.path).update()

    def load(self, name: str, loaded: Trained) -> None:
        """As `Snapshot.load`."""
        loaded.rows.upsert(*self._served[name].export())


class Checkpoint:
    """Checkpoints of TensorFlow, from a thread."""

    exact = False
    parts: frozenset[str] = frozenset()

    def __init__(self, trained: Trained, folder: pathlib.Path):
        self._checkpoint = tf.train.Checkpoint(big=trained.big, rows=trained.rows)
        self._folder = folder

    def save(self, name: str) -> Beside:
        """As `Snapshot.save`."""
        return Beside(lambda: self._checkpoint.write(str(self._folder / name)))

    def load(self, name: str, loaded: Trained) -> None:
        """As `Snapshot.load`."""
        checkpoint = tf.train.Checkpoint(big=loaded.big, rows=loaded.rows)
        checkpoint.read(str(self._folder / name)).assert_consumed()


class RowFiles:
    """Files of rows, from a thread."""

    exact = False
    parts: frozenset[str] = frozenset()

    def __init__(self, trained: Trained, folder: pathlib.Path):
        self._rows, self._folder = trained.rows, folder

    def save(self, name: str) -> Beside:
        """As `Snapshot.save`."""
        return Beside(lambda: self._rows.save_rows(str(self._folder / name)))

    def load(self, name: str, loaded: Trained) -> None:
        """As `Snapshot.load`."""
        loaded.rows.load_rows(str(self._folder / name))


SAVES: dict[str, Any] = {
    "snapshot": Snapshot,
    "changes": Changes,
    "callback": Callback,
    "publication": Publication,
    "checkpoint": Checkpoint,
    "files": RowFiles,
}


def check(
    kind: str,
    place: str,
    saved_as: str,
    seed: int,
    folder: pathlib.Path,
    plant: str | None = None,
    steps: int = 24,
) -> int:
    """Saves beside steps, loads, continues, and compares.

    Args:
        kind: One of KINDS.
        place: One of PLACES.
        saved_as: One of SAVES.
        seed: The seed of all draws.
        folder: An empty folder.
        plant: One of PLANTS, or None.
        steps: The number of steps in all.

    Returns:
        The number of saves.

    Raises:
        Finding: If anything differs.
    """
    chance = random.Random(seed)
    control = Trained(kind, place, seed, folder)
    states, iterations = [], []
    for number in range(steps):
        control.step(number)
        states.append(control.state())
        iterations.append(control.iterations)
    trained = Trained(kind, place, seed, folder)
    trained.big.upsert(np.arange(BIG), np.zeros([BIG, 8], np.float32))
    saves = SAVES[saved_as](trained, folder)
    moments = {}
    next_step = CALM
    trained.steps(0, CALM)
    while next_step < steps:
        name = f"s{next_step}"
        moments[name] = next_step
        pending = saves.save(name)
        end = min(steps, next_step + chance.randint(1, 6))
        trained.steps(next_step, end)
        next_step = end
        pending.wait()
    where = f"{kind}, {place}, {saved_as}, seed {seed}"
    if found := differences(control.end(steps), trained.end(steps)):
        raise Finding(f"{where}: a save changed the training: {found}")
    for name, moment in moments.items():
        loaded = Trained(kind, place, seed, folder)
        saves.load(name, loaded)
        state = loaded.state()
        if saves.exact:
            found = differences(states[moment - 1], state)
            if found := [what for what in found if not saves.parts or what in saves.parts]:
                raise Finding(f"{where}: at step {moment}, these are of another one: {found}")
            ends = [moment]
        else:
            # A lookup changes statistics alone, so several steps may have these rows.
            ends = [
                step + 1
                for step, known in enumerate(states)
                if not CONTENT.intersection(differences(known, state))
            ]
            if not ends:
                raise Finding(f"{where}: the rows of {name} are of no step")
        if saves.parts:
            continue
        found = []
        for end in ends:
            loaded = Trained(kind, place, seed, folder)
            saves.load(name, loaded)
            if plant == "statistics":
                loaded.rows.lookup(state["keys"], training=True)
            loaded.iterations = iterations[end - 1]
            loaded.steps(end, steps)
            found = differences(control.end(steps), loaded.end(steps))
            if not found:
                break
        if found:
            raise Finding(f"{where}: saved after step {ends}, these differ at the end: {found}")
    return len(moments)


def main() -> int:
    parser = figures.options(__doc__, PLANTS)
    parser.add_argument("--seconds", type=float, default=60.0)
    for name, all_names in (("kinds", KINDS), ("places", PLACES), ("saves", SAVES)):
        parser.add_argument(f"--{name}", default=",".join(all_names), help="by commas")
    arguments = parser.parse_args()
    grid = itertools.product(
        arguments.kinds.split(","), arguments.places.split(","), arguments.saves.split(",")
    )
    cases = list(grid)
    begin, failures, count = time.monotonic(), 0, 0
    counts: collections.Counter[str] = collections.Counter()
    seed = arguments.seed
    # Each case at least once, also if the time is over.
    for number in itertools.count():
        if number >= len(cases) and time.monotonic() - begin > arguments.seconds:
            break
        case = cases[number % len(cases)]
        seed = arguments.seed + number
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            made = check(*case, seed, folder, arguments.plant)
            count += made
            counts[f"saves of {case[2]}"] += made
        except Finding as finding:
            failures += 1
            print(finding, flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if failures >= 5:
            break
        if number % 50 == 49:
            keras.backend.clear_session()
    return figures.show("saves_beside_steps", count, failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())
