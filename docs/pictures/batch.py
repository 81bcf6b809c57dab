# SPDX-License-Identifier: Apache-2.0
"""A batch's way through the layers: a lookup, its gradient, a step of the optimizer."""

from __future__ import annotations

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PURPLE, Color, Picture

# The lanes: heading, the folders, height, color.
_LANES = (
    ("Keras", "the model and its loss", 124, GRAY),
    ("tf_embed", "`layers/`, `variable/`, `optimizers/`", 118, BLUE),
    ("ops", "`ops/`, `cc/ops`, `cc/tf`", 92, PURPLE),
    ("the table", "`cc/host`, one for each shard", 218, GREEN),
)
_X = (98, 320, 542)  # of the columns
_WIDTH = 198


def picture() -> Picture:
    """Draws it."""
    drawn = Picture(
        760,
        690,
        "A batch, forward and back",
        "Three columns: the lookup, the backward pass, the step. Ids go down from the layer to "
        "the table, and rows come back up. The gradient of the rows becomes indexed slices of keys "
        "and gradients, which the optimizer takes down to the table.",
    )
    heads = ("1  lookup", "2  loss and gradient", "3  step")
    for x, head in zip(_X, heads, strict=True):
        drawn.text(x + _WIDTH / 2, 58, head, anchor="middle", bold=True)
    tops = []
    y = 70.0
    for name, rooms, height, color in _LANES:
        drawn.rect(10, y, 740, height, color, radius=6)
        drawn.text(30, y + height / 2, name, anchor="middle", bold=True, upright=False)
        rooms_at = y + height / 2
        for i, room in enumerate(rooms.split(", ") if "`" in rooms else [rooms]):
            drawn.text(
                50 + 16 * i, rooms_at, room, anchor="middle", size=11, color=MUTED, upright=False
            )
        tops.append(y)
        y += height + 10
    _lookup(drawn, tops)
    _gradient(drawn, tops)
    _step(drawn, tops)
    drawn.note(
        380,
        678,
        "Rows in other stores go the same way: only the lowest lane changes.",
        anchor="middle",
    )
    return drawn


def _box(
    drawn: Picture, column: int, y: float, height: float, lines: list[str], color: Color
) -> None:
    drawn.box(_X[column], y, _WIDTH, height, lines, _on(color), size=12, small=11)


def _on(color: Color) -> Color:
    """The color of a box that lies on a lane."""
    return Color(color.line, "#ffffff", color.solid)


def _lookup(drawn: Picture, tops: list[float]) -> None:
    keras, python, ops, table = tops
    _box(drawn, 0, keras + 14, 36, ["ids", "integers or strings"], GRAY)
    _box(drawn, 0, python + 12, 40, ["`DynamicEmbedding`", "ids → keys, without padding"], BLUE)
    _box(drawn, 0, python + 66, 40, ["`Table.rows`", "keys, and the anchor's token"], BLUE)
    _box(drawn, 0, ops + 16, 58, ["`TfEmbedFind`", "tensors → `KeyBatch`,", "by shard"], PURPLE)
    lines = [
        "`HostTable::Find`",
        "a pipeline; rows take no lock:",
        "hash key i + 24, ask for its bucket",
    ]
    lines += ["probe key i + 12, ask for its row", "copy the row of key i"]
    _box(drawn, 0, table + 14, 96, lines, GREEN)
    lines = ["A key without a row gets its", "initial row, a function of", "(seed, table, key)."]
    lines += ["Nothing is inserted."]
    drawn.notes(_X[0], table + 134, lines, room=_WIDTH + 8)
    middle = _X[0] + _WIDTH / 2
    for start, end in (
        (keras + 50, python + 12),
        (python + 52, python + 66),
        (python + 106, ops + 16),
        (ops + 74, table + 14),
    ):
        drawn.arrow([(middle, start), (middle, end)], BLUE.line)


def _gradient(drawn: Picture, tops: list[float]) -> None:
    keras, python, ops, table = tops
    left, right = _X[0] + _WIDTH, _X[1]
    gutter = (left + right) / 2
    _box(drawn, 1, keras + 14, 36, ["rows [n, dim]", "or a row for each bag"], GRAY)
    drawn.box(_X[1], keras + 64, _WIDTH, 34, ["dense layers, loss"], _on(GRAY), size=12)
    drawn.arrow(
        [(left, table + 62), (gutter, table + 62), (gutter, keras + 32), (right, keras + 32)],
        GREEN.line,
    )
    middle = right + _WIDTH / 2
    drawn.arrow([(middle, keras + 50), (middle, keras + 64)], GREEN.line)
    lines = [
        "`tf.IndexedSlices`",
        "for the anchor, a variable of",
        "shape (0, dim): the keys, and a",
    ]
    lines += ["gradient for each of them"]
    _box(drawn, 1, python + 16, 86, lines, BLUE)
    drawn.arrow([(middle, keras + 98), (middle, python + 16)], ORANGE.line)
    drawn.text(
        middle + 8, keras + 116, "gradient of the rows", size=11, color=ORANGE.line, room=120
    )
    drawn.notes(
        right,
        ops + 40,
        ["The gradient of `TfEmbedFind`", "is Python. No table is asked."],
        room=_WIDTH + 10,
    )
    drawn.notes(
        right,
        table + 34,
        ["Between lookup and step the", "rows are free: other threads", "may read and train them."],
        room=_WIDTH + 10,
    )


def _step(drawn: Picture, tops: list[float]) -> None:
    keras, python, ops, table = tops
    left, right = _X[1] + _WIDTH, _X[2]
    gutter = (left + right) / 2
    middle = right + _WIDTH / 2
    _box(drawn, 2, keras + 14, 36, ["optimizer", "trains the dense variables"], GRAY)
    _box(
        drawn,
        2,
        python + 6,
        52,
        ["optimizer", "`DynamicEmbeddingOptimizer`,", "or the layer's own"],
        BLUE,
    )
    _box(drawn, 2, python + 68, 42, ["`TableTrainer`", "scale, clip, rule"], BLUE)
    lines = ["`TfEmbedApply`", "keys, gradients,", "hyper-parameters, step"]
    _box(drawn, 2, ops + 16, 58, lines, PURPLE)
    drawn.arrow(
        [(left, python + 59), (gutter, python + 59), (gutter, python + 32), (right, python + 32)],
        ORANGE.line,
    )
    lines = ["`HostTable::Apply`", "1. group equal keys", "2. sum their gradients, in the"]
    lines += ["order of the batch", "3. find the row; a new key", "gets its initial row"]
    lines += ["4. lock its bucket, run the", "rule on weights and slots"]
    _box(drawn, 2, table + 14, 142, lines, GREEN)
    drawn.notes(
        right,
        table + 178,
        ["One probe of the index,", "one visit of the row."],
        room=_WIDTH,
    )
    for start, end in (
        (python + 58, python + 68),
        (python + 110, ops + 16),
        (ops + 74, table + 14),
    ):
        drawn.arrow([(middle, start), (middle, end)], ORANGE.line)
