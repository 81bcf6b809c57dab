# SPDX-License-Identifier: Apache-2.0
"""Many FBGEMM tables on a CPU: a pooled forward, and a backward that steps all of them.

A separate program, like `fbgemm_server.py`. Arguments: optimizer, tables, rows a table, dim, bags.
It reads commands from the standard input, one a line, and answers each with a line:

    batch COUNT     COUNT int64 indices and TABLES * BAGS + 1 int64 offsets follow, feature by
                    feature; a batch that is queued behind earlier batches
    step            takes the first batch; seconds of the forward, seconds of the backward with
                    the update
    pooled          takes the first batch; its pooled rows follow, float32 [BAGS, TABLES * dim]
"""

from __future__ import annotations

import collections
import sys
import time

import fbgemm_gpu  # noqa: F401  (registers torch's operators)
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

OPTIMIZERS = {
    "SGD": EmbOptimType.EXACT_SGD,
    "Adagrad": EmbOptimType.EXACT_ADAGRAD,
    "row-wise Adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def main() -> None:
    optimizer, (tables, rows, dim, bags) = sys.argv[1], map(int, sys.argv[2:6])
    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * tables,
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=1e-2,
        eps=1e-7,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.NONE,
    )
    for weights in layer.split_embedding_weights():
        weights.zero_()
    gradient = torch.full((bags, tables * dim), 0.01)
    batches: collections.deque[tuple[torch.Tensor, torch.Tensor]] = collections.deque()
    commands, answers = sys.stdin.buffer, sys.stdout.buffer

    def read(count: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(commands.read(8 * count), np.int64).copy())

    while words := commands.readline().split():
        if words[0] == b"batch":
            batches.append((read(int(words[1])), read(tables * bags + 1)))
            answers.write(b"0\n")
        elif words[0] == b"pooled":
            with torch.no_grad():
                pooled = layer(*batches.popleft())
            answers.write(b"0\n" + pooled.numpy().tobytes())
        else:
            indices, offsets = batches.popleft()
            begin = time.perf_counter()
            pooled = layer(indices, offsets)
            middle = time.perf_counter()
            pooled.backward(gradient)
            end = time.perf_counter()
            answers.write(b"%.9f %.9f\n" % (middle - begin, end - middle))
        answers.flush()


if __name__ == "__main__":
    main()
