# SPDX-License-Identifier: Apache-2.0
"""How long a step takes on a cluster, and the bytes that a worker sends and holds: formulas only.

docs/scaling.md has each formula with its source. Costs are measured on one machine by
`cluster_costs.py`. Times are in milliseconds here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WORD_BYTES = 4
KEY_BYTES = 8
# The lengths of messages, as cc/core/exchange/message.h has them.
_MIN_WORDS = 64
_TO_AN_OCTAVE = 8


def rounded_words(words: float) -> int:
    """The length of a message for a number of words: eight lengths to an octave."""
    words = max(math.ceil(words), _MIN_WORDS)
    octave = 1 << (words.bit_length() - 1)
    return octave + -(-(words - octave) // (octave // _TO_AN_OCTAVE)) * (octave // _TO_AN_OCTAVE)


def expected_distinct(draws: float, num_keys: float, exponent: float) -> float:
    """How many of the keys come at least once: the sum over keys of 1 - (1 - p)^draws.

    The k-th key has the chance p = k^-exponent / H. The first keys are summed one by one, the
    others in a few thousand ranges, each of which stands for its middle.

    Args:
        draws: Independent draws.
        num_keys: Number of keys, from 1.
        exponent: Of Zipf's law; 0 is the uniform distribution.
    """
    exact = int(min(num_keys, 100_000))
    middles, sizes = np.arange(1, exact + 1, dtype=np.float64), np.ones(exact)
    if num_keys > exact:
        edges = np.geomspace(exact + 0.5, num_keys + 0.5, 4000)
        middles = np.concatenate([middles, np.sqrt(edges[1:] * edges[:-1])])
        sizes = np.concatenate([sizes, np.diff(edges)])
    chances = middles**-exponent
    chances /= np.sum(chances * sizes)
    come = -np.expm1(draws * np.log1p(-np.minimum(chances, 1 - 1e-16)))
    return float(np.sum(sizes * come))


def largest_count(mean: float, workers: int) -> float:
    """The largest number of keys from one worker to another, if each key's owner is random.

    Counts are about normal, with the variance of a binomial distribution. The largest of N normal
    numbers is expected at about sqrt(2 ln N) - (ln ln N + ln 4 pi) / (2 sqrt(2 ln N)) deviations.
    """
    if workers == 1:
        return mean
    pairs = workers * (workers - 1)
    spread = math.sqrt(2 * math.log(pairs))
    far = spread - (math.log(math.log(pairs)) + math.log(4 * math.pi)) / (2 * spread)
    return mean + far * math.sqrt(mean * (1 - 1 / workers))


@dataclasses.dataclass(frozen=True)
class Model:
    """The model in training.

    Attributes:
        examples: Examples of a worker in a step.
        ids: Ids of an example, all of one table.
        dim: Numbers in a row, float32.
        slots: Numbers that the optimizer keeps for each number of a row.
        dense: Dense parameters, float32.
        exponent: Of Zipf's law, by which ids come.
        keys: Number of keys.
        wire_bytes: Bytes of a number of a row or gradient on the wire, 4 or 2.
    """

    examples: int = 4096
    ids: int = 16
    dim: int = 64
    slots: int = 1
    dense: int = 1_000_000
    exponent: float = 1.05
    keys: float = 1e9
    wire_bytes: int = 4

    @property
    def batch(self) -> int:
        """Ids of a worker in a step."""
        return self.examples * self.ids


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that go over the wire in a step.

    Attributes:
        distinct: Distinct ids of a worker, which is also how many keys come to an owner.
        at_owner: Distinct keys among those.
        messages: Bytes of a message of keys, of rows and of gradients, by all-to-all.
        counts: Bytes that a worker adds to an all-gather of counts, of which there are two.
        sent: Bytes that a worker sends in all, with those of the dense gradient.
        need: Bytes of the keys, rows and gradients of distinct ids that other workers own.
    """

    distinct: float
    at_owner: float
    messages: tuple[int, int, int]
    counts: int
    sent: float
    need: float


def traffic(model: Model, workers: int) -> Traffic:
    """Returns the bytes that go over the wire in a step."""
    distinct = expected_distinct(model.batch, model.keys, model.exponent)
    everywhere = expected_distinct(workers * model.batch, model.keys, model.exponent)
    row = model.dim * model.wire_bytes
    most = largest_count(distinct / workers, workers)
    messages = tuple(
        WORD_BYTES * rounded_words(most * size / WORD_BYTES)
        for size in (KEY_BYTES, row, KEY_BYTES + row)
    )
    others = workers - 1
    counts = 2 * workers * WORD_BYTES  # how many keys, and how many words, go to each worker
    dense = 2 * others / workers * model.dense * 4
    return Traffic(
        distinct,
        everywhere / workers,
        messages,  # type: ignore[arg-type]
        counts,
        others * (sum(messages) + 2 * counts) + dense,
        others / workers * distinct * 2 * (KEY_BYTES + row),
    )


@dataclasses.dataclass(frozen=True)
class Linear:
    """A cost that is linear in some quantities: a name and milliseconds for one of each."""

    terms: Mapping[str, float]

    def at(self, **quantities: float) -> float:
        """The cost of these amounts."""
        return sum(cost * quantities.get(name, 0.0) for name, cost in self.terms.items())

    @classmethod
    def fit(cls, cases: Sequence[Mapping[str, float]], costs: Sequence[float]) -> Linear:
        """The costs, none below 0, that fit cases best, by the squares of relative errors."""
        names = list(dict.fromkeys(name for case in cases for name in case))
        matrix = np.array([[case.get(name, 0.0) for name in names] for case in cases], np.float64)
        matrix /= np.array(costs)[:, None]
        while True:
            scale = np.maximum(np.abs(matrix).max(axis=0, initial=0.0), 1e-300)
            found = np.linalg.lstsq(matrix / scale, np.ones(len(cases)), rcond=None)[0] / scale
            if (found >= 0).all():
                return cls(dict(zip(names, found.tolist(), strict=True)))
            worst = int(np.argmin(found * scale))
            matrix = np.delete(matrix, worst, axis=1)
            del names[worst]


@dataclasses.dataclass(frozen=True)
class Collective:
    """The cost of a collective by the bytes of a message between two workers.

    Attributes:
        fixed: A collective of one worker, which sends nothing.
        bytes: Lengths of messages.
        work: Processor time that a message takes of each worker, at each length.
        hop: Time from one worker to the next, at each length, on a machine that is idle otherwise.
    """

    fixed: float
    bytes: Sequence[float]
    work: Sequence[float]
    hop: Sequence[float]

    def work_of(self, size: float) -> float:
        """Processor time of a message."""
        return _interpolated(size, self.bytes, self.work)

    def hop_of(self, size: float) -> float:
        """Time of a message."""
        return _interpolated(size, self.bytes, self.hop)

    @property
    def wait(self) -> float:
        """The part of the shortest hop in which no processor works."""
        return max(0.0, self.hop[0] - self.work[0])


def _interpolated(size: float, sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Between measured sizes; beyond the largest one, by its cost of a byte."""
    if size > sizes[-1]:
        return costs[-1] * size / sizes[-1]
    return float(np.interp(size, sizes, costs))


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs measured on one machine. `wall` is time by one thread, `work` processor time.

    Attributes:
        wall, work: Of the parts of a step of one worker, which exchanges with itself.
        pack: Wall and work to pack and unpack a byte of a message to another worker.
        call: Milliseconds of a call of a tf.function that does nothing.
        collectives: By name: all_to_all, all_gather, all_reduce.
        cold_key: Milliseconds that a lookup, and a step, of a key take longer if its row is in no
            cache of the processor.
        overhead: Bytes of a row beside its weights and slots.
    """

    wall: Mapping[str, Linear]
    work: Mapping[str, Linear]
    pack: Mapping[str, float]
    call: float
    collectives: Mapping[str, Collective]
    cold_key: Mapping[str, float]
    overhead: float

    @classmethod
    def from_json(cls, figures: Mapping[str, Any]) -> Costs:
        """Reads the costs from the JSON of `cluster_costs.py`."""
        return cls(
            wall={name: Linear(one) for name, one in figures["wall"].items()},
            work={name: Linear(one) for name, one in figures["work"].items()},
            pack=figures["pack"],
            call=figures["call"],
            collectives={name: Collective(**one) for name, one in figures["collectives"].items()},
            cold_key=figures["cold_key"],
            overhead=figures["overhead"],
        )


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster that trains the model.

    Attributes:
        workers: Number of workers.
        cores: Of each worker. Messages, and the products of the dense part, run on all of them.
        gigabits: Of a worker's link, each way, in a second.
        latency: Milliseconds from one worker to another.
    """

    workers: int
    cores: int = 8
    gigabits: float = 25.0
    latency: float = 0.02

    def transfer(self, size: float) -> float:
        """Milliseconds that bytes take on a worker's link."""
        return size * 8 / (self.gigabits * 1e6)


EXCHANGE, LOOKUP, DENSE, APPLY = "exchange", "lookup", "dense", "apply"
PARTS = (EXCHANGE, LOOKUP, DENSE, APPLY)


def quantities(model: Model, keys: float, distinct: float) -> dict[str, dict[str, float]]:
    """The quantities in which the costs of each part are linear.

    Args:
        model: The model in training.
        keys: Keys that come to an owner in a step.
        distinct: Distinct ids among those of a worker, or of the keys that come to an owner.
    """

    def of(keys: float, distinct: float) -> dict[str, float]:
        numbers = {"keys": keys, "numbers": keys * model.dim}
        return {"one": 1, **numbers, "rows": distinct, "row_numbers": distinct * model.dim}

    flops = model.examples * model.dense
    return {
        EXCHANGE: of(model.batch, keys),
        LOOKUP: of(keys, distinct),
        DENSE: {"one": 1, "flops": flops, "parameters": model.dense},
        APPLY: of(keys, distinct),
    }


def cluster_step(model: Model, cluster: Cluster, costs: Costs) -> dict[str, float]:
    """Milliseconds of the parts of a step, if each worker has its own cores and link.

    The parts are those of `PARTS`, and the parts of these: `counts` (the two all-gathers),
    `messages` (the three all-to-alls), `local` (the rest of the exchange), `all_reduce`, which is
    a part of `dense`, and `sum`.
    """
    workers, others = cluster.workers, cluster.workers - 1
    sizes = traffic(model, workers)
    amounts = quantities(model, sizes.distinct, sizes.at_owner)
    amounts[DENSE]["flops"] /= cluster.cores
    local = {name: costs.wall[name].at(**amounts[name]) for name in PARTS}
    local[EXCHANGE] += costs.pack["wall"] * others * sum(sizes.messages)
    for name in (LOOKUP, APPLY):
        local[name] += costs.cold_key[name] * sizes.at_owner

    def ring(kind: str, hops: int, size: float) -> float:
        one = costs.collectives[kind]
        return hops * (one.hop_of(size) + cluster.latency + cluster.transfer(size))

    def pairs(size: float) -> float:
        one = costs.collectives["all_to_all"]
        work = others * max(0.0, one.hop_of(size) - one.wait) / cluster.cores
        return one.wait + cluster.latency + max(work, others * cluster.transfer(size))

    parts = dict(local)
    several = workers > 1
    parts["local"] = local[EXCHANGE]
    parts["counts"] = 2 * ring("all_gather", others, sizes.counts)
    parts["messages"] = sum(map(pairs, sizes.messages)) if several else 0.0
    parts[EXCHANGE] = parts["local"] + parts["counts"] + parts["messages"]
    reduce = costs.collectives["all_reduce"]
    chunk = model.dense * 4 / workers
    parts["all_reduce"] = reduce.fixed + ring("all_reduce", 2 * others, chunk) if several else 0.0
    parts[DENSE] += parts["all_reduce"]
    parts["sum"] = sum(parts[name] for name in PARTS) - 4 * costs.call
    return parts


def local_step(model: Model, workers: int, cores: int, costs: Costs) -> dict[str, float]:
    """Milliseconds of the parts of a step, and of a whole one, of processes of one machine.

    `whole_work` is the processor time of a worker in a whole step.

    A part takes at least the processor time of all workers over the cores, and at least as long as
    the longest chain of work and waits.
    """
    sizes = traffic(model, workers)
    if workers == 1:
        amounts = quantities(model, model.batch, sizes.distinct)
        alone = (LOOKUP, DENSE, APPLY)
        parts = {name: costs.wall[name].at(**amounts[name]) for name in alone}
        work = sum(costs.work[name].at(**amounts[name]) for name in alone)
        parts["whole"] = sum(parts.values()) - 2 * costs.call
        parts["whole_work"] = work - 2 * costs.call
        return parts
    amounts = quantities(model, sizes.distinct, sizes.at_owner)
    chain = {name: costs.wall[name].at(**amounts[name]) for name in PARTS}
    work = {name: costs.work[name].at(**amounts[name]) for name in PARTS}
    others = workers - 1
    gather, pair, reduce = (
        costs.collectives[name] for name in ("all_gather", "all_to_all", "all_reduce")
    )
    chain[EXCHANGE] += 2 * others * gather.hop_of(sizes.counts)
    work[EXCHANGE] += 2 * others * gather.work_of(sizes.counts)
    for size in sizes.messages:
        chain[EXCHANGE] += costs.pack["wall"] * others * size
        work[EXCHANGE] += costs.pack["work"] * others * size
        chain[EXCHANGE] += pair.wait + others * (pair.hop_of(size) - pair.wait)
        work[EXCHANGE] += others * pair.work_of(size)
    chunk = model.dense * 4 / workers
    chain[DENSE] += reduce.fixed + 2 * others * reduce.hop_of(chunk)
    work[DENSE] += reduce.fixed + 2 * others * reduce.work_of(chunk)
    parts = {name: max(chain[name], work[name] * workers / cores) for name in PARTS}
    share = max(1.0, workers / cores)
    parts["whole"] = sum(parts.values()) - 4 * costs.call * share
    parts["whole_work"] = sum(work.values()) - 4 * costs.call
    return parts


def memory(model: Model, workers: int, costs: Costs) -> float:
    """Bytes of a worker's part of the table."""
    row = 4 * model.dim * (1 + model.slots) + costs.overhead
    return model.keys / workers * row
