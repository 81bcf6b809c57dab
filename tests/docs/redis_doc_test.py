# SPDX-License-Identifier: Apache-2.0
"""docs/guides/redis.md: its code runs as written, beside a server on another port."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import tensorflow as tf

import tf_embed
from support import ROOT
from support.processes.redis_servers import RedisProcess

DOC = (ROOT / "docs" / "guides" / "redis.md").read_text()


class RedisDocTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.server = RedisProcess()
        self.addCleanup(self.server.close)

    def test_each_piece_of_code_runs(self):
        pieces = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
        self.assertLen(pieces, 3)
        names: dict[str, Any] = {}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for piece in pieces:
                exec(piece.replace("port=6379", f"port={self.server.port}"), names)
        self.assertEqual(printed.getvalue(), "200 (2, 16)\n")

    def test_keys_are_as_it_says(self):
        policy = tf_embed.TablePolicy(ttl_seconds=1000.0)
        for table, one in (("a", None), ("b", policy)):
            storage = self.server.storage(model="m", table=table)
            v = tf_embed.Variable(dim=2, policy=one, storage=storage)
            v.upsert([65], [[1.0, 2.0]])
        self.assertEqual(self.server.command("TYPE", "{m:a:0}"), "hash")
        self.assertEqual(self.server.command("HLEN", "{m:a:0}"), "1")
        self.assertEqual(self.server.command("EXISTS", "m:a:meta"), "1")
        script = "return redis.call('STRLEN', '{m:b:0}A' .. string.rep('\\0', 7))"
        self.assertEqual(self.server.command("EVAL", script, "0"), str(16 + 2 * 4))


if __name__ == "__main__":
    tf.test.main()
