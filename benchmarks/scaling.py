# SPDX-License-Identifier: Apache-2.0
"""Predicts steps of tables on up to 1,024 workers: formulas, with costs of one machine.

    python benchmarks/scaling.py [--workers 8 16 ...] [--keys 1e9 1e10 ...] [--gigabits 25 100]

docs/scaling.md has each formula with its source, and the measurement of the costs. The program
prints the tables of its predictions. Rows have 64 float32 and as many slots. Times are in
milliseconds here.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

WORD_BYTES, KEY_BYTES, ROW_BYTES = 4, 8, 4 * 64
SLOTS = 1  # slots for each weight
# The lengths of messages, as in cc/core/exchange/message.h.
MIN_WORDS, TO_AN_OCTAVE = 64, 8


@dataclasses.dataclass(frozen=True)
class Local:
    """A part of a step without its messages: fixed cost, cost of a key, and of a distinct key."""

    fixed: float
    key: float
    distinct: float

    def time(self, keys: float, distinct: float) -> float:
        return self.fixed + self.key * keys + self.distinct * distinct


# Measured on 2026-11-25, on 2 cores of an AMD EPYC.
EXCHANGE = Local(0.559, 85.7e-6, 102.6e-6)
LOOKUP = Local(0.143, 11.2e-6, 8.5e-6)
ADAGRAD = Local(0.161, 37.8e-6, 26.5e-6)
COLD_LOOKUP, COLD_ADAGRAD = 19e-6, 50e-6  # for a key with a row in no CPU cache
DENSE_FIXED, DENSE_PRODUCT, DENSE_PARAMETER = 0.168, 22.8e-9, 1.41e-6
# The times of a message from a worker to the next, by its bytes.
SIZES = (256, 4096, 65536, 524288, 4194304)
ALL_TO_ALL = (0.351, 0.380, 0.536, 0.764, 8.755)
ALL_GATHER = (0.390, 0.427, 0.468, 0.730, 6.485)
ALL_REDUCE = (0.412, 0.456, 0.456, 0.780, 6.903)
WAIT = 0.351 - 0.262  # time without processor work in the shortest all-to-all
REDUCE_FIXED = 0.101  # an all-reduce that sends nothing
ROW_OVERHEAD = 34.0  # bytes
# The costs to pack and unpack a byte, and to call a function. Both are inferred from that day's
# predictions, which used them but did not print them.
PACKED_BYTE, CALL = 0.038e-6, 0.106


@dataclasses.dataclass(frozen=True)
class Step:
    """A worker's step.

    Attributes:
        examples: Examples of a worker.
        ids: Ids of an example, all of the same table.
        dense: Dense parameters, float32.
        exponent: The exponent of Zipf's law, which ids follow.
        keys: Number of keys.
        cores: The cores of a worker. Messages, and the products of the dense part, use all of them.
        gigabits: Gigabits a second of a worker's link, each way.
        latency: Milliseconds from a worker to another.
    """

    examples: int = 4096
    ids: int = 16
    dense: int = 1_000_000
    exponent: float = 1.05
    keys: float = 1e9
    cores: int = 8
    gigabits: float = 25.0
    latency: float = 0.02

    @property
    def batch(self) -> int:
        return self.examples * self.ids

    def transfer(self, size: float) -> float:
        """The milliseconds of a number of bytes on a link."""
        return size * 8 / (self.gigabits * 1e6)


def expected_distinct(draws: float, num_keys: float, exponent: float) -> float:
    """The expected number of drawn distinct keys: the sum over keys of 1 - (1 - p)^draws.

    The k-th key has the chance p = k^-exponent / H. The first keys are summed individually, the
    others in a few thousand ranges. The middle of a range represents all of it.
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
    """The largest number of keys from a worker to another, as the largest of normal numbers."""
    pairs = workers * (workers - 1)
    spread = math.sqrt(2 * math.log(pairs))
    far = spread - (math.log(math.log(pairs)) + math.log(4 * math.pi)) / (2 * spread)
    return mean + far * math.sqrt(mean * (1 - 1 / workers))


def message_bytes(size: float) -> int:
    """The length of a message for a number of bytes: eight lengths to an octave."""
    words = max(math.ceil(size / WORD_BYTES), MIN_WORDS)
    octave = 1 << (words.bit_length() - 1)
    unit = octave // TO_AN_OCTAVE
    return WORD_BYTES * (octave + -(-(words - octave) // unit) * unit)


def hop(times: Sequence[float], size: float) -> float:
    """The time of a message. Beyond the largest of `SIZES`, it has the cost of its bytes."""
    if size > SIZES[-1]:
        return times[-1] * size / SIZES[-1]
    return float(np.interp(size, SIZES, times))


def predict(step: Step, workers: int) -> dict[str, float]:
    """The parts of a step, and its bytes, on two or more workers.

    `counts` are the two all-gathers, `messages` the three all-to-alls, `local` is the rest of the
    exchange. `all-reduce` is a part of `dense`. `sent` are the bytes that a worker sends. `over
    need` is the ratio of the exchange's bytes to the bytes of keys, rows and gradients of distinct
    ids.
    """
    others = workers - 1
    distinct = expected_distinct(step.batch, step.keys, step.exponent)
    at_owner = expected_distinct(workers * step.batch, step.keys, step.exponent) / workers
    most = largest_count(distinct / workers, workers)
    sizes = [message_bytes(most * one) for one in (KEY_BYTES, ROW_BYTES, KEY_BYTES + ROW_BYTES)]
    count = 2 * workers * WORD_BYTES  # the numbers of keys and of words for each worker
    chunk = step.dense * 4 / workers

    def pairs(size: float) -> float:
        work = others * (hop(ALL_TO_ALL, size) - WAIT) / step.cores
        return WAIT + step.latency + max(work, others * step.transfer(size))

    def ring(hops: Sequence[float], size: float) -> float:
        return others * (hop(hops, size) + step.latency + step.transfer(size))

    reduce = REDUCE_FIXED + 2 * ring(ALL_REDUCE, chunk)
    products = DENSE_PRODUCT * step.examples * step.dense / step.cores
    parts = {
        "counts": 2 * ring(ALL_GATHER, count),
        "messages": sum(map(pairs, sizes)),
        "local": EXCHANGE.time(step.batch, distinct) + PACKED_BYTE * others * sum(sizes),
        "lookup": LOOKUP.time(distinct, at_owner) + COLD_LOOKUP * at_owner,
        "apply": ADAGRAD.time(distinct, at_owner) + COLD_ADAGRAD * at_owner,
        "dense": DENSE_FIXED + products + DENSE_PARAMETER * step.dense + reduce,
    }
    # Each part was measured as a separate call; a step is a single call.
    whole = sum(parts.values()) - 4 * CALL
    exchanged = others * (sum(sizes) + 2 * count)
    need = others / workers * distinct * 2 * (KEY_BYTES + ROW_BYTES)
    return {
        **parts,
        "all-reduce": reduce,
        "step": whole,
        "sent": exchanged + 2 * others * chunk,
        "over need": exchanged / need,
    }


def memory(keys: float, workers: int) -> float:
    """The bytes of a worker's part of the table."""
    return keys / workers * (ROW_BYTES * (1 + SLOTS) + ROW_OVERHEAD)


def shown_bytes(size: float) -> str:
    unit = 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def shown_time(time: float) -> str:
    return f"{time:,.0f}" if time >= 99.5 else f"{time:.3g}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    first, *others = ("| " + " | ".join(row) + " |" for row in (heads, *lines))
    return "\n".join([first, "|" + "---|" * len(heads), *others])


def steps_table(step: Step, workers: Sequence[int], links: Sequence[float]) -> str:
    """The parts of a step by the number of workers, and whole steps with faster links."""
    times = ("counts", "messages", "local", "lookup", "apply", "dense", "all-reduce", "step")
    heads = ["workers", *times[:6], "of it all-reduce", "step"]
    heads += [f"step, {link:g} Gbit/s" for link in links]
    heads += ["examples/s, all workers", "sent", "over need"]
    lines = []
    for count in workers:
        found = predict(step, count)
        faster = [predict(dataclasses.replace(step, gigabits=link), count) for link in links]
        cells = [f"{count:,}", *(shown_time(found[name]) for name in times)]
        cells += [shown_time(one["step"]) for one in faster]
        cells.append(f"{count * step.examples / found['step'] * 1e3:.2g}")
        lines.append([*cells, shown_bytes(found["sent"]), f"{found['over need']:.2f}"])
    return table(heads, lines)


def keys_table(step: Step, workers: Sequence[int], keys: Sequence[float]) -> str:
    """A worker's memory, and a step, by the number of workers and of keys."""
    lines = []
    for count in workers:
        times = [predict(dataclasses.replace(step, keys=one), count)["step"] for one in keys]
        cells = [
            f"{shown_bytes(memory(one, count))} ({shown_time(time)})"
            for one, time in zip(keys, times, strict=True)
        ]
        lines.append([f"{count:,}", *cells])
    return table(["workers", *(f"{one:.0e}" for one in keys)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2**i for i in range(3, 11)])
    parser.add_argument("--keys", type=float, nargs="+", default=[1e9, 1e10, 1e11, 1e12])
    parser.add_argument("--gigabits", type=float, nargs="+", default=[25.0, 100.0])
    others = [one for one in dataclasses.fields(Step) if one.name not in ("keys", "gigabits")]
    for field in others:
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    options = parser.parse_args()
    if min(options.workers) < 2:
        parser.error(f"--workers must be at least 2. Received: {min(options.workers)}")
    given = {field.name: getattr(options, field.name) for field in others}
    step = Step(keys=options.keys[0], gigabits=options.gigabits[0], **given)
    print(
        f"{step.examples:,} examples of {step.ids} ids a worker, dim {ROW_BYTES // 4}, "
        f"{step.dense:,} dense parameters, Zipf exponent {step.exponent:g}, {step.keys:.0e} keys; "
        f"{step.cores} cores a worker, latency of the link {step.latency * 1e3:.0f} µs."
    )
    link = f"{step.gigabits:g} Gbit/s"
    print(f"\nMilliseconds with {link}, and the bytes that a worker sends in a step:\n")
    print(steps_table(step, options.workers, options.gigabits[1:]))
    print(f"\nMemory of a worker's rows, and milliseconds of a step with {link}, by keys:\n")
    print(keys_table(step, options.workers, options.keys))


if __name__ == "__main__":
    main()
