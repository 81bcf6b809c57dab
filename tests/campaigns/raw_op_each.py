# SPDX-License-Identifier: Apache-2.0
"""Right calls of the raw ops of many tables, each with its own keys."""

from __future__ import annotations

import random
from collections.abc import Sequence

import tensorflow as tf
from raw_op_batches import RightCalls
from raw_op_makers import FLOATING, RULES, Arguments, SomeTable, draw_one, numbers_of


class EachTableCalls(RightCalls):
    """A method for each op, as in RowCalls."""

    def _each(self, draw: random.Random, kinds: Sequence[str]) -> list[SomeTable]:
        """Some tables, which may repeat; sometimes enough for the threads of a pool."""
        count = draw_one(draw, (1, 2, 9))
        return [self._some(draw, kinds=kinds) for _ in range(count)]

    def _lists(self, ones: list[Arguments], **names: str) -> Arguments:
        """Lists of the arguments of single ops, by the names that they have in the op of many."""
        return {name: [one[single] for one in ones] for name, single in names.items()}

    def right_find_each(self, draw: random.Random) -> Arguments:
        tables = self._each(draw, (*FLOATING, "int8"))
        ones = [self._keys(draw, table) for table in tables]
        return {
            **self._lists(ones, tables="table", keys="keys", owners="owners"),
            "defaults": [
                self._defaults(draw, table, one["keys"])
                for table, one in zip(tables, ones, strict=True)
            ],
            "dims": [table.dim for table in tables],
            "training": [bool(draw.randrange(2)) for _ in tables],
        }

    def right_find_pooled_each(self, draw: random.Random) -> Arguments:
        ones = [self.right_find_pooled(draw) for _ in self._each(draw, FLOATING)]
        paddings = [one.get("padding", one.get("padding_text")) for one in ones]
        weights = [part for one in ones for part in one["weights"]]
        return {
            **self._lists(ones, tables="table", keys="keys", owners="owners", defaults="defaults"),
            "bags": [tf.cast(part, tf.int64) for one in ones for part in one["bags"]],
            "weights": weights,
            **self._lists(ones, pooled_dtypes="pooled_dtype", combiners="combiner"),
            "num_bags": [len(one["bags"]) for one in ones],
            "has_weights": [bool(one["weights"]) for one in ones],
            "has_padding": [bool(padding) for padding in paddings],
            "paddings": [0 for _ in ones],
            "padding_texts": ["0" for _ in ones],
            **self._lists(ones, dims="dim", training="training"),
            "found_dtypes": draw_one(draw, ([], [one.dtype for one in weights])),
        }

    def right_apply_each(self, draw: random.Random) -> Arguments:
        tables = self._each(draw, FLOATING)
        if draw.randrange(9):  # a repeated table is refused
            tables = list({id(table): table for table in tables}.values())
        rules = [draw_one(draw, list(RULES)) for _ in tables]
        ones = [self._keys(draw, table) for table in tables]
        return {
            **self._lists(ones, tables="table", keys="keys", owners="owners"),
            "gradients": [
                self._rows(draw, table.value_dtype, one["keys"], table.dim)
                for table, one in zip(tables, ones, strict=True)
            ],
            "hyper": [numbers_of(draw, "float64", (RULES[rule],)) for rule in rules],
            "step": [tf.constant(draw.randint(1, 9), tf.int64) for _ in tables],
            "trained": [tf.constant(draw.randrange(4) > 0) for _ in tables],
            "dims": [table.dim for table in tables],
            "rules": rules,
            "distinct": [draw.randrange(4) == 0 for _ in tables],
            "stochastic_rounding": [bool(draw.randrange(2)) for _ in tables],
        }

    def _token(self, table: SomeTable) -> tf.Tensor:
        return tf.zeros([0, table.dim], table.value_dtype)

    def right_link_rows(self, draw: random.Random) -> Arguments:
        table = self._some(draw, kinds=FLOATING)
        keys = self._keys(draw, table)
        return {
            "table": table.handle,
            "keys": keys["keys"],
            "rows": self._rows(draw, table.value_dtype, keys["keys"], table.dim),
            "token": self._token(table),
            "dim": table.dim,
        }

    def right_link_pooled(self, draw: random.Random) -> Arguments:
        lookup = self.right_find_pooled(draw)
        table = next(one for one in self.tables if one.handle is lookup["table"])
        of_lookup = ("owners", "training", "pooled_dtype", "found_dtypes")
        return {
            **{name: value for name, value in lookup.items() if name not in of_lookup},
            "pooled": numbers_of(draw, lookup["pooled_dtype"], (2, table.dim)),
            "tokens": draw_one(draw, ([], [self._token(table)])),
        }
