# SPDX-License-Identifier: Apache-2.0
"""Errors of servers and of their results, without servers."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tf_embed.distributed import ServerLostError, servers
from tf_embed.distributed.servers import server_errors
from tf_embed.distributed.worker_calls import WorkerCalls, fetched

_LOST_SERVER = 75


def _unavailable(text: str) -> tf.errors.OpError:
    return tf.errors.UnavailableError(None, None, text)


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):
    def servers(self, *lost: int) -> Any:
        return types.SimpleNamespace(lost=lambda: list(lost))

    def test_an_error_is_of_a_server_only_if_one_has_died(self) -> None:
        with (
            self.assertRaisesRegex(tf.errors.UnavailableError, "the disk is full"),
            server_errors(self.servers()),
        ):
            raise _unavailable("the disk is full")
        with (
            self.assertRaisesRegex(ServerLostError, "ps 0 and 2 has died.*KeyError: 'a'"),
            server_errors(self.servers(0, 2)),
        ):
            raise KeyError("a")
        with (
            self.assertRaisesRegex(ServerLostError, "a server that still runs.*Socket closed"),
            server_errors(self.servers()),
        ):
            raise _unavailable("from remote target /job:ps/replica:0/task:1: Socket closed")

    def test_a_chief_in_whose_start_a_process_dies_has_lost_a_server(self) -> None:
        cluster_of_one = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
        config = {"cluster": cluster_of_one, "task": {"type": "chief", "index": 0}}
        error = io.StringIO()
        with (
            mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}),
            mock.patch.object(tf.distribute, "ParameterServerStrategy"),
            mock.patch.object(servers, "servers_of", side_effect=_unavailable("Socket closed")),
            mock.patch.object(os, "_exit", side_effect=SystemExit) as ended,
            contextlib.redirect_stderr(error),
            self.assertRaises(SystemExit),
        ):
            servers.run_with_servers(lambda strategy: None)
        ended.assert_called_once_with(_LOST_SERVER)
        self.assertIn("has died while the chief was starting", error.getvalue())

    def calls(self, get: Any, *errors: Exception) -> WorkerCalls[int]:
        """Calls of a coordinator that keeps errors."""
        kept = list(errors)

        def join() -> None:
            if kept:
                raise kept.pop()

        coordinator = types.SimpleNamespace(
            schedule=lambda function, args: types.SimpleNamespace(get=lambda: get(function(*args))),
            join=join,
        )
        return WorkerCalls(coordinator, self.servers())

    def test_results_come_with_notes_in_order(self) -> None:
        calls = self.calls(lambda result: result)
        for number in range(3):
            calls.add(lambda one: 10 * one, [number], number)
        self.assertLen(calls, 3)
        self.assertEqual([calls.fetch() for _ in range(2)], [(0, 0), (1, 10)])
        self.assertTrue(calls.drop())
        self.assertEmpty(calls)

    @parameterized.parameters(
        (ValueError("of a step"), ValueError, "of a step"),
        (_unavailable("Socket closed"), ServerLostError, "a server that still runs.*Socket closed"),
    )
    def test_the_first_error_is_raised_and_not_those_of_cancelled_calls(
        self, first: Exception, kind: type[Exception], message: str
    ) -> None:
        cancelled = tf.errors.CancelledError(None, None, "Please reschedule the function.")

        def get(result: int) -> int:
            raise cancelled

        calls = self.calls(get, first)
        calls.add(lambda one: one, [1], 1)
        with self.assertRaisesRegex(kind, message):
            calls.fetch()
        self.assertFalse(calls.drop())

    def test_calls_that_fail_while_they_are_dropped_count_as_failed(self) -> None:
        calls = self.calls(lambda result: result, ValueError("of a step"))
        calls.add(lambda one: one, [1], 1)
        self.assertFalse(calls.drop())


class FetchedTest(tf.test.TestCase):
    def result_of(self, found: Iterator[Any]) -> Any:
        """A result. Its copies raise or return the elements of `found` in turn."""

        def get() -> Any:
            one = next(found)
            if isinstance(one, Exception):
                raise one
            return one

        return types.SimpleNamespace(get=get)

    def test_failed_copies_are_no_error_of_a_call(self) -> None:
        errors = [_unavailable("The worker has died.") for _ in range(3)]
        self.assertEqual(fetched(self.result_of(iter([*errors, None, 7]))), 7)

    def test_an_error_of_a_call_is_raised(self) -> None:
        copies = [_unavailable("The worker has died.") for _ in range(2)]
        found = itertools.chain(copies, itertools.repeat(_unavailable("The server has died.")))
        with self.assertRaisesRegex(tf.errors.UnavailableError, "The server has died"):
            fetched(self.result_of(found))


if __name__ == "__main__":
    tf.test.main()
