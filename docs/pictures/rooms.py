# SPDX-License-Identifier: Apache-2.0
"""The rooms of tf_embed/ and cc/, lowest at the bottom."""

from __future__ import annotations

from pictures.svg import BLUE, GREEN, MUTED, ORANGE, PURPLE, Color, Picture

# Rows from the top; within a row the lower room is on the left. A room is a folder or a module.
PYTHON = (
    ("the package", ("__init__",)),
    ("other interfaces, export", ("tbe", "tfra", "one_embedding", "sok", "static_export")),
    ("around training", ("snapshots", "serving", "callbacks", "distributed")),
    ("from variable to layer", ("variable", "optimizers", "layers")),
    ("tables and their files", ("exchange", "table", "saving")),
    ("ops", ("ops", "validation", "configs")),
    ("the library", ("_version", "_library", "callers")),
)
CC = (
    ("TensorFlow's side", ("ops", "tf")),
    ("choice of a store", ("stores",)),
    ("stores", ("host", "device", "disk", "memory", "tiered", "redis/client", "redis")),
)
CORE = (
    ("batches, tables, files", ("loops", "table", "shards", "pooling", "exchange", "files")),
    ("keys and rows", ("base", "rules", "rows", "batch", "index", "policy")),
)

_LEFT, _RIGHT, _HEIGHT, _STEP = 196, 740, 28, 36


def _row(picture: Picture, y: float, label: str, rooms: tuple[str, ...], color: Color) -> None:
    picture.note(_LEFT - 14, y + 19, label, anchor="end")
    gap = 8
    letters = [len(room) + 5 for room in rooms]
    unit = (_RIGHT - _LEFT - gap * (len(rooms) - 1)) / sum(letters)
    x: float = _LEFT
    for room, count in zip(rooms, letters, strict=True):
        picture.box(x, y, count * unit, _HEIGHT, f"`{room}`", color, size=12, bold=False)
        x += count * unit + gap


def picture() -> Picture:
    """Draws it."""
    rows = len(PYTHON) + len(CC) + len(CORE)
    height = 48 + rows * _STEP + 3 * 44 + 10
    drawn = Picture(
        760,
        height,
        "Rooms, lowest at the bottom",
        "The folders of tf_embed and of cc as rows of boxes. Python is above, C++ below, and the "
        "wings of the core are lowest. A room uses the rooms below it only.",
    )
    drawn.note(740, 30, "a room uses rooms below it, or on its left", anchor="end")
    y = 52.0
    for heading, rest, rows_of, color in (
        ("`tf_embed/`", "Python; a lookup leaves it through `ops`", PYTHON, BLUE),
        ("`cc/`", "C++; only `tf` knows both TensorFlow and the engine", CC, GREEN),
        ("`cc/core/`", "rows, index, rules and files, without TensorFlow", CORE, ORANGE),
    ):
        if color is not BLUE:
            drawn.line([(20, y + 4), (_RIGHT, y + 4)], MUTED, width=1, dashed=True)
        drawn.text(20, y + 26, heading, bold=True, color=color.line)
        drawn.note(_LEFT, y + 26, rest)
        y += 40
        for label, rooms in rows_of:
            is_face = label.startswith("other")
            _row(drawn, y, label, rooms, PURPLE if is_face else color)
            y += _STEP
    return drawn
