# SPDX-License-Identifier: Apache-2.0
"""Compares with FBGEMM's own code, in the cases in which its CPU wheel is right.

Optional: TF_EMBED_FBGEMM_PYTHON is the Python of an environment with FBGEMM. The script
benchmarks/environments.sh makes such an environment.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import TESTS
from support.cases.table_batched_cases import first_rows, layer_of, plain, random_inputs, rows_of
from support.oracles.reference import SEED
from tf_embed import tbe

PYTHON = os.environ.get("TF_EMBED_FBGEMM_PYTHON")
needs_fbgemm = pytest.mark.skipif(
    PYTHON is None,
    reason="needs a Python with FBGEMM, which benchmarks/environments.sh makes: "
    "set TF_EMBED_FBGEMM_PYTHON to .venv/benchfbgemm/bin/python",
)
STEPS, ROWS, DIM, COUNT = 20, 12, 8, 10
DECAY = tbe.WeightDecayMode
COUNTER_DECAY = tbe.CounterWeightDecayMode
RATES = tbe.LearningRateMode


def _rowwise(mode: Any, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    options = {"weight_decay": 0.2, "weight_decay_mode": mode, **options}
    return "EXACT_ROWWISE_ADAGRAD", tbe.RowwiseAdagrad, options


def _counter(inner: Any, rates: Any, halflife: int = 3) -> tuple[str, Any, dict[str, Any]]:
    definition = tbe.CounterBasedRegularizationDefinition(
        inner,
        halflife,
        adjustment_iter=4,
        adjustment_ub=0.7,
        learning_rate_mode=rates,
        tail_id_threshold=tbe.TailIdThreshold(1.0),
    )
    return _rowwise(DECAY.COUNTER, counter_based_regularization=definition)


def _clip(inner: Any) -> tuple[str, Any, dict[str, Any]]:
    definition = tbe.CowClipDefinition(inner, -1, 0.05, 0.1)
    return _rowwise(DECAY.COWCLIP, cowclip_regularization=definition)


# FBGEMM's name, tf_embed's class, and the settings that both have.
CASES = {
    "sgd": ("EXACT_SGD", tbe.SGD, {}),
    "adagrad": ("EXACT_ADAGRAD", tbe.Adagrad, {"eps": 1e-3}),
    "rowwise": ("EXACT_ROWWISE_ADAGRAD", tbe.RowwiseAdagrad, {}),
    "l2": _rowwise(DECAY.L2),
    "decouple": _rowwise(DECAY.DECOUPLE),
    "in place": (
        "EMAINPLACE_ROWWISE_ADAGRAD",
        tbe.EmaInplaceRowwiseAdagrad,
        {"emainplace_mode": tbe.EmainplaceModeDefinition(4, 8, 0.6)},
    ),
    "counter, decouple, increase": _counter(COUNTER_DECAY.DECOUPLE, RATES.TAIL_ID_LR_INCREASE),
    "counter, l2, decrease": _counter(COUNTER_DECAY.L2, RATES.TAIL_ID_LR_DECREASE),
    "counter, adagradw": _counter(COUNTER_DECAY.ADAGRADW, RATES.EQUAL, -1),
    "counter, adagradw, bounded": _counter(COUNTER_DECAY.ADAGRADW, RATES.EQUAL, -2),
    "counter, l2, sgd": _counter(COUNTER_DECAY.L2, RATES.COUNTER_SGD),
    "cowclip, l2": _clip(COUNTER_DECAY.L2),
    "cowclip, decouple": _clip(COUNTER_DECAY.DECOUPLE),
}


# The layers in which FBGEMM's CPU code is right: features that share a table are adjacent, and with
# decay, each table has two features. FBGEMM's gradients of the weights of means differ.
SPECS, FEATURES = [(11, 8), (6, 4)], [0, 0, 1, 1]
LAYER_CASES: dict[str, dict[str, Any]] = {
    **{case: {"case": case} for case in CASES},
    "weights": {"case": "rowwise", "weighted": True},
    "weights, adagrad": {"case": "adagrad", "weighted": True},
    "mean": {"case": "sgd", "pooling_mode": "MEAN"},
    "mean, adagrad": {"case": "adagrad", "pooling_mode": "MEAN"},
    "mean, rowwise": {"case": "rowwise", "pooling_mode": "MEAN"},
    "clipping": {"case": "sgd", "gradient_clipping": True, "max_gradient": 0.5},
    "clipping, weights": {
        "case": "adagrad",
        "weighted": True,
        "gradient_clipping": True,
        "max_gradient": 0.5,
    },
    "requires": {"case": "sgd", "weighted": True, "requires": [1, 0, 1, 0]},
    "sizes": {"case": "rowwise", "sizes": [[2, 1], [0, 3], [1, 1], [4, 2]]},
    "sizes, weights": {"case": "sgd", "weighted": True, "sizes": [[2, 1], [0, 3], [1, 1], [4, 2]]},
    "sizes, mean": {"case": "sgd", "pooling_mode": "MEAN", "sizes": [[2], [3], [0], [4]]},
    "none": {"case": "rowwise", "pooling_mode": "NONE", "specs": [(11, 8), (6, 8)]},
    "none, l2": {"case": "l2", "pooling_mode": "NONE", "specs": [(11, 8), (6, 8)]},
}


def by_fbgemm(folder: str, settings: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The results of fbgemm_steps.py for these inputs."""
    for key, value in settings.items():
        settings[key] = value.get_config() if hasattr(value, "get_config") else value
    given, found = pathlib.Path(folder) / "given.npz", pathlib.Path(folder) / "found.npz"
    np.savez(given, settings=json.dumps(settings), **arrays)
    script = TESTS / "support" / "processes" / "fbgemm_steps.py"
    subprocess.run([str(PYTHON), str(script), str(given), str(found)], check=True)
    return np.load(found)


@needs_fbgemm
class OptimizersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_twenty_steps_are_those_of_fbgemm(self, case):
        name, cls, options = CASES[case]
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(ROWS, DIM)).astype(np.float32)
        ids = rng.integers(0, ROWS, (STEPS, COUNT))
        gradients = rng.normal(size=(STEPS, COUNT, DIM)).astype(np.float32)
        arrays = {"rows_0": rows}
        for number, (of_step, gradient) in enumerate(zip(ids, gradients, strict=True)):
            halves = gradient.reshape(2, COUNT // 2, DIM)
            arrays |= {
                f"indices_{number}": of_step,
                f"offsets_{number}": np.arange(COUNT + 1),
                f"gradients_{number}": np.concatenate(list(halves), axis=1),
            }
        settings = {
            "embedding_specs": [rows.shape],
            # With a single feature, FBGEMM's CPU code takes a path that drops weight decay.
            "feature_table_map": [0, 0],
            "steps": STEPS,
            "optimizer": name,
            "learning_rate": 0.05,
            **options,
        }
        theirs = by_fbgemm(self.get_temp_dir(), settings, arrays)["rows_0"]
        v = tf_embed.Variable(dim=DIM)
        keys = np.arange(ROWS)
        v.upsert(keys, rows)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(cls(0.05, **options))
        for of_step, gradient in zip(ids, gradients, strict=True):
            slices = tf.IndexedSlices(tf.constant(gradient), tf.constant(of_step))
            optimizer.apply([slices], v.trainable_variables)
        self.assertNotAllClose(theirs, rows, rtol=1e-2)
        self.assertAllClose(v.lookup(keys), theirs, rtol=2e-5, atol=5e-6)


@needs_fbgemm
class LayerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*LAYER_CASES)
    def test_twenty_steps_of_the_layer_are_those_of_fbgemm(self, case):
        layer_options = dict(LAYER_CASES[case])
        name, _, options = CASES[layer_options.pop("case")]
        specs = layer_options.pop("specs", SPECS)
        weighted, requires = (
            layer_options.pop("weighted", False),
            layer_options.pop("requires", None),
        )
        sizes = layer_options.pop("sizes", None)
        shared = {"learning_rate": 0.05, **options, **layer_options}
        rng = np.random.default_rng(SEED)
        rows = first_rows(specs)
        steps, arrays = [], {f"rows_{number}": one for number, one in enumerate(rows)}
        for number in range(STEPS):
            inputs = random_inputs(
                rng, 4, specs=specs, features=FEATURES, weighted=weighted, sizes=sizes
            )
            shape: Any = (4, sum(specs[table][1] for table in FEATURES))
            if layer_options.get("pooling_mode") == "NONE":
                shape = (len(inputs.indices), specs[0][1])
            if sizes is not None:
                shape = sum(
                    sum(of) * specs[table][1] for of, table in zip(sizes, FEATURES, strict=True)
                )
            gradients = rng.normal(size=shape).astype(np.float32)
            steps.append((inputs, gradients))
            of_step = {
                "indices": inputs.indices,
                "offsets": inputs.offsets,
                "weights": inputs.weights,
                "requires": None if requires is None else np.array(requires, np.int32),
                "sizes": None if sizes is None else np.array(sizes),
                "gradients": gradients,
            }
            arrays |= {f"{key}_{number}": one for key, one in of_step.items() if one is not None}
        settings = {
            "embedding_specs": specs,
            "feature_table_map": FEATURES,
            "steps": STEPS,
            "optimizer": name,
            **shared,
        }
        theirs = by_fbgemm(self.get_temp_dir(), settings, arrays)
        if "pooling_mode" in shared:
            shared["pooling_mode"] = tbe.PoolingMode[shared["pooling_mode"]]
        layer = layer_of(rows, specs, FEATURES, optimizer=tbe.OptimType[name], **shared)
        for number, (inputs, gradients) in enumerate(steps):
            weights = None if inputs.weights is None else tf.Variable(inputs.weights)
            with tf.GradientTape() as tape:
                arguments = {**inputs.arguments, "per_sample_weights": weights}
                output = layer(**arguments, feature_requires_grad=requires, training=True)
                loss = tf.reduce_sum(output * gradients)
            self.assertAllClose(output, theirs[f"outputs_{number}"], rtol=2e-5, atol=5e-6)
            variables = layer.trainable_variables
            found = tape.gradient(loss, [*variables, *([] if weights is None else [weights])])
            if weights is not None:
                self.assertAllClose(
                    found[-1], theirs[f"weight_gradients_{number}"], rtol=1e-4, atol=1e-5
                )
            plain().apply(found[: len(variables)], variables)
        for number, found in enumerate(rows_of(layer)):
            self.assertNotAllClose(found, rows[number], rtol=1e-2)
            self.assertAllClose(found, theirs[f"rows_{number}"], rtol=2e-5, atol=5e-6)


if __name__ == "__main__":
    tf.test.main()
