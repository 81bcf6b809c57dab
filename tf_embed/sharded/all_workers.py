# SPDX-License-Identifier: Apache-2.0
"""`AllWorkers`: calls that all workers make together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.workers import Workers
from tf_embed.table.collective_calls import CollectiveCalls

_MOST_CHARACTERS = 800  # of a message, so that it fits an exchange of workers


class AllWorkers(CollectiveCalls):
    """The calls of workers. All workers must make the same calls, in the same order.

    Args:
        sharding: How long to wait for the others.
    """

    def __init__(self, workers: Workers, sharding: WorkerSharding) -> None:
        self.count = workers.count
        self.rank = workers.rank
        self._workers = workers
        self._sharding = sharding
        (self._channel,) = workers.new_channels(1, sharding)

    @override
    def run(self, function: Callable[[], Any]) -> list[Any]:
        try:
            value = function()
        # Also for KeyboardInterrupt, because the other workers wait for this answer.
        except BaseException as error:
            self._exchange({"error": _described(error)})
            raise
        answers = self._exchange({"value": value})
        for rank, answer in enumerate(answers):
            if "error" in answer:
                raise _error_of(rank, *answer["error"])
        return [answer["value"] for answer in answers]

    def _exchange(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        # Escaped characters would take six bytes each, and the text must fit 4 KiB.
        text = json.dumps(answer, ensure_ascii=False)
        texts = self._workers.gather_texts(text, self._sharding, self._channel)
        return [json.loads(one) for one in texts]


def _described(error: BaseException) -> list[str]:
    """The kind and the message of an error."""
    kind = type(error).__name__
    if isinstance(error, tf.errors.OpError):
        return [kind, str(error.message)[:_MOST_CHARACTERS]]
    return [kind, f"{kind}: {error}"[:_MOST_CHARACTERS]]


def _error_of(rank: int, kind: str, message: str) -> Exception:
    """The error that a worker described."""
    message = f"Worker {rank} has failed: {message}"
    of_ops = getattr(tf.errors, kind, None)
    if of_ops is not None and of_ops is not tf.errors.OpError:  # which needs a code
        error: Exception = of_ops(None, None, message)
        return error
    return {"TypeError": TypeError, "ValueError": ValueError}.get(kind, RuntimeError)(message)
