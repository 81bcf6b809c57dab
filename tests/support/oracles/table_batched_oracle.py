# SPDX-License-Identifier: Apache-2.0
"""The oracle of the table-batched layer: lookups of features in tables, in NumPy and float64.

This module imports neither tf_embed nor FBGEMM. tbe_oracle.py has the rules that train rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from support.oracles import tbe_oracle


@dataclasses.dataclass
class Bag:
    """Ids that are pooled.

    Attributes:
        feature: The feature of the bag.
        table: The feature's table.
        begin: The offset of its pooled row in the flattened output.
        places: The positions of its indices, without dropped indices.
        scale: The factor of its gradient.
    """

    feature: int
    table: int
    begin: int
    places: list[int]
    scale: float


@dataclasses.dataclass
class Gradients:
    """The gradients of a backward pass.

    Attributes:
        rows: For each table, the numbers of rows and their gradients, with duplicates.
        weights: The gradients of the indices' weights.
    """

    rows: list[tuple[list[int], list[np.ndarray]]]
    weights: np.ndarray


class Call:
    """A forward pass.

    Attributes:
        output: The output of the layer.
        faults: The number of dropped ids, without -1.
    """

    def __init__(self, oracle: Oracle, bags: list[Bag], shape: tuple[int, ...], inputs: Any):
        self._oracle, self._bags = oracle, bags
        self._numbers, self._weights, self._requires, self.faults = inputs
        self._rows = [table.weights for table in oracle.tables]  # the rows before the update
        output = np.zeros(int(np.prod(shape)))
        for bag in bags:
            for place in bag.places:
                row = self._rows[bag.table][self._numbers[place]]
                output[self._span(bag)] += self._weights[place] * row * bag.scale
        self.output = output.reshape(shape)

    def backward(self, gradient: Any) -> Gradients:
        """The gradients, from the gradient of the output."""
        oracle = self._oracle
        gradient = np.asarray(gradient, np.float64).reshape(-1)
        if oracle.max_gradient is not None:
            gradient = np.clip(gradient, -oracle.max_gradient, oracle.max_gradient)
        found = Gradients([([], []) for _ in oracle.tables], np.zeros(len(self._weights)))
        for bag in self._bags:
            numbers, gradients = found.rows[bag.table]
            of_bag = gradient[self._span(bag)] * bag.scale
            for place in bag.places:
                number = self._numbers[place]
                if self._requires[bag.feature]:
                    found.weights[place] += np.sum(of_bag * self._rows[bag.table][number])
                numbers.append(number)
                gradients.append(self._weights[place] * of_bag)
        return found

    def _span(self, bag: Bag) -> slice:
        return slice(bag.begin, bag.begin + self._oracle.dims[bag.table])


class Oracle:
    """Tables in training.

    Args:
        embedding_specs: (rows, dim, ...) of each table; rows None: any id is legal.
        feature_table_map: The table of each feature.
        pooling_mode: "sum", "mean" or "none".
        gradient_clipping: Whether gradients of the output are kept within +-`max_gradient`.
        max_gradient: The bound of `gradient_clipping`.
        learning_rate: The rule's learning rate.
        rows: The first rows of each table, [number of keys, dim].
        keys: The ids of the rows; None for 0, 1 and so on.
        tables: Makes the oracle of a table's training from its first rows.
        shares_counter: Whether the largest count is taken over the rows of all tables.
    """

    def __init__(
        self,
        embedding_specs: Sequence[Any],
        feature_table_map: Sequence[int] | None = None,
        *,
        rows: Sequence[np.ndarray],
        keys: Sequence[Any] | None = None,
        pooling_mode: str = "sum",
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        learning_rate: float = 0.01,
        tables: Any = None,
        shares_counter: bool = True,
    ) -> None:
        self.shares_counter = shares_counter
        self.bounds = [spec[0] for spec in embedding_specs]
        self.dims = [spec[1] for spec in embedding_specs]
        self.features = list(feature_table_map or range(len(self.dims)))
        self.pooling_mode = pooling_mode
        self.max_gradient = max_gradient if gradient_clipping else None
        self.learning_rate = learning_rate
        make = tables or (lambda rows: tbe_oracle.Oracle(rows, tbe_oracle.sgd))
        self.tables = [make(np.asarray(of_table, np.float64)) for of_table in rows]
        self._numbers = [
            {int(key): number for number, key in enumerate(range(len(of_table)))}
            if keys is None or keys[table] is None
            else {int(key): number for number, key in enumerate(keys[table])}
            for table, of_table in enumerate(rows)
        ]

    @property
    def weights(self) -> list[np.ndarray]:
        """The rows of each table."""
        return [table.weights for table in self.tables]

    def __call__(
        self,
        indices: Any,
        offsets: Any,
        per_sample_weights: Any = None,
        feature_requires_grad: Any = None,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
    ) -> Call:
        """A forward pass, with the arguments of the layer."""
        indices = np.asarray(indices, np.int64)
        offsets = repaired(offsets, len(indices))
        weights = np.ones(len(indices))
        if per_sample_weights is not None:
            weights = np.asarray(per_sample_weights, np.float64)
        requires = [1] * len(self.features)
        if feature_requires_grad is not None:
            requires = list(feature_requires_grad)
        begins, shape = self._places(len(offsets) - 1, batch_size_per_feature_per_rank)
        numbers: list[Any] = [None] * len(indices)
        bags: list[Bag] = []
        faults = 0
        for number, (feature, begin) in enumerate(begins):
            table = self.features[feature]
            kept = []
            for place in range(offsets[number], offsets[number + 1]):
                one = int(indices[place])
                bound = self.bounds[table]
                if bound is not None and not 0 <= one < bound:
                    faults += one != -1
                    continue
                numbers[place] = self._numbers[table][one]
                kept.append(place)
            if self.pooling_mode == "none":
                dim = self.dims[table]
                bags += [Bag(feature, table, place * dim, [place], 1.0) for place in kept]
                continue
            scale = 1 / len(kept) if kept and self.pooling_mode == "mean" else 1.0
            bags.append(Bag(feature, table, begin, kept, scale))
        if self.pooling_mode == "none":
            shape = (len(indices), self.dims[0])
        return Call(self, bags, shape, (numbers, weights, requires, faults))

    def step(self, *gradients: Gradients, dtype: Any = None) -> None:
        """A step of all tables with the gradients of backward passes; see tbe_oracle.Oracle."""
        for number, table in enumerate(self.tables):
            ids = [one for found in gradients for one in found.rows[number][0]]
            rows = [one for found in gradients for one in found.rows[number][1]]
            rows = np.reshape(rows, [-1, self.dims[number]])
            table.step(np.asarray(ids, np.int64), rows, self.learning_rate, dtype)
        counted = [table for table in self.tables if getattr(table, "counter_every", 0)]
        if self.shares_counter and counted:
            largest = max(table.arguments.get("max_counter", 1.0) for table in counted)
            for table in counted:
                table.arguments["max_counter"] = largest

    def sums(self, gradients: Gradients) -> list[dict[int, np.ndarray]]:
        """For each table, the looked-up keys and the sum of each key's gradients."""
        found = []
        for numbers, (ids, rows) in zip(self._numbers, gradients.rows, strict=True):
            keys = {number: key for key, number in numbers.items()}
            of_table: dict[int, np.ndarray] = {}
            for number, row in zip(ids, rows, strict=True):
                of_table[keys[number]] = of_table.get(keys[number], 0.0) + row
            found.append(of_table)
        return found

    def _places(self, num_bags: int, sizes: Any) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
        """The feature and the output offset of each bag, and the shape of the output."""
        dims = [self.dims[table] for table in self.features]
        if sizes is None:
            columns = np.cumsum([0, *dims])
            batch = num_bags // len(dims)
            begins = [
                (feature, sample * columns[-1] + columns[feature])
                for feature in range(len(dims))
                for sample in range(batch)
            ]
            return begins, (batch, columns[-1])
        # All bags of the first rank, feature by feature, then all bags of the next rank.
        at, start = 0, {}
        for rank in range(len(sizes[0])):
            for feature, dim in enumerate(dims):
                start[feature, rank] = at
                at += sizes[feature][rank] * dim
        begins = [
            (feature, start[feature, rank] + sample * dims[feature])
            for feature, of_feature in enumerate(sizes)
            for rank, size in enumerate(of_feature)
            for sample in range(size)
        ]
        return begins, (at,)


def repaired(offsets: Any, count: int) -> np.ndarray:
    """The nearest offsets that rise from 0 to the number of indices.

    As in FBGEMM, except that FBGEMM does not change the first offset.
    """
    offsets = np.array(offsets, np.int64)
    offsets[0], offsets[-1] = 0, count
    least = 0
    for i, one in enumerate(offsets):
        least = offsets[i] = min(max(one, least), count)
    return offsets
