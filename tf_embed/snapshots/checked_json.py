# SPDX-License-Identifier: Apache-2.0
"""Small JSON files with a format number and a checksum, each written atomically."""

from __future__ import annotations

import contextlib
import json
import math
import types
import typing
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.saving import guarded_files

_FORMAT = 1
_MOST_BYTES = 2**25  # the limit of row manifests

_Record = TypeVar("_Record")


def write(folder: str, name: str, body: dict[str, Any]) -> None:
    """Writes a file atomically. Replaces an earlier file of the same name."""
    body = {"format": _FORMAT, **body}
    snapshot_ops.put_file(folder, name, _text_of({**body, "checksum": _checksum(body)}))


@contextlib.contextmanager
def reading(path: str) -> Iterator[dict[str, Any]]:
    """Reads a file and passes its body to the block, which parses it.

    Raises:
        tf.errors.DataLossError: If the file is damaged or of another format, or the block raises an
            error that a malformed body causes.
        tf.errors.NotFoundError: If the file does not exist.
    """
    text = guarded_files.read(path, _MOST_BYTES)
    try:
        yield _body_of(text)
    # RecursionError: lists are nested too deep.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise tf.errors.DataLossError(
            None, None, f"'{path}' is damaged, or of another format."
        ) from error


def record(kind: type[_Record], fields: dict[str, Any]) -> _Record:
    """Returns a dataclass instance with the fields of a part of a body.

    Raises:
        TypeError: If the field names differ from the class's, or a value has another type.
    """
    made = kind(**fields)
    for name, hint in typing.get_type_hints(kind).items():
        if not _is_of(getattr(made, name), hint):
            raise TypeError(f"`{name}` must be of type {hint}. Received: {getattr(made, name)!r}")
    return made


def _is_of(value: Any, hint: Any) -> bool:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_is_of(value, one) for one in arguments)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_of(one, arguments[0]) for one in value)
    if hint is float:
        # Not `isinstance`, for which a bool is an int.
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int
    return isinstance(value, hint)


def _body_of(text: bytes) -> dict[str, Any]:
    body = json.loads(text)
    checksum = body.pop("checksum")
    if body["format"] != _FORMAT or checksum != _checksum(body):
        raise ValueError
    # The checksum covers the parsed body. This check finds damage between its values.
    if _text_of({**body, "checksum": checksum}).encode() != text:
        raise ValueError
    del body["format"]
    return dict(body)


def _text_of(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(_text_of(body).encode())
