# SPDX-License-Identifier: Apache-2.0
"""The goals of tf_embed, in one table."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Goal:
    """The goal for a figure.

    Attributes:
        name: The figure's name in JSON.
        section: The section that measures it.
        what: Its description.
        goal: The target value.
        must: The least value that counts as done; None if there is none.
        at_most: Whether smaller is better.
    """

    name: str
    section: str
    what: str
    goal: float
    must: float | None
    at_most: bool = False

    def worse(self, one: float, other: float) -> float:
        """The worse of two values for the goal."""
        return max(one, other) if self.at_most else min(one, other)

    def reaches(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most else value >= bound


_OPTIMIZERS = "TFRA's optimizer / ours"
_ZIPF = "Zipf 1.2"

GOALS = (
    Goal("adam_vs_tfra_uniform", "adam", f"Adam step, uniform: {_OPTIMIZERS}", 9, 6),
    Goal("adam_vs_tfra_zipf", "adam", f"Adam step, {_ZIPF}: {_OPTIMIZERS}", 4.5, 3),
    Goal("adam_vs_tfra_worst", "adam", "Adam step, worst of dims 16, 64, 128 and 8k, 64k", 3, 2.5),
    Goal("adam_vs_tfra_handwritten_uniform", "adam", "leanest flow of TFRA's ops, uniform", 7, 5),
    Goal("adam_vs_tfra_handwritten_zipf", "adam", f"leanest flow of TFRA's ops, {_ZIPF}", 3, 2.2),
    Goal("adagrad_vs_tfra_uniform", "optimizers", f"Adagrad step, uniform: {_OPTIMIZERS}", 7, 5),
    Goal("adagrad_vs_tfra_zipf", "optimizers", f"Adagrad step, {_ZIPF}: {_OPTIMIZERS}", 3, 2.3),
    Goal("sgd_vs_tfra_uniform", "optimizers", f"SGD step, uniform: {_OPTIMIZERS}", 4.5, 3),
    Goal("sgd_vs_tfra_zipf", "optimizers", f"SGD step, {_ZIPF}: {_OPTIMIZERS}", 2.2, 1.8),
    Goal(
        "pooled_adam_vs_tfra",
        "pooled",
        f"3,277 bags of 20 ids and an Adam step, {_ZIPF}",
        4.8,
        None,
    ),
    Goal("lookup_vs_tfra", "lookup", "lookup, lower of 10^6 and 10^7 keys: TFRA / ours", 4, 3),
    Goal("lookup_vs_tfra_8k", "lookup", "lookup of 8k ids, 10^6 keys: TFRA / ours", 2.5, 2),
    Goal("upsert_vs_tfra", "lookup", "upsert, lower of 10^6 and 10^7 keys: TFRA / ours", 3, 1.8),
    Goal("accum_vs_tfra", "lookup", "accum, lower of 10^6 and 10^7 keys: TFRA / ours", 4, 2.5),
    Goal("lookup_vs_mht", "mht", "lookup: MutableHashTable / ours", 9, 6),
    Goal("insert_vs_mht", "mht", "insert: MutableHashTable / ours", 9, 6),
    Goal(
        "lookup_share_of_floor", "core", "core lookup: gather and one index line / ours", 0.85, 0.75
    ),
    Goal("step_vs_fbgemm_uniform", "fbgemm", "lower of Adagrad and row-wise, uniform", 10, 6),
    Goal("step_vs_fbgemm_zipf", "fbgemm", f"lower of Adagrad and row-wise, {_ZIPF}", 4, 2.5),
    Goal("forward_vs_fbgemm", "fbgemm", "FBGEMM's forward of an array / our lookup", 1.0, 0.9),
    Goal(
        "overhead_bytes_per_key",
        "memory",
        "bytes beyond key, weights and slots",
        22,
        28,
        at_most=True,
    ),
    Goal(
        "growth_peak_over_final",
        "growth",
        "peak memory of growing / final",
        1.05,
        1.10,
        at_most=True,
    ),
    Goal("growth_vs_tfra", "growth", "growing to 10^7 keys: TFRA / ours", 5, 3),
    Goal(
        "growth_worst_over_median", "growth", "worst batch of growing / median", 3, 5, at_most=True
    ),
    Goal(
        "concurrent_reads_vs_tfra", "concurrency", "2 readers beside 1 updater: ours / TFRA", 4.5, 3
    ),
    Goal("concurrent_reads_kept", "concurrency", "reads beside an updater / without", 0.7, 0.7),
    Goal("torn_rows", "concurrency", "torn rows that readers saw", 0, 0, at_most=True),
    Goal("eager256_vs_tfra", "small", "eager lookup of 256 ids: TFRA / ours", 10, 5),
    Goal(
        "ingraph_op_over_noop",
        "small",
        "lookup op in a graph / no-op custom op",
        3,
        4,
        at_most=True,
    ),
    Goal(
        "scaling_worst_step",
        "scaling",
        "a step in keys or ids, beyond gather's",
        1.3,
        None,
        at_most=True,
    ),
    Goal("tbe_arrays_vs_fbgemm", "tbe", "step of many tables, arrays: FBGEMM / ours", 1.5, None),
    Goal("tbe_dynamic_vs_fbgemm", "tbe", "the same, dynamic tables beside its arrays", 1.0, None),
    Goal(
        "tbe_tables_over_one",
        "tbe",
        "cost of an id in up to 128 tables / in one of as many rows",
        1.2,
        None,
        at_most=True,
    ),
    Goal(
        "tbe_ids_worst_step",
        "tbe",
        "cost of an id / that of half as many",
        1.2,
        None,
        at_most=True,
    ),
    Goal(
        "tiers_hits100_of_memory",
        "tiers",
        "over disk, 100% hits: memory / ours",
        0.85,
        None,
    ),
    Goal("tiers_hits99_of_memory", "tiers", "over disk, 99% hits: memory / ours", 0.5, None),
    Goal("tiers_hits99_prefetch_of_memory", "tiers", "the same with prefetch", 0.7, None),
    Goal(
        "tiers_hits99_prefetch_spare_core",
        "tiers",
        "the same, a core left to prefetch: memory / ours",
        0.7,
        None,
    ),
    Goal("tiers_misses_vs_fio", "tiers", "misses a second at 50% hits / fio's reads", 0.6, None),
    Goal("tiers_vs_rocksdb", "tiers", "step at 90% hits: RocksDB below the cache / ours", 2, None),
    Goal(
        "tiers_resident_over_plan",
        "tiers",
        "over disk: resident memory / bound and index",
        1.1,
        None,
        at_most=True,
    ),
    Goal(
        "tiers_disk_over_live",
        "tiers",
        "100 times overwritten: bytes on disk / live ones",
        2,
        None,
        at_most=True,
    ),
    Goal(
        "tiers_worst_step_over_median",
        "tiers",
        "100 times overwritten: longest step / median",
        3,
        None,
        at_most=True,
    ),
    Goal("restrict_vs_tfra", "policies", "restricting 4 * 10^6 rows to half: TFRA / ours", 5, 1),
    Goal(
        "bounded_step_over_unbounded",
        "policies",
        "Adam step, bounded by lru, lfu or ttl / unbounded",
        1.3,
        1.3,
        at_most=True,
    ),
    Goal(
        "roomy_step_over_unbounded",
        "policies",
        "the same with a bound that no row reaches / unbounded",
        1.1,
        None,
        at_most=True,
    ),
)

BY_NAME = {goal.name: goal for goal in GOALS}
