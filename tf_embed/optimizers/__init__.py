"""Optimizers: the wrapper for a model's, and the rules that Keras lacks."""

from tf_embed.optimizers.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_embed.optimizers.row_wise_adagrad import RowWiseAdagrad
from tf_embed.optimizers.tbe_adagrad import ExactAdagrad, ExactSGD, RowwiseAdagrad
from tf_embed.optimizers.tbe_adam import (
    LarsSGD,
    PartialRowwiseAdam,
    PartialRowwiseLamb,
    TbeAdam,
    TbeLamb,
)
from tf_embed.optimizers.tbe_averages import EmaInplaceRowwiseAdagrad, EnsembleRowwiseAdagrad

__all__ = [
    "DynamicEmbeddingOptimizer",
    "EmaInplaceRowwiseAdagrad",
    "EnsembleRowwiseAdagrad",
    "ExactAdagrad",
    "ExactSGD",
    "LarsSGD",
    "PartialRowwiseAdam",
    "PartialRowwiseLamb",
    "RowWiseAdagrad",
    "RowwiseAdagrad",
    "TbeAdam",
    "TbeLamb",
]
