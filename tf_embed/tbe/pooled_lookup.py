# SPDX-License-Identifier: Apache-2.0
"""`PooledLookup`: one lookup in all tables of a table-batched layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_embed.ops import substitutes
from tf_embed.table.pooled_tables import find_pooled_tables
from tf_embed.tbe.batch_trainer import BatchTrainer
from tf_embed.tbe.inputs import Batch, times_factors
from tf_embed.tbe.table_specs import Member
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.anchor_tokens import token_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledLookup:
    """Looks bags up in all tables, differentiably.

    Attributes:
        feature_tables: The number of each feature's table.
        dims: Dim of each table.
        combiner: How rows are pooled, "sum" or "mean".
        max_gradient: The bound for clipping each gradient of a value; 0: no clipping.
        anchor: The shared anchor of all tables if one trainer trains them; None if each table has
            an anchor.
        trainer: The trainer, or None.
    """

    members: Sequence[Member]
    feature_tables: Sequence[int]
    dims: Sequence[int]
    combiner: str
    max_gradient: float
    anchor: Anchor | None
    trainer: BatchTrainer | None

    @functools.cached_property
    def _rows(self) -> list[int]:
        return [-1 if member.rows is None else member.rows for member in self.members]

    def find(self, batch: Batch, pieces: tf.Tensor, size: tf.Tensor, training: bool) -> tf.Tensor:
        """The values of all bags.

        Args:
            pieces: Positions of the rows of bags, from `OutputLayout.pieces`.
            size: The number of values, from the same call.
            training: Whether this lookup precedes a step and counts as a use of the rows.

        Returns:
            float32 [size].
        """
        trainer = self.trainer
        if not training or trainer is None or not trainer.decays_between_steps:
            return self._find_stored(batch, pieces, size, training, self._tokens())
        # Stored rows lack the decay of the steps that left them out. The decayed rows are returned
        # and determine the gradient of the weights. The gradient of the rows is as without the
        # decay, because the next step applies the decay to them.
        decayed = times_factors(batch, self.feature_tables, trainer.missed_decay)
        has_weights = batch.weights is not None
        now = self._find_stored(decayed, pieces, size, training, [], not has_weights)
        values = self._find_stored(batch, pieces, size, training, self._tokens(), True)
        return now + (values - tf.stop_gradient(values))

    def _find_stored(
        self,
        batch: Batch,
        pieces: tf.Tensor,
        size: tf.Tensor,
        training: bool,
        tokens: Sequence[tf.Tensor],
        fixed_weights: bool = False,
    ) -> tf.Tensor:
        return find_pooled_tables(
            [member.table.table for member in self.members],
            batch.indices,
            batch.offsets,
            pieces,
            size,
            batch.weights,
            tokens,
            dims=self.dims,
            combiner=self.combiner,
            packs=self.anchor is not None,
            max_gradient=self.max_gradient,
            training=training,
            rows=self._rows,
            fixed_weights=fixed_weights,
        )

    def _tokens(self) -> list[tf.Tensor]:
        """The tokens of the anchors, so that tapes see the lookup."""
        if substitutes.are_used():
            return []
        if self.anchor is not None:
            return [token_of(self.anchor, tf.int64)]
        return [
            token_of(member.table.anchor, tf.int64, count)
            for member, count in zip(self.members, self._rows, strict=True)
            if member.table.anchor is not None
        ]
