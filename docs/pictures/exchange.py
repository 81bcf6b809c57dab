# SPDX-License-Identifier: Apache-2.0
"""A step of a table on three workers: keys to their owners, rows back, gradients to the owners."""

from __future__ import annotations

from collections.abc import Sequence

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PURPLE, Color, Picture

WORKERS = 3
# The ids of each worker's batch.
BATCHES = ((7, 2, 7, 8), (2, 10, 5, 2), (8, 7, 4, 10))

_COLORS = (BLUE, GREEN, ORANGE)
_LEFT, _COLUMN, _GAP = 144, 194, 8
_SIDE = 26
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """`Mix64` of cc/core/base/hash.h."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def owner_of(key: int, workers: int = WORKERS) -> int:
    """The worker that owns a key: `OwnerByHash` of cc/core/exchange/key_route.h."""
    hashed = _mix((key + _GOLDEN) & _MASK)
    return ((_mix((hashed + _GOLDEN) & _MASK) >> 32) * workers) >> 32


def routed(batch: Sequence[int]) -> list[list[int]]:
    """Of each owner the distinct keys of a batch, in the order in which they first come."""
    distinct = list(dict.fromkeys(batch))
    return [[key for key in distinct if owner_of(key) == owner] for owner in range(WORKERS)]


def arrived(owner: int) -> list[int]:
    """The keys that come to an owner, those of worker 0 first."""
    return [key for batch in BATCHES for key in routed(batch)[owner]]


def _x(worker: int) -> float:
    return _LEFT + worker * (_COLUMN + _GAP)


def picture() -> Picture:
    """Draws it."""
    drawn = Picture(
        760,
        720,
        "A step on three workers",
        "Each worker groups the distinct keys of its batch by owner. Counts are gathered by all, "
        "keys go to their owners, and rows come back. Later the summed gradients go to the owners, "
        "which run the rule.",
    )
    drawn.note(740, 30, "a color for each owner", anchor="end")
    for worker in range(WORKERS):
        color = _COLORS[worker]
        drawn.text(
            _x(worker) + _COLUMN / 2,
            60,
            f"worker {worker}",
            anchor="middle",
            bold=True,
            color=color.line,
        )
        drawn.rect(_x(worker), 70, _COLUMN, 620, GRAY, empty=True, dashed=True)
    keys = [[key for some in routed(batch) for key in some] for batch in BATCHES]
    owned = [arrived(owner) for owner in range(WORKERS)]
    _stage(drawn, 80, ("the batch", "ids of its examples"), BATCHES)
    _stage(drawn, 142, ("distinct keys", "by owner:", "`TfEmbedRouteKeys`"), keys)
    _wire(drawn, 196, ("all-gather: counts", "all-to-all: keys"))
    _stage(drawn, 262, ("at the owner", "those of worker 0", "first"), owned)
    _stage(drawn, 316, ("rows found", "`TfEmbedFind`"), owned, tall=True)
    _wire(drawn, 374, ("all-to-all: rows",))
    _stage(drawn, 426, ("rows back", "one for each id:", "`TfEmbedRoutedRows`"), BATCHES, tall=True)
    _dense(drawn, 482)
    _stage(
        drawn,
        526,
        ("gradient sums", "by distinct key:", "`TfEmbedRouteGradients`"),
        keys,
        tall=True,
    )
    _wire(drawn, 580, ("all-gather: counts", "all-to-all: keys", "and gradients"))
    _stage(drawn, 640, ("at the owner", "sum and rule:", "`TfEmbedApply`"), owned, tall=True)
    legend = "Dashed: a worker's own share, which is in no message. Five collectives in all."
    drawn.note(_LEFT, 709, legend)
    return drawn


def _stage(
    drawn: Picture,
    y: float,
    label: tuple[str, ...],
    keys: Sequence[Sequence[int]],
    tall: bool = False,
) -> None:
    """Draws the keys of each worker; `tall`: with a row, or a gradient, for each."""
    drawn.text(16, y + 14, label[0], size=12, bold=True, room=_LEFT - 20)
    drawn.lines(16, y + 28, label[1:], step=13, size=10, color=MUTED, room=_LEFT - 18)
    for worker, some in enumerate(keys):
        x = _x(worker) + (_COLUMN - len(some) * (_SIDE + 3) + 3) / 2
        for key in some:
            color: Color = _COLORS[owner_of(key)]
            drawn.box(x, y, _SIDE, _SIDE, str(key), color, bold=False, size=12, radius=2)
            if tall:
                drawn.rect(x, y + _SIDE, _SIDE, 14, color, solid=True, radius=2)
            x += _SIDE + 3


def _wire(drawn: Picture, y: float, labels: tuple[str, ...]) -> None:
    """Draws an exchange: an arrow from each worker to each other, and the own share."""
    for i, label in enumerate(labels):
        drawn.text(16, y + 14 + 14 * i, label, size=11, color=PURPLE.line, room=_LEFT - 18)
    for source in range(WORKERS):
        for target in range(WORKERS):
            start = _x(source) + _COLUMN / 2 + (target - 1) * 16
            end = _x(target) + _COLUMN / 2 + (source - 1) * 16
            own = source == target
            drawn.arrow([(start, y), (end, y + 46)], GRAY.line if own else PURPLE.line, dashed=own)


def _dense(drawn: Picture, y: float) -> None:
    for worker in range(WORKERS):
        drawn.box(
            _x(worker) + 12, y, _COLUMN - 24, 26, "dense layers, loss", GRAY, size=12, bold=False
        )
