# SPDX-License-Identifier: Apache-2.0
"""Steps of a Keras model whose tables share the exchanges between workers.

Each table by itself takes five collectives a step: three for its lookups, two for its gradients.
Here all tables of a functional model take five together. The ids that its layers look up are
functions of its inputs, so they are known before the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tf_embed.layers.layer_with_tables import LayerWithTables
from tf_embed.table import joint_lookups
from tf_embed.table.worker_table import WorkerTable, look_up
from tf_embed.variable.anchor import joint_steps


def joint_step(
    model: keras.Model, step: Callable[[Any], Any], training: bool
) -> Callable[[Any], Any]:
    """A step whose tables look up together, and are trained together.

    Args:
        model: The model. If it is not functional, each of its tables looks up by itself.
        step: The step, a function of a batch.
        training: Whether layers are called as in training.
    """
    ids_of_layers = _ids_of_layers(model)

    def joint(data: Any) -> Any:
        answers: list[joint_lookups.Answer] = []
        if ids_of_layers is not None:
            layers, ids_model = ids_of_layers
            inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            ids = keras.tree.flatten(ids_model(inputs))
            with joint_lookups.recorded() as lookups:
                for layer, count in layers:
                    layer.call_as_in_model(ids[:count], training)
                    ids = ids[count:]
            answers = look_up(lookups)
        with joint_lookups.answered(answers), joint_steps():
            return step(data)

    return joint


def _ids_of_layers(
    model: keras.Model,
) -> tuple[list[tuple[LayerWithTables, int]], keras.Model] | None:
    """The layers of a functional model with sharded tables, and a model of what they are called on.

    Each layer comes with the number of tensors of the model among its arguments.

    A layer that is called several times, or whose ids come from within another model, is left out.
    """
    layers, ids = [], []
    inputs = getattr(model, "inputs", None)  # of functional and sequential models
    for layer in model.layers if inputs else ():
        if not isinstance(layer, LayerWithTables) or not layer.built:
            continue
        if not any(isinstance(table, WorkerTable) for table in layer.looked_up_tables):
            continue
        try:
            of_layer = keras.tree.flatten(layer.input)
            keras.Model(inputs, of_layer)
        except (AttributeError, ValueError):
            continue
        layers.append((layer, len(of_layer)))
        ids += of_layer
    return (layers, keras.Model(inputs, ids)) if layers else None
