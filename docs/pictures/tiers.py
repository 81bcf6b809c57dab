# SPDX-License-Identifier: Apache-2.0
"""A table over several tiers: where rows are, how they move, and the log on disk."""

from __future__ import annotations

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PURPLE, Color, Picture

# The stores that a `Storage` makes: the device of the table, the arguments, and the tiers.
STORAGES = (
    ("CPU", "`host_bytes`, `path`", "`HostTable`", "`DiskStore`", ""),
    ("GPU", "`gpu_bytes`, `path`", "`DeviceTable`", "`DiskStore`", ""),
    ("GPU", "`gpu_bytes`, `host_bytes`, `path`", "`DeviceTable`", "`HostTier`", "`DiskStore`"),
    ("GPU", "`gpu_bytes`, `gpu_cache`", "`DeviceTable`", "`HostStore`", ""),
)


def _on(color: Color) -> Color:
    return Color(color.line, "#ffffff", color.solid)


def picture() -> Picture:
    """Draws it."""
    drawn = Picture(
        760,
        758,
        "Tiers of a table",
        "A cache in GPU memory, a tier in host memory and a store on disk. Rows come up on a miss "
        "and stay shared. Changed rows go down when the cache is full. On disk rows are appended "
        "to a log of segments, and compaction moves live rows to its end.",
    )
    drawn.note(740, 30, "three tiers; the table below lists the others", anchor="end")
    _cache(drawn)
    _host(drawn)
    _disk(drawn)
    _list(drawn)
    return drawn


def _cache(drawn: Picture) -> None:
    drawn.rect(10, 46, 740, 132, BLUE, radius=6)
    drawn.text(24, 68, "GPU memory", bold=True)
    drawn.note(24, 86, "`gpu_bytes`")
    drawn.rect(150, 60, 270, 104, _on(BLUE))
    drawn.text(285, 80, "cache: a `DeviceTable`", anchor="middle", bold=True, room=260)
    lines = ["All verbs run on this table.", "A byte beside each row: the tick of"]
    lines += ["its last use, and whether it changed."]
    drawn.notes(285, 104, lines, anchor="middle", room=260)
    drawn.notes(
        440,
        80,
        [
            "A new row is in the cache alone.",
            "A row that came up is shared: both",
            "tiers have it, and the copy here counts.",
            "The oldest rows leave; those of the",
            "batch stay.",
        ],
    )


def _host(drawn: Picture) -> None:
    drawn.rect(10, 234, 740, 118, GREEN, radius=6)
    drawn.text(24, 256, "host memory", bold=True)
    drawn.note(24, 274, "`host_bytes`")
    drawn.rect(150, 246, 270, 94, _on(GREEN))
    drawn.text(285, 266, "`HostTier`: a `HostStore`, bounded", anchor="middle", bold=True, room=266)
    lines = [
        "whole rows, and a byte that says",
        "whether a row is shared;",
        "nothing is computed here",
    ]
    drawn.notes(285, 288, lines, anchor="middle", room=260)
    drawn.box(
        440,
        246,
        296,
        40,
        ["index of the disk, in memory", "key → place; 16 to 24 bytes a key"],
        _on(ORANGE),
        size=12,
        small=11,
    )
    drawn.box(
        440,
        300,
        296,
        40,
        ["staged rows → blocks of 4 KiB or more", "in a write buffer of 1 MiB"],
        _on(ORANGE),
        size=12,
        small=11,
        bold=False,
    )
    # up and down between the cache and the host
    drawn.arrow([(215, 246), (215, 164)], BLUE.line, width=2)
    lines = ["`Get`: a miss in", "training brings", "its row up"]
    drawn.lines(222, 196, lines, step=15, size=11, color=BLUE.line, room=126)
    drawn.arrow([(355, 164), (355, 246)], ORANGE.line, width=2)
    drawn.lines(
        366,
        200,
        ["`Put`: rows that leave, if new or changed;", "unchanged ones are dropped (`Unshare`)"],
        size=12,
        color=ORANGE.line,
    )


def _disk(drawn: Picture) -> None:
    drawn.rect(10, 408, 740, 196, ORANGE, radius=6)
    drawn.text(24, 430, "disk", bold=True)
    drawn.note(24, 448, "`path`")
    drawn.note(24, 464, "`disk_bytes`")
    drawn.text(232, 430, "`DiskStore`: a log of segments, each a file of rows", bold=True)
    x = 150.0
    segments = (
        ("sealed", (1, 1, 0, 1, 1)),
        ("sealed", (0, 0, 1, 0, 0)),
        ("sealed", (1, 0, 1, 1, 1)),
        ("open", (1, 1, 1, 2, 2)),
    )
    for name, blocks in segments:
        drawn.note(x + 65, 458, name, anchor="middle")
        for i, live in enumerate(blocks):
            color = ORANGE if live == 1 else GRAY
            drawn.rect(
                x + i * 26,
                466,
                26,
                28,
                color,
                solid=live == 1,
                radius=0,
                empty=live != 1,
                dashed=live == 2,
            )
        x += 148
    drawn.rect(24, 482, 12, 12, ORANGE, solid=True, radius=0)
    drawn.text(42, 492, "live rows", size=11, color=MUTED)
    drawn.rect(24, 502, 12, 12, GRAY, empty=True, radius=0)
    drawn.text(42, 512, "garbage", size=11, color=MUTED)
    # appended from the buffer
    drawn.arrow([(680, 340), (680, 466)], ORANGE.line, width=2)
    drawn.text(
        672,
        368,
        "one write, when the buffer is full",
        anchor="end",
        size=12,
        color=ORANGE.line,
        room=250,
    )
    # down and up between the host tier and the disk
    drawn.arrow([(355, 340), (355, 374), (428, 374), (428, 320), (440, 320)], ORANGE.line, width=2)
    drawn.text(366, 394, "cold rows move down", size=12, color=ORANGE.line)
    points = [(176, 466), (176, 420), (136, 420), (136, 112), (150, 112)]
    drawn.arrow(points, BLUE.line, width=2)
    lines = ["`Get`: each", "block once, all", "at a time"]
    drawn.lines(22, 368, lines, step=15, size=11, color=BLUE.line, room=108)
    # compaction
    drawn.arrow([(363, 494), (363, 516), (646, 516), (646, 498)], PURPLE.line, width=2)
    drawn.text(504, 533, "compaction", anchor="middle", size=12, color=PURPLE.line, bold=True)
    drawn.notes(
        150,
        556,
        [
            "Compaction appends the live rows of the segment with the smallest share of",
            "them. It begins at 1.6 times the live bytes. A segment without live rows is",
            "removed. The folder is working storage: checkpoints have all rows.",
        ],
    )


def _list(drawn: Picture) -> None:
    columns = (24, 72, 310, 450, 600)
    y = 632
    for x, head in zip(
        columns, ("on", "`Storage(...)`", "cache", "below", "below that"), strict=True
    ):
        drawn.text(x, y, head, size=12, bold=True)
    drawn.line([(24, y + 8), (736, y + 8)], "#d0d7de", width=1)
    for row in STORAGES:
        y += 26
        for x, cell in zip(columns, row, strict=True):
            if cell:
                drawn.text(x, y + 4, cell, size=12)
