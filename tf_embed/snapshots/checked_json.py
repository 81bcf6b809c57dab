# SPDX-License-Identifier: Apache-2.0
"""Small files of JSON with a format and a checksum, each put in place at once."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_embed.ops import snapshot_ops

_FORMAT = 1


def write(folder: str, name: str, body: dict[str, Any]) -> None:
    """Writes a file; in place of an earlier one."""
    body = {"format": _FORMAT, **body}
    snapshot_ops.put_file(folder, name, _text_of({**body, "checksum": _checksum(body)}))


@contextlib.contextmanager
def reading(path: str) -> Iterator[dict[str, Any]]:
    """Reads a file, and gives its body to a block that makes something of it.

    Raises:
        tf.errors.DataLossError: If the file is damaged or of another format, or the body is none
            that the block takes.
        tf.errors.NotFoundError: If there is none.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        text = file.read()
    try:
        yield _body_of(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise tf.errors.DataLossError(
            None, None, f"'{path}' is damaged, or of another format."
        ) from error


def _body_of(text: bytes) -> dict[str, Any]:
    body = json.loads(text)
    checksum = body.pop("checksum")
    if body["format"] != _FORMAT or checksum != _checksum(body):
        raise ValueError
    if _text_of({**body, "checksum": checksum}).encode() != text:
        raise ValueError
    del body["format"]
    return dict(body)


def _text_of(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(_text_of(body).encode())
