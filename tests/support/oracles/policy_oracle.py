# SPDX-License-Identifier: Apache-2.0
"""The oracle of the tests of policies: a table's policy in plain dicts.

It follows the documentation of `tf_embed.TablePolicy`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from support.oracles.reference import mix64


def tie_of(key: int) -> int:
    """Breaks ties between rows of equal rank: the hash of the key, its highest 8 bits last."""
    hashed = mix64((key + 0x9E3779B97F4A7C15) % 2**64)
    return hashed % 2**56 * 2**8 + hashed // 2**56


@dataclasses.dataclass
class Use:
    """Usage statistics of a row."""

    last_step: int
    last_time_ms: int
    count: int = 1
    score: int = 0
    last_epoch: int = 0


class PolicyOracle:
    """A table of keys and their uses, without weights.

    Args:
        order: "lru", "lfu", "ttl", "score", "epoch_lru" or "epoch_lfu"; None if no rows are
            evicted.
        max_rows: The bound, or None.
        num_shards: Number of shards; a key's remainder is the number of its shard.
        n: The number of steps with a key until it gets its row.
        ttl_ms: The time until an unused row expires, or None.
        steps_per_epoch: The number of steps in an epoch, or None.

    Attributes:
        shards: For each shard the uses of its keys.
        step: The number of the current step.
        epochs_ahead: The number added to the epoch that follows from the steps.
        now_ms: The time.
        counts: admitted, held_back, refused, evicted, expired.
        left: Keys that left since this was emptied.
    """

    def __init__(
        self,
        order: str | None = "lru",
        max_rows: int | None = None,
        num_shards: int = 1,
        n: int = 1,
        ttl_ms: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.order, self.n, self.ttl_ms = order, n, ttl_ms
        self.bounds: list[int | None] = [None] * num_shards
        if max_rows is not None:
            each, more = divmod(max_rows, num_shards)
            self.bounds = [each + (shard < more) for shard in range(num_shards)]
        self.shards: list[dict[int, Use]] = [{} for _ in range(num_shards)]
        self.steps_per_epoch = steps_per_epoch
        self.step, self.now_ms, self.epochs_ahead = 1, 0, 0
        self.waiting: Counter[int] = Counter()
        self.counts = dict.fromkeys(("admitted", "held_back", "refused", "evicted", "expired"), 0)
        self.left: list[int] = []

    def keys(self) -> list[int]:
        """The keys that are not expired, sorted."""
        return sorted(
            key for rows in self.shards for key, use in rows.items() if not self.expired(use)
        )

    @property
    def epoch(self) -> int:
        """The current epoch."""
        past = (self.step - 1) // self.steps_per_epoch if self.steps_per_epoch else 0
        return past + self.epochs_ahead

    def scores(self) -> dict[int, int]:
        """The score of each key in the eviction order."""
        by = {
            "lru": lambda use: use.last_step,
            "lfu": lambda use: use.count,
            "ttl": lambda use: use.last_time_ms,
            "score": lambda use: use.score,
            "epoch_lru": lambda use: use.last_epoch * 2**32 + use.last_step % 2**32,
            "epoch_lfu": lambda use: use.last_epoch * 2**32 + use.count,
        }
        return {key: by[self.order](use) for rows in self.shards for key, use in rows.items()}

    def expired(self, use: Use) -> bool:
        """Whether a row was unused for the TTL or longer."""
        return self.ttl_ms is not None and use.last_time_ms + self.ttl_ms <= self.now_ms

    def rank(self, key: int, use: Use) -> tuple[int, ...]:
        """The rank of a row. The lowest leaves first."""
        by = {
            "lru": (use.last_step,),
            "lfu": (use.count, use.last_step),
            "ttl": (use.last_time_ms, use.last_step),
            "score": (use.score,),
            "epoch_lru": (use.last_epoch, use.last_step),
            "epoch_lfu": (use.last_epoch, use.count),
        }
        return (*by[self.order], tie_of(key))

    def look_up(self, keys: Iterable[int]) -> None:
        """A lookup in training."""
        for key in dict.fromkeys(keys):
            use = self.shards[key % len(self.shards)].get(key)
            if use is not None and not self.expired(use):
                self._note(use)

    def update(
        self, keys: Iterable[int], trains: bool, scores: dict[int, int] | None = None
    ) -> None:
        """A step of training, or an upsert.

        With a score for each key, a new row replaces only rows of no higher score.
        """
        keys = list(dict.fromkeys(keys))
        for number, rows in enumerate(self.shards):
            mine = [key for key in keys if key % len(self.shards) == number]
            self._update_shard(rows, self.bounds[number], mine, trains, scores or {})
            for key in scores or {}:
                if key in rows:
                    rows[key].score = (scores or {})[key]
        self.step += 1

    def restrict(self, num_reserved: int) -> int:
        """Removes rows, and returns their number."""
        removed = 0
        for rows in self.shards:
            for key in [key for key, use in rows.items() if self.expired(use)]:
                self._leave(rows, key, "expired")
                removed += 1
        every = [(key, rows) for rows in self.shards for key in rows]
        every.sort(key=lambda one: self.rank(one[0], one[1][one[0]]))
        for key, rows in every[: max(0, len(every) - num_reserved)]:
            self._leave(rows, key, "evicted")
            removed += 1
        return removed

    def _note(self, use: Use) -> None:
        use.count += use.last_step != self.step
        use.last_step, use.last_time_ms = self.step, self.now_ms
        use.last_epoch = max(use.last_epoch, self.epoch)

    def _leave(self, rows: dict[int, Use], key: int, why: str) -> None:
        del rows[key]
        self.left.append(key)
        self.counts[why] += 1

    def _update_shard(
        self,
        rows: dict[int, Use],
        bound: int | None,
        keys: list[int],
        trains: bool,
        scores: dict[int, int],
    ) -> None:
        absent = []
        for key in keys:
            if key in rows and not self.expired(rows[key]):
                self._note(rows[key])
                continue
            if key in rows:
                self._leave(rows, key, "expired")
            absent.append(key)
        coming = [key for key in absent if self._admits(key, trains)]
        if bound is not None:
            idle = [key for key, use in rows.items() if use.last_step != self.step]
            if self.order is None:
                idle = []
            idle.sort(key=lambda key: self.rank(key, rows[key]))
            if len(rows) + len(coming) > bound:
                coming.sort(key=lambda key: -scores.get(key, 0))
            room = max(0, bound - len(rows))
            for key in idle[: max(0, len(coming) - room)]:
                if scores and rows[key].score > scores[coming[room]]:
                    break
                self._leave(rows, key, "evicted")
                room += 1
            self.counts["refused"] += max(0, len(coming) - room)
            coming = coming[:room]
        for key in coming:
            rows[key] = Use(self.step, self.now_ms, last_epoch=self.epoch)
            del self.waiting[key]
        self.counts["admitted"] += len(coming)

    def _admits(self, key: int, trains: bool) -> bool:
        if not trains:
            return True
        if self.waiting[key] + 1 >= self.n:  # and again in later calls, until it gets its row
            return True
        self.waiting[key] += 1
        self.counts["held_back"] += 1
        return False
