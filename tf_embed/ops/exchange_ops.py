# SPDX-License-Identifier: Apache-2.0
"""The ops of the exchange between workers, typed. They pack and unpack, and send nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()

SAME = "same"  # the wire type of numbers that are sent unchanged

for _name in ("MessageWords", "PlanExchange", "PackMessages", "UnpackMessages"):
    tf.no_gradient(f"TfEmbed{_name}")


class Part(NamedTuple):
    """A part of a message.

    Attributes:
        table: The number of its table among those of the exchange.
        tensor: A vector of keys, or a matrix of rows, in the order of the workers that they go to.
        wire_type: "same", "bfloat16" or "float16".
    """

    table: int
    tensor: tf.Tensor
    wire_type: str = SAME


class PartType(NamedTuple):
    """The type of a part of a message, for the worker that gets it.

    Attributes:
        table: The number of its table among those of the exchange.
        dtype: Its dtype.
        width: Numbers in a row; 0 for a vector.
        wire_type: "same", "bfloat16" or "float16".
    """

    table: int
    dtype: tf.DType
    width: int = 0
    wire_type: str = SAME

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a message."""
        bytes_of_number = self.dtype.size if self.wire_type == SAME else 2
        return bytes_of_number * max(self.width, 1)


class Plan(NamedTuple):
    """The agreement of workers on a message before they send it.

    Attributes:
        capacity: Words of a message, int64 scalar.
        number: The number of that capacity, int32 scalar, less than `NUM_CAPACITIES`.
        reply_capacity: The same for a reply.
        reply_number: The same for a reply.
        received: How many keys of each table arrive from each worker, int32 [tables, workers].
    """

    capacity: tf.Tensor
    number: tf.Tensor
    reply_capacity: tf.Tensor
    reply_number: tf.Tensor
    received: tf.Tensor


NUM_CAPACITIES = 256


class Sent(NamedTuple):
    """A message that a worker sends.

    Attributes:
        parts: The parts.
        counts: How many keys of each table go to each worker, int32 [tables, workers].
        rank: The number of the worker, to which no message is sent; -1: it sends to itself too.
    """

    parts: Sequence[Part]
    counts: tf.Tensor
    rank: int = -1


def message_words(sent: Sent) -> tf.Tensor:
    """Words of the message to each worker, int32 [workers]."""
    return _raw.tf_embed_message_words(counts=sent.counts, rank=sent.rank, **_parts(sent.parts))


def pack_messages(sent: Sent, capacity: tf.Tensor) -> tf.Tensor:
    """The messages, int32 [workers, capacity]."""
    return _raw.tf_embed_pack_messages(
        counts=sent.counts, rank=sent.rank, capacity=capacity, **_parts(sent.parts)
    )


def unpack_messages(
    messages: tf.Tensor, counts: tf.Tensor, parts: Sequence[PartType], sent: Sent | None = None
) -> list[tf.Tensor]:
    """The parts of the received messages, by worker, from worker 0.

    Args:
        messages: int32 [workers, capacity].
        counts: How many keys of each table arrived from each worker, int32 [tables, workers].
        parts: The packed parts.
        sent: The message of this worker, if it takes its own parts from there. None: its message is
            among `messages`.
    """
    # This worker's own parts are among the received messages.
    if sent is None or sent.rank < 0:
        sent = Sent([], counts)
    return _raw.tf_embed_unpack_messages(
        messages=messages,
        counts=counts,
        part_types=[part.dtype for part in parts],
        part_tables=[part.table for part in parts],
        wire_types=[part.wire_type for part in parts],
        widths=[part.width for part in parts],
        own=[part.tensor for part in sent.parts],
        own_counts=sent.counts,
        rank=sent.rank,
    )


def plan_exchange(
    gathered: tf.Tensor,
    *,
    num_workers: int,
    num_tables: int,
    rank: int,
    reply_parts: Sequence[PartType],
) -> Plan:
    """Makes a plan from the counts and words of all workers.

    Args:
        gathered: int32; for each worker its counts, [tables, workers], and its words, [workers].
        reply_parts: The parts of the reply to the keys.
    """
    return Plan(
        *_raw.tf_embed_plan_exchange(
            gathered=gathered,
            num_workers=num_workers,
            num_tables=num_tables,
            rank=rank,
            reply_tables=[part.table for part in reply_parts],
            reply_row_bytes=[part.row_bytes for part in reply_parts],
        )
    )


def _parts(parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "parts": [part.tensor for part in parts],
        "part_tables": [part.table for part in parts],
        "wire_types": [part.wire_type for part in parts],
    }
