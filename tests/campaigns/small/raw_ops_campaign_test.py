# SPDX-License-Identifier: Apache-2.0
"""No random call of a raw op ends the process; a planted call that does is reported."""

from __future__ import annotations

import functools

from absl.testing import absltest

from support.oracles.reference import SEED
from support.processes import campaign_runs

run = functools.partial(campaign_runs.run, "raw_ops")


class RawOpsCampaignTest(absltest.TestCase):
    def test_no_call_ends_the_process_or_hangs(self):
        done = run("--calls=500", f"--seed={SEED}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        last = done.stdout.splitlines()[-1]
        self.assertRegex(last, r"^raw ops: 500 calls, \d+ taken, \d+ refused, 0 crashes, 0 hangs")

    def test_a_call_that_ends_the_process_is_told_and_can_be_made_again(self):
        done = run("--calls=20", "--seed=7", "--plant=abort:12")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"call 12 ended the process, SIGABRT: 12 tf_embed_\w+\(")
        self.assertIn("--replay=7:0-12", done.stdout)
        self.assertIn("20 calls", done.stdout.splitlines()[-1])
        self.assertIn("1 crashes, 0 hangs", done.stdout.splitlines()[-1])
        again = run("--replay=7:0-12", "--plant=abort:12")
        self.assertEqual(again.returncode, 1, again.stdout + again.stderr)
        self.assertIn("call 12 ended the process", again.stdout)

    def test_a_call_that_does_not_return_is_told(self):
        done = run("--calls=3", "--seed=7", "--plant=hang:2", "--limit=20")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"call 2 took longer than 20.0 s: 2 tf_embed_\w+\(")
        self.assertIn("0 crashes, 1 hangs", done.stdout.splitlines()[-1])


if __name__ == "__main__":
    absltest.main()
