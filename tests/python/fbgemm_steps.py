"""Steps of FBGEMM's table-batched embedding on the CPU, for tbe_fbgemm_test.py.

Runs in an environment of FBGEMM's. Reads rows, ids, gradients and settings from an .npz file and
writes the rows after the steps to another.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
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
    """FBGEMM's, of JSON."""
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
    return arguments


def main() -> None:
    """See above."""
    given = np.load(sys.argv[1])
    rows, ids, gradients = given["rows"], given["ids"], given["gradients"]
    # A table of two features: with one, FBGEMM's CPU takes a path that drops weight decay.
    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(*rows.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0, 0],
        **arguments_of(json.loads(str(given["settings"]))),
    )
    layer.split_embedding_weights()[0].copy_(torch.from_numpy(rows))
    count = ids.shape[1]
    for of_step, gradient in zip(ids, gradients, strict=True):
        output = layer(torch.from_numpy(of_step), torch.arange(count + 1))
        halves = torch.from_numpy(gradient).reshape(2, count // 2, -1)
        output.backward(torch.cat([halves[0], halves[1]], dim=1))
    np.savez(sys.argv[2], rows=layer.split_embedding_weights()[0].detach().numpy())


if __name__ == "__main__":
    main()
