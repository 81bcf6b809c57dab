# SPDX-License-Identifier: Apache-2.0
"""Layers that look up in their own tf.functions, on workers; a program for `worker_programs`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker
from tf_embed.layers import DynamicEmbedding

IDS = [1, 2, 1]


class Apart(DynamicEmbedding):
    """A layer whose call is a tf.function."""

    @tf.function
    def call(self, ids, training=None):
        return super().call(ids, training=training)


def layer(kind: type[DynamicEmbedding], name: str, initializer: Any) -> DynamicEmbedding:
    made = kind(2, optimizer="sgd", name=name, initializer=initializer)
    made.build((None,))
    return made


def fitted(apart: type[DynamicEmbedding]) -> dict[str, Any]:
    """Trains a functional model of two layers, one of the given class."""
    inputs = keras.Input((), dtype="int64")
    layers = [layer(apart, f"{apart.__name__}_fit", 0.2), layer(DynamicEmbedding, "fit", 0.3)]
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    outputs = dense(keras.layers.concatenate([one(inputs) for one in layers]))
    model = tf_embed.distributed.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    rows = tf.data.Dataset.from_tensor_slices((np.arange(8), np.ones([8, 1])))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = rows.batch(4).with_options(options)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    sizes = [int(one.variable.size()) for one in layers]
    return {"losses": losses, "sizes": sizes, "answers": model.predict(data, verbose=0)}


def functions(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Looks up layers together, before and after each layer alone, and trains models."""
    del rank, folder
    found: dict[str, Any] = {}
    ids = tf.constant(IDS, tf.int64)
    with strategy.scope():
        layers = [layer(kind, kind.__name__, "uniform") for kind in (Apart, DynamicEmbedding)]

    def together(ids: tf.Tensor) -> Any:
        return tf_embed.distributed.look_up_together([(one, ids) for one in layers])

    def alone(ids: tf.Tensor) -> Any:
        return [one(ids) for one in layers]

    for name, call in (("together", together), ("alone", alone), ("again", together)):
        step = tf.function(lambda ids, call=call: strategy.run(call, args=(ids,)))
        found[name] = [one.numpy() for one in step(ids)]
    with strategy.scope():
        found["apart"], found["in place"] = fitted(Apart), fitted(DynamicEmbedding)
    return found


if __name__ == "__main__":
    run_as_worker(globals())
