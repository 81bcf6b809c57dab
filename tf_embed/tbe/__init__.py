# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's table-batched embeddings (TBE) for Keras 3.

TableBatchedEmbeddingBags   many tables in one layer, in three calls a step; under FBGEMM's name
SplitTableBatchedEmbeddingBagsCodegen too
Adam, Adagrad, LAMB, LARS, SGD, RowwiseAdagrad, PartialRowwiseAdam, PartialRowwiseLAMB,
EnsembleRowwiseAdagrad, EmaInplaceRowwiseAdagrad
FBGEMM's optimizers, for tables and for dense variables
OptimType, WeightDecayMode, CounterBasedRegularizationDefinition and others
the settings of those optimizers
PoolingMode, SparseType, EmbeddingLocation and others
the description of the layer's tables
quantized_rows              rows of 8 bits
"""

from tf_embed.tbe import quantized_rows
from tf_embed.tbe.adagrad import SGD, Adagrad, RowwiseAdagrad
from tf_embed.tbe.adam import LAMB, LARS, Adam, PartialRowwiseAdam, PartialRowwiseLAMB
from tf_embed.tbe.averages import EmaInplaceRowwiseAdagrad, EnsembleRowwiseAdagrad
from tf_embed.tbe.fbgemm_optimizer_args import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    EmainplaceModeDefinition,
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    GradSumDecay,
    LearningRateMode,
    OptimType,
    StepMode,
    TailIdThreshold,
    WeightDecayMode,
)
from tf_embed.tbe.fbgemm_types import (
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    EmbeddingLocation,
    MultiPassPrefetchConfig,
    PoolingMode,
    RecordCacheMetrics,
    SparseType,
    TBEStatsReporterConfig,
    UserEnabledConfigDefinition,
)
from tf_embed.tbe.layer import TableBatchedEmbeddingBags

SplitTableBatchedEmbeddingBagsCodegen = TableBatchedEmbeddingBags

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "BoundsCheckMode",
    "CacheAlgorithm",
    "ComputeDevice",
    "CounterBasedRegularizationDefinition",
    "CounterWeightDecayMode",
    "CowClipDefinition",
    "EmaInplaceRowwiseAdagrad",
    "EmainplaceModeDefinition",
    "EmbOptimType",
    "EmbeddingLocation",
    "EnsembleModeDefinition",
    "EnsembleRowwiseAdagrad",
    "GlobalWeightDecayDefinition",
    "GradSumDecay",
    "LearningRateMode",
    "MultiPassPrefetchConfig",
    "OptimType",
    "PartialRowwiseAdam",
    "PartialRowwiseLAMB",
    "PoolingMode",
    "RecordCacheMetrics",
    "RowwiseAdagrad",
    "SparseType",
    "SplitTableBatchedEmbeddingBagsCodegen",
    "StepMode",
    "TBEStatsReporterConfig",
    "TableBatchedEmbeddingBags",
    "TailIdThreshold",
    "UserEnabledConfigDefinition",
    "WeightDecayMode",
    "quantized_rows",
]
