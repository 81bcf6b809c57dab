# SPDX-License-Identifier: Apache-2.0
"""Steps of FBGEMM's table-batched embedding on the CPU, for tbe_fbgemm_test.py.

Runs in an environment with FBGEMM. Reads from an .npz file the arguments of the layer (`settings`,
JSON, with `steps`, the number of steps), the rows of each table (`rows_0`, ...), and for each step
`indices_0`, `offsets_0`, `gradients_0`, and optionally `weights_0`, `requires_0` and `sizes_0`.
Writes to another file the rows after the steps, and for each step `outputs_0` and
`weight_gradients_0`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    EmainplaceModeDefinition,
    LearningRateMode,
    SplitTableBatchedEmbeddingBagsCodegen,
    TailIdThreshold,
    WeightDecayMode,
)


def arguments_of(settings: dict) -> dict:
    """FBGEMM's arguments from JSON."""
    arguments = dict(settings)
    arguments["optimizer"] = EmbOptimType[arguments["optimizer"]]
    if "weight_decay_mode" in arguments:
        arguments["weight_decay_mode"] = WeightDecayMode(arguments["weight_decay_mode"])
    counter = arguments.get("counter_based_regularization")
    if counter is not None:
        counter["counter_weight_decay_mode"] = CounterWeightDecayMode(
            counter["counter_weight_decay_mode"]
        )
        counter["learning_rate_mode"] = LearningRateMode(counter["learning_rate_mode"])
        counter["tail_id_threshold"] = TailIdThreshold(**counter["tail_id_threshold"])
        counter.pop("grad_sum_decay")
        arguments["counter_based_regularization"] = CounterBasedRegularizationDefinition(**counter)
    clip = arguments.get("cowclip_regularization")
    if clip is not None:
        clip["counter_weight_decay_mode"] = CounterWeightDecayMode(
            clip["counter_weight_decay_mode"]
        )
        arguments["cowclip_regularization"] = CowClipDefinition(**clip)
    if "emainplace_mode" in arguments:
        arguments["emainplace_mode"] = EmainplaceModeDefinition(**arguments["emainplace_mode"])
    if "pooling_mode" in arguments:
        arguments["pooling_mode"] = PoolingMode[arguments["pooling_mode"]]
    return arguments


def step(layer: Any, given: Any, number: int) -> dict[str, np.ndarray]:
    """Makes a forward and a backward pass."""

    def tensor(name: str) -> Any:
        key = f"{name}_{number}"
        return torch.from_numpy(given[key]) if key in given else None

    weights, sizes = tensor("weights"), tensor("sizes")
    if weights is not None:
        weights.requires_grad = True
    output = layer(
        tensor("indices"),
        tensor("offsets"),
        weights,
        tensor("requires"),
        batch_size_per_feature_per_rank=None if sizes is None else sizes.tolist(),
    )
    output.backward(tensor("gradients"))
    found = {f"outputs_{number}": output.detach().numpy()}
    if weights is not None:
        found[f"weight_gradients_{number}"] = weights.grad.numpy()
    return found


def main() -> None:
    given = np.load(sys.argv[1])
    settings = json.loads(str(given["settings"]))
    specs, steps = settings.pop("embedding_specs"), settings.pop("steps")
    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(*spec, EmbeddingLocation.HOST, ComputeDevice.CPU) for spec in specs],
        **arguments_of(settings),
    )
    tables = layer.split_embedding_weights()
    for number, table in enumerate(tables):
        table.copy_(torch.from_numpy(given[f"rows_{number}"]))
    found = {}
    for number in range(steps):
        found |= step(layer, given, number)
    for number, table in enumerate(tables):
        found[f"rows_{number}"] = table.detach().numpy()
    np.savez(sys.argv[2], **found)


if __name__ == "__main__":
    main()
