# SPDX-License-Identifier: Apache-2.0
"""Groups of lookups that workers make together."""

from __future__ import annotations

import types
from typing import Any

from absl.testing import absltest

from tf_embed.sharded import routing, worker_lookups

PLAIN, POOLED = (types.SimpleNamespace(pooling=one) for one in (None, "mean"))
MOST = routing.MAX_TABLES


def sizes_of(*lookups: Any) -> list[int]:
    return [len(group) for group in worker_lookups._groups(lookups)]


class GroupsTest(absltest.TestCase):
    def test_a_group_is_as_large_as_an_exchange_can_count(self):
        self.assertEqual(sizes_of(), [])
        self.assertEqual(sizes_of(*[PLAIN] * MOST), [MOST])
        self.assertEqual(sizes_of(*[PLAIN] * (2 * MOST + 1)), [MOST, MOST, 1])

    def test_a_pooled_lookup_has_three_counts(self):
        most = MOST // 3
        self.assertEqual(sizes_of(*[POOLED] * (2 * most + 1)), [most, most, 1])
        some = [PLAIN] * (MOST - 3)
        self.assertEqual(sizes_of(*some, POOLED, PLAIN), [MOST - 2, 1])
        self.assertEqual(sizes_of(*some, PLAIN, POOLED), [MOST - 2, 1])

    def test_lookups_stay_in_their_order(self):
        lookups = [types.SimpleNamespace(pooling=None, number=i) for i in range(MOST + 9)]
        groups = worker_lookups._groups(lookups)  # type: ignore[arg-type]
        self.assertEqual([one for group in groups for one in group], lookups)


if __name__ == "__main__":
    absltest.main()
