# SPDX-License-Identifier: Apache-2.0
"""The tables of a table-batched layer, and their descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import validation
from tf_embed.configs import as_enum
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.initializers import for_rows, row_initializer, with_own_seed
from tf_embed.table.placement import CPU, Placement, place
from tf_embed.table.policies import TablePolicy
from tf_embed.table.storage import Storage
from tf_embed.tbe import quantized_rows
from tf_embed.tbe.fbgemm_types import ComputeDevice, EmbeddingLocation, SparseType
from tf_embed.variable.row_array import RowArray
from tf_embed.variable.variable import Variable


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """The description of a table.

    Attributes:
        rows: Number of rows; None for a dynamic table.
        dim: Number of weights in a row.
        location: The requested place of the rows, see `place_together`; None: where they fit best.
        device: The device that computes on them.
    """

    rows: int | None
    dim: int
    location: EmbeddingLocation | None = None
    device: ComputeDevice = ComputeDevice.CPU

    @classmethod
    def of(cls, spec: Any, number: int) -> TableSpec:
        """Returns the spec in a tuple.

        Raises:
            TypeError: If an item is of a wrong type.
            ValueError: If it does not have 2 to 4 elements, an element is out of range, or it names
                MTIA.
        """
        argument = f"embedding_specs[{number}]"
        if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
            raise ValueError(
                f"`{argument}` must be (rows, dim), (rows, dim, EmbeddingLocation) or (rows, dim, "
                f"EmbeddingLocation, ComputeDevice). Received: {argument}={validation.shown(spec)}"
            )
        rows, dim, *rest = spec
        location = as_enum(rest[0], argument, EmbeddingLocation) if rest else cls.location
        device = as_enum(rest[1], argument, ComputeDevice) if len(rest) > 1 else cls.device
        for one in (location, device):
            if one is not None and one.name == "MTIA":
                raise ValueError(
                    f"`{argument}` must not be of MTIA, which TensorFlow does not know. Received: "
                    f"{argument}={validation.shown(tuple(spec))}"
                )
        return cls(
            rows=None if rows is None else validation.int_in(rows, argument),
            dim=validation.int_in(dim, argument, most=validation.MAX_DIM),
            location=location,
            device=device,
        )

    def initializer(self, initializer: Any) -> Any:
        """The table's initializer: the user's, with its own seed."""
        if self.rows is None:
            return with_own_seed(initializer)
        return for_rows(initializer, self.rows, self.dim)

    def variable(
        self,
        *,
        name: str,
        devices: Placement,
        precision: SparseType,
        initializer: Any,
        policy: TablePolicy | None,
        storage: Storage | None,
        trainable: bool,
        distribution: WorkerSharding | str | None,
    ) -> Variable:
        """Creates the table with the given storage, or with the storage of its location.

        Raises:
            ValueError: If the table can't draw the initializer itself, rows of bytes have an
                initializer, or a policy would evict or delay rows of an array.
        """
        quantized = precision == SparseType.INT8
        value_dtype = tf.int8 if quantized else precision.dtype
        if quantized and initializer is not None:
            raise ValueError(
                f"`initializer` of {name!r} must be None, for its rows are SparseType.INT8. "
                f"Received: initializer={validation.shown(initializer)}"
            )
        # Only for checks: the op of many tables can't call Python for new rows.
        drawn = row_initializer(initializer, dim=self.dim, value_dtype=value_dtype, name=name)
        if drawn.is_of_python:
            raise ValueError(
                f"`initializer` of {name!r} must be None, a number, an array, or an initializer of "
                f"Keras that tf_embed.Variable draws by key. Received: initializer="
                f"{validation.shown(initializer)}"
            )
        options: dict[str, Any] = {
            "devices": devices,
            "dim": self.dim + (quantized_rows.TAIL if quantized else 0),
            "value_dtype": value_dtype,
            "initializer": initializer,
            "trainable": trainable,
            "distribution": distribution,
            "name": name,
        }
        if storage is not None:
            options["storage"] = storage
        elif self.location not in (None, EmbeddingLocation.DEVICE):  # in host memory
            options["storage"] = Storage(gpu_bytes=0)
        if self.rows is None:
            return Variable(policy=policy, **options)
        if isinstance(policy, TablePolicy) and (
            policy.max_rows or policy.admission or policy.ttl_seconds
        ):
            raise ValueError(
                f"`policy` of {name!r} must have no `max_rows`, `admission` or `ttl_seconds`, for "
                f"it has {self.rows} rows, which stay. Received: policy={validation.shown(policy)}"
            )
        return RowArray(self.rows, policy=policy, **options)

    def get_config(self) -> list[Any]:
        """The tuple that `of` takes."""
        if self.location is None:
            return [self.rows, self.dim]
        return [self.rows, self.dim, self.location.value, self.device.value]


def place_together(
    specs: Sequence[TableSpec],
    precision: SparseType,
    has_narrow_states: bool,
    storages: Sequence[Storage | None],
) -> Placement:
    """Chooses the device that all tables of a layer share, because one op looks up in all.

    Args:
        specs: Their descriptions. Tables are on a GPU only if none has EmbeddingLocation.HOST.
        precision: The type of stored rows.
        has_narrow_states: Whether their optimizer has slots of float16 or bfloat16.
        storages: The storage of each table. Tables with rows on disk are on the CPU, unless each
            has `gpu_bytes` for its cache.

    Returns:
        The first GPU if it can hold all the tables, otherwise the CPU.
    """
    if any(spec.location == EmbeddingLocation.HOST for spec in specs):
        return Placement((CPU,), "a table of the layer has EmbeddingLocation.HOST")
    dtype = tf.int8 if precision == SparseType.INT8 else precision.dtype
    places = [
        place(None, tf.int64, dtype, storage, has_narrow_slots=has_narrow_states)
        for storage in storages
    ]
    return next((one for one in places if one.devices == (CPU,)), places[0])


class Tables(tf.Module):
    """The tables of a layer, as a tf.Module so that checkpoints and SavedModels find them.

    Attributes:
        num_faults: Number of out-of-bounds ids and malformed offsets so far, int64.
    """

    def __init__(self, variables: list[Variable]) -> None:
        super().__init__()
        self.members = variables
        # Each worker and each replica has its own count.
        self.num_faults = tf.Variable(
            0,
            trainable=False,
            dtype=tf.int64,
            name="num_faults",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )


class Member(NamedTuple):
    """A table of a layer.

    Attributes:
        rows: Number of rows; None for a dynamic table.
    """

    table: Variable
    rows: int | None
