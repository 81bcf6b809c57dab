# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's SparseOperationKit (SOK) for Keras 3.

All2AllDenseEmbedding   a row for each key
DistributedEmbedding    the keys of each slot pooled
OptimizerWrapper        lets a Keras optimizer train tables
lookup_sparse           pooled rows of several tables
dump, load              tables in files; Saver, the same by SOK's older names
export, assign          the rows of this worker as tensors, and rows from tensors
incremental_model_dump  the rows that were used since a time
filter_variables        which variables are tables
Init                    checks the global batch size
"""

from tf_embed.optimizers import DynamicEmbeddingOptimizer as OptimizerWrapper
from tf_embed.sok.all2all_dense_embedding import All2AllDenseEmbedding
from tf_embed.sok.distributed_embedding import DistributedEmbedding
from tf_embed.sok.functions import Init, assign, export, filter_variables, lookup_sparse
from tf_embed.sok.incremental import incremental_model_dump
from tf_embed.sok.saver import Saver, dump, load

__all__ = [
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "Init",
    "OptimizerWrapper",
    "Saver",
    "assign",
    "dump",
    "export",
    "filter_variables",
    "incremental_model_dump",
    "load",
    "lookup_sparse",
]
