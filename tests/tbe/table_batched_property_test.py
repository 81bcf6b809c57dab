# SPDX-License-Identifier: Apache-2.0
"""The table-batched layer equals its oracle for random tables, features and bags."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as draw

from support.cases.table_batched_cases import factors_of, pair, random_inputs
from tf_embed import tbe

POOLING = tbe.PoolingMode
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@dataclasses.dataclass(frozen=True)
class Case:
    specs: list[tuple[int, int]]
    features: list[int]
    # The number of bags of each feature; `sizes` has them by rank if they vary.
    batch: int
    sizes: list[list[int]] | None
    longest: int
    weighted: bool
    pooling: tbe.PoolingMode
    seed: int


@draw.composite
def cases(choose: draw.DrawFn) -> Case:
    specs = choose(
        draw.lists(draw.tuples(draw.integers(1, 8), draw.integers(1, 8)), min_size=1, max_size=5)
    )
    tables = draw.integers(0, len(specs) - 1)
    more = choose(draw.lists(tables, max_size=4))
    features = choose(draw.permutations([*range(len(specs)), *more]))
    sources = choose(draw.integers(1, 3))
    size = draw.lists(draw.integers(0, 3), min_size=sources, max_size=sources)
    sizes = draw.lists(size, min_size=len(features), max_size=len(features))
    return Case(
        specs,
        list(features),
        choose(draw.integers(0, 4)),
        choose(draw.none() | sizes),
        choose(draw.integers(0, 6)),
        choose(draw.booleans()),
        choose(draw.sampled_from([POOLING.SUM, POOLING.MEAN])),
        choose(draw.integers(0, 2**32 - 1)),
    )


class PropertyTest(tf.test.TestCase):
    # The same cases in each run. Hypothesis shrinks and prints a failing case.
    @settings(max_examples=40, derandomize=True, database=None, deadline=None)
    @given(case=cases())
    def test_output_gradients_and_rows_after_a_step(self, case):
        rng = np.random.default_rng(case.seed)
        inputs = random_inputs(
            rng,
            case.batch,
            specs=case.specs,
            features=case.features,
            longest=case.longest,
            weighted=case.weighted,
            sizes=case.sizes,
        )
        layer, oracle = pair(
            specs=case.specs, features=case.features, pooling_mode=case.pooling, learning_rate=0.5
        )
        wanted = oracle(**inputs.arguments)
        weights = None if inputs.weights is None else tf.Variable(inputs.weights)
        factors = factors_of(rng, wanted.output.shape)
        with tf.GradientTape() as tape:
            arguments = {**inputs.arguments, "per_sample_weights": weights}
            output = layer(**arguments, training=True)
            loss = tf.reduce_sum(output * factors)
        self.assertAllClose(output, wanted.output, rtol=1e-6, atol=1e-6)
        variables = layer.trainable_variables
        sources = [*variables, *([] if weights is None else [weights])]
        found = tape.gradient(loss, sources)
        gradients = wanted.backward(factors)
        if weights is not None:
            self.assertAllClose(found[-1], gradients.weights, **CLOSE)
        keras.optimizers.SGD(0.0).apply(found[: len(variables)], variables)
        oracle.step(gradients)
        for table, rows in zip(layer.tables, oracle.weights, strict=True):
            self.assertAllClose(table.lookup(np.arange(len(rows))), rows, **CLOSE)


if __name__ == "__main__":
    tf.test.main()
