# SPDX-License-Identifier: Apache-2.0
"""Where a table is.

By default it is on the first GPU if everything it is made with works there, else on the CPU. Its
shards may be on several GPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import process_ops
from tf_embed.table.storage import Storage

CPU = "/CPU:0"
GPU = "/GPU:0"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The device of each shard of a table, and the reason for it."""

    devices: tuple[str, ...]
    reason: str  # as in "'items' is on /CPU:0: TensorFlow sees no GPU."

    @property
    def several_gpus(self) -> tuple[str, ...]:
        """The GPU of each shard, if shards are on several GPUs; otherwise none."""
        places = [_place(name) for name in self.devices]
        has_several = places[0][0] == "GPU" and len(set(places)) > 1
        return tuple(f"/{kind}:{number}" for kind, number in places) if has_several else ()


def place(
    devices: Sequence[str] | str | Placement | None,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    storage: Storage | None = None,
    *,
    has_narrow_slots: bool = False,
) -> Placement:
    """Chooses or checks the device of each shard.

    Args:
        devices: The user's argument. None: the first GPU if it supports such a table, otherwise
            the CPU. A `Placement` is returned as it is.
        storage: The table's storage.
        has_narrow_slots: Whether its optimizer has slots of float16 or bfloat16.

    Raises:
        TypeError: If `devices` is neither a name nor a sequence of names.
        ValueError: If `devices` is empty, or a device is missing or does not support such tables.
    """
    if isinstance(devices, Placement):
        return devices
    why_not = _why_not_on_gpu(key_dtype, value_dtype, storage, has_narrow_slots)
    if devices is None:
        # In this order, so that a table that needs no GPU does not start TensorFlow's devices.
        if reason := why_not or _why_no_gpu():
            return Placement((CPU,), reason)
        return Placement((GPU,), "it is the first GPU")
    names = _names(devices)
    kinds = {_kind(name) for name in names}
    received = f"Received: devices={devices!r}"
    if not kinds <= {"CPU", "GPU"}:
        raise ValueError(
            f'`devices` must be CPUs or GPUs of this machine, like "{CPU}" or "{GPU}". {received}'
        )
    if "GPU" in kinds:
        if reason := _why_no_gpu() or why_not:
            raise ValueError(f"`devices` names a GPU, but {reason}. {received}")
        if "CPU" in kinds:
            raise ValueError(
                "The shards of a variable must all be on GPUs or all on CPUs: `devices` must be "
                f'like ["{GPU}", "/GPU:1"] or ["{CPU}"] * 2. {received}'
            )
    _check_present(names, "GPU" if "GPU" in kinds else "CPU")
    return Placement(names, "`devices` says so")


def check_one_gpu(placement: Placement, what: str) -> None:
    """Refuses shards on several GPUs.

    Args:
        what: The refusing class, for the message.

    Raises:
        ValueError: If they are.
    """
    if placement.several_gpus:
        raise ValueError(
            f"{what} has all shards on one GPU: `devices` must name it for each of them, like "
            f'["{GPU}"] * 2. Received: devices={list(placement.devices)}'
        )


def _why_not_on_gpu(
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    storage: Storage | None,
    has_narrow_slots: bool,
) -> str | None:
    """The reason that a table can't be on a GPU."""
    if tf.string in (key_dtype, value_dtype):
        return "a table of strings can't be on a GPU"
    if has_narrow_slots:
        return "a table with slots of float16 or bfloat16 can't be on a GPU"
    if storage is None:
        return None
    if storage.redis is not None:
        return "a table in Redis can't be on a GPU"
    if storage.path is not None and storage.gpu_bytes is None:
        return "`storage` has a `path` and no `gpu_bytes`, the cache in the GPU's memory"
    return None


def _why_no_gpu() -> str | None:
    """The reason that there is no GPU for tables."""
    if not tf.config.list_logical_devices("GPU"):
        return "TensorFlow sees no GPU"
    if process_ops.has_gpu_tables():
        return None
    return (
        "tf_embed has no GPU support: it must be built where CUDA's nvcc is, and run where there "
        "is a GPU and a driver no older than that CUDA"
    )


def _names(devices: Any) -> tuple[str, ...]:
    """The names in `devices`, one or several.

    Raises:
        TypeError: If `devices` is neither a str nor a sequence of str.
        ValueError: If `devices` is empty.
    """
    if isinstance(devices, str):
        return (devices,)
    # Not only `list`, because Keras wraps lists in layers in its own class.
    names = tuple(devices) if isinstance(devices, Sequence) else (None,)
    if not all(isinstance(name, str) for name in names) or isinstance(devices, bytes):
        raise TypeError(
            f'`devices` must be a name, like "{CPU}", or a list of names. Received: '
            f"devices={validation.shown(devices)}"
        )
    if not names:
        raise ValueError(f"`devices` must name at least one device. Received: devices={devices!r}")
    return names


def _check_present(names: tuple[str, ...], kind: str) -> None:
    """Refuses a device that this process does not have.

    Raises:
        ValueError: If a device is missing.
    """
    count = len(tf.config.list_logical_devices(kind))
    for name in names:
        spec = tf.DeviceSpec.from_string(name)
        is_first_task = not spec.replica and not spec.task
        if not is_first_task or not 0 <= (spec.device_index or 0) < count:
            raise ValueError(
                f"`devices` must be devices that this process has, of which {count} are {kind}s. "
                f"Received: {validation.shown(name)}"
            )


def _place(name: str) -> tuple[str, int]:
    """The type and the number of a device of this machine; "GPU" alone is the first GPU."""
    spec = tf.DeviceSpec.from_string(name)
    return spec.device_type.upper(), spec.device_index or 0


def _kind(name: str) -> str | None:
    """The type of a device of this machine."""
    try:
        spec = tf.DeviceSpec.from_string(name)
    except (TypeError, ValueError, AttributeError):
        return None  # no device of this machine: callers refuse it by name
    local = spec.job in (None, "localhost")
    return (spec.device_type or "").upper() if local else None
