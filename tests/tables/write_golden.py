# SPDX-License-Identifier: Apache-2.0
"""Writes the files that golden_test.py reads, with the installed TensorFlow, into a .zip.

The .zip has the name of the TensorFlow. Each supported TensorFlow writes it once, and all read it.
Files saved today must be readable tomorrow: if a format changes, write new files and keep these.

Example:
    python tests/tables/write_golden.py
"""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.layers import DynamicEmbedding

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden"
NAMES = ("wrapped", "own")
SEEDS = {"wrapped": 3, "own": 5}


def compiled(seeds: dict[str, int] = SEEDS) -> keras.Model:
    """A model with a table for the wrapper, with a fused rule, and a table with its own optimizer.

    The second table has narrow rows, narrow keys, two shards, and a rule that runs outside of it
    and keeps a number for the whole table. Both have policies. In the second, keys wait for rows.
    """

    def initializer(name: str) -> Any:
        return keras.initializers.RandomUniform(-0.5, 0.5, seed=seeds[name])

    wrapped = DynamicEmbedding(
        2,
        combiner="sum",
        initializer=initializer("wrapped"),
        policy=tf_embed.TablePolicy(eviction="lfu"),
        name="wrapped",
    )
    own = DynamicEmbedding(
        3,
        "int32",
        "bfloat16",
        initializer("own"),
        "mean",
        optimizer=keras.optimizers.Nadam(0.1),
        devices=["/CPU:0"] * 2,
        policy=tf_embed.TablePolicy(
            eviction="score", admission=tf_embed.CounterAdmission(2), ttl_seconds=1e9
        ),
        name="own",
    )
    ids = keras.Input([2], dtype="int32")
    rows = keras.layers.Concatenate()([wrapped(ids), own(ids)])
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(rows))
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def module_of(model: keras.Model) -> tf.Module:
    """The module to save as a SavedModel: a lookup of each table."""
    module = tf.Module()
    module.tables = {name: model.get_layer(name).variable for name in NAMES}
    for name, variable in module.tables.items():
        signature = [tf.TensorSpec([None], variable.key_dtype)]
        setattr(module, name, tf.function(variable.lookup, input_signature=signature))
    return module


def content(model: keras.Model) -> dict[str, Any]:
    """The content of the model as JSON, with exact numbers."""
    found: dict[str, Any] = {"step": int(model.optimizer.iterations)}
    for name in NAMES:
        layer = model.get_layer(name)
        rows = layer.variable.table.export()
        order = np.argsort(rows.keys)
        found[name] = {
            "keys": rows.keys.numpy()[order].tolist(),
            "values": tf.cast(rows.values, tf.float32).numpy()[order].tolist(),
            "slots": rows.slots.numpy()[order].tolist(),
            "statistics": rows.statistics.numpy()[order].tolist(),
            "policy": rows.policy.numpy().tolist(),
        }
    own = model.get_layer("own")
    found["own"]["step"] = int(own.optimizer.iterations)
    found["own"]["state"] = [one.numpy().tolist() for one in own.variable.anchor.own_trainer.state]
    return found


def main() -> None:
    """Trains a model and writes the files."""
    model = compiled()
    ids = np.array([[0, -1], [7, 2**31 - 1], [-(2**31), 7], [100, 5]], np.int32)
    waiting = np.array([[0, -2], [7, 300], [7, 7], [100, 5]], np.int32)
    for batch, labels in (
        (ids, [1.0, -1.0, 2.0, 0.5]),
        (ids, [0.5, 0.0, -1.0, 1.0]),
        (waiting, [1.0, 0.5, 0.0, -0.5]),
    ):
        model.train_on_batch(batch, np.array(labels))
    own = model.get_layer("own").variable
    own.set_scores([0, -1], [5, -6])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
        tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
        tf.saved_model.save(module_of(model), str(folder / "saved_model"))
        (folder / "content.json").write_text(json.dumps(content(model), indent=1) + "\n")
        shutil.make_archive(str(FOLDER / f"tf{tf.__version__}"), "zip", folder)


if __name__ == "__main__":
    main()
