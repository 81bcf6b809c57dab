"""Side by side with FBGEMM's own code, where its CPU wheel is right.

Optional: TF_EMBED_FBGEMM_PYTHON is the Python of an environment that has FBGEMM, such as the one
that benchmarks/environments.sh makes.
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
from reference import SEED

import tf_embed
from tf_embed import optimizers

PYTHON = os.environ.get("TF_EMBED_FBGEMM_PYTHON")
STEPS, ROWS, DIM, COUNT = 20, 12, 8, 10
DECAY = tf_embed.WeightDecayMode
COUNTER_DECAY = tf_embed.CounterWeightDecayMode
RATES = tf_embed.LearningRateMode


def _rowwise(mode: Any, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    options = {"weight_decay": 0.2, "weight_decay_mode": mode, **options}
    return "EXACT_ROWWISE_ADAGRAD", optimizers.RowwiseAdagrad, options


def _counter(inner: Any, rates: Any, halflife: int = 3) -> tuple[str, Any, dict[str, Any]]:
    definition = tf_embed.CounterBasedRegularizationDefinition(
        inner,
        halflife,
        adjustment_iter=4,
        adjustment_ub=0.7,
        learning_rate_mode=rates,
        tail_id_threshold=tf_embed.TailIdThreshold(1.0),
    )
    return _rowwise(DECAY.COUNTER, counter_based_regularization=definition)


def _clip(inner: Any) -> tuple[str, Any, dict[str, Any]]:
    definition = tf_embed.CowClipDefinition(inner, -1, 0.05, 0.1)
    return _rowwise(DECAY.COWCLIP, cowclip_regularization=definition)


# FBGEMM's name, ours, and the settings that both have.
CASES = {
    "sgd": ("EXACT_SGD", optimizers.ExactSGD, {}),
    "adagrad": ("EXACT_ADAGRAD", optimizers.ExactAdagrad, {"eps": 1e-3}),
    "rowwise": ("EXACT_ROWWISE_ADAGRAD", optimizers.RowwiseAdagrad, {}),
    "l2": _rowwise(DECAY.L2),
    "decouple": _rowwise(DECAY.DECOUPLE),
    "in place": (
        "EMAINPLACE_ROWWISE_ADAGRAD",
        optimizers.EmaInplaceRowwiseAdagrad,
        {"emainplace_mode": tf_embed.EmainplaceModeDefinition(4, 8, 0.6)},
    ),
    "counter, decouple, increase": _counter(COUNTER_DECAY.DECOUPLE, RATES.TAIL_ID_LR_INCREASE),
    "counter, l2, decrease": _counter(COUNTER_DECAY.L2, RATES.TAIL_ID_LR_DECREASE),
    "counter, adagradw": _counter(COUNTER_DECAY.ADAGRADW, RATES.EQUAL, -1),
    "counter, adagradw, bounded": _counter(COUNTER_DECAY.ADAGRADW, RATES.EQUAL, -2),
    "counter, l2, sgd": _counter(COUNTER_DECAY.L2, RATES.COUNTER_SGD),
    "cowclip, l2": _clip(COUNTER_DECAY.L2),
    "cowclip, decouple": _clip(COUNTER_DECAY.DECOUPLE),
}


@pytest.mark.skipif(PYTHON is None, reason="TF_EMBED_FBGEMM_PYTHON names no Python with FBGEMM")
class FbgemmTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_twenty_steps_are_those_of_fbgemm(self, case):
        name, cls, options = CASES[case]
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(ROWS, DIM)).astype(np.float32)
        ids = rng.integers(0, ROWS, (STEPS, COUNT))
        gradients = rng.normal(size=(STEPS, COUNT, DIM)).astype(np.float32)
        theirs = self.theirs(name, options, rows, ids, gradients)
        v = tf_embed.Variable(dim=DIM)
        keys = np.arange(ROWS)
        v.upsert(keys, rows)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(cls(0.05, **options))
        for of_step, gradient in zip(ids, gradients, strict=True):
            slices = tf.IndexedSlices(tf.constant(gradient), tf.constant(of_step))
            optimizer.apply([slices], v.trainable_variables)
        self.assertNotAllClose(theirs, rows, rtol=1e-2)
        self.assertAllClose(v.lookup(keys), theirs, rtol=2e-5, atol=5e-6)

    def theirs(self, name: str, options: Any, rows: Any, ids: Any, gradients: Any) -> np.ndarray:
        folder = pathlib.Path(self.get_temp_dir())
        settings = {"optimizer": name, "learning_rate": 0.05}
        for key, value in options.items():
            settings[key] = value.get_config() if hasattr(value, "get_config") else value
        np.savez(
            folder / "given.npz",
            rows=rows,
            ids=ids,
            gradients=gradients,
            settings=json.dumps(settings),
        )
        script = pathlib.Path(__file__).with_name("fbgemm_steps.py")
        given, found = folder / "given.npz", folder / "found.npz"
        subprocess.run([str(PYTHON), str(script), str(given), str(found)], check=True)
        return np.load(found)["rows"]


if __name__ == "__main__":
    tf.test.main()
