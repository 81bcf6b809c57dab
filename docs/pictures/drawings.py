# SPDX-License-Identifier: Apache-2.0
"""The list of all pictures."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from pictures import badges, batch, exchange, plots, rooms, rows, tiers
from pictures.svg import Drawing

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "images"

# By the file in docs/images/.
DRAWINGS: dict[str, Callable[[], Drawing]] = {
    **badges.BADGES,
    "batch.svg": batch.picture,
    "rooms.svg": rooms.picture,
    "key_to_row.svg": rows.picture,
    "tiers.svg": tiers.picture,
    "exchange.svg": exchange.picture,
    "peers.svg": plots.peers,
    "larger_than_memory.svg": plots.tiers,
}
