# SPDX-License-Identifier: Apache-2.0
"""The ops of the exchange between workers, typed. They pack and unpack, and send nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import table_ops
from tf_embed.ops.lookup_gradient import gradient_of_token

_raw = _library.load()

SAME = "same"  # the wire type of numbers that travel as they are

for _name in (
    *("RouteKeys", "RouteGradients", "UnlessFrozen"),
    *("MessageWords", "PlanExchange", "PackMessages", "UnpackMessages"),
):
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
    keys: Sequence[tf.Tensor],
    owners: Sequence[tf.Tensor],
    *,
    num_workers: int,
    owner_rules: Sequence[str],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Brings the keys of some tables together by the worker that owns them.

    Args:
        keys: Of each table, any shape.
        owners: Of each table, the worker of each key, flattened, int32; [0]: by the rule.
        num_workers: Number of workers.
        owner_rules: Of each table, "hash" or "remainder".

    Returns:
        Of each table, the distinct keys [u], worker by worker; of each table, the index of each key
        among them, int32, keys.shape; and how many each worker owns, int32 [tables, num_workers].
    """
    return _raw.tf_embed_route_keys(
        keys=list(keys),
        owners=list(owners),
        num_workers=num_workers,
        owner_rules=list(owner_rules),
    )


def route_gradients(
    keys: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    owners: Sequence[tf.Tensor],
    *,
    num_workers: int,
    owner_rules: Sequence[str],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Sums the gradients of equal keys, and brings them together by the worker that owns them.

    Args:
        keys: Of each table, [n].
        gradients: Of each table, [n, dim].
        owners, num_workers, owner_rules: As in `route_keys`.

    Returns:
        Of each table, the distinct keys [u], worker by worker; of each table, the sums [u, dim],
        float64 for gradients of float64, else float32; and how many keys each worker owns, int32
        [tables, num_workers].
    """
    return _raw.tf_embed_route_gradients(
        keys=list(keys),
        gradients=list(gradients),
        owners=list(owners),
        sum_dtypes=[table_ops.compute_dtype(one.dtype) for one in gradients],
        num_workers=num_workers,
        owner_rules=list(owner_rules),
    )


def unless_frozen(
    keys: tf.Tensor, gradients: tf.Tensor, trained: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of a table as it is if `trained`, a bool scalar; otherwise that of no keys.

    Args:
        keys: [n].
        gradients: [n, dim].
        trained: Whether the table is trained.
    """
    return _raw.tf_embed_unless_frozen(keys=keys, gradients=gradients, trained=trained)


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
    """The parts of the messages that came, those of worker 0 first.

    Args:
        messages: int32 [workers, capacity].
        counts: How many keys of each table came from each, int32 [tables, workers].
        parts: The packed parts.
        sent: The message of this worker, if it takes its own share from there; None: its own
            message is among the others.
    """
    # This worker's own parts are among the messages that came.
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


def routed_rows(
    keys: tf.Tensor,
    routed: tf.Tensor,
    rows: tf.Tensor,
    places: tf.Tensor,
    token: tf.Tensor | None = None,
    *,
    noted: tf.Tensor | None = None,
    label: str = "",
) -> tf.Tensor:
    """The rows of a batch, from those of its distinct keys. Their gradient goes to the token.

    Args:
        keys: The batch, any shape.
        routed: The distinct keys [u].
        rows: Their rows [u, dim].
        places: The index of each key of the batch in `routed`, int32, keys.shape.
        token: As in `table_ops.find`.
        noted: None, or the keys that `routed` and `places` were made of. They must equal `keys`.
        label: The name of the table in messages.

    Returns:
        keys.shape + [dim].
    """
    return _raw.tf_embed_routed_rows(
        keys=keys,
        noted=[] if noted is None else [noted],
        routed=routed,
        rows=rows,
        places=places,
        tokens=[] if token is None else [token],
        label=label,
    )


@tf.RegisterGradient("TfEmbedRoutedRows")
def _routed_rows_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """For the token, the gradients of the rows at their keys."""
    gradients: list[Any] = [None] * len(op.inputs)
    if not op.get_attr("num_tokens"):
        return gradients
    # Counted from the end, because `noted` may be absent.
    token = op.inputs[-1]
    routed, rows, places = op.inputs[-4:-1]
    dim = rows.shape[1]
    keys, sums = _raw.tf_embed_routed_rows_gradient(
        gradient=tf.convert_to_tensor(gradient), routed=routed, places=places, dim=dim
    )
    gradients[-1] = gradient_of_token(token, keys, sums, dim)
    return gradients


@tf.RegisterGradient("TfEmbedRoutedRowsGradient")
def _routed_rows_second_gradient(op: tf.Operation, of_keys: Any, of_sums: Any) -> list[Any]:
    """For the gradient that was summed."""
    del of_keys
    return [tf.gather(tf.convert_to_tensor(of_sums), op.inputs[2]), None, None]


def start_watch(seconds: float, what: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Ends all collectives of this process with an error if they are not over in some time.

    Args:
        seconds: How long.
        what: The awaited event, for the message.

    Returns:
        The watch, which ends with its last tensor; and whether there is one, bool.
    """
    return _raw.tf_embed_start_watch(seconds=seconds, what=what)


def end_watch(watch: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Ends a watch, and returns the awaited result unchanged."""
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
    """Returns the id of the op library's build in the device's process; a string."""
    return _raw.tf_embed_build()
