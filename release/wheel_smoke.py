# SPDX-License-Identifier: Apache-2.0
"""Trains, saves and loads a model with the installed package, in a fresh environment.

Exits with an error if a step fails, or if the package is imported from the source tree. Prints a
single line: the versions, whether the library has GPU support, and the number of rows in the table.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_embed

BATCH = 32


def model() -> keras.Model:
    """Two tables: the model's optimizer trains the first, its own optimizer the second."""
    ids = keras.Input([None], dtype="int64")
    rows = tf_embed.layers.DynamicEmbedding(4, combiner="mean", name="items")(ids)
    own = tf_embed.layers.DynamicEmbedding(
        4,
        combiner="sum",
        optimizer="adagrad",
        policy=tf_embed.TablePolicy(max_rows=64, eviction="lru"),
        name="own",
    )(ids)
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([rows, own]))
    made = keras.Model(ids, outputs)
    made.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), loss="mse")
    return made


def check(holds: bool, sentence: str) -> None:
    """Ends the process with the sentence if a condition does not hold."""
    if not holds:
        sys.exit(f"wheel_smoke.py: {sentence}")


def main() -> None:
    """Tests the package."""
    package = pathlib.Path(tf_embed.__file__).parent
    check("site-packages" in package.parts, f"tf_embed was imported from {package}")
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    ids = rng.integers(-(2**62), 2**62, size=[200])[rng.integers(0, 200, size=[4 * BATCH, 3])]
    labels = (ids % 2).sum(axis=1, keepdims=True).astype(np.float32)

    trained = model()
    losses = trained.fit(ids, labels, batch_size=BATCH, epochs=20, verbose=0).history["loss"]
    check(losses[-1] < losses[0] / 4, f"the loss went from {losses[0]} to {losses[-1]}")
    rows = int(trained.get_layer("items").variable.size())
    check(rows == len(np.unique(ids)), f"{rows} rows for {len(np.unique(ids))} ids")
    bounded = int(trained.get_layer("own").variable.size())
    check(bounded <= 64 + BATCH * 3, f"{bounded} rows, but max_rows=64")

    expected = trained.predict(ids, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        trained.save(path / "model.keras")
        loaded = keras.saving.load_model(path / "model.keras")
        check(np.array_equal(loaded.predict(ids, verbose=0), expected), ".keras changed a row")
        trained.export(path / "served", verbose=False)
        served = tf.saved_model.load(path / "served")
        check(
            np.allclose(served.serve(ids), expected, atol=1e-6),
            "the exported model answers differently",
        )

    built = json.loads((package / "_tf_embed.json").read_text())
    version = importlib.metadata.version("tf_embed")
    print(
        f"tf_embed {version}, Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, GPU support {'yes' if built['cuda'] else 'no'}: "
        f"{rows} rows trained, saved and served"
    )


if __name__ == "__main__":
    main()
