# SPDX-License-Identifier: Apache-2.0
"""The ops of the exchange between workers, typed. They pack and unpack, and send nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops.lookup_gradient import gradient_of_token

_raw = _library.load()

SAME = "same"  # the wire type of numbers that travel as they are

for _name in ("RouteKeys", "MessageWords", "PlanExchange", "PackMessages", "UnpackMessages"):
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
    """What a part of a message is, for the worker that gets it.

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
    """What workers agree on before they send.

    Attributes:
        capacity: Words of a message, int64 scalar.
        number: The number of that capacity, int32 scalar, less than `NUM_CAPACITIES`.
        reply_capacity: The same of a reply.
        reply_number: The same of a reply.
        received: How many keys of each table come from each worker, int32 [tables, workers].
    """

    capacity: tf.Tensor
    number: tf.Tensor
    reply_capacity: tf.Tensor
    reply_number: tf.Tensor
    received: tf.Tensor


NUM_CAPACITIES = 256


def route_keys(
    keys: tf.Tensor, owners: tf.Tensor, *, num_workers: int, owner_rule: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Brings keys together by the worker that owns them.

    Args:
        keys: Any shape.
        owners: The worker of each key, flattened, int32; [0]: by the rule.
        num_workers: Number of workers.
        owner_rule: "hash" or "remainder".

    Returns:
        The distinct keys [u], worker by worker; where each key is among them, int32, keys.shape;
        and how many each worker owns, int32 [num_workers].
    """
    return _raw.tf_embed_route_keys(
        keys=keys, owners=owners, num_workers=num_workers, owner_rule=owner_rule
    )


class Sent(NamedTuple):
    """What a worker sends.

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
    """The parts of the messages that came, those of worker 0 first.

    Args:
        messages: int32 [workers, capacity].
        counts: How many keys of each table came from each, int32 [tables, workers].
        parts: What was packed.
        sent: What this worker has sent, if it takes its own share from there; None: its own message
            is among the others.
    """
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
    """Makes a plan of the counts and words of all workers.

    Args:
        gathered: int32; of each worker its counts, [tables, workers], and its words, [workers].
        num_workers: Number of workers.
        num_tables: Number of tables.
        rank: The number of this worker.
        reply_parts: What comes back for the keys.
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


def exchanged_rows(token: tf.Tensor, keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Rows as they are, whose gradient goes to the token with the keys.

    Args:
        token: As in `table_ops.find`.
        keys: [u].
        rows: [u, dim].
    """
    return _raw.tf_embed_exchanged_rows(token=token, keys=keys, rows=rows)


@tf.RegisterGradient("TfEmbedExchangedRows")
def _exchanged_rows_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """For the token, the gradients of the rows at their keys."""
    token, keys, rows = op.inputs
    if isinstance(gradient, tf.IndexedSlices):  # of tf.gather; equal keys are summed here
        gradient = tf.math.unsorted_segment_sum(
            gradient.values, gradient.indices, tf.shape(rows, out_type=tf.int32)[0]
        )
    dim = rows.shape[1]
    return [gradient_of_token(token, tf.identity(keys), gradient, dim), None, None]


def start_watch(seconds: float, what: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Ends all collectives of this process with an error if they are not over in some time.

    Args:
        seconds: How long.
        what: What is waited for, for the message.

    Returns:
        The watch, which ends with its last tensor; and whether there is one, bool.
    """
    return _raw.tf_embed_start_watch(seconds=seconds, what=what)


def end_watch(watch: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Ends a watch, and gives what was waited for as it is."""
    return _raw.tf_embed_end_watch(watch=watch, result=result)


def _parts(parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "parts": [part.tensor for part in parts],
        "part_tables": [part.table for part in parts],
        "wire_types": [part.wire_type for part in parts],
    }


def number_of_task() -> tf.Tensor:
    """The number of the device's process among the tasks of its job, an int64 scalar."""
    return _raw.tf_embed_task()


def build_of_library() -> tf.Tensor:
    """What tells the build of the op library in the device's process from others; a string."""
    return _raw.tf_embed_build()
