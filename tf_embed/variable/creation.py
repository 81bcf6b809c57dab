# SPDX-License-Identifier: Apache-2.0
"""Where and how large a new `Variable` may be."""

from __future__ import annotations

import os

import tensorflow as tf

from tf_embed import validation
from tf_embed.exchange import servers

DEFAULT_INIT_SIZE = 8192
INIT_SIZE_VARIABLE = "TF_HASHTABLE_INIT_SIZE"


def check_eager() -> None:
    """Refuses a tf.Graph outside of a tf.function, as in sessions of TensorFlow 1.

    Raises:
        RuntimeError: If the outermost context is not eager.
    """
    # From a tf.function this lifts to eager execution; in a plain tf.Graph it stays in the graph.
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A tf_embed.Variable must be made in eager execution or in a tf.function. "
                "Received: a call in a tf.Graph, as for a session of TensorFlow 1"
            )


def check_strategy(key_dtype: tf.DType) -> None:
    """Refuses a tf.distribute strategy whose replicas could not share a table.

    Args:
        key_dtype: Dtype of the keys.

    Raises:
        ValueError: If the strategy is not supported, or has several replicas and keys are strings.
    """
    strategy = tf.distribute.get_strategy()
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.OneDeviceStrategy,
        tf.distribute.ParameterServerStrategy,
    )
    if tf.distribute.has_strategy() and not isinstance(strategy, known):
        raise ValueError(
            "Dynamic tables may be made under tf.distribute.MirroredStrategy, "
            "MultiWorkerMirroredStrategy, OneDeviceStrategy and ParameterServerStrategy. Received: "
            f"{type(strategy).__name__}"
        )
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if key_dtype == tf.string and mirrored and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Tables with string keys are for one replica so far: TensorFlow can't join the "
            "gradients of several. Received: key_dtype=string, "
            f"{strategy.num_replicas_in_sync} replicas"
        )


def check_one_process(what: str) -> None:
    """Refuses the scope of a strategy with parameter servers.

    Args:
        what: The refused class or function, for the message.

    Raises:
        ValueError: If the current scope is such a scope.
    """
    if tf.distribute.has_strategy() and servers.is_of_servers(tf.distribute.get_strategy()):
        raise ValueError(
            f"{what} can't have tables on parameter servers: use tf_embed.layers.DynamicEmbedding "
            "or tf_embed.Variable. Received: a call in the scope of a ParameterServerStrategy"
        )


def default_init_size() -> int:
    """The default `init_size`, from the environment variable if that is set."""
    text = os.environ.get(INIT_SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_INIT_SIZE
    try:
        return validation.positive_int(int(text), INIT_SIZE_VARIABLE, least=0)
    except ValueError as error:
        raise ValueError(
            f"The environment variable {INIT_SIZE_VARIABLE} must be a number of rows. Received: "
            f"{INIT_SIZE_VARIABLE}={validation.shown(text)}"
        ) from error
