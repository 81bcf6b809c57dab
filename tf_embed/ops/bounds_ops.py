# SPDX-License-Identifier: Apache-2.0
"""The op that checks the bounds of row numbers and bags, typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import stock_ops, substitutes

_raw = _library.load()


def check_bounds(
    indices: tf.Tensor,
    offsets: tf.Tensor,
    num_bags: tf.Tensor,
    *,
    rows: Sequence[int],
    tables: Sequence[str],
    owner: str,
    mode: str,
    padding: Sequence[int],
) -> Any:
    """Removes indices that are no row numbers, and corrects offsets; see cc/ops/bounds_ops.cc.

    Returns:
        `checked_indices`, `checked_offsets`, `kept`, `changed` and `num_events`.
    """
    if substitutes.are_used():
        return stock_ops.check_bounds(
            indices, offsets, num_bags, rows=rows, owner=owner, mode=mode, padding=padding
        )
    return _raw.tf_embed_check_bounds(
        indices=indices,
        offsets=offsets,
        num_bags=num_bags,
        rows=rows,
        tables=tables,
        owner=owner,
        mode=mode,
        padding=padding,
    )
