# SPDX-License-Identifier: Apache-2.0
"""The device of a table: the CPU, or a GPU if the build has GPU support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import process_ops

CPU = "/CPU:0"
GPU = "/GPU:0"


def device_names(
    devices: Sequence[str] | str | None, key_dtype: tf.DType, value_dtype: tf.DType
) -> tuple[str, ...]:
    """The device of each shard.

    Args:
        devices: The user's argument. None: the first GPU if it supports such a table, otherwise
            the CPU.

    Raises:
        TypeError: If `devices` is neither a name nor a sequence of names.
        ValueError: If `devices` is empty, or a device is missing or does not support such tables.
    """
    # A GPU has no strings, so such a table is on the CPU whether or not there is a GPU.
    why_not = "A table of strings" if tf.string in (key_dtype, value_dtype) else None
    if devices is None:
        return (CPU,) if why_not or not _has_gpu() else (GPU,)
    names = _names(devices)
    kinds = {_kind(name) for name in names}
    if not kinds <= {"CPU", "GPU"}:
        raise ValueError(
            f'`devices` must be CPUs or GPUs of this machine, like "{CPU}" or "{GPU}". '
            f"Received: devices={devices!r}"
        )
    if "GPU" not in kinds:
        _check_present(names, "CPU")
        return names
    if not _has_gpu():
        missing = (
            "TensorFlow sees no GPU"
            if process_ops.has_gpu_tables()
            else "tf_embed has none: it must be built where CUDA's nvcc is, and run where there is "
            "a GPU and a driver no older than that CUDA"
        )
        raise ValueError(f"`devices` names a GPU, but {missing}. Received: devices={devices!r}")
    if len({_place(name) for name in names}) > 1:
        raise ValueError(
            "The shards of a variable on a GPU are all on that one: `devices` must name it for "
            f'each of them, like ["{GPU}"] * 2. Received: devices={devices!r}'
        )
    if why_not:
        raise ValueError(f"{why_not} can't be on a GPU. Received: devices={devices!r}")
    _check_present(names, "GPU")
    return names


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


def _has_gpu() -> bool:
    return process_ops.has_gpu_tables() and bool(tf.config.list_logical_devices("GPU"))


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
