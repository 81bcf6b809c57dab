# SPDX-License-Identifier: Apache-2.0
"""From a key to its row: hash, bucket, slab, row. The sizes are those of the headers named."""

from __future__ import annotations

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PURPLE, Color, Picture

# cc/core/index/bucket.h: name, number and bytes of the fields of a Bucket.
BUCKET = (("keys", 5, 8), ("row_ids", 5, 4), ("word", 1, 4))
# The bits of its word, the highest first.
WORD = (("version", 29), ("moved", 1), ("overflowed", 1), ("locked", 1))
# cc/core/index/striped_index.h: the bits of a hash, the highest first.
HASH = (("stripe", 8), ("unused", 24), ("place", 32))
# cc/core/rows/row_statistics.h, in the order of the words.
STATISTICS = ("last step", "last time", "count", "score", "epoch")

_LEFT, _WIDE = 20, 702


def row_bytes(dim: int, value_bytes: int, slots: int, slot_bytes: int) -> list[tuple[str, int]]:
    """The parts of a row and their bytes, as `RowLayout` of cc/core/rows/row_layout.h has them."""
    weights, slot = dim * value_bytes, slots * slot_bytes
    slot_offset = -(-weights // 8) * 8
    stride = -(-(slot_offset + slot) // 16) * 16
    return [
        ("weights", weights),
        ("pad", slot_offset - weights),
        ("slots", slot),
        ("pad", stride - slot_offset - slot),
    ]


def picture() -> Picture:
    """Draws it."""
    drawn = Picture(
        760,
        706,
        "From a key to its row",
        "A hash of 64 bits gives a stripe and a home bucket. A bucket is a cache line of 64 bytes: "
        "five keys, five row ids and a word. A row id gives a slab and a row. A row has weights "
        "and slots. Statistics and marks lie behind the rows of a slab.",
    )
    _hash(drawn)
    _stripe(drawn)
    _bucket(drawn)
    _slab(drawn)
    _row(drawn)
    return drawn


def _hash(drawn: Picture) -> None:
    drawn.text(_LEFT, 60, "1", bold=True, color=BLUE.line)
    drawn.text(38, 60, "`HashKey(key)`, 64 bits: one hash chooses the stripe and the bucket")
    x, unit = 38.0, _WIDE / 64
    for name, bits in HASH:
        color = GRAY if name == "unused" else BLUE
        drawn.box(x, 70, bits * unit, 26, f"{name} : {bits}", color, size=12, bold=False, radius=0)
        x += bits * unit


def _stripe(drawn: Picture) -> None:
    drawn.text(_LEFT, 130, "2", bold=True, color=BLUE.line)
    drawn.text(38, 130, "a stripe, one of 256: an array of buckets")
    width, number = 54, 9
    for i in range(13):
        color = BLUE if i == number else GRAY
        drawn.rect(38 + i * width, 140, width, 24, color, radius=0, solid=i == number)
    drawn.arrow([(82, 96), (82, 106), (11, 106), (11, 152), (38, 152)], BLUE.line)
    home = 38 + (number + 0.5) * width
    drawn.arrow([(620, 96), (620, 114), (home, 114), (home, 140)], BLUE.line)
    drawn.text(628, 113, "place × buckets / 2³²", size=11, color=MUTED, room=124)
    overflow = "A full bucket overflows into the next. Spare ones lie behind the last."
    drawn.note(38, 182, overflow, room=home - 50)
    drawn.arrow([(home + 20, 166), (home + 20, 178), (home + 54, 178), (home + 54, 166)], MUTED)


def _bucket(drawn: Picture) -> None:
    total = sum(count * size for _, count, size in BUCKET)
    drawn.text(_LEFT, 212, "3", bold=True, color=GREEN.line)
    fields = f"a `Bucket`, {total} bytes, one cache line: keys of 8, row ids of 4, a word of 4"
    drawn.text(38, 212, fields, room=505)
    home = 38 + 9.5 * 54
    drawn.line([(38, 224), (38, 219), (740, 219), (740, 224)], BLUE.line)
    drawn.line([(home, 164), (home, 219)], BLUE.line)
    unit = _WIDE / total
    x = 38.0
    for name, count, size in BUCKET:
        label = {"keys": "key", "row_ids": "id", "word": "word"}[name]
        color = {"keys": GREEN, "row_ids": ORANGE, "word": PURPLE}[name]
        for i in range(count):
            text = f"{label} {i}" if count > 1 else label
            drawn.box(x, 224, size * unit, 28, text, color, size=12, bold=False, radius=0)
            x += size * unit
    drawn.arrow([(740 - 2 * unit, 252), (740 - 2 * unit, 286)], PURPLE.line)
    x = 392.0
    for (name, bits), width in zip(WORD, (100, 72, 104, 72), strict=True):
        drawn.box(x, 286, width, 26, f"{name} : {bits}", PURPLE, size=12, bold=False, radius=0)
        x += width
    lines = ["A lane is empty if its row id is `kNoRowId`,", "so no key is reserved."]
    drawn.notes(38, 296, lines, room=345)
    seqlock = "A reader copies the row, and looks at the word again."
    drawn.note(740, 330, seqlock, anchor="end")


def _slab(drawn: Picture) -> None:
    drawn.text(_LEFT, 366, "4", bold=True, color=ORANGE.line)
    drawn.text(38, 366, "a slab of the `RowStore`: the row id says which slab, and which row in it")
    first_id = 38 + 42 * _WIDE / 64
    points = [(first_id, 252), (first_id, 270), (11, 270), (11, 392), (38, 392)]
    drawn.arrow(points, ORANGE.line)
    x = 38.0
    parts: list[tuple[str, float, Color]] = [("row", 62, ORANGE)] * 7
    parts += [("statistics", 180, PURPLE), ("marks", 88, GRAY)]
    for i, (name, width, color) in enumerate(parts):
        text = f"row {i}" if i < 4 else "…" if i < 7 else name
        drawn.box(x, 378, width, 28, text, color, size=12, bold=False, radius=0)
        x += width
    drawn.note(38, 424, "Rows do not move while they live.")
    drawn.note(
        740,
        424,
        "8 bytes a statistic; a mark is a byte, in a cache only",
        anchor="end",
    )
    drawn.note(
        38,
        442,
        f"Statistics, if the policy needs them: {', '.join(STATISTICS)}.",
    )


def _row(drawn: Picture) -> None:
    drawn.text(_LEFT, 478, "5", bold=True, color=ORANGE.line)
    drawn.text(38, 478, "a row: everything that belongs to the key, side by side")
    widths = (206.0, 76.0, 340.0, 80.0)
    lines = (
        ("weights", "dim × value dtype"),
        ("pad to 8", ""),
        ("slots", "float32, float64 beside float64, or narrower"),
        ("pad to 16", ""),
    )
    x = 38.0
    for (name, more), width in zip(lines, widths, strict=True):
        color = GRAY if name.startswith("pad") else ORANGE
        text = [name, more] if more else name
        drawn.box(x, 488, width, 42, text, color, size=12, small=11, bold=False, radius=0)
        x += width
    examples = (
        ("SGD, dim 5, float32", row_bytes(5, 4, 0, 4)),
        ("Adagrad, dim 5, float32", row_bytes(5, 4, 5, 4)),
        ("Adam, dim 5, float32", row_bytes(5, 4, 10, 4)),
    )
    unit = 7.3
    for i, (name, parts) in enumerate(examples):
        y = 560 + i * 34
        drawn.text(38, y + 17, name, size=12)
        x = 190.0
        for part, size in parts:
            if size:
                color = GRAY if part == "pad" else ORANGE
                text = str(size) if part == "pad" else f"{part} {size}"
                drawn.box(x, y, size * unit, 26, text, color, size=12, bold=False, radius=0)
                x += size * unit
        total = sum(size for _, size in parts)
        drawn.note(x + 10, y + 17, f"= {total} bytes")
    drawn.note(38, 686, "Examples to scale. A row begins at a multiple of 16 bytes.")
