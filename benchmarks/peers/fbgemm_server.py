# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's table-batched embedding on a CPU: an array of rows, and a step fused with its gradient.

This is a separate program, since torch and TensorFlow are in different environments. It reads
commands from the standard input, one a line, and answers each with a line:

    ids COUNT          COUNT int64 follow, a batch that is queued behind earlier batches
    forward            takes the first batch; seconds
    step               the same, with the backward that updates the rows
    rows               takes the first batch; its rows follow, float32
"""

from __future__ import annotations

import collections
import sys
import time

import fbgemm_gpu  # noqa: F401  (registers torch's operators)
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

OPTIMIZERS = {
    "Adagrad": EmbOptimType.EXACT_ADAGRAD,
    "row-wise Adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def main() -> None:
    optimizer, rows, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=1e-2,
        eps=1e-7,
        pooling_mode=PoolingMode.NONE,
    )
    (weights,) = table.split_embedding_weights()
    weights.zero_()
    batches: collections.deque[tuple[torch.Tensor, ...]] = collections.deque()
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    while words := commands.readline().split():
        if words[0] == b"ids":
            count = int(words[1])
            ids = torch.from_numpy(np.frombuffer(commands.read(8 * count), np.int64).copy())
            batches.append((ids, torch.arange(count + 1), torch.full((count, dim), 0.01)))
            answers.write(b"0\n")
            answers.flush()
            continue
        ids, offsets, gradients = batches.popleft()
        if words[0] == b"rows":
            answers.write(b"0\n" + weights[ids].detach().numpy().tobytes())
        else:
            begin = time.perf_counter()
            if words[0] == b"forward":
                with torch.no_grad():
                    table(ids, offsets)
            else:
                table(ids, offsets).backward(gradients)
            answers.write(b"%.9f\n" % (time.perf_counter() - begin))
        answers.flush()


if __name__ == "__main__":
    main()
